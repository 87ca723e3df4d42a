package limiter

import (
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
)

// Auth configures auth requests: which limits apply to a request that a proxy describes to the HTTP listener.
// It is immutable.
type Auth struct {
	// Trusted has the addresses of proxies whose headers are trusted.
	Trusted []netip.Prefix
	// TrustUnix means that all peers on a Unix socket are trusted.
	TrustUnix bool
	// IPv6Prefix is the number of bits of an IPv6 address that identify a client; 128 means all.
	IPv6Prefix int
	// Allow is the answer if no route matches, or if none of the route's descriptors can be made.
	Allow bool
	// Routes are tried in order; the first match applies.
	Routes []Route
}

// Trusts reports whether the headers of a peer at addr are trusted.
func (a *Auth) Trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, p := range a.Trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// Route has the descriptors for the requests that match it.
type Route struct {
	// Place is where the route is in the configuration, as file:line.
	Place string
	// Path is compared with a request's normalized path. With PathPrefix, it is compared with the start of
	// that path. "" matches any path.
	Path       string
	PathPrefix bool
	// Ignore lists the differences between paths that the application behind the route ignores. Paths are
	// folded accordingly before they are compared, and before they become values. Path is folded, too.
	Ignore canonical.Ignore
	// Method and Host (lower case, without port) are compared exactly. "" matches any.
	Method, Host string
	// Headers must all match.
	Headers []HeaderMatch

	Domain string
	Hits   int64
	// DryRun makes the request a dry run of Hits units.
	DryRun      bool
	Descriptors [][]AuthEntry
}

// MatchesPath reports whether the path, folded by r.Ignore, matches r.
func (r *Route) MatchesPath(folded string) bool {
	switch {
	case r.Path == "" || folded == r.Path:
		return true
	case !r.PathPrefix:
		return false
	default:
		// without trailing slashes, /api equals /api/, and so starts with the prefix /api/
		return strings.HasPrefix(folded, r.Path) || r.Ignore&canonical.IgnoreTrailingSlash != 0 && folded == strings.TrimSuffix(r.Path, "/")
	}
}

// HeaderMatch matches a header whose value is Value or, if Prefix, starts with it.
type HeaderMatch struct {
	Name   string // in canonical form
	Value  string
	Prefix bool
}

// AuthEntry is an entry of a descriptor, with the source of its value.
type AuthEntry struct {
	Key  string
	From AuthSource
	// Name is the name of the header, parameter, cookie or claim.
	Name string
	// Value is the value for FromValue.
	Value string
}

// Source returns the source of the value, in the form of the configuration.
func (e *AuthEntry) Source() string {
	if e.Name == "" {
		return e.From.String()
	}
	return e.From.String() + ":" + e.Name
}

// AuthSource is the kind of source of an entry's value.
type AuthSource uint8

const (
	FromValue AuthSource = iota // Value in the configuration
	FromClientIP
	FromClientNetwork // the network address with its length, as in Envoy's masked_remote_address
	FromMethod
	FromPath
	FromHost
	FromHeader
	FromQuery
	FromCookie
	FromJWT // a claim of the bearer token; the signature is not verified here
)

// String returns the name in the configuration.
func (f AuthSource) String() string {
	return [...]string{"value", "client_ip", "client_network", "method", "path", "host", "header", "query", "cookie", "jwt"}[f]
}
