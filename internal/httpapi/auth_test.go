package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

var authSnapshot = configtest.Compile

type refusals []string

func (r *refusals) Refused(reason string) { *r = append(*r, reason) }

func authHandler(tb testing.TB, yaml string) (*Auth, *refusals) {
	tb.Helper()
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{})
	l.Swap(authSnapshot(tb, yaml))
	r := &refusals{}
	return &Auth{Limiter: l, Observer: r, Headers: HeaderSets{IETF: true, X: true}, Log: zap.NewNop()}, r
}

type echo struct {
	snapshot    *limiter.Snapshot
	descriptors []string
}

func (e *echo) Current() *limiter.Snapshot { return e.snapshot }

func (e *echo) ReturnSlots(string, limiter.SlotReporter) algorithms.Micros { return 0 }

func (e *echo) Check(_ context.Context, c *limiter.Call) error {
	c.Verdict.Domain = e.snapshot.Domains[c.Request.Domain]
	for _, d := range c.Descriptors {
		var text strings.Builder
		fmt.Fprintf(&text, "%s %d", c.Request.Domain, d.Cost)
		if c.DryRun {
			text.WriteString(" look")
		}
		for _, entry := range d.Entries {
			fmt.Fprintf(&text, " %s=%q", entry.Key, entry.Value)
		}
		e.descriptors = append(e.descriptors, text.String())
	}
	return nil
}

// put sends a request to h. line is "METHOD target"; headers have the form "Name: value". The peer "@" is a client of a
// Unix socket.
func put(h http.Handler, peer, line string, headers ...string) *httptest.ResponseRecorder {
	method, target, _ := strings.Cut(line, " ")
	r := httptest.NewRequest(method, "/", nil)
	r.RequestURI, r.RemoteAddr = target, peer
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Add(name, value)
		}
	}
	local := net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080})
	if peer == "@" {
		local = &net.UnixAddr{Net: "unix", Name: "@x"}
	}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func (d *Auth) handler() http.Handler { return d.before(http.NotFoundHandler()) }

const (
	proxy   = "127.0.0.1:4711" // a trusted proxy
	foreign = "203.0.113.9:4711"
)

const sources = `
domain: d
auth:
  trusted_proxies: [127.0.0.1, 10.0.0.0/8, unix]
  routes:
    - {match: {path: /login, method: POST}, hits: 3, descriptors: [[{key: route, value: login}]]}
    - {match: {path: /api/*, host: api.test}, domain: other, descriptors: [[{key: route, value: api}]]}
    - {match: {path: /looks*}, check: true, descriptors: [[{key: route, value: look}]]}
    - {match: {"header:X-Kind": web*, "header:X-Flag": "1"}, descriptors: [[{key: route, value: web}]]}
    - descriptors:
        - [{key: m, from: method}, {key: p, from: path}, {key: h, from: host}]
        - [{key: user, from: "header:X-User"}]
        - [{key: user, from: "header:X-User"}, {key: q, from: "query:api_key"}]
        - [{key: sid, from: "cookie:sid"}]
        - [{key: sub, from: "jwt:sub"}]
---
domain: other
`

func jwt(payload string) string {
	return "Authorization: Bearer e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestRequestsOfProxiesAreRead(t *testing.T) {
	nothing := func(method, path, host string) string { return fmt.Sprintf("d 1 m=%q p=%q h=%q", method, path, host) }
	plain := nothing("GET", "/x", "example.com")
	for _, c := range []struct {
		name, peer, line string
		headers          []string
		want             []string
	}{
		{"no headers", proxy, "GET /v1/auth", nil, []string{nothing("GET", "/", "example.com")}},
		{"nginx", proxy, "GET /v1/auth/nginx", []string{"X-Original-URI: /x?y", "X-Original-Method: PUT", "X-Forwarded-Host: A.test:80"}, []string{nothing("PUT", "/x", "a.test")}},
		{"forwarded", proxy, "GET /v1/auth?evil=1", []string{"X-Forwarded-Uri: /x", "X-Forwarded-Method: PUT"}, []string{nothing("PUT", "/x", "example.com")}},
		{"a proxy that passes on what its client sent as X-Original", proxy, "GET /v1/auth", []string{"X-Forwarded-Uri: /x", "X-Original-URI: /y", "X-Forwarded-Method: GET", "X-Original-Method: PUT"}, []string{plain}},
		{"one that passes on what its client sent as X-Forwarded", proxy, "GET /v1/auth/nginx", []string{"X-Forwarded-Uri: /y", "X-Original-URI: /x", "X-Forwarded-Method: PUT", "X-Original-Method: GET"}, []string{plain}},
		{"one that appends", proxy, "GET /v1/auth/nginx", []string{"X-Original-URI: /y", "X-Original-URI: /x"}, []string{plain}},
		{"through a socket", "@", "GET /v1/auth/nginx", []string{"X-Original-URI: /x"}, []string{plain}},
		{"headers of other addresses are ignored", foreign, "PUT /v1/auth/x", []string{"X-Original-URI: /y", "X-Original-Method: GET", "X-Forwarded-Host: b", "Host: c.test."}, []string{nothing("PUT", "/x", "c.test")}},
		{"ext_authz appends its client's path", foreign, "POST /v1/auth/x/../login?a=b", nil, []string{`d 3 route="login"`}},
		{"a path that looks like nginx's", foreign, "GET /v1/auth/nginx/x", nil, []string{nothing("GET", "/nginx/x", "example.com")}},
		{"dots that lead out", foreign, "GET /v1/auth/../../json", nil, []string{nothing("GET", "/json", "example.com")}},
		{"an absolute target", foreign, "GET http://h/v1/auth/x", nil, []string{plain}},

		{"spellings of a path", proxy, "GET /v1/auth/nginx", []string{"X-Original-Method: POST", "X-Original-URI: //a/%2e%2e/%6Cogin?x"}, []string{`d 3 route="login"`}},
		{"another method", proxy, "GET /v1/auth/nginx", []string{"X-Original-Method: PATCH", "X-Original-URI: /login"}, []string{nothing("PATCH", "/login", "example.com")}},
		{"a longer path", proxy, "POST /v1/auth/nginx", []string{"X-Original-URI: /login/"}, []string{nothing("POST", "/login/", "example.com")}},
		{"a prefix and a host", proxy, "GET /v1/auth/nginx", []string{"X-Original-URI: /api/v1", "Host: API.test:8443"}, []string{`other 1 route="api"`}},
		{"of several hosts the last", proxy, "GET /v1/auth/x", []string{"X-Forwarded-Host: evil.test, a.test"}, []string{nothing("GET", "/x", "a.test")}},
		{"look", proxy, "GET /v1/auth/looks", nil, []string{`d 1 look route="look"`}},
		{"headers match", proxy, "GET /v1/auth/x", []string{"X-Kind: web2", "X-Flag: 1"}, []string{`d 1 route="web"`}},

		{"a header", proxy, "GET /v1/auth/x", []string{"X-User: bob"}, []string{plain, `d 1 user="bob"`}},
		{"bytes", proxy, "GET /v1/auth/x?api_key=%0d%0a%00%ff%26a%3Db&b=2", []string{"X-User: a\xff"},
			[]string{plain, `d 1 user="a\xff"`, `d 1 user="a\xff" q="\r\n\x00\xff&a=b"`}},
		{"a cookie", proxy, "GET /v1/auth/x", []string{"Cookie: a=b; xsid=1;sid=\"s=1\"; sid=s=1"}, []string{plain, `d 1 sid="s=1"`}},
		{"a second line of cookies", proxy, "GET /v1/auth/x", []string{"Cookie: a=sid", "Cookie: sid = 2"}, []string{plain, `d 1 sid="2"`}},
		{"a claim", proxy, "GET /v1/auth/x", []string{jwt(`{"sub":"b\u00f6b"}`)}, []string{plain, `d 1 sub="böb"`}},
	} {
		e := &echo{snapshot: authSnapshot(t, sources)}
		w := put((&Auth{Limiter: e, Observer: &refusals{}, Log: zap.NewNop()}).handler(), c.peer, c.line, c.headers...)
		if got, want := strings.Join(e.descriptors, "\n"), strings.Join(c.want, "\n"); got != want || w.Code != 200 {
			t.Errorf("%s: %d\n%s\nwant\n%s", c.name, w.Code, got, want)
		}
	}
}

// Proxies and applications can use different lines of a repeated header. A client could then be counted under
// one value and served under the other. NGINX forwards a target with "#" unchanged, and ignores what follows the "#". An
// application in Go does not: it reads the parameter tenant of /?a#&tenant=acme, and resolves /#/../login to /login.
func TestDecidingHeadersMustNotBeRepeated(t *testing.T) {
	for _, c := range []struct {
		name    string
		headers []string
		denied  bool
	}{
		{"a key", []string{"X-User: bob", "X-User: eve"}, true},
		{"the same key", []string{"X-User: bob", "X-User: bob"}, true},
		{"a condition", []string{"X-Kind: web2", "X-Flag: 0", "X-Flag: 1"}, true},
		{"a cookie", []string{"Cookie: sid=1; sid=2"}, true},
		{"a cookie, in two lines", []string{"Cookie: sid=1", "Cookie: sid=2"}, true},
		{"the same cookie", []string{"Cookie: sid=1; sid=1"}, false},
		{"the same cookie in other spellings", []string{`Cookie: sid=1; sid=%31; sid="%2531"`}, false},
		{"a cookie that some applications decode", []string{`Cookie: sid="\061"`}, true},
		{"a cookie that some applications find in another one", []string{"Cookie: a=b sid=1"}, true},
		{"a token", []string{jwt(`{"sub":"a"}`), jwt(`{"sub":"b"}`)}, true},
		{"a header that no route looks at", []string{"X-Other: 1", "X-Other: 2"}, false},
		{"a fragment", []string{"X-Forwarded-Uri: /?a#&api_key=1", "X-Original-URI: /?a#&api_key=1"}, true},
		{"a fragment after a key", []string{"X-Forwarded-Uri: /?api_key=1#2", "X-Original-URI: /?api_key=1#2"}, true},
		{"a fragment with dots", []string{"X-Forwarded-Uri: /#/../login", "X-Original-URI: /#/../login"}, true},
		{"an empty fragment", []string{"X-Forwarded-Uri: /login#", "X-Original-URI: /login#"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := map[bool]string{false: "200 ", true: "429 repeated"}[c.denied]
			for _, allow := range []bool{false, true} { // "default: allow" must not apply here
				e, refused := &echo{snapshot: authSnapshot(t, sources)}, &refusals{}
				e.snapshot.Auth.Allow = allow
				h := (&Auth{Limiter: e, Observer: refused, Log: zap.NewNop()}).handler()
				if w := put(h, proxy, "GET /v1/auth", c.headers...); fmt.Sprint(w.Code, " ", reason(w)) != want {
					t.Errorf("got %d %q; want %s", w.Code, reason(w), want)
				}
				if c.denied && (len(e.descriptors) > 0 || len(*refused) != 1 || (*refused)[0] != Repeated) {
					t.Errorf("the limiter got %q, refused %q; want no call, and one refusal as repeated", e.descriptors, *refused)
				}
				w := put(h, proxy, "GET /v1/auth/nginx", append([]string{"X-Original-URI: /x"}, c.headers...)...)
				if c.denied && (w.Code != http.StatusForbidden || w.Body.Len() > 0) {
					t.Errorf("NGINX: got %d %s; want status 403 without a body", w.Code, w.Body)
				}
			}
		})
	}
	d, refused := authHandler(t, sources)
	if w := put(d.handler(), proxy, "GET /v1/auth/?a#&api_key=1"); reason(w) != reasonRepeated || len(*refused) != 1 {
		t.Errorf("a fragment in an appended target: got %d %q; want a denial as repeated", w.Code, reason(w))
	}
}

func TestOnlyPathsBelowThePrefixAreServed(t *testing.T) {
	d, _ := authHandler(t, sources)
	for target, mine := range map[string]bool{
		"/v1/auth": true, "/v1/auth/": true, "/v1/auth?x": true, "/v1/auth//x": true, "/v1/auth/../x": true, "/v1/auth#/x": true,
		"/v1/authx": false, "/v1/aut": false, "/v1/auth%2fx": false, "/x/../v1/auth": false, "//v1/auth": false, "*": false,
	} {
		next := false
		h := d.before(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { next = true }))
		if put(h, proxy, "GET "+target); next == mine {
			t.Errorf("%s: passed to the next handler: %t, want %t", target, next, !mine)
		}
	}
}

func TestClientIP(t *testing.T) {
	const nginx, other = "/v1/auth/nginx", "/v1/auth"
	for _, c := range []struct {
		name, path, peer string
		headers          []string
		want             string
	}{
		{"no headers", nginx, proxy, nil, "127.0.0.1"},
		{"a peer that is not trusted is the client", nginx, foreign, []string{"X-Real-IP: 1.2.3.4", "X-Forwarded-For: 1.2.3.4"}, "203.0.113.9"},
		{"X-Real-IP", nginx, proxy, []string{"X-Real-IP: 1.2.3.4"}, "1.2.3.4"},
		{"nginx sets it, its client the other", nginx, proxy, []string{"X-Real-IP: 1.2.3.4", "X-Forwarded-For: 6.6.6.6"}, "1.2.3.4"},
		{"Caddy sets the other, its client this", other, proxy, []string{"X-Real-IP: 6.6.6.6", "X-Forwarded-For: 1.2.3.4"}, "1.2.3.4"},
		{"Envoy adds itself", other, proxy, []string{"X-Real-IP: 1.2.3.4", "X-Forwarded-For: 127.0.0.1"}, "1.2.3.4"},
		{"appended, after the client's", nginx, proxy, []string{"X-Real-IP: 6.6.6.6", "X-Real-IP: 1.2.3.4"}, "1.2.3.4"},
		{"no address", nginx, proxy, []string{"X-Real-IP: unix:", "X-Forwarded-For: 1.2.3.4"}, "1.2.3.4"},
		{"rightmost that is not trusted", other, proxy, []string{"X-Forwarded-For: 6.6.6.6, 1.2.3.4,10.1.1.1 , 127.0.0.1"}, "1.2.3.4"},
		{"addresses before an invalid one are ignored", other, proxy, []string{"X-Real-IP: 6.6.6.6", "X-Forwarded-For: 6.6.6.6, unknown, 10.1.1.1"}, "10.1.1.1"},
		{"IPv6 is a network", nginx, proxy, []string{"X-Real-IP: 2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"},
		{"a peer of IPv4 in IPv6", nginx, "[::ffff:127.0.0.1]:80", []string{"X-Real-IP: 1.2.3.4"}, "1.2.3.4"},
		{"through a socket", nginx, "@", []string{"X-Real-IP: 1.2.3.4"}, "1.2.3.4"},
		{"through a socket, hops", other, "@", []string{"X-Forwarded-For: 6.6.6.6, 1.2.3.4"}, "1.2.3.4"},
		{"through a socket, no headers", nginx, "@", nil, ""},
		{"control bytes", nginx, proxy, []string{"X-Real-IP: 1.2.3.4\r\n"}, "127.0.0.1"},
	} {
		e := &echo{snapshot: authSnapshot(t, `
domain: d
auth: {trusted_proxies: [127.0.0.1, 10.0.0.0/8, unix], routes: [{descriptors: [[{key: ip, from: client_ip}]]}]}
`)}
		w := put((&Auth{Limiter: e, Observer: &refusals{}, Log: zap.NewNop()}).handler(), c.peer, "GET "+c.path, c.headers...)
		want := fmt.Sprintf("[d 1 ip=%q]", c.want)
		if c.want == "" {
			want = "[]"
		}
		if got := fmt.Sprint(e.descriptors); got != want || (c.want == "") == (w.Code == 200) {
			t.Errorf("%s: %d %s, want %s", c.name, w.Code, got, want)
		}
	}
	e := &echo{snapshot: authSnapshot(t, "domain: d\nauth: {ipv6_prefix: 128, routes: [{descriptors: [[{key: ip, from: client_ip}]]}]}")}
	if put((&Auth{Limiter: e, Observer: &refusals{}, Log: zap.NewNop()}).handler(), "[2001:db8::1]:80", "GET /v1/auth"); fmt.Sprint(e.descriptors) != `[d 1 ip="2001:db8::1"]` {
		t.Errorf("got %s; want the address 2001:db8::1", e.descriptors)
	}
	if put((&Auth{Limiter: e, Observer: &refusals{}, Log: zap.NewNop()}).handler(), "@", "GET /v1/auth", "X-Real-IP: 1.2.3.4"); len(e.descriptors) != 1 {
		t.Errorf("X-Real-IP from a socket that is not trusted was used: %s; want no descriptor with it", e.descriptors)
	}
}

// If the configuration names no proxy, no peer may be trusted: neither this machine, nor clients of a Unix
// socket.
func TestNoProxyIsTrustedByDefault(t *testing.T) {
	forged := []string{
		"X-Real-IP: 6.6.6.6", "X-Forwarded-For: 6.6.6.6", "X-Original-URI: /y", "X-Forwarded-Uri: /y",
		"X-Original-Method: PUT", "X-Forwarded-Method: PUT", "X-Forwarded-Host: evil.test",
		"Forwarded: for=6.6.6.6", "X-Client-IP: 6.6.6.6", "True-Client-IP: 6.6.6.6", "Via: evil.test",
	}
	for _, path := range []string{"/v1/auth/x", "/v1/auth/nginx"} {
		for peer, want := range map[string]string{"127.0.0.1:80": "127.0.0.1", "[::1]:80": "::/64", foreign: "203.0.113.9", "@": ""} {
			e := &echo{snapshot: authSnapshot(t, `
domain: d
auth: {routes: [{descriptors: [[{key: m, from: method}, {key: p, from: path}, {key: h, from: host}], [{key: ip, from: client_ip}]]}]}
`)}
			put((&Auth{Limiter: e, Observer: &refusals{}, Log: zap.NewNop()}).handler(), peer, "GET "+path, forged...)
			own := map[string]string{"/v1/auth/x": "/x", "/v1/auth/nginx": "/nginx"}[path]
			all := []string{fmt.Sprintf("d 1 m=%q p=%q h=%q", "GET", own, "example.com")}
			if want != "" {
				all = append(all, fmt.Sprintf("d 1 ip=%q", want))
			}
			if got := strings.Join(e.descriptors, "\n"); got != strings.Join(all, "\n") {
				t.Errorf("%s sends %s: got\n%s\nwant %s", peer, path, got, all)
			}
		}
	}
}

const limits = `
domain: d
limits:
  pair: {algorithm: token_bucket, rate: 2, period: 1m}
  big: {algorithm: fixed_window, rate: 100, period: 1h, start: 2000-01-01T00:00:00Z}
  never: {algorithm: token_bucket, rate: 2, period: 1m}
  quiet: {algorithm: token_bucket, rate: 1, period: 1h, shadow_mode: true}
  half: {algorithm: token_bucket, rate: 2, period: 3s, capacity: 1}
descriptors:
  - {key: a, limit: [pair, big, quiet]}
  - {key: half, limit: half}
  - {key: n, limit: never}
  - {key: u, rate_limit: {unit: second, requests_per_unit: 7}}
  - {key: odd, rate_limit: {name: "q\"\\ü\r", unit: second, requests_per_unit: 7}}
  - {key: free, rate_limit: {unlimited: true}}
auth:
  routes:
    - {match: {path: /a}, descriptors: [[{key: a, from: "header:X-Key"}]]}
    - {match: {path: /half}, descriptors: [[{key: half, value: x}]]}
    - {match: {path: /never}, hits: 3, descriptors: [[{key: n, value: x}]]}
    - {match: {path: /unnamed}, descriptors: [[{key: u, value: x}]]}
    - {match: {path: /odd}, descriptors: [[{key: odd, value: x}]]}
    - {match: {path: /free}, descriptors: [[{key: free, value: x}]]}
    - {match: {path: /unlimited}, descriptors: [[{key: nobody, value: x}]]}
`

// outcomeOf returns the headers of an answer, in a fixed order. If the answer has other headers too, it adds all
// headers once more.
func outcomeOf(w *httptest.ResponseRecorder) string {
	var list []string
	for _, name := range []string{"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After", "X-RateLimit-Reason", "X-RateLimit-Denied-By", "Content-Length", "Content-Type"} {
		if values, ok := w.Header()[name]; ok {
			list = append(list, name+"="+strings.Join(values, "|"))
		}
	}
	if n := len(w.Header()); n != len(list) {
		list = append(list, fmt.Sprint(w.Header()))
	}
	return strings.Join(list, " ")
}

// sent returns a header with its spelling on the wire, which http.Header.Get does not find.
func sent(w *httptest.ResponseRecorder, name string) string {
	return strings.Join(w.Header()[name], "|")
}

func reason(w *httptest.ResponseRecorder) string { return sent(w, "X-RateLimit-Reason") }

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a synctest bubble starts at 2000-01-01T00:00:00Z
		d, refused := authHandler(t, limits)
		h := d.handler()
		const policies = `RateLimit-Policy="pair";q=2;w=60, "big";q=100;w=3600 `
		const body = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429`
		for i, c := range []struct {
			line      string
			code      int
			outcomeOf string
			body      string
		}{
			{"GET /v1/auth/a", 200, policies + `RateLimit="pair";r=1;t=30 X-RateLimit-Limit=2 X-RateLimit-Remaining=1 X-RateLimit-Reset=30 Content-Length=0`, ""},
			{"HEAD /v1/auth/a", 200, policies + `RateLimit="pair";r=0;t=60 X-RateLimit-Limit=2 X-RateLimit-Remaining=0 X-RateLimit-Reset=60 Content-Length=0`, ""},
			{"GET /v1/auth/a", 429, policies + `RateLimit="pair";r=0;t=30 X-RateLimit-Limit=2 X-RateLimit-Remaining=0 X-RateLimit-Reset=30 Retry-After=30 X-RateLimit-Reason=limit Content-Length=213 Content-Type=application/problem+json`,
				body + `,"detail":"Rate limit reached for \"pair\". Please try again in 30s.","violated-policies":["pair"]}` + "\n"},
			{"HEAD /v1/auth/a", 429, policies + `RateLimit="pair";r=0;t=30 X-RateLimit-Limit=2 X-RateLimit-Remaining=0 X-RateLimit-Reset=30 Retry-After=30 X-RateLimit-Reason=limit Content-Length=213 Content-Type=application/problem+json`, ""},
			{"GET /v1/auth/never", 429, `RateLimit-Policy="never";q=2;w=60 RateLimit="never";r=2 X-RateLimit-Limit=2 X-RateLimit-Remaining=2 X-RateLimit-Reason=never Content-Length=213 Content-Type=application/problem+json`,
				body + `,"detail":"The request needs more than limit \"never\" ever allows.","violated-policies":["never"]}` + "\n"},
			{"HEAD /v1/auth/half", 200, `RateLimit-Policy="half";q=1 RateLimit="half";r=0;t=2 X-RateLimit-Limit=1 X-RateLimit-Remaining=0 X-RateLimit-Reset=2 Content-Length=0`, ""},
			// A wait of 1.5 s is rounded up, because a retry after 1 s would be too early.
			{"HEAD /v1/auth/half", 429, `RateLimit-Policy="half";q=1 RateLimit="half";r=0;t=2 X-RateLimit-Limit=1 X-RateLimit-Remaining=0 X-RateLimit-Reset=2 Retry-After=2 X-RateLimit-Reason=limit Content-Length=212 Content-Type=application/problem+json`, ""},
			{"GET /v1/auth/unnamed", 200, `RateLimit-Policy="limit-11";q=7;w=1 RateLimit="limit-11";r=6;t=1 X-RateLimit-Limit=7 X-RateLimit-Remaining=6 X-RateLimit-Reset=1 Content-Length=0`, ""},
			{"GET /v1/auth/odd", 200, `RateLimit-Policy="q\"\\___";q=7;w=1 RateLimit="q\"\\___";r=6;t=1 X-RateLimit-Limit=7 X-RateLimit-Remaining=6 X-RateLimit-Reset=1 Content-Length=0`, ""},
			{"GET /v1/auth/free", 200, `Content-Length=0`, ""},
			{"GET /v1/auth/unlimited", 200, `Content-Length=0`, ""},
			{"GET /v1/auth/elsewhere", 429, `X-RateLimit-Reason=no-route Content-Length=115 Content-Type=application/problem+json`, body + "}\n"},
		} {
			w := put(h, foreign, c.line, "X-Key: k")
			if w.Code != c.code || outcomeOf(w) != c.outcomeOf || w.Body.String() != c.body {
				t.Errorf("%d: %s: %d\n%s\n%q\nwant %d\n%s\n%q", i, c.line, w.Code, outcomeOf(w), w.Body, c.code, c.outcomeOf, c.body)
			}
			if c.body != "" && !json.Valid(w.Body.Bytes()) {
				t.Errorf("%d: the body is not JSON", i)
			}
		}
		if w := put(h, foreign, "GET /v1/auth/a"); w.Code != 429 || reason(w) != "no-route" {
			t.Errorf("no descriptor is left: got %d %v; want status 429 with the reason no-route", w.Code, w.Header())
		}
		if got := fmt.Sprint(*refused); got != "[auth_no_route auth_no_descriptor]" {
			t.Errorf("got %v; want [auth_no_route auth_no_descriptor]", got)
		}

		w := put(h, foreign, "GET /v1/auth/nginx")
		if w.Code != 403 || w.Body.Len() > 0 || outcomeOf(w) != "X-RateLimit-Reason=no-route Content-Length=0" {
			t.Errorf("got %d %s; want status 403 with the reason no-route, without a body", w.Code, outcomeOf(w))
		}
		if w := put(h, foreign, "GET /v1/auth/nginx/x", "X-Original-URI: /"); w.Code != 403 {
			t.Errorf("a longer path: got %d; want status 403", w.Code)
		}
		if w := put(h, foreign, "GET /v1/auth/nginx/x"); w.Code != 429 {
			t.Errorf("a client's path: got %d; want status 429", w.Code)
		}
	})
}

func TestHeaderSetsAreChosen(t *testing.T) {
	const ietf, x, after = `RateLimit-Policy="pair";q=2;w=60 RateLimit="pair";r=1;t=30 `, `X-RateLimit-Limit=2 X-RateLimit-Remaining=1 X-RateLimit-Reset=30 `, `Retry-After=30 `
	for sets, want := range map[string]string{
		"ietf":                   ietf,
		"x":                      x,
		"retry_after":            after,
		"none":                   "",
		"[none]":                 "",
		"[x, ietf]":              ietf + x,
		"[retry_after, ietf]":    ietf + after,
		"[ietf, x, retry_after]": ietf + x + after,
	} {
		synctest.Test(t, func(t *testing.T) {
			const file = `
domain: d
http_headers: %s
limits: {pair: {algorithm: token_bucket, rate: 2, period: 1m}}
descriptors: [{key: a, limit: pair}]
auth: {routes: [{hits: 2, descriptors: [[{key: a, value: x}]]}]}
`
			d, _ := authHandler(t, fmt.Sprintf(file, sets))
			put(d.handler(), proxy, "GET /v1/auth/nginx")
			time.Sleep(30 * time.Second)
			if w := put(d.handler(), proxy, "GET /v1/auth/nginx"); w.Code != 403 || outcomeOf(w) != want+"X-RateLimit-Reason=limit X-RateLimit-Denied-By=pair Content-Length=0" {
				t.Errorf("%s: got %d %s; want status 403 with %sX-RateLimit-Reason=limit", sets, w.Code, outcomeOf(w), want)
			}
			d, _ = authHandler(t, strings.Replace(fmt.Sprintf(file, sets), "http_headers", "# ", 1)) // the default of the listener applies
			d.Headers = HeaderSets{X: true, NoRetryAfter: true}
			if w := put(d.handler(), proxy, "GET /v1/auth/nginx"); outcomeOf(w) != "X-RateLimit-Limit=2 X-RateLimit-Remaining=0 X-RateLimit-Reset=60 Content-Length=0" {
				t.Errorf("the domain has no http_headers: got %s; want the headers of Auth.Headers", outcomeOf(w))
			}
		})
	}
}

type stub struct {
	snapshot *limiter.Snapshot
	check    func(*limiter.Call) error
}

func (s stub) Current() *limiter.Snapshot                                 { return s.snapshot }
func (s stub) Check(_ context.Context, c *limiter.Call) error             { return s.check(c) }
func (s stub) ReturnSlots(string, limiter.SlotReporter) algorithms.Micros { return 0 }

func (s stub) handler() (*Auth, *refusals) {
	r := &refusals{}
	return &Auth{Limiter: s, Observer: r, Log: zap.NewNop()}, r
}

// reloading replaces each configuration that it returns by next.
type reloading struct {
	*limiter.Limiter
	next *limiter.Snapshot
}

func (r reloading) Current() *limiter.Snapshot {
	defer r.Swap(r.next)
	return r.Limiter.Current()
}

func TestAReloadAfterTheRouteWasFoundFindsItAgain(t *testing.T) {
	const yaml = "domain: %s\nauth: {routes: [{descriptors: [[{key: a, from: method}]]}]}\n" +
		"descriptors: [{key: a, rate_limit: {algorithm: token_bucket, rate: 1, period: 1m}}]"
	d, _ := authHandler(t, fmt.Sprintf(yaml, "before"))
	d.Limiter = reloading{d.Limiter.(*limiter.Limiter), authSnapshot(t, fmt.Sprintf(yaml, "after"))}
	for _, code := range []int{200, 429} {
		if w := put(d.handler(), proxy, "GET /v1/auth"); w.Code != code {
			t.Errorf("got %d, want %d", w.Code, code)
		}
	}
}

func TestWithoutLimits(t *testing.T) {
	const yaml = "domain: d\nauth: {default: allow, routes: [{match: {path: /x}, descriptors: [[{key: a, value: b}], [{key: a, from: \"header:No\"}]]}]}"
	allow := authSnapshot(t, yaml)
	for _, c := range []struct {
		name     string
		snapshot *limiter.Snapshot
		path     string
		check    func(*limiter.Call) error
		code     int
		reason   string
		refused  string
	}{
		{"no configuration", nil, "/x", nil, 503, "", "[]"},
		{"no configuration any more", allow, "/x", func(*limiter.Call) error { return limiter.ErrNoConfig }, 503, "", "[]"},
		{"no auth", authSnapshot(t, "domain: d"), "/x", nil, 429, "no-route", "[auth_not_configured]"},
		{"no route, with default allow", allow, "/y", nil, 200, "no-route", "[auth_no_route]"},
		{"a panic denies", allow, "/x", func(*limiter.Call) error { panic("oops") }, 429, "internal-error", "[panic]"},
		{"an error", allow, "/x", func(c *limiter.Call) error {
			c.Verdict.Domain, c.Err, c.Denied = allow.Domains["d"], errors.New("away"), true
			return nil
		}, 503, "backend-failure", "[]"},
	} {
		d, refused := stub{c.snapshot, c.check}.handler()
		for range 2 { // the second time with reused buffers
			w := put(d.handler(), proxy, "GET /v1/auth"+c.path)
			if w.Code != c.code || reason(w) != c.reason {
				t.Errorf("%s: got %d %q; want %d %q", c.name, w.Code, reason(w), c.code, c.reason)
			}
			problem := map[string]string{reasonPanic: "#temporary-reduced-capacity", reasonNoRoute: "#quota-exceeded"}[c.reason]
			if w.Code == 429 && (!json.Valid(w.Body.Bytes()) || !strings.Contains(w.Body.String(), problem)) {
				t.Errorf("%s: got the body %s; want the problem %s", c.name, w.Body, problem)
			}
		}
		if len(*refused) > 0 {
			*refused = (*refused)[1:]
		}
		if got := fmt.Sprint(*refused); got != c.refused {
			t.Errorf("%s: got %s; want %s", c.name, got, c.refused)
		}
	}
}

const turns = `
domain: d
limits: {jobs: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 50, max_delay: 5s}}
descriptors: [{key: a, limit: jobs}]
auth: {routes: [{descriptors: [[{key: a, value: b}]]}]}
`

func TestRequestsAreDelayedUntilTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := authHandler(t, turns)
		start := time.Now()
		for i := range 3 {
			if w := put(d.handler(), proxy, "GET /v1/auth"); w.Code != 200 {
				t.Fatalf("got %v; want status 200", w.Code)
			}
			if waited := time.Since(start); waited.Round(time.Millisecond) != time.Duration(i)*time.Second {
				t.Errorf("answer %d after %v; want %d s", i, waited, i)
			}
		}
		for range 5 {
			go put(d.handler(), proxy, "GET /v1/auth")
			synctest.Wait()
		}
		if n := d.delays.Waiting(); n != 5 {
			t.Errorf("%d answers are held; want 5", n)
		}
		if w := put(d.handler(), proxy, "GET /v1/auth"); w.Code != 429 || w.Header()["Retry-After"][0] != "1" {
			t.Errorf("a turn beyond max_delay: got %d %s; want status 429 with Retry-After 1", w.Code, outcomeOf(w))
		}
		time.Sleep(10 * time.Second)

		d.delays.Most = -1
		put(d.handler(), proxy, "GET /v1/auth")
		if w := put(d.handler(), proxy, "GET /v1/auth"); w.Code != 429 {
			t.Errorf("no room for a delayed answer: got %d; want status 429", w.Code)
		}
	})
	synctest.Test(t, func(t *testing.T) { // the client disconnects
		d, _ := authHandler(t, turns)
		put(d.handler(), proxy, "GET /v1/auth")
		ctx, cancel := context.WithCancel(t.Context())
		w, done := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(done)
			d.handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/v1/auth", nil))
		}()
		synctest.Wait()
		cancel()
		<-done
		if outcomeOf(w) != "" || d.delays.Waiting() != 0 {
			t.Errorf("a client that has disconnected got %q, and %d answers are held; want none", outcomeOf(w), d.delays.Waiting())
		}
	})
}

// FuzzAuth checks that every request gets an answer, which is a denial or comes from a limit, and that no
// bytes of the request are in it.
func FuzzAuth(f *testing.F) {
	f.Add("/a?api_key=%0d%0aX:%20y", "k", "1.2.3.4, garbage", "sid=\"", "Bearer a.e30.c", "h:80")
	f.Add("//x/../%2e%2e/a", "\xff", "::1%a,[::1]:1", ";=;", "bearer ..", "[::1]")
	s := authSnapshot(f, `
domain: d
limits: {l: {algorithm: token_bucket, rate: 1, period: 1s}}
descriptors: [{key: p, limit: l}, {key: ip, limit: l}, {key: o, descriptors: [{key: v, limit: l}]}]
auth:
  trusted_proxies: [127.0.0.0/8, "::1", unix]
  routes:
    - match: {path: /a*}
      descriptors: [[{key: p, from: path}], [{key: ip, from: client_ip}], [{key: o, from: host}, {key: v, from: "query:api_key"}]]
    - descriptors: [[{key: o, from: method}, {key: v, from: "header:X-User"}], [{key: o, value: c}, {key: v, from: "cookie:sid"}], [{key: o, value: j}, {key: v, from: "jwt:sub"}]]
`)
	l := limiter.New(memory.New(memory.Config{MaxKeys: 1000}), limiter.Config{})
	l.Swap(s)
	f.Fuzz(func(t *testing.T, uri, user, forwarded, cookies, token, host string) {
		const marker = "zq7injected"
		d := &Auth{Limiter: l, Observer: &refusals{}, Headers: HeaderSets{IETF: true, X: true}, Log: zap.NewNop()}
		for _, path := range []string{"/v1/auth", "/v1/auth/nginx"} {
			w := put(d.handler(), "127.0.0.1:1", "GET "+path, "X-Original-URI: "+uri+marker, "X-Forwarded-Uri: "+uri, "X-User: "+user+marker,
				"X-Forwarded-For: "+forwarded, "X-Real-IP: "+forwarded, "Cookie: "+cookies, "Authorization: "+token, "Host: "+host+marker)
			if w.Code != 200 && w.Code != 429 && w.Code != 403 {
				t.Errorf("got %d; want status 200, 403 or 429", w.Code)
			}
			if w.Code == 200 && sent(w, "RateLimit") == "" {
				t.Errorf("allowed without a limit: %v", w.Header())
			}
			var all strings.Builder
			_ = w.Header().Write(&all)
			if strings.Contains(all.String()+w.Body.String(), marker) {
				t.Errorf("the answer contains bytes of the client: %s %s", all.String(), w.Body)
			}
			if reason(w) == reasonPanic {
				t.Error("the handler panicked")
			}
		}
	})
}

// The domain requires an entry for which a request has no value. The request must be denied, whatever the
// default is.
func TestARequestWithoutARequiredEntryIsDenied(t *testing.T) {
	const config = `
domain: d
require: [user]
descriptors:
  - {key: route, rate_limit: {name: all, algorithm: token_bucket, rate: 5, period: 1m}}
  - {key: user, rate_limit: {name: per_user, algorithm: token_bucket, rate: 5, period: 1m}}
auth:
  trusted_proxies: [127.0.0.1]
  default: allow
  routes:
    - {match: {path: /both}, path_ignores: [], descriptors: [[{key: route, value: both}], [{key: user, from: "header:X-User"}]]}
    - {descriptors: [[{key: user, from: "header:X-User"}]]}
`
	d, refused := authHandler(t, config)
	for _, step := range []struct {
		path, user, body string
		code             int
	}{
		{"/both", "bob", "", 200},
		{"/both", "", `{"type":"urn:rlsidecar:problem:missing-descriptor","title":"The request lacks a value that is required","status":429}` + "\n", 429},
		{"/one", "bob", "", 200},
		{"/one", "", `{"type":"urn:rlsidecar:problem:missing-descriptor","title":"The request lacks a value that is required","status":429}` + "\n", 429},
	} {
		headers := []string{"X-Original-Method: GET", "X-Original-URI: " + step.path}
		if step.user != "" {
			headers = append(headers, "X-User: "+step.user)
		}
		w := put(d.handler(), proxy, "GET /v1/auth", headers...)
		reason, after := w.Header()["X-RateLimit-Reason"], w.Header()["Retry-After"]
		missing := len(reason) == 1 && reason[0] == "missing-descriptor"
		if w.Code != step.code || w.Body.String() != step.body || (step.code == 429) != missing || len(after) > 0 {
			t.Errorf("%s for user %q: %d, reason %q, Retry-After %q\n%s\nwant %d, the reason missing-descriptor if that is 429, no Retry-After, and\n%s",
				step.path, step.user, w.Code, reason, after, w.Body, step.code, step.body)
		}
	}
	if len(*refused) > 0 {
		t.Errorf("refused %v; want nothing, because the limiter answers these requests", *refused)
	}
	if w := put(d.handler(), proxy, "GET /v1/auth/nginx", "X-Original-Method: GET", "X-Original-URI: /one"); w.Code != 403 {
		t.Errorf("for NGINX: %d, want 403", w.Code)
	}
}

// Package clientreply tests all bodies and headers for SDKs.
func TestBodiesAndHeadersForSDKs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := authHandler(t, `
domain: ai
http_headers: [openai, retry_after]
deny_body: openai
descriptors: [{key: user, rate_limit: {name: calls, unit_name: requests, algorithm: token_bucket, rate: 1, period: 1m}}]
auth: {routes: [{descriptors: [[{key: user, value: bob}]]}]}
`)
		if w := put(d.handler(), proxy, "GET /v1/auth"); w.Code != 200 || sent(w, "x-ratelimit-reset-requests") != "1m0s" {
			t.Errorf("got %d %v; want status 200, and the headers of OpenAI", w.Code, w.Header())
		}
		w := put(d.handler(), proxy, "GET /v1/auth")
		if w.Code != 429 || sent(w, "retry-after-ms") != "60000" || w.Header().Get("Content-Type") != "application/json" || !strings.HasPrefix(w.Body.String(), `{"error":{"message":`) {
			t.Errorf("got %d %v %s; want status 429, and the headers and the error of OpenAI", w.Code, w.Header(), w.Body)
		}
	})
}

// A limit takes precedence over a failure of the store.
func TestTheReasonOfADenial(t *testing.T) {
	p := &limiter.Policy{Limit: &algorithms.Limit{}}
	for _, test := range []struct {
		verdict limiter.Verdict
		code    int
		reason  string
	}{
		{limiter.Verdict{}, 200, ""},
		{limiter.Verdict{Failed: true}, 200, reasonFailure},
		{limiter.Verdict{Denied: true, Failed: true, Results: []limiter.Result{{Policy: p, Outcome: limiter.FailedDenied}}}, 429, reasonFailure},
		{limiter.Verdict{Denied: true, Failed: true, Results: []limiter.Result{{Policy: p, Outcome: limiter.FailedDenied}, {Policy: p, Outcome: limiter.Denied}}}, 429, reasonLimit},
		{limiter.Verdict{Failed: true, Results: []limiter.Result{{Policy: p, Outcome: limiter.Denied}}}, 200, reasonFailure},
		{limiter.Verdict{Denied: true}, 429, reasonLimit},
		{limiter.Verdict{Denied: true, Never: true}, 429, reasonNever},
		{limiter.Verdict{Never: true}, 200, ""},
	} {
		if got := answerTo(&test.verdict); got.code != test.code || got.reason != test.reason {
			t.Errorf("%+v: got %d %q; want %d %q", test.verdict, got.code, got.reason, test.code, test.reason)
		}
	}
}
