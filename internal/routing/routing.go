// Package routing finds what the section auth of a configuration asks about a request: its route, and
// the descriptors made of what the request brings. What is in a Request is believed: whoever fills it
// in knows whom to believe.
package routing

import (
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/target"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Request is a request as a proxy received it. All of it but Client is bytes that a client chose.
type Request struct {
	Method string
	// Host in lower case, without port (HostName).
	Host string
	// Path in its one form (target.Path), and Query as it came.
	Path, Query string
	// Header by canonical name.
	Header map[string][]string
	// Client is its address; the zero Addr: not known.
	Client netip.Addr

	fold folded
}

// folded is the result of the last fold: routes mostly ignore the same.
type folded struct {
	path, result string
	ignore       target.Ignore
}

// path returns the path as a route sees it.
func (q *Request) path(ignore target.Ignore) string {
	switch f := &q.fold; {
	case ignore == 0:
		return q.Path
	case f.ignore != ignore || f.path != q.Path:
		*f = folded{q.Path, target.Fold(q.Path, ignore), ignore}
		fallthrough
	default:
		return f.result
	}
}

// HostName is host in lower case, without its port and a dot at the end.
func HostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return target.Lower(strings.TrimSuffix(host, "."))
}

// Find is the first route that matches; nil: none.
func Find(a *limiter.Auth, q *Request) *limiter.Route {
	for i := range a.Routes {
		if r := &a.Routes[i]; matches(r, q) {
			return r
		}
	}
	return nil
}

func matches(r *limiter.Route, q *Request) bool {
	if !matchesTarget(r, q) {
		return false
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		lines := q.Header[h.Name]
		if len(lines) == 0 || lines[0] != h.Value && (!h.Prefix || !strings.HasPrefix(lines[0], h.Value)) {
			return false
		}
	}
	return true
}

// matchesTarget reports whether all conditions of r but those on headers hold.
func matchesTarget(r *limiter.Route, q *Request) bool {
	return (r.Path == "" || r.MatchesPath(q.path(r.Ignore))) && (r.Method == "" || r.Method == q.Method) && (r.Host == "" || r.Host == q.Host)
}

// Repeated returns the source of a value that q has more than once, and that decides which limits
// apply: the condition of a route up to r, which is the result of Find, or a source of r. "" means
// there is none. Applications differ in which of the values they take, so a client could be counted
// by one value and served by the other.
func Repeated(a *limiter.Auth, r *limiter.Route, q *Request) string {
	for i := range a.Routes {
		one := &a.Routes[i]
		for j := range one.Headers {
			if name := one.Headers[j].Name; len(q.Header[name]) > 1 && matchesTarget(one, q) {
				return "header:" + name
			}
		}
		if one == r {
			break
		}
	}
	if r == nil {
		return ""
	}
	for _, entries := range r.Descriptors {
		for i := range entries {
			if e := &entries[i]; repeats(e, q) {
				return e.Source()
			}
		}
	}
	return ""
}

// repeats reports whether the source of e has more than one value. Browsers send cookies of one name
// for several paths, so a cookie may be repeated with the same value.
func repeats(e *limiter.AuthEntry, q *Request) bool {
	switch e.From { //nolint:exhaustive // the others have one value
	case limiter.FromHeader:
		return len(q.Header[e.Name]) > 1
	case limiter.FromJWT:
		return len(q.Header["Authorization"]) > 1
	case limiter.FromCookie:
		return cookiesDiffer(q.Header["Cookie"], e.Name)
	default:
		return false
	}
}

// Fill makes c ask what r asks about q. A descriptor of which a value is missing is left out.
func Fill(c *limiter.Call, a *limiter.Auth, r *limiter.Route, q *Request) {
	c.Request.Domain, c.Look = r.Domain, r.Look
	for _, entries := range r.Descriptors {
		d := c.AddDescriptor()
		d.Cost = r.Hits
		for i := range entries {
			value, ok := Value(a, r, &entries[i], q)
			if !ok {
				c.Descriptors = c.Descriptors[:len(c.Descriptors)-1]
				break
			}
			d.Entries = append(d.Entries, descriptors.Entry{Key: entries[i].Key, Value: value})
		}
	}
}

// Value is what e's source says, e being of r; ok is false where it says nothing. Of several values
// the first counts, see Repeated.
func Value(a *limiter.Auth, r *limiter.Route, e *limiter.AuthEntry, q *Request) (value string, ok bool) {
	switch e.From {
	case limiter.FromValue:
		return e.Value, true
	case limiter.FromClientIP:
		return clientNetwork(q.Client, a.IPv6Prefix)
	case limiter.FromClientNetwork:
		return maskedClient(q.Client, a.IPv6Prefix)
	case limiter.FromMethod:
		return q.Method, true
	case limiter.FromPath:
		return q.path(r.Ignore), true
	case limiter.FromHost:
		return q.Host, q.Host != ""
	case limiter.FromHeader:
		if lines := q.Header[e.Name]; len(lines) > 0 {
			return lines[0], true
		}
		return "", false
	case limiter.FromQuery:
		return target.Query(q.Query, e.Name)
	case limiter.FromCookie:
		return cookie(q.Header["Cookie"], e.Name)
	case limiter.FromJWT:
		return claim(q.Header["Authorization"], e.Name)
	default:
		return "", false
	}
}

// clientNetwork is the address of a client, or the network that stands for it.
func clientNetwork(addr netip.Addr, ipv6Prefix int) (string, bool) {
	if addr.IsValid() && (addr.Is4() || ipv6Prefix >= addr.BitLen()) {
		return addr.String(), true
	}
	return maskedClient(addr, ipv6Prefix)
}

// maskedClient is the network that stands for a client, with its length, as Envoy's
// masked_remote_address writes it: 192.0.2.7/32, 2001:db8:1:2::/64.
func maskedClient(addr netip.Addr, ipv6Prefix int) (string, bool) {
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
