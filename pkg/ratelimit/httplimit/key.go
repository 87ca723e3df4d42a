package httplimit

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// ErrNoKey means that a request has no usable key: a header is missing or repeated, or the address is unknown. Such
// requests are answered with 400, because requests without a key would share one bucket or have no limit.
var ErrNoKey = errors.New("the request has no key for the rate limit")

// KeyFunc appends the key of a request's bucket to key and returns it. An error that is ErrNoKey is answered with 400.
type KeyFunc func(r *http.Request, key []string) ([]string, error)

// By makes a KeyFunc of several: the key has the values of all of them.
func By(parts ...KeyFunc) KeyFunc {
	return func(r *http.Request, key []string) ([]string, error) {
		for _, part := range parts {
			var err error
			if key, err = part(r, key); err != nil {
				return nil, err
			}
		}
		return key, nil
	}
}

// ByValue makes a KeyFunc of a function that returns one value, such as the user from the request's context. The
// function reports whether there is one.
func ByValue(value func(r *http.Request) (string, bool)) KeyFunc {
	return func(r *http.Request, key []string) ([]string, error) {
		v, ok := value(r)
		if !ok {
			return nil, ErrNoKey
		}
		return append(key, v), nil
	}
}

// ByHeader makes a KeyFunc of a header, which must be present exactly once and not be empty. Surrounding blanks are
// removed. Clients choose their headers: use it for headers that a proxy sets, or that are verified.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return ByValue(func(r *http.Request) (string, bool) {
		lines := r.Header[name]
		if len(lines) != 1 {
			return "", false
		}
		value := strings.Trim(lines[0], " \t")
		return value, value != ""
	})
}

// ipv6Prefix is the length of the network of an IPv6 client. A client usually has a whole /64.
const ipv6Prefix = 64

// ByAddress makes a KeyFunc of the client's address. If the peer is one of the trusted proxies, the client is the
// rightmost address in X-Forwarded-For that is not trusted. IPv6 addresses are reduced to their /64 network.
func ByAddress(trusted ...netip.Prefix) KeyFunc {
	return ByValue(func(r *http.Request) (string, bool) {
		client, ok := clientOf(r, trusted)
		if !ok {
			return "", false
		}
		if client.Is6() {
			network, err := client.Prefix(ipv6Prefix)
			return network.String(), err == nil
		}
		return client.String(), true
	})
}

// clientOf returns the address of the client.
func clientOf(r *http.Request, trusted []netip.Prefix) (netip.Addr, bool) {
	peer, ok := address(r.RemoteAddr)
	if !ok {
		return netip.Addr{}, false
	}
	if !contains(trusted, peer) {
		return peer, true
	}
	hops := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	client := peer
	for i := len(hops) - 1; i >= 0; i-- {
		hop, ok := address(strings.Trim(hops[i], " \t"))
		if !ok { // no trusted proxy has verified what is further left
			break
		}
		if client = hop; !contains(trusted, hop) {
			break
		}
	}
	return client, true
}

// address parses an IP address with or without a port, and normalizes it.
func address(text string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return addr.Unmap().WithZone(""), err == nil
}

func contains(networks []netip.Prefix, addr netip.Addr) bool {
	for _, n := range networks {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}
