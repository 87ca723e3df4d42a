package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

type bucket struct {
	capacity int
	each     time.Duration // the time in which one unit refills
}

// These are the limits of most examples.
var (
	perKey    = bucket{5, 6 * time.Second}
	perTenant = bucket{10, 3 * time.Second}
)

// mostIn returns how many requests of a key may be allowed since from.
func (b bucket) mostIn(from time.Time) int { return b.capacity + int(time.Since(from)/b.each) }

// drain sends requests until one is denied, and returns the denial. It checks that b.capacity requests were
// allowed, and at most one more for each unit that has refilled meanwhile.
func (b bucket) drain(t *testing.T, send func() answer) answer {
	t.Helper()
	from := time.Now()
	for admitted := 0; ; admitted++ {
		a := send()
		most := b.mostIn(from)
		switch {
		case a.code == http.StatusOK && admitted < most:
		case a.code == http.StatusTooManyRequests && admitted >= b.capacity:
			return a
		default:
			t.Fatalf("request %d: status %d, want 200 for the first %d to %d requests and then 429\n%.500s", admitted+1, a.code, b.capacity, most, a.raw)
		}
	}
}

// sameMinute runs a test that must not run across the start of a minute. If it fails and a minute has started
// meanwhile, sameMinute runs it again, at most three times in all.
func sameMinute(t *testing.T, ok func(attempt int) bool) {
	t.Helper()
	for attempt := range 3 {
		minute := time.Now().Truncate(time.Minute)
		if ok(attempt) {
			return
		}
		if time.Now().Truncate(time.Minute).Equal(minute) {
			break
		}
	}
	t.Fatal("the test failed in every attempt, also within one minute")
}

// variant selects the changes to the configuration of an example.
type variant int

const (
	shipped variant = iota // the example as it is
	closed                 // longer timeouts, because those of the example may be too short on a busy machine; also HTTP/2 and the PROXY protocol
	open                   // longer timeouts; requests without a decision are allowed, and forwarded to serveAnything; Envoy and NGINX use a Unix socket
)

// lenientPort is that of an application that accepts malformed requests too, so only a proxy or rlsidecar can refuse one.
const lenientPort = "9002"

// recipe is an example of a proxy in front of an application.
type recipe struct {
	start   func(t *testing.T, v variant) *stack
	shipped bool              // the proxy stops to wait after the timeout of the example
	open    bool              // the proxy can fail open
	tenants bool              // the parameter tenant has a limit
	gone    int               // the status of an answer while the sidecar does not run
	retry   string            // the header Retry-After of this answer
	first   map[string]string // headers of the answer to the first request of a key; "" means that there is no such header
	denial  map[string]string // parts of headers of a denial
	more    func(t *testing.T, s *stack)
}

var (
	ietf = map[string]string{"RateLimit-Policy": `"per_key";q=5;w=30, "address";q=200;w=1`, "RateLimit": `"per_key";r=4;t=6`, "Retry-After": ""}
	// Every proxy but Envoy passes on the answer of rlsidecar.
	problem = map[string]string{"RateLimit": `"per_key";r=0;t=`, "Content-Type": "application/problem+json"}
	nginxX  = map[string]string{"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "6", "RateLimit": ietf["RateLimit"], "Retry-After": ""}
)

var recipes = map[string]recipe{
	"envoy": {
		start: startEnvoy, open: true, tenants: true, gone: 503,
		first:  map[string]string{"X-Ratelimit-Remaining": "4"},
		denial: map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Limit": `5;w=30;name="per_key"`, "X-Ratelimit-Reset": ""},
		more:   connectionsAreLimited,
	},
	"ext_authz": {start: startExtAuthz, open: true, gone: 503, first: map[string]string{"RateLimit": ietf["RateLimit"]}, denial: problem},
	"nginx": {
		start: func(t *testing.T, v variant) *stack { return startNginx(t, v) }, shipped: true, open: true, tenants: true, gone: 503, retry: "1", first: nginxX,
		denial: map[string]string{"RateLimit": problem["RateLimit"], "Content-Type": problem["Content-Type"], "X-RateLimit-Remaining": "0"},
		more:   redirectsChargeOnce,
	},
	"nginx, with a key that is not cleaned": {open: true, tenants: true, start: func(t *testing.T, v variant) *stack {
		return startNginx(t, v, change{`"invalid";`, `$http_x_api_key;`})
	}},
	"caddy":   {start: startCaddy, shipped: true, open: true, tenants: true, gone: 503, retry: "1", first: ietf, denial: problem},
	"haproxy": {start: startHAProxy, shipped: true, open: true, tenants: true, gone: 503, retry: "1", first: ietf, denial: problem},
	"traefik": {start: startTraefik, tenants: true, gone: 500, denial: problem},
}

func TestProxies(t *testing.T) {
	t.Parallel()
	for name, r := range recipes {
		if r.gone != 0 {
			t.Run(name+"/closed", func(t *testing.T) { t.Parallel(); r.closed(t) })
		}
		if r.open {
			t.Run(name+"/open", func(t *testing.T) { t.Parallel(); r.failsOpen(t) })
		}
		if r.shipped {
			t.Run(name+"/shipped", func(t *testing.T) { t.Parallel(); r.start(t, shipped).deniesAfterTheTimeout(t) })
		}
	}
}

func (r *recipe) closed(t *testing.T) {
	s := r.start(t, closed)
	t.Run("a key is limited, and the headers describe the limit", func(t *testing.T) { s.keysAreLimited(t, r.first, r.denial) })
	t.Run("bodies arrive unchanged", s.bodiesArriveUnchanged)
	t.Run("answers of the application are not changed", s.answersAreUnchanged)
	if r.more != nil {
		r.more(t, s)
	}
	t.Run("keys", func(t *testing.T) { s.keysCannotBeRespelled(t) })
	t.Run("logins", s.loginsCannotBeDisguised)
	t.Run("addresses of one network", s.ipv6NetworksAreOneClient)
	if r.tenants && (strings.Contains(t.Name(), "envoy") || strings.Contains(t.Name(), "nginx")) {
		t.Run("queries", s.queriesCannotBeRespelled)
	}
	if !r.open {
		t.Run("hostile requests", func(t *testing.T) { s.hostileRequestsAreLimited(t, r.tenants) })
	}
	t.Run("tunnels", s.tunnelsAreCounted)
	t.Run("without a sidecar no request is allowed", func(t *testing.T) { s.failsClosedWithoutSidecar(t, r.gone, r.retry) })
}

// failsOpen configures the proxy to allow requests that get no decision. A client could then avoid its limit with any
// request that makes rlsidecar answer late or with an error.
func (r *recipe) failsOpen(t *testing.T) {
	s := r.start(t, open)
	if r.gone != 0 {
		t.Run("hostile requests", func(t *testing.T) { s.hostileRequestsAreLimited(t, r.tenants) })
	}
	t.Run("malformed requests", s.malformedRequestsAreLimited)
	if r.gone == 0 {
		return
	}
	t.Run("header sizes", func(t *testing.T) {
		for name := range r.denial {
			if strings.Contains(name, "Limit") { // an allowed answer has this header, too
				s.everyHeaderSizeIsLimited(t, name)
				return
			}
		}
	})
	t.Run("without a sidecar every request is allowed", func(t *testing.T) {
		s.sidecar.kill()
		for range 20 {
			if a := s.key(t, "anybody")(); a.code != http.StatusOK {
				t.Fatalf("status %d, want 200", a.code)
			}
		}
		s.startSidecar(t) // replaces the file that the killed process has left of a Unix socket
		eventually(t, "its answers arrive again", func() bool {
			return s.get(t, "", "/").header.Get("RateLimit")+s.get(t, "", "/").header.Get("X-Ratelimit-Limit") != ""
		})
		perKey.drain(t, s.key(t, "back"))
	})
}

func (s *stack) keysAreLimited(t *testing.T, first, denial map[string]string) {
	t.Helper()
	a := s.key(t, "alice")()
	for name, want := range first {
		if got := strings.Join(a.header.Values(name), "|"); a.code != http.StatusOK || got != want {
			t.Errorf("first answer: %d, %s %q, want 200 and %q", a.code, name, got, want)
		}
	}
	a = bucket{perKey.capacity - 1, perKey.each}.drain(t, s.key(t, "alice"))
	for name, want := range denial {
		if got := a.header.Values(name); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("a denial: %s %q, want once %q", name, got, want)
		}
	}
	if got, err := strconv.Atoi(strings.Join(a.header.Values("Retry-After"), "|")); err != nil || got < 1 || got > 6 {
		t.Errorf("a denial: Retry-After %q, want once 1 to 6 s", a.header.Values("Retry-After"))
	}
	for _, value := range []string{"bob", "bo", "b_ob", "Bob"} {
		perKey.drain(t, s.key(t, value))
	}
	if a := s.get(t, "", "/"); a.code != http.StatusOK {
		t.Errorf("no key: status %d, want 200", a.code)
	}
}

func (s *stack) bodiesArriveUnchanged(t *testing.T) {
	t.Helper()
	for _, c := range []struct{ headers, body, want string }{
		{"Content-Length: 7", "a=b&c=d", "a=b&c=d"}, {"Transfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n", "abc"},
	} {
		a := s.do(t, "", "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"+c.headers+"\r\n\r\n"+c.body)
		if a.code != http.StatusLengthRequired && (a.code != http.StatusOK || s.last.Load().body != c.want) { // HAProxy before 3.2 cannot drop trailers
			t.Errorf("got %d %q; want status 200 and the body %s", a.code, s.last.Load().body, c.want)
		}
	}
}

// The application answers with statuses that rlsidecar or the proxy uses for denials and failures.
func (s *stack) answersAreUnchanged(t *testing.T) {
	t.Helper()
	for path, code := range map[string]int{"/forbidden": 403, "/broken": 500} {
		if a := s.get(t, "", path); a.code != code || !strings.HasSuffix(a.raw, "application") {
			t.Errorf("%s: got %d; want status %d", path, a.code, code)
		}
	}
}

func (s *stack) failsClosedWithoutSidecar(t *testing.T, code int, retryAfter string) {
	t.Helper()
	s.sidecar.kill()
	before := s.arrived.Load()
	for range 20 {
		if a := s.get(t, "", "/"); a.code != code || a.header.Get("Retry-After") != retryAfter {
			t.Fatalf("got %d %v; want status %d and Retry-After %q", a.code, a.header, code, retryAfter)
		}
	}
	if s.arrived.Load() != before {
		t.Error("a request reached the application")
	}
	s.startSidecar(t)
	eventually(t, "it is found again", func() bool { return s.get(t, "", "/").code == http.StatusOK })
	perKey.drain(t, s.key(t, "back"))
}

// The proxy has the timeout of the example, which is about 100 ms.
func (s *stack) deniesAfterTheTimeout(t *testing.T) {
	t.Helper()
	s.sidecar.freeze(t)
	from := time.Now()
	a := s.key(t, "alice")()
	if waited := time.Since(from); a.code != 503 || waited < 90*time.Millisecond || waited > 5*time.Second {
		t.Errorf("got status %d after %v; want 503 after about 100 ms", a.code, waited)
	}
	s.sidecar.thaw(t)
	eventually(t, "it answers again", func() bool { return s.key(t, "bob")().code == 200 })
}

// start starts the sidecar, both applications and, if the variant is not shipped, changes the configuration by more.
func startExample(t *testing.T, port, limits string, args ...string) *stack {
	t.Helper()
	s := newStack(t, port, root+"/examples/"+limits, args...)
	s.serveApplication(t)
	serveAnything(t, s.addr+":"+lenientPort)
	s.startSidecar(t)
	return s
}

// changesOf returns the changes for a variant: those for longer timeouts, and those for closed or open.
func changesOf(v variant, long, forClosed, forOpen []change) (changes []change) {
	switch v {
	case shipped:
		return nil
	case closed:
		return append(append(changes, long...), forClosed...)
	default:
		return append(append(changes, long...), forOpen...)
	}
}

// These are changes to examples/envoy/envoy.yaml. PROXY protocol headers let a test send an IPv6 address.
var (
	longTimeout  = change{"timeout: 0.05s", "timeout: 10s"}
	lenientEnvoy = change{"address: 127.0.0.1, port_value: 9000", "address: 127.0.0.1, port_value: " + lenientPort}
	proxyToEnvoy = change{
		"    address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }\n",
		"    address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }\n" +
			"    listener_filters: [ { name: envoy.filters.listener.proxy_protocol, typed_config: { " +
			"\"@type\": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol, allow_requests_without_proxy_protocol: true } } ]\n",
	}
)

func startEnvoy(t *testing.T, v variant) *stack {
	t.Helper()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	socket := filepath.Join(t.TempDir(), "s")
	var args []string
	if v == open {
		args = []string{"--grpc-listen", "unix://" + socket}
	}
	s := startExample(t, "10000", "envoy/rlsidecar.yaml", args...)
	s.http2, s.proxied = s.port, s.port
	s.runEnvoy(t, s.write(t, "envoy/envoy.yaml", changesOf(v, []change{longTimeout}, []change{proxyToEnvoy}, []change{
		{"failure_mode_deny: true", "failure_mode_deny: false"}, lenientEnvoy,
		{"{ socket_address: { address: 127.0.0.1, port_value: 8081 } }", "{ pipe: { path: " + socket + " } }"},
	})...))
	s.awaitSidecars(t, 1)
	return s
}

// connectionsAreLimited tests Envoy's TCP listener. A connection is closed without an answer if it is denied.
func connectionsAreLimited(t *testing.T, s *stack) {
	connect := func(from string) answer {
		a, err := s.try(t, from, "10001", "GET / HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n")
		if err != nil {
			return answer{code: http.StatusTooManyRequests, raw: err.Error()}
		}
		return a
	}
	perKey.drain(t, func() answer { return connect("127.66.0.3") })
	if a := connect("127.66.0.4"); a.code != http.StatusOK {
		t.Errorf("a connection from another address: refused\n%s", a.raw)
	}
}

func startExtAuthz(t *testing.T, v variant) *stack {
	t.Helper()
	return extAuthz(t, changesOf(v, nil, []change{proxyToEnvoy}, []change{{"failure_mode_allow: false", "failure_mode_allow: true"}, lenientEnvoy})...)
}

func extAuthz(t *testing.T, changes ...change) *stack {
	t.Helper()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	s := startExample(t, "10000", "envoy-extauthz/rlsidecar.yaml")
	s.http2, s.proxied = s.port, s.port
	s.runEnvoy(t, s.write(t, "envoy-extauthz/envoy.yaml", append(changes, change{"timeout: 0.1s }", "timeout: 10s }"})...))
	return s
}

// TestEnvoyExtAuthzAppendingPaths configures Envoy to append the path of its client's request to /v1/auth, and
// to allow requests if rlsidecar does not answer.
func TestEnvoyExtAuthzAppendingPaths(t *testing.T) {
	t.Parallel()
	s := extAuthz(t,
		change{"path_override: /v1/auth ", "path_prefix: /v1/auth "},
		change{"- { key: x-original-uri, value: \"%REQ(:path)%\" }\n", "\n"},
		change{"failure_mode_allow: false", "failure_mode_allow: true"})
	s.loginsCannotBeDisguised(t)
	if a := s.get(t, "", "/nginx/x?y=/v1/auth"); a.code != http.StatusOK {
		t.Errorf("got %d; want status 200", a.code)
	}
}

// longCaddy and longHAProxy are changes to timeouts of the examples.
var (
	longCaddy   = []change{{"dial_timeout 50ms", "dial_timeout 10s"}, {"response_header_timeout 100ms", "response_header_timeout 10s"}}
	longHAProxy = []change{{"timeout connect 50ms", "timeout connect 10s"}, {"timeout server 100ms", "timeout server 10s"}}
)

func startCaddy(t *testing.T, v variant) *stack {
	t.Helper()
	program := tooltest.Path(t, "caddy")
	s := startExample(t, "8000", "nginx/rlsidecar.yaml")
	s.http2, s.proxied = s.port, s.port
	protocols := "protocols h1 h2 h2c\n\t\t"
	s.write(t, "caddy/Caddyfile", changesOf(v,
		longCaddy,
		[]change{{"max_header_size 64KB", protocols + "listener_wrappers {\n\t\t\tproxy_protocol {\n\t\t\t\tallow 127.0.0.0/8\n\t\t\t}\n\t\t}\n\t\tmax_header_size 64KB"}},
		[]change{{"reverse_proxy 127.0.0.1:9000", "reverse_proxy 127.0.0.1:" + lenientPort}, {"#reverse_proxy", "reverse_proxy"}, {"respond `", "#respond `"}, {"header Retry-After 1", ""}, {"max_header_size 64KB", protocols + "max_header_size 64KB"}},
	)...)
	s.run(t, program, "run", "--config", "Caddyfile")
	return s
}

func startTraefik(t *testing.T, v variant) *stack {
	t.Helper()
	program := tooltest.Path(t, "traefik")
	s := startExample(t, "8000", "nginx/rlsidecar.yaml")
	s.http2, s.proxied = s.port, s.port
	s.write(t, "traefik/traefik.yaml", changesOf(v, nil, []change{{"    address: 127.0.0.1:8000\n", "    address: 127.0.0.1:8000\n    proxyProtocol: { trustedIPs: [127.0.0.0/8] }\n"}}, nil)...)
	s.write(t, "traefik/dynamic.yaml")
	s.run(t, program, "--configFile=traefik.yaml")
	eventually(t, "it has its routes", func() bool { return s.get(t, "", "/").code == 200 })
	return s
}

func startHAProxy(t *testing.T, v variant) *stack {
	t.Helper()
	program := tooltest.Path(t, "haproxy")
	s := startExample(t, "8000", "nginx/rlsidecar.yaml")
	s.http2, s.proxied = s.port, "8001"
	authAddress := change{"rlsidecar-auth", "rlsidecar-auth-" + s.addr}
	s.write(t, "haproxy/haproxy.cfg", append(changesOf(v,
		longHAProxy,
		[]change{{"  bind 127.0.0.1:8000\n", "  bind 127.0.0.1:8000\n  bind 127.0.0.1:8001 accept-proxy\n"}},
		[]change{{"http-request return status 503", "# http-request return status 503"}, {"server app 127.0.0.1:9000", "server app 127.0.0.1:" + lenientPort}},
	), authAddress)...)
	s.write(t, "haproxy/rlsidecar.lua", authAddress)
	s.run(t, program, "-f", "haproxy.cfg")
	return s
}

// decisions returns how many decisions of a limit with this outcome the sidecar has counted.
func (s *stack) decisions(limit, outcome string) int {
	return int(metric(s.addr, fmt.Sprintf("rlsidecar_decisions_total{domain=%q,limit=%q,outcome=%q} ", "shop", limit, outcome)))
}
