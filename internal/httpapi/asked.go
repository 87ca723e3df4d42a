package httpapi

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/target"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// asked is the request that a proxy asks about. All of it is bytes that a client chose, but for
// what a trusted proxy says.
type asked struct {
	r    *http.Request
	auth *limiter.Auth
	// nginx: X-Original-* and X-Real-IP are what the proxy says; else X-Forwarded-* are. The others
	// count where these are missing. Proxies that pass their clients' headers on (Traefik, Caddy)
	// replace X-Forwarded-* only, so that a client could send the others.
	nginx bool
	// trusted: what the proxy says is believed.
	trusted bool

	method, host, path, query string
}

// read finds what a.r is about. own is where it was asked below /v1/auth: Envoy's ext_authz appends
// its client's path there.
func (a *asked) read(own, ownQuery string) {
	a.trusted = a.believed()
	a.method, a.host = a.r.Method, a.r.Host
	a.path, a.query = own, ownQuery
	if a.trusted {
		if uri := a.said("X-Original-Uri", "X-Forwarded-Uri"); uri != "" {
			a.path, a.query = target.Split(uri)
		}
		if method := a.said("X-Original-Method", "X-Forwarded-Method"); method != "" {
			a.method = method
		}
		if host := a.header("X-Forwarded-Host"); host != "" {
			a.host = strings.TrimSpace(host[strings.LastIndexByte(host, ',')+1:])
		}
	}
	if a.path == "" {
		a.path = "/"
	}
	a.path, a.host = target.Path(a.path), hostName(a.host)
}

// said is what the proxy says in one of its headers, in the order of its kind.
func (a *asked) said(original, forwarded string) string {
	if !a.nginx {
		original, forwarded = forwarded, original
	}
	if s := a.header(original); s != "" {
		return s
	}
	return a.header(forwarded)
}

// header is the last line of a header that a proxy sets: one that appends to its client's comes last.
func (a *asked) header(name string) string {
	if lines := a.r.Header[name]; len(lines) > 0 {
		return lines[len(lines)-1]
	}
	return ""
}

// hostName is host in lower case, without its port and a dot at the end.
func hostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// route is the first that matches; nil: none.
func (a *asked) route() *limiter.Route {
	for i := range a.auth.Routes {
		if r := &a.auth.Routes[i]; a.matches(r) {
			return r
		}
	}
	return nil
}

func (a *asked) matches(r *limiter.Route) bool {
	switch {
	case r.PathPrefix && !strings.HasPrefix(a.path, r.Path):
		return false
	case !r.PathPrefix && r.Path != "" && r.Path != a.path:
		return false
	case r.Method != "" && r.Method != a.method:
		return false
	case r.Host != "" && r.Host != a.host:
		return false
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		lines := a.r.Header[h.Name]
		if len(lines) == 0 || lines[0] != h.Value && (!h.Prefix || !strings.HasPrefix(lines[0], h.Value)) {
			return false
		}
	}
	return true
}

// fill makes the descriptors of route. One of which a value is missing is left out.
func (a *asked) fill(c *limiter.Call, route *limiter.Route) {
	for _, entries := range route.Descriptors {
		d := c.AddDescriptor()
		d.Cost = route.Hits
		for i := range entries {
			value, ok := a.value(&entries[i])
			if !ok {
				c.Descriptors = c.Descriptors[:len(c.Descriptors)-1]
				break
			}
			d.Entries = append(d.Entries, descriptors.Entry{Key: entries[i].Key, Value: value})
		}
	}
}

// value is what e's source says; ok is false where it says nothing. Of several values the first
// counts.
func (a *asked) value(e *limiter.AuthEntry) (value string, ok bool) {
	switch e.From {
	case limiter.FromValue:
		return e.Value, true
	case limiter.FromClientIP:
		return a.clientIP()
	case limiter.FromMethod:
		return a.method, true
	case limiter.FromPath:
		return a.path, true
	case limiter.FromHost:
		return a.host, a.host != ""
	case limiter.FromHeader:
		if lines := a.r.Header[e.Name]; len(lines) > 0 {
			return lines[0], true
		}
		return "", false
	case limiter.FromQuery:
		return target.Query(a.query, e.Name)
	case limiter.FromCookie:
		return cookie(a.r.Header["Cookie"], e.Name)
	case limiter.FromJWT:
		return claim(a.r.Header["Authorization"], e.Name)
	default:
		return "", false
	}
}

// cookie is the first of that name.
func cookie(lines []string, name string) (value string, ok bool) {
	for _, line := range lines {
		for line != "" {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			key, value, is := strings.Cut(strings.Trim(pair, " \t"), "=")
			if !is || strings.TrimRight(key, " \t") != name {
				continue
			}
			value = strings.TrimLeft(value, " \t")
			if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' { // as good as without
				value = value[1 : n-1]
			}
			return value, true
		}
	}
	return "", false
}

// claim is a claim of the bearer token. Nobody has checked its signature here.
func claim(lines []string, name string) (value string, ok bool) {
	const scheme = "bearer "
	if len(lines) == 0 || len(lines[0]) < len(scheme) || !strings.EqualFold(lines[0][:len(scheme)], scheme) {
		return "", false
	}
	_, rest, _ := strings.Cut(strings.TrimLeft(lines[0][len(scheme):], " "), ".")
	payload, _, signed := strings.Cut(rest, ".")
	if !signed {
		return "", false
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(payload, "="))
	if err != nil {
		return "", false
	}
	var claims map[string]json.RawMessage
	if json.Unmarshal(text, &claims) != nil {
		return "", false
	}
	raw := claims[name]
	switch {
	case len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || string(raw) == "null":
		return "", false
	case raw[0] == '"':
		return value, json.Unmarshal(raw, &value) == nil
	default:
		return string(raw), true
	}
}
