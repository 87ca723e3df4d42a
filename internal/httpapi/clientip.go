package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// believe sets peer and trusted.
func (a *asked) believe() {
	if local, ok := a.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		a.trusted = a.auth.TrustUnix
		return
	}
	if p, err := netip.ParseAddrPort(a.r.RemoteAddr); err == nil {
		a.peer = plain(p.Addr())
		a.trusted = a.auth.Trusts(a.peer)
	}
}

// plain returns the normalized form of an address.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// client returns the address of the client. It is the peer, unless a trusted proxy names another address.
func (a *asked) client() netip.Addr {
	if !a.trusted {
		return a.peer
	}
	said, isSaid := hop(a.header("X-Real-Ip"))
	if a.nginx && isSaid {
		return said
	}
	nearest, untrusted := a.forwardedFor()
	if isSaid && !untrusted { // with ext_authz, Envoy appends its own address to X-Forwarded-For
		return said
	}
	return nearest
}

// forwardedFor returns the rightmost hop of X-Forwarded-For that is not trusted: the trusted hop to its right has
// added it. If all hops are trusted, it returns the leftmost, and without hops the peer. A hop that is not an
// address ends the search, because no trusted proxy has added the hops to its left.
func (a *asked) forwardedFor() (addr netip.Addr, untrusted bool) {
	addr = a.peer
	for _, line := range slices.Backward(a.r.Header["X-Forwarded-For"]) {
		for rest, more := line, true; more; {
			var text string
			at := strings.LastIndexByte(rest, ',')
			text, rest, more = rest[at+1:], rest[:max(at, 0)], at >= 0
			if text = strings.Trim(text, " \t"); text == "" {
				continue
			}
			next, is := hop(text)
			if !is {
				return addr, true
			}
			if addr = next; !a.auth.Trusts(addr) {
				return addr, true
			}
		}
	}
	return addr, false
}

// hop parses an address with an optional port.
func hop(text string) (netip.Addr, bool) {
	text = strings.Trim(text, " \t")
	if addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err == nil {
		return plain(addr), true
	}
	if p, err := netip.ParseAddrPort(text); err == nil {
		return plain(p.Addr()), true
	}
	return netip.Addr{}, false
}
