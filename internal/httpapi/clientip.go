package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// believed tells whether what the peer says of a request is believed.
func (a *asked) believed() bool {
	if local, ok := a.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		return a.auth.TrustUnix
	}
	peer, ok := a.peer()
	return ok && a.auth.Trusts(peer)
}

// peer is who asks; there is no address for who comes through a Unix socket.
func (a *asked) peer() (netip.Addr, bool) {
	p, err := netip.ParseAddrPort(a.r.RemoteAddr)
	return plain(p.Addr()), err == nil
}

// plain is the one form of an address.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// clientIP is the address of the client, or the network that stands for it: the peer, if nobody
// trusted says otherwise.
func (a *asked) clientIP() (string, bool) {
	addr, ok := a.client()
	switch {
	case !ok:
		return "", false
	case addr.Is6() && a.auth.IPv6Prefix < addr.BitLen():
		network, err := addr.Prefix(a.auth.IPv6Prefix)
		return network.String(), err == nil
	default:
		return addr.String(), true
	}
}

func (a *asked) client() (netip.Addr, bool) {
	peer, known := a.peer()
	if !a.trusted {
		return peer, known
	}
	said, isSaid := hop(a.header("X-Real-Ip"))
	if a.nginx && isSaid {
		return said, true
	}
	nearest, ok, untrusted := a.forwardedFor(peer, known)
	if isSaid && !untrusted { // Envoy, asking ext_authz, adds itself to X-Forwarded-For
		return said, true
	}
	return nearest, ok
}

// forwardedFor is the rightmost hop of X-Forwarded-For that is not trusted: the one to the right of
// it has seen it. Where all are trusted it is the leftmost, where there are none the peer. A hop
// that is no address ends the search: what is to the left of it nobody vouches for.
func (a *asked) forwardedFor(peer netip.Addr, known bool) (addr netip.Addr, ok, untrusted bool) {
	addr, ok = peer, known
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
				return addr, ok, true
			}
			if addr, ok = next, true; !a.auth.Trusts(addr) {
				return addr, true, true
			}
		}
	}
	return addr, ok, false
}

// hop reads an address, which may have a port.
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
