package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

var firstAnswer = map[string]string{
	"RateLimit-Policy": `"per_key";q=5;w=30, "address";q=200;w=1`,
	"RateLimit":        `"per_key";r=4;t=6`,
	"Retry-After":      "",
}

// commonTests runs the tests that apply to every proxy. The proxy must fail closed: it answers with the status closed
// and with retryAfter while the sidecar does not run. loginIsLimited describes network.
func (s *front) commonTests(t *testing.T, firstAnswer map[string]string, network, closed int, retryAfter string) {
	t.Helper()
	t.Run("a key is limited, and the headers describe the limit", func(t *testing.T) { s.keysAreLimited(t, firstAnswer) })
	t.Run("a path is limited in every spelling", func(t *testing.T) { s.loginIsLimited(t, network) })
	t.Run("bodies arrive unchanged", s.bodiesArriveUnchanged)
	t.Run("answers of the application are not changed", s.answersAreUnchanged)
	t.Run("without a sidecar no request is allowed", func(t *testing.T) { s.failsClosedWithoutSidecar(t, closed, retryAfter) })
}

// The key that is charged must be the one that reaches the application.
func (s *front) countsRequestsThatReachTheApplication(t *testing.T) {
	t.Helper()
	perKey.drain(t, func() answer { return s.send(t, "", "/", "X-Api-Key: one", "X-Api-Key: two") })
	got, _ := s.lastKey.Load().(string)
	if strings.Contains(got, "|") {
		t.Fatalf("the application got %q, want one key", got)
	}
	if a := s.asKey(t, got)(); a.code != http.StatusTooManyRequests {
		t.Errorf("%q alone: status %d, want 429", got, a.code)
	}
}

var longCaddyTimeouts = []change{{"dial_timeout 50ms", "dial_timeout 10s"}, {"response_header_timeout 100ms", "response_header_timeout 10s"}}

var caddyFailsOpen = []change{{"#reverse_proxy", "reverse_proxy"}, {"respond `", "#respond `"}, {"header Retry-After 1", ""}}

func newCaddy(t *testing.T, changes ...change) *front {
	t.Helper()
	program := tooltest.Path(t, "caddy")
	s := newFront(t, "")
	s.write(t, "caddy/Caddyfile", changes...)
	s.run(t, program, "run", "--config", "Caddyfile")
	return s
}

func TestCaddy(t *testing.T) {
	t.Parallel()
	s := newCaddy(t, longCaddyTimeouts...)
	s.commonTests(t, firstAnswer, 4, 503, "1")
	t.Run("the key that reaches the application is charged", s.countsRequestsThatReachTheApplication)
}

func TestCaddyHostileRequests(t *testing.T) {
	t.Parallel()
	s := newCaddy(t, append(longCaddyTimeouts, caddyFailsOpen...)...)
	s.hostileRequestsAreLimited(t)
	s.everyHeaderSizeIsLimited(t)
	s.failsOpenWithoutSidecar(t)
}

func TestCaddyDoesNotWaitForLong(t *testing.T) {
	t.Parallel()
	newCaddy(t).deniesAfterTheTimeout(t)
}

func newTraefik(t *testing.T, changes ...change) *front {
	t.Helper()
	program := tooltest.Path(t, "traefik")
	s := newFront(t, "")
	s.write(t, "traefik/traefik.yaml", changes...)
	s.write(t, "traefik/dynamic.yaml")
	s.run(t, program, "--configFile=traefik.yaml")
	eventually(t, "it has its routes", func() bool { return s.send(t, "", "/").code == 200 })
	return s
}

func TestTraefik(t *testing.T) {
	t.Parallel()
	s := newTraefik(t)
	s.commonTests(t, nil, 5, 500, "")
	s.hostileRequestsAreLimited(t)
}

var longHAProxyTimeouts = []change{{"timeout connect 50ms", "timeout connect 10s"}, {"timeout server 100ms", "timeout server 10s"}}

func newHAProxy(t *testing.T, changes ...change) *front {
	t.Helper()
	program := tooltest.Path(t, "haproxy")
	s := newFront(t, "")
	authAddress := change{"rlsidecar-auth", "rlsidecar-auth-" + s.addr}
	s.write(t, "haproxy/haproxy.cfg", append(changes, authAddress)...)
	s.write(t, "haproxy/rlsidecar.lua", authAddress)
	s.run(t, program, "-f", "haproxy.cfg")
	return s
}

func TestHAProxy(t *testing.T) {
	t.Parallel()
	s := newHAProxy(t, longHAProxyTimeouts...)
	s.commonTests(t, firstAnswer, 6, 503, "1")
	t.Run("the key that reaches the application is charged", s.countsRequestsThatReachTheApplication)
}

func TestHAProxyHostileRequests(t *testing.T) {
	t.Parallel()
	s := newHAProxy(t, append(longHAProxyTimeouts, haproxyFailsOpen)...)
	s.hostileRequestsAreLimited(t)
	s.everyHeaderSizeIsLimited(t)
	s.failsOpenWithoutSidecar(t)
}

func TestHAProxyDoesNotWaitForLong(t *testing.T) {
	t.Parallel()
	newHAProxy(t).deniesAfterTheTimeout(t)
}

// apisix is the part of APISIX's configuration that the example uses. The fields of the plugin are those of
// its schema, so that a misspelled field in the example is an error.
type apisix struct {
	Routes []struct {
		ID      string `yaml:"id"`
		URI     string `yaml:"uri"`
		Plugins struct {
			ForwardAuth struct {
				URI              string            `yaml:"uri"`
				AllowDegradation bool              `yaml:"allow_degradation"`
				StatusOnError    int               `yaml:"status_on_error"`
				RequestMethod    string            `yaml:"request_method"`
				RequestHeaders   []string          `yaml:"request_headers"`
				ExtraHeaders     map[string]string `yaml:"extra_headers"`
				UpstreamHeaders  []string          `yaml:"upstream_headers"`
				ClientHeaders    []string          `yaml:"client_headers"`
				Timeout          int               `yaml:"timeout"`
				Keepalive        bool              `yaml:"keepalive"`
				KeepaliveTimeout int               `yaml:"keepalive_timeout"`
				KeepalivePool    int               `yaml:"keepalive_pool"`
			} `yaml:"forward-auth"`
		} `yaml:"plugins"`
		Upstream struct {
			Type  string         `yaml:"type"`
			Nodes map[string]int `yaml:"nodes"`
		} `yaml:"upstream"`
	} `yaml:"routes"`
}

// TestAPISIXAuthRequests sends the requests that the plugin forward-auth makes from the configuration of the
// example. APISIX itself does not run.
func TestAPISIXAuthRequests(t *testing.T) {
	t.Parallel()
	s := newFront(t, "")
	s.write(t, "apisix/apisix.yaml")
	file, err := os.Open(filepath.Join(s.dir, "apisix.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var conf apisix
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(&conf); err != nil || len(conf.Routes) != 1 {
		t.Fatal(err)
	}
	plugin := conf.Routes[0].Plugins.ForwardAuth
	var denial http.Header
	perKey.drain(t, func() answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, plugin.URI, nil)
		if err != nil {
			t.Fatal(err)
		}
		output := map[string]string{"X-Forwarded-Proto": "http", "X-Forwarded-Method": "POST", "X-Forwarded-Host": "shop.test", "X-Forwarded-Uri": "/x?y=1", "X-Forwarded-For": "192.0.2.1"}
		for _, name := range plugin.RequestHeaders {
			output[name] = "alice"
		}
		for name, value := range output {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		denial = resp.Header
		return answer{resp.StatusCode, resp.Header, ""}
	})
	for _, name := range plugin.ClientHeaders {
		if denial.Get(name) == "" {
			t.Errorf("the example passes on the header %s, which a denial of rlsidecar lacks", name)
		}
	}
	if n := s.decisions(t, "per_key", "denied"); n != 1 {
		t.Errorf("%d denials are counted, want 1", n)
	}
}
