package simulate

import (
	"net/http"
	"net/netip"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
)

// routes makes the descriptors of a line of an access log as /v1/auth does for the request in the line.
type routes struct {
	auth    *limiter.Auth
	request routing.Request
	headers []string // canonical names, indexed by field - firstHeader
	// unrouted means that the last line matched no route, or that none of the route's descriptors could be made. The
	// default of auth then decides, unless the domain requires an entry.
	unrouted bool
	// repeated means that /v1/auth denies the last line, whatever its limits are: see routing.Repeated.
	repeated bool
	// leftOut counts descriptors for which a line had no value.
	leftOut int64
}

// RouteTemplates returns Templates that make descriptors with the routes of auth. A value that the log does not contain
// counts as missing in the request.
func RouteTemplates(format Format, auth *limiter.Auth) Templates {
	t := Templates{format: format, routes: &routes{auth: auth, request: routing.Request{Header: map[string][]string{}}}}
	want := func(name string) {
		name = http.CanonicalHeaderKey(name)
		if _, seen := t.routes.request.Header[name]; !seen && name != "" {
			t.headers = append(t.headers, headerName(name))
			t.routes.headers = append(t.routes.headers, name)
			t.routes.request.Header[name] = nil
		}
	}
	for _, name := range []string{"Host", "Cookie", "Authorization"} {
		want(name)
	}
	for _, r := range auth.Routes {
		for _, h := range r.Headers {
			want(h.Name)
		}
		for _, entries := range r.Descriptors {
			for _, e := range entries {
				if e.From == limiter.FromHeader {
					want(e.Name)
				}
			}
		}
	}
	return t
}

// apply adds the descriptors of r's route to c. It adds none for a line that is not a request.
func (s *routes) apply(r record, c *limiter.Call) {
	if s.unrouted, s.repeated = false, false; r[method] == "" {
		return
	}
	q := &s.request
	q.Method, q.Query, q.Fragment = r[method], r[query], r[fragment] != ""
	q.SetPath(r[path])
	q.Client, _ = netip.ParseAddr(r[host])
	q.Client = q.Client.Unmap().WithZone("")
	for i, name := range s.headers {
		if value := r[int(firstHeader)+i]; value != "" {
			q.Header[name] = append(q.Header[name][:0], value)
		} else {
			q.Header[name] = q.Header[name][:0]
		}
	}
	q.Host = ""
	if lines := q.Header["Host"]; len(lines) > 0 {
		q.Host = routing.HostName(lines[0])
	}
	route := routing.Find(s.auth, q)
	if s.repeated = routing.Repeated(s.auth, route, q) != ""; s.repeated {
		return
	}
	if route == nil {
		s.unrouted = true
		return
	}
	routing.Fill(c, s.auth, route, q)
	s.leftOut += int64(len(route.Descriptors) - len(c.Descriptors))
	s.unrouted = len(c.Descriptors) == 0
}
