// Package routing applies the section auth of a configuration to an HTTP request. It finds the route of the
// request, and creates the route's descriptors from the request's values. It trusts the content of a Request.
// The listener that fills in the Request decides which headers are trusted.
package routing

import (
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/clientip"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Request is a request as a proxy received it. All fields except Client contain bytes that the client chose.
type Request struct {
	// Method is compared, and used as a value, in capital letters, because some applications read post as POST.
	Method string
	// Host is in lower case and without a port; see HostName.
	Host string
	// Path is normalized by canonical.Path; see SetPath. Query is as the client sent it.
	Path, Query string
	// Fragment means that the target contains "#". Applications differ in whether they ignore what follows it, as
	// Path and Query do.
	Fragment bool
	// Header maps canonical names of headers to their values.
	Header map[string][]string
	// Client is the client's address. The zero Addr means that it is unknown.
	Client netip.Addr

	decoded string // the path before "//", "." and ".." were resolved
	fold    folded
}

// SetPath sets the path of q to that of a target.
func (q *Request) SetPath(path string) {
	q.decoded = canonical.Unescape(path)
	q.Path, q.fold = canonical.Resolve(q.decoded), folded{}
}

// folded caches the last result of canonical.Fold. That is enough, because most routes have the same
// path_ignores.
type folded struct {
	ignore canonical.Ignore
	path   string
	// unclear means that the path depends on whether ".." is resolved before or after an application ignores something:
	// /b/a/..;x/../login is /b/a/login or /login.
	unclear bool
}

// folded returns the path of q, folded by canonical.Fold.
func (q *Request) folded(ignore canonical.Ignore) folded {
	switch {
	case ignore == 0:
		return folded{path: q.Path}
	case q.fold.ignore != ignore:
		path := canonical.Fold(q.Path, ignore)
		q.fold = folded{ignore, path, q.decoded != q.Path && canonical.Fold(q.decoded, ignore) != path}
	}
	return q.fold
}

// HostName returns host in lower case, without port and trailing dot.
func HostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return canonical.Lower(strings.TrimSuffix(host, "."))
}

// Find returns the first route that matches, or nil.
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
		if len(lines) == 0 {
			return false
		}
		if value := canonical.Trim(lines[0]); value != h.Value && (!h.Prefix || !strings.HasPrefix(value, h.Value)) {
			return false
		}
	}
	return true
}

// matchesTarget reports whether all conditions of r hold, except those on headers.
func matchesTarget(r *limiter.Route, q *Request) bool {
	return r.MatchesPath(q.folded(r.Ignore).path) && (r.Method == "" || r.Method == strings.ToUpper(q.Method)) && (r.Host == "" || r.Host == q.Host)
}

// Repeated returns a header, cookie or parameter of the query that affects which limits apply and of which applications
// may read different values, in the notation of the configuration, such as "cookie:sid": a limit could count one value
// while the application uses another. It has several values in q, or is not clear; see cookies and parameters.
//
// It is the source of a value in r, or the header is a condition of a route whose path, method and host match. r is the
// result of Find. Only the conditions of the routes up to r count. If r is nil, those of all routes count. If the target
// contains "#", Repeated returns "#", and if its path is unclear, "path". If it finds nothing, it returns "".
func Repeated(a *limiter.Auth, r *limiter.Route, q *Request) string {
	if q.Fragment {
		return "#"
	}
	for i := range a.Routes {
		one := &a.Routes[i]
		if q.folded(one.Ignore).unclear {
			return limiter.FromPath.String()
		}
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

// repeats reports whether e reads a header that has several values in q, or a cookie or parameter that is not clear or
// has several values. A cookie may be repeated with the same value, because browsers send cookies of one name for
// several paths. So may a parameter.
func repeats(e *limiter.AuthEntry, q *Request) bool {
	switch e.From { // the other sources have one value
	case limiter.FromHeader:
		return len(q.Header[e.Name]) > 1
	case limiter.FromJWT:
		return len(q.Header["Authorization"]) > 1
	case limiter.FromCookie:
		return isAmbiguous(cookies(q.Header["Cookie"], e.Name))
	case limiter.FromQuery:
		return isAmbiguous(parameters(q.Query, e.Name))
	default:
		return false
	}
}

// Fill sets the domain of c and whether it is a dry run, and adds the descriptors of r with the values of q. It
// omits a descriptor if a value is missing. The answer to an auth request has no id.
func Fill(c *limiter.Call, a *limiter.Auth, r *limiter.Route, q *Request) {
	c.Request.Domain, c.DryRun = r.Domain, r.DryRun
	c.Unsettled = true
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

// Value returns the value of e, an entry of r, and reports whether q has it. If q has several values, Value
// returns the first; see Repeated.
func Value(a *limiter.Auth, r *limiter.Route, e *limiter.AuthEntry, q *Request) (value string, ok bool) {
	switch e.From {
	case limiter.FromValue:
		return e.Value, true
	case limiter.FromClientIP:
		return clientip.Key(q.Client, a.IPv6Prefix)
	case limiter.FromClientNetwork:
		return clientip.Network(q.Client, a.IPv6Prefix)
	case limiter.FromMethod:
		return strings.ToUpper(q.Method), true
	case limiter.FromPath:
		return q.folded(r.Ignore).path, true
	case limiter.FromHost:
		return q.Host, q.Host != ""
	case limiter.FromHeader:
		if lines := q.Header[e.Name]; len(lines) > 0 {
			return lines[0], true
		}
		return "", false
	case limiter.FromQuery:
		return first(parameters(q.Query, e.Name))
	case limiter.FromCookie:
		return first(cookies(q.Header["Cookie"], e.Name))
	case limiter.FromJWT:
		return claim(q.Header["Authorization"], e.Name)
	default:
		return "", false
	}
}
