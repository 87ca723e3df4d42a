package httplimit

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/clientip"
)

// ErrNoKey means that a request has no usable key: for example, a header is missing or repeated, or the address
// is unknown. Such requests are answered with 400. If they were allowed, they would share one bucket or have no
// limit.
var ErrNoKey = errors.New("the request has no key for the rate limit")

// KeyFunc appends the key of a request's bucket to key and returns it. If the error is ErrNoKey, the
// request is answered with 400, after other errors with 503.
type KeyFunc func(r *http.Request, key []string) ([]string, error)

// By combines KeyFuncs: the key has the values of all of them.
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

// ByValue returns a KeyFunc whose key is the result of value, such as the user from the request's context.
// value also reports whether the request has such a value.
func ByValue(value func(r *http.Request) (string, bool)) KeyFunc {
	return func(r *http.Request, key []string) ([]string, error) {
		v, ok := value(r)
		if !ok {
			return nil, ErrNoKey
		}
		return append(key, v), nil
	}
}

// ByHeader returns a KeyFunc whose key is a header. The header must be present exactly once and not be
// empty; surrounding blanks are removed. Clients choose their headers, so use it only for headers that a
// proxy sets, or that are verified.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return ByValue(func(r *http.Request) (string, bool) {
		lines := r.Header[name]
		if len(lines) != 1 {
			return "", false
		}
		value := strings.TrimSpace(lines[0])
		return value, value != ""
	})
}

// ipv6Prefix is the prefix length to which IPv6 addresses are reduced. A client usually has a whole /64.
const ipv6Prefix = 64

// ByAddress returns a KeyFunc whose key is the client's address. If the peer is one of the trusted proxies,
// the client is the rightmost address in X-Forwarded-For that is not trusted. If all are trusted, it is the
// leftmost one; without the header, it is the peer. Hops to the left of one that is not an address are ignored.
// IPv6 addresses are reduced to their /64 network.
func ByAddress(trusted ...netip.Prefix) KeyFunc {
	trusts := func(addr netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(n netip.Prefix) bool { return n.Contains(addr) })
	}
	return ByValue(func(r *http.Request) (string, bool) {
		client, ok := clientip.Peer(r.RemoteAddr)
		if ok && trusts(client) {
			client, _ = clientip.Forwarded(r.Header["X-Forwarded-For"], client, trusts)
		}
		return clientip.Key(client, ipv6Prefix)
	})
}
