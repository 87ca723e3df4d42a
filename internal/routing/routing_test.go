package routing

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"unicode"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
)

func auth(tb testing.TB, yaml string) *limiter.Auth {
	tb.Helper()
	return configtest.Compile(tb, "domain: d\nauth:\n"+yaml+"\n---\ndomain: other\n").Auth
}

// request returns a Request for "METHOD TARGET" and headers ("Name: value"), as a proxy would pass them on.
func request(line string, headers ...string) *Request {
	method, uri, _ := strings.Cut(line, " ")
	path, query := canonical.Split(uri)
	q := &Request{Method: method, Query: query, Header: http.Header{}}
	q.SetPath(path)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			q.Host = HostName(value)
		} else {
			http.Header(q.Header).Add(name, value)
		}
	}
	return q
}

func TestHostName(t *testing.T) {
	for host, want := range map[string]string{
		"": "", "a.test": "a.test", "A.Test": "a.test", "a.test:80": "a.test", "a.test.": "a.test", "a.test.:80": "a.test",
		"[::1]": "[::1]", "[::1]:80": "[::1]", "[2001:DB8::1]:80": "[2001:db8::1]", "a.test:": "a.test", ":80": "", ".": "",
		"a.test\r\nx": "a.test\r\nx", "\xff.TEST": "\xff.test", "\u212a.Test": "\u212a.test",
	} {
		if got := HostName(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}

func TestTheFirstMatchingRouteApplies(t *testing.T) {
	a := auth(t, `
  routes:
    - {match: {path: /login, method: POST}, descriptors: [[{key: r, value: "1"}]]}
    - {match: {path: /login}, descriptors: [[{key: r, value: "2"}]]}
    - {match: {path: /api/*, host: api.test}, descriptors: [[{key: r, value: "3"}]]}
    - {match: {"header:X-Kind": web*, "header:X-Flag": "1"}, descriptors: [[{key: r, value: "4"}]]}
    - {match: {path: /api/*}, descriptors: [[{key: r, value: "5"}]]}
`)
	for _, c := range []struct {
		line    string
		headers string // separated by |
		want    string // the value of the route; "" means no route
	}{
		{"POST /login", "", "1"},
		{"GET /login", "", "2"},
		{"pOsT /login", "", "1"}, // some applications read it as POST
		{"POST /login?next=/", "", "1"},
		{"POST /login#top", "", "1"},
		{"POST /x/%2e%2e/%6Cogin", "", "1"},
		{"POST /login/", "", ""}, // another path
		{"POST /Login", "", ""},  // another path too
		{"POST /login%0d%0a", "", ""},
		{"POST /loginx", "", ""},
		{"GET /api/", "Host: api.test", "3"},
		{"GET /api/x", "Host: API.TEST:8443", "3"},
		{"GET /api/x", "Host: api.test.evil", "5"},
		{"GET /api/x", "Host: evil.api.test", "5"},
		{"GET /api/x", "", "5"},
		{"GET /api", "Host: api.test", ""},
		{"GET /apix", "", ""},
		{"GET /x/../api/../api/y", "", "5"},
		{"GET /api/../x", "", ""}, // dots lead out of the prefix
		{"GET /x", "X-Kind: web|X-Flag: 1", "4"},
		{"GET /x", "X-Kind: website|X-Flag: 1", "4"},
		{"GET /x", "x-kind: web|x-flag: 1", "4"}, // header names are case-insensitive
		{"GET /x", "X-Kind: we|X-Flag: 1", ""},
		{"GET /x", "X-Kind: web|X-Flag: 11", ""},
		{"GET /x", "X-Kind: web", ""},
		{"GET /x", "X-Kind: web|X-Flag: 2|X-Flag: 1", ""}, // of several lines, the first counts
		{"GET /x", "X-Kind: web|X-Flag: 1|X-Flag: 2", "4"},
		{"GET /x", "X-Kind: \xa0web|X-Flag: 1\xa0", "4"}, // applications remove blanks, too
		{"OPTIONS *", "", ""},
	} {
		got := ""
		if r := Find(a, request(c.line, strings.Split(c.headers, "|")...)); r != nil {
			got = r.Descriptors[0][0].Value
		}
		if got != c.want {
			t.Errorf("%s (%s): route %q, want %q", c.line, c.headers, got, c.want)
		}
	}
}

func TestPathIgnoresOfRoutes(t *testing.T) {
	a := auth(t, `
  routes:
    - {match: {path: /login}, path_ignores: [case, trailing_slash, parameters, backslash], descriptors: [[{key: login, from: path}]]}
    - {match: {path: /case}, path_ignores: [case], descriptors: [[{key: case, from: path}]]}
    - {match: {path: /api/*}, path_ignores: [case, trailing_slash, parameters], descriptors: [[{key: api, from: path}]]}
    - descriptors: [[{key: other, from: path}]]
`)
	for line, want := range map[string]string{
		"GET /login": "login /login", "GET /LOGIN": "login /login", "GET /login/": "login /login", "GET /login;x": "login /login",
		`GET \login`: "login /login", `GET /\LogIn;a=b/`: "login /login", "GET /%4cogin%2f": "login /login", "GET /login%3bx": "login /login",
		"GET /x;/..;/login": "login /login", "GET /x%5c..%5clogin": "login /login", "GET /login/.": "login /login",
		"GET /loginx": "other /loginx", "GET /login/x": "other /login/x", "GET /LoginX": "other /LoginX",
		"GET /CASE": "case /case", "GET /case/": "other /case/", "GET /CASE;x": "other /CASE;x",
		"GET /api": "api /api", "GET /API/": "api /api", "GET /Api;v=2/Users/": "api /api/users", "GET /apis": "other /apis", `GET /api\x`: `other /api\x`,
	} {
		q := request(line)
		var call limiter.Call
		Fill(&call, a, Find(a, q), q)
		entry := call.Descriptors[0].Entries[0]
		if got := entry.Key + " " + entry.Value; got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func TestRepeated(t *testing.T) {
	a := auth(t, `
  routes:
    - {match: {path: /kind, "header:X-Kind": web}, descriptors: [[{key: k, value: "1"}]]}
    - {match: {path: /user, "header:X-Team": a}, descriptors: [[{key: k, value: "1"}]]}
    - {match: {path: /user}, descriptors: [[{key: k, value: "1"}], [{key: k, value: "1"}, {key: user, from: "header:X-User"}]]}
    - {match: {path: /cookie}, descriptors: [[{key: sid, from: "cookie:sid"}]]}
    - {match: {path: /query}, descriptors: [[{key: k, from: "query:api_key"}]]}
    - {match: {path: /jwt}, descriptors: [[{key: sub, from: "jwt:sub"}]]}
    - {match: {path: /free}, descriptors: [[{key: k, value: "1"}]]}
    - {match: {path: /free, "header:X-Later": "1"}, descriptors: [[{key: k, value: "1"}]]}
    - {match: {path: /b/tomcat}, path_ignores: [parameters], descriptors: [[{key: k, value: "1"}]]}
    - {match: {path: /b/iis}, path_ignores: [backslash], descriptors: [[{key: k, value: "1"}]]}
    - {match: {path: /x, "header:X-A": "1"}, descriptors: [[{key: k, value: "1"}]]}
    - {match: {path: /x, "header:X-B": "1"}, descriptors: [[{key: k, value: "2"}]]}
    - {match: {path: /x, "header:X-C": "1"}, descriptors: [[{key: k, value: "3"}]]}
`)
	for _, c := range []struct{ line, headers, want string }{
		{"GET /free", "X-Later: 1|X-Later: 1", ""}, // an earlier route applies, whatever the header is
		{"GET /kind", "X-Kind: web", ""},
		{"GET /kind", "X-Kind: app|X-Kind: web", "header:X-Kind"},
		{"GET /kind", "X-Kind: web|X-Kind: app", "header:X-Kind"},
		{"GET /user", "X-Kind: app|X-Kind: web", ""},          // no route for this path has that condition
		{"GET /user", "X-Team: b|X-Team: a", "header:X-Team"}, // the second route would match the other value
		{"GET /user", "X-User: bob", ""},
		{"GET /user", "X-User: bob|X-User: eve", "header:X-User"},
		{"GET /user", "x-user: bob|X-USER: bob", "header:X-User"},
		{"GET /user", "X-User: bob|X-User: ", "header:X-User"},
		{"GET /free", "X-User: bob|X-User: eve", ""},
		{"GET /cookie", "Cookie: sid=1; a=b; sid=1", ""},
		{"GET /cookie", "Cookie: sid=1; sid=2", "cookie:sid"},
		{"GET /cookie", "Cookie: sid=1|Cookie: sid = 2", "cookie:sid"},
		{"GET /cookie", "Cookie: sid=1; SID=1; xsid=3; sid", ""},
		{"GET /cookie", "Cookie: sid=1; SID=2", "cookie:sid"}, // one cookie to ASP.NET, which also skips what is not valid
		{"GET /cookie", `Cookie: \sid=1`, "cookie:sid"},
		{"GET /cookie", "Cookie: sid=1; a}\xe9Sid=2", "cookie:sid"},
		{"GET /cookie", "Cookie: sid=2\xe9sid==", "cookie:sid"},
		{"GET /cookie", "Cookie: a= \x85sid=1", "cookie:sid"},
		{"GET /cookie", "Cookie: a=1,%73id=2", "cookie:sid"},
		{"GET /cookie", "Cookie: a=/?sid=2; b==sid=2; c=()[]{}<>@:sid=2", ""},
		{"GET /cookie", "Cookie: sid=; sid=2", "cookie:sid"},
		{"GET /cookie", "Cookie: sid=1; sid=%31; sid=%2531; %73id=1", ""},
		{"GET /cookie", `Cookie: sid=1; sid="\061"`, "cookie:sid"},
		{"GET /cookie", "Cookie: sid=1 x", "cookie:sid"},
		{"GET /cookie", "Cookie: a=b sid=1", "cookie:sid"},
		{"GET /cookie", "Cookie: a=b,sid =1", "cookie:sid"},
		{"GET /cookie", `Cookie: a="; sid=2; b=" sid=1`, "cookie:sid"},
		{"GET /cookie", `Cookie: a="; sid=2; b="sid=1`, "cookie:sid"},
		{"GET /cookie", "Cookie: a=xsid=1; b=sid; c=the sid is", ""},
		{"GET /query?api_key=a+b&q=1&q=2;x&api_key=a%20b&API_KEY=a%20b", "", ""},
		{"GET /query?api_key=a&api_key=b", "", "query:api_key"}, // PHP reads the last
		{"GET /query?api_key=a&%41pi_key=b", "", "query:api_key"},
		{"GET /query?api_key=a&api.key=b", "", "query:api_key"},
		{"GET /query?api_key=a&+api_key", "", "query:api_key"},
		{"GET /query?api_key=a&api_key%00x=b", "", "query:api_key"},
		{"GET /query?api_key=a;b", "", "query:api_key"}, // a;b, or a where ; separates parameters
		{"GET /query?x=1;api_key=a", "", "query:api_key"},
		{"GET /free?api_key=a&api_key=b", "", ""},
		{"GET /jwt", token(`{"sub":"bob"}`), ""},
		{"GET /jwt", token(`{"sub":"bob"}`) + "|Authorization: Basic x", "jwt:sub"},
		{"GET /nowhere", "X-Kind: web|X-Kind: web", ""},
		{"GET /b/x/..;y/tomcat", "", ""},
		{"GET /b/x/y;/../../tomcat", "", ""},
		{"GET /b/x/..;y/%2e%2E/tomcat", "", "path"}, // /b/x/tomcat or /tomcat
		{"GET /a/b/..;y/../b/tomcat", "", "path"},
		{`GET /b\x/../iis`, "", "path"}, // /iis or /b/iis
		{`GET /b/x\../iis`, "", ""},
		{`GET /a\x/../free`, "", ""}, // no route up to this one ignores anything
		{`GET /a\x/../x`, "X-C: 1", "path"},
		{`GET /b\.//iis`, "", ""},
		{"GET /x", "X-C: 1|X-A: 2|X-A: 3", "header:X-A"},
		{"GET /x", "X-C: 1|X-B: 2|X-B: 3", "header:X-B"},
		{"GET /x", "X-C: 1|X-C: 2", "header:X-C"},
		{"GET /x", "X-B: 1|X-C: 1|X-C: 2", ""},
		{"GET /x", "X-B: 2|X-B: 2", "header:X-B"},
		{"GET /x", "X-C: 2|X-C: 2", "header:X-C"},
	} {
		q := request(c.line, strings.Split(c.headers, "|")...)
		if got := Repeated(a, Find(a, q), q); got != c.want {
			t.Errorf("%s (%s): %q, want %q", c.line, c.headers, got, c.want)
		}
		if q.Fragment = true; Repeated(a, Find(a, q), q) != "#" {
			t.Errorf("%s (%s), with a # in the target: %q, want #", c.line, c.headers, Repeated(a, Find(a, q), q))
		}
	}
}

func token(payload string) string {
	return "Authorization: Bearer e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestARequestWithAnotherPath(t *testing.T) {
	a := auth(t, `
  routes:
    - {match: {path: /login}, path_ignores: [case], descriptors: [[{key: k, from: path}]]}
    - {path_ignores: [trailing_slash], descriptors: [[{key: k, from: path}]]}
`)
	q := request("GET /LOGIN")
	for _, c := range []struct{ path, want string }{{"/LOGIN", "/login"}, {"/Other/", "/Other"}, {"/Login", "/login"}, {"/LOGIN/", "/LOGIN"}} {
		q.SetPath(c.path)
		r := Find(a, q)
		if got, ok := Value(a, r, &r.Descriptors[0][0], q); !ok || got != c.want {
			t.Errorf("%s: got %s %t, want %s", c.path, got, ok, c.want)
		}
	}
}

// TestValues also checks that a value keeps all its bytes: no decoded byte, such as a line break or "&", ends the
// value or starts another one.
func TestValues(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	const none = "(nothing)"
	for _, c := range []struct {
		from, line string
		headers    string // separated by |
		want       string
	}{
		{"value: v&=%0d", "GET /", "", "v&=%0d"},
		{"from: method", "patch /", "", "PATCH"},
		{"from: host", "GET /", "Host: A.test:80", "a.test"},
		{"from: host", "GET /", "", none},

		{"from: path", "GET /a/../b?c=d#e", "", "/b"},
		{"from: path", "GET /b%26k%3Dv", "", "/b&k=v"},
		{"from: path", "GET /b%0d%0aX-User:%20eve", "", "/b\r\nX-User: eve"},
		{"from: path", "GET /" + long, "", "/" + long},

		{"from: header:X-User", "GET /", "X-User: bob", "bob"},
		{"from: header:x-user", "GET /", "X-USER: bob", "bob"},
		{"from: header:X-User", "GET /", "X-User: bob|X-User: eve", "bob"},
		{"from: header:X-User", "GET /", "X-User: bob, eve", "bob, eve"},
		{"from: header:X-User", "GET /", "X-User: ", ""},
		{"from: header:X-User", "GET /", "X-Users: bob|User: bob", none},
		{"from: header:X-User", "GET /?X-User=bob", "Cookie: X-User=bob", none},
		{"from: header:X-User", "GET /", "X-User: bob%0d%0a&q=..", "bob%0d%0a&q=.."}, // headers are not decoded
		{"from: header:X-User", "GET /", "X-User: b\xffb", "b\xffb"},
		{"from: header:X-User", "GET /", "X-User: " + long, long},

		{"from: query:k", "GET /?k=v", "", "v"},
		{"from: query:k", "GET /?k=v&k=w", "", "v"},
		{"from: query:k", "GET /?k=a%26k%3Dw", "", "a&k=w"},
		{"from: query:k", "GET /?k=a+b%0d%0a%ff%00", "", "a b\r\n\xff\x00"},
		{"from: query:k", "GET /?k=" + long, "", long},
		{"from: query:k", "GET /#?k=v", "", none},
		{"from: query:k", "GET /?a=b#&k=v", "", none},
		{"from: query:k", "GET /%3fk=v", "", none},
		{"from: query:k", "GET /?a;k=v", "", none}, // separates parameters in some applications only
		{"from: query:k", "GET /?k", "", ""},
		{"from: query:k", "GET /?%6a=w&+=x&&%4B+=a=b", "", "a=b"}, // ASP.NET ignores case, and PHP blanks
		{"from: query:k", "GET /?kk=v&a=k=w&%256b=w", "", none},
		{"from: query:s_id.x", "GET /?s%20id[x=1", "", "1"}, // PHP replaces these characters

		{"from: cookie:sid", "GET /", "Cookie: sid=1", "1"},
		{"from: cookie:sid", "GET /", "Cookie: a=b; sid=1; sid=2", "1"},
		{"from: cookie:sid", "GET /", "Cookie: a=b|Cookie: sid=1", "1"},
		{"from: cookie:sid", "GET /", "Cookie: a=b;sid = 1", "1"},
		{"from: cookie:sid", "GET /", `Cookie: sid="1"`, "1"},
		{"from: cookie:sid", "GET /", `Cookie: sid="`, none},
		{"from: cookie:sid", "GET /", "Cookie: sid=", ""},
		{"from: cookie:sid", "GET /", "Cookie: sid=a=b&c%3B", "a=b&c;"},
		{"from: cookie:sid", "GET /", "Cookie: sid=\xff", "\xff"},
		{"from: cookie:sid", "GET /", "Cookie: sid=" + long, long},
		{"from: cookie:sid", "GET /", "Cookie: %73id=%61", "a"},
		{"from: cookie:sid", "GET /", "Cookie: sid", none},
		{"from: cookie:sid", "GET /", "Cookie: SID=1", "1"},
		{"from: cookie:s_id.x", "GET /", "Cookie: s.id.x=1", "1"}, // PHP replaces these characters
		{"from: cookie:s_id.x", "GET /", "Cookie: s[id x=1", "1"},
		{"from: cookie:s_id.x", "GET /", "Cookie: sid_x=1", none},
		{"from: cookie:sid", "GET /", "Cookie: xsid=1; a=sid=1; =sid", none},
		{"from: cookie:sid", "GET /", "Cookie: ;;; ,sid=1", none}, // , does not separate cookies
		{"from: cookie:sid", "GET /", "", none},

		{"from: jwt:sub", "GET /", token(`{"sub":"bob"}`), "bob"},
		{"from: jwt:sub", "GET /", token(`{"sub":"b\u00f6b\u000d\u0000&"}`), "böb\r\x00&"},
		{"from: jwt:sub", "GET /", token(`{"sub":17}`), "17"},
		{"from: jwt:sub", "GET /", token(`{"sub":true}`), "true"},
		{"from: jwt:sub", "GET /", token(`{"sub":""}`), ""},
		{"from: jwt:sub", "GET /", token(`{"sub":"eve","sub":"bob"}`), "bob"}, // the last one, as in most libraries
		{"from: jwt:sub", "GET /", token(`{"sub":"` + long + `"}`), long},
		{"from: jwt:sub", "GET /", "authorization: bearer  e30.eyJzdWIiOiJib2IifQ==.", "bob"},
		{"from: jwt:sub", "GET /", token(`{"sub":"bob"}`) + "|" + token(`{"sub":"eve"}`), "bob"},
		{"from: jwt:sub", "GET /", token(`{"sub":["bob"]}`), none},
		{"from: jwt:sub", "GET /", token(`{"sub":{"a":1}}`), none},
		{"from: jwt:sub", "GET /", token(`{"sub":null}`), none},
		{"from: jwt:sub", "GET /", token(`{"Sub":"bob"}`), none},
		{"from: jwt:sub", "GET /", token(`["sub"]`), none},
		{"from: jwt:sub", "GET /", token(`{"sub":"bob"`), none},
		{"from: jwt:sub", "GET /", "Authorization: Bearer e30.eyJzdWIiOiJib2IifQ", none}, // only two parts
		{"from: jwt:sub", "GET /", "Authorization: Bearer e30.!.c2ln", none},
		{"from: jwt:sub", "GET /", "Authorization: Bearer", none},
		{"from: jwt:sub", "GET /", "Authorization: Bear", none},
		{"from: jwt:sub", "GET /", "Authorization: ", none},
		{"from: jwt:sub", "GET /", "Authorization: Bearer ", none},
		{"from: jwt:sub", "GET /", "Authorization: Bearer\te30.eyJzdWIiOiJib2IifQ.c2ln", "bob"},
		{"from: jwt:sub", "GET /", "Authorization: BEARER \t e30.eyJzdWIiOiJib2IifQ.c2ln", "bob"},
		{"from: jwt:sub", "GET /", "Authorization: Bearere30.eyJzdWIiOiJib2IifQ.c2ln", none},
		{"from: jwt:sub", "GET /", "Authorization: Basic e30.eyJzdWIiOiJib2IifQ.c2ln", none},
		{"from: jwt:sub", "GET /", "Authorization: Digest e30.eyJzdWIiOiJib2IifQ.c2ln", none}, // as long as "Bearer"
		{"from: jwt:sub", "GET /", "", none},
	} {
		if !strings.HasPrefix(c.from, "value") {
			c.from = "from: " + fmt.Sprintf("%q", strings.TrimPrefix(c.from, "from: "))
		}
		a := auth(t, "  routes: [{descriptors: [[{key: k, "+c.from+"}]]}]")
		var headers []string
		if c.headers != "" {
			headers = strings.Split(c.headers, "|")
		}
		got, ok := Value(a, &a.Routes[0], &a.Routes[0].Descriptors[0][0], request(c.line, headers...))
		if !ok {
			got = none
		}
		if got != c.want {
			t.Errorf("%s of %.80q %.80q: %.80q, want %.80q", c.from, c.line, c.headers, got, c.want)
		}
	}
}

// The caller that fills in a Request decides which headers to trust. Here no header is read as an address.
func TestClientIPIsTheRequestsClient(t *testing.T) {
	forged := request("GET /", "X-Forwarded-For: 6.6.6.6", "X-Real-IP: 6.6.6.6", "Forwarded: for=6.6.6.6", "X-Client-IP: 6.6.6.6", "True-Client-IP: 6.6.6.6")
	a := auth(t, "  ipv6_prefix: 56\n  routes: [{descriptors: [[{key: ip, from: client_ip}]]}]")
	for _, c := range []struct{ addr, key, network string }{{"1.2.3.4", "1.2.3.4", "1.2.3.4/32"}, {"2001:db8:1:2::3", "2001:db8:1::/56", "2001:db8:1::/56"}, {}} {
		forged.Client, _ = netip.ParseAddr(c.addr)
		key, hasKey := Value(a, &a.Routes[0], &a.Routes[0].Descriptors[0][0], forged)
		network, hasNetwork := Value(a, &a.Routes[0], &limiter.AuthEntry{From: limiter.FromClientNetwork}, forged)
		if key != c.key || network != c.network || hasKey != (c.key != "") || hasNetwork != hasKey {
			t.Errorf("%s: key %q %t, network %q %t; want %q and %q", c.addr, key, hasKey, network, hasNetwork, c.key, c.network)
		}
	}
}

func TestFillLeavesOutDescriptorsWithoutAValue(t *testing.T) {
	a := auth(t, `
  routes:
    - match: {path: /look}
      check: true
      domain: other
      hits: 3
      descriptors: [[{key: user, from: "header:X-User"}]]
    - hits: 2
      descriptors:
        - [{key: path, from: path}, {key: user, from: "header:X-User"}]
        - [{key: user, from: "header:X-User"}, {key: q, from: "query:q"}]
        - [{key: path, from: path}]
`)
	for _, c := range []struct {
		q    *Request
		want string
	}{
		{request("GET /look", "X-User: bob"), "other true 3:user=bob"},
		{request("GET /look"), "other true"},
		{request("GET /x"), "d false 2:path=/x"},
		{request("GET /x", "X-User: bob"), "d false 2:path=/x,user=bob 2:path=/x"},
		{request("GET /x?q=1", "X-User: bob"), "d false 2:path=/x,user=bob 2:user=bob,q=1 2:path=/x"},
		{request("GET /x?q=1"), "d false 2:path=/x"},
	} {
		var call limiter.Call
		for range 2 { // a Call is reused
			call.Reset()
			Fill(&call, a, Find(a, c.q), c.q)
			var got strings.Builder
			fmt.Fprint(&got, call.Request.Domain, " ", call.DryRun)
			for _, d := range call.Descriptors {
				var entries []string
				for _, e := range d.Entries {
					entries = append(entries, e.Key+"="+e.Value)
				}
				fmt.Fprintf(&got, " %d:%s", d.Cost, strings.Join(entries, ","))
			}
			if got.String() != c.want || !call.Unsettled {
				t.Errorf("%s?%s: %s, unsettled %t; want %s, true", c.q.Path, c.q.Query, got.String(), call.Unsettled, c.want)
			}
		}
	}
}

// FuzzCookie compares cookies with the standard library, for lines without blanks and quotes. It accepts values that
// differ in length, because the standard library removes some bytes.
func FuzzCookie(f *testing.F) {
	for _, s := range []string{"sid=1", `a="b"; sid = "1" ;sid=2`, "sid", ";=;sid==", "sid=\xff", "sid=a b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		value, ok := first(cookies([]string{line}, "sid"))
		if strings.ContainsAny(value, ";") || !ok && value != "" {
			t.Errorf("%q: got %q %t; want a value without \";\", and \"\" if there is none", line, value, ok)
		}
		reference, err := (&http.Request{Header: http.Header{"Cookie": {line}}}).Cookie("sid")
		if err != nil || strings.ContainsAny(line, " \t\r\n\v\f\"\\,%+") || reference.Value == "" {
			return
		}
		if len(value) == len(reference.Value) && value != reference.Value || !ok && !strings.ContainsFunc(line, unicode.IsControl) {
			t.Errorf("%q: %q %t, want %q as in net/http", line, value, ok, reference.Value)
		}
	})
}

// FuzzParameters checks that a parameter that is not ambiguous has the first and the last value that net/url reads.
func FuzzParameters(f *testing.F) {
	for _, s := range []string{"k=v&a=b", "%6b=1&k=2", "K=1&k=1", "k=1;a&k=%zz+", "+k&k="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values := parameters(query, "k")
		reference, err := url.ParseQuery(query)
		if err != nil || isAmbiguous(values) {
			return
		}
		value, _ := first(values)
		for _, want := range reference["k"] {
			if value != want {
				t.Errorf("%q: got %q, want %q as in net/url", query, value, want)
			}
		}
	})
}

func TestAnUnknownSourceHasNoValue(t *testing.T) {
	if got, ok := Value(&limiter.Auth{}, &limiter.Route{}, &limiter.AuthEntry{From: 255}, request("GET /")); ok || got != "" {
		t.Errorf("got %q, %t; want none", got, ok)
	}
}
