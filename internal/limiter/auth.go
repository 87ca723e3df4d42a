package limiter

import (
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/target"
)

// Auth says which limits the HTTP listener checks for a request that a proxy describes to it. Immutable.
type Auth struct {
	// Trusted are the addresses of proxies: what they say of a request is believed.
	Trusted []netip.Prefix
	// TrustUnix: so is what comes through a Unix socket.
	TrustUnix bool
	// IPv6Prefix is how many bits of an IPv6 address are a client; 128: all.
	IPv6Prefix int
	// Allow is the answer where no route matches, or none of its descriptors can be made.
	Allow bool
	// Routes are tried in order; the first that matches is asked.
	Routes []Route
}

// Trusts reports whether what a peer at addr says is believed.
func (a *Auth) Trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, p := range a.Trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// Route is what is asked for the requests that it matches.
type Route struct {
	// Place is where it is written, file:line.
	Place string
	// Path is compared with a request's path in its one form; as a prefix if PathPrefix. "": any.
	Path       string
	PathPrefix bool
	// Ignore is what the application behind the route ignores in paths: they are folded before they
	// are compared and become values. Path is folded.
	Ignore target.Ignore
	// Method and Host (lower case, without a port) are compared as they are; "": any.
	Method, Host string
	// Headers must all match.
	Headers []HeaderMatch

	Domain string
	Hits   int64
	// Look: Hits are not taken.
	Look        bool
	Descriptors [][]AuthEntry
}

// MatchesPath reports whether the condition of r on the path holds for a path that is folded by r.Ignore.
func (r *Route) MatchesPath(folded string) bool {
	switch {
	case r.Path == "" || folded == r.Path:
		return true
	case !r.PathPrefix:
		return false
	default:
		// Where a trailing slash is ignored, /api is /api/, which starts with /api/.
		return strings.HasPrefix(folded, r.Path) || r.Ignore&target.IgnoreTrailingSlash != 0 && folded == strings.TrimSuffix(r.Path, "/")
	}
}

// HeaderMatch asks for a header with a value that is Value, or starts with it if Prefix.
type HeaderMatch struct {
	Name   string // canonical
	Value  string
	Prefix bool
}

// AuthEntry is one entry of a descriptor, and where its value comes from.
type AuthEntry struct {
	Key  string
	From AuthSource
	// Name is that of the header, parameter, cookie or claim.
	Name string
	// Value is FromValue's.
	Value string
}

// Source is where the value comes from, as it is written in the configuration.
func (e *AuthEntry) Source() string {
	if e.Name == "" {
		return e.From.String()
	}
	return e.From.String() + ":" + e.Name
}

// AuthSource is where the value of an entry comes from.
type AuthSource uint8

// The sources.
const (
	FromValue AuthSource = iota // it is written in the configuration
	FromClientIP
	FromClientNetwork // always with its length, as Envoy's masked_remote_address
	FromMethod
	FromPath
	FromHost
	FromHeader
	FromQuery
	FromCookie
	FromJWT // a claim of the bearer token, whose signature nobody has checked here
)

// String is its name in the configuration.
func (f AuthSource) String() string {
	return [...]string{"value", "client_ip", "client_network", "method", "path", "host", "header", "query", "cookie", "jwt"}[f]
}
