// Package clientip finds and normalizes the addresses of clients. It does no I/O. Callers decide which
// proxies they trust.
package clientip

import (
	"net/netip"
	"slices"
	"strings"
)

// Plain returns the normalized form of an address: without a zone, and as IPv4 if it is IPv4 inside IPv6.
func Plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Peer parses the address of a connection, host:port. It returns false for other addresses, such as those of
// Unix sockets.
func Peer(remote string) (netip.Addr, bool) {
	p, err := netip.ParseAddrPort(remote)
	return Plain(p.Addr()), err == nil
}

// Hop parses an address with an optional port, as it occurs in X-Forwarded-For.
func Hop(text string) (netip.Addr, bool) {
	text = strings.Trim(text, " \t")
	if addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err == nil {
		return Plain(addr), true
	}
	return Peer(text)
}

// Forwarded returns the address of the client, from the lines of X-Forwarded-For. The client is the rightmost
// hop that is not trusted, because the trusted hop to the right of it has added it. If all hops are trusted,
// the client is the leftmost hop. Without hops, the client is the peer. The peer must be trusted.
//
// A hop that is not an address ends the search, because no trusted proxy has added the hops to the left of it. The
// client is then the hop to its right or, without one, the peer. untrusted reports whether the search ended at a hop
// that is not trusted or is not an address.
func Forwarded(lines []string, peer netip.Addr, trusts func(netip.Addr) bool) (addr netip.Addr, untrusted bool) {
	addr = peer
	for _, line := range slices.Backward(lines) {
		for rest, more := line, true; more; {
			var text string
			at := strings.LastIndexByte(rest, ',')
			text, rest, more = rest[at+1:], rest[:max(at, 0)], at >= 0
			if text = strings.Trim(text, " \t"); text == "" {
				continue
			}
			next, is := Hop(text)
			if !is {
				return addr, true
			}
			if addr = next; !trusts(addr) {
				return addr, true
			}
		}
	}
	return addr, false
}

// Network returns the network of a client with its length, in the notation of Envoy's masked_remote_address:
// 192.0.2.7/32, 2001:db8:1:2::/64. An IPv6 address is reduced to ipv6Prefix bits. Network returns false for
// the zero Addr.
func Network(addr netip.Addr, ipv6Prefix int) (string, bool) {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = min(bits, ipv6Prefix)
	}
	network, err := addr.Prefix(bits)
	if err != nil || !addr.IsValid() {
		return "", false
	}
	return network.String(), true
}

// Key returns the text that identifies a client: its address or, for IPv6 with an ipv6Prefix that is shorter
// than the address, its Network. Key returns false for the zero Addr.
func Key(addr netip.Addr, ipv6Prefix int) (string, bool) {
	if addr.IsValid() && (addr.Is4() || ipv6Prefix >= addr.BitLen()) {
		return addr.String(), true
	}
	return Network(addr, ipv6Prefix)
}
