package server

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// requestAs sends a request to a port of this machine under another host name, as a web page could with DNS
// rebinding.
func requestAs(t *testing.T, a net.Addr, host, line, text string, headers ...string) (code int, answer string) {
	t.Helper()
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	method, path, _ := strings.Cut(line, " ")
	r, err := http.NewRequest(method, "http://127.0.0.1:"+port+path, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Host, r.Close = host, true
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	return got.StatusCode, body(t, got)
}

const bobRequest = `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}`

// The test requests paths of the admin, metrics and HTTP listeners under the host name of another site. All are refused,
// except the paths that show whether the program is ready, or how to use it.
func TestOtherSitesCanReadNothing(t *testing.T) {
	x := start(t, named, func(c *Config) { c.Metrics, c.MetricsPath = "127.0.0.1:0", "/metrics" })
	for _, c := range []struct {
		at    net.Addr
		lines []string
		codes map[string]int
	}{
		{x.Admin, []string{
			"GET /", "GET /metrics", "GET /rlconfig", "GET /api/top", "GET /api/buckets?limit=send&key=bob", "POST /api/reset?limit=send&key=bob",
			"GET /debug/pprof/", "GET /debug/pprof/cmdline", "GET /debug/pprof/heap", "GET /debug/pprof/goroutine?debug=2",
			"GET /debug/pprof/profile?seconds=1", "GET /debug/pprof/trace?seconds=1", "GET /debug/pprof/symbol", "POST /debug/pprof/symbol", "GET /elsewhere",
		}, map[string]int{"evil.example": 421, "evil.example:6070": 421}},
		{x.Metrics, []string{"GET /metrics"}, map[string]int{"evil.example": 421, "localhost": 200, "127.0.0.1": 200}},
		{x.HTTP, []string{"POST /json"}, map[string]int{"evil.example": 403, "localhost": 200, "127.0.0.1": 200, "[::1]:8080": 200}},
		{x.HTTP, []string{"POST /v1/limit", "POST /v1/check", "POST /v1/reset", "GET /v1/limits", "GET /v1/limits/send?key=bob"}, map[string]int{"evil.example": 403}},
		{x.HTTP, []string{"GET /healthcheck", "GET /readyz", "GET /livez", "GET /openapi.json"}, map[string]int{"evil.example": 200}},
	} {
		for _, line := range c.lines {
			for host, want := range c.codes {
				text := ""
				if line == "POST /json" {
					text = bobRequest
				}
				code, answer := requestAs(t, c.at, host, line, text)
				if code != want || want >= 400 && strings.Contains(answer, `"send"`) {
					t.Errorf("%s as %s: %d %s, want %d", line, host, code, answer, want)
				}
			}
		}
	}
}

// Other machines may use any host name. Pages in browsers are still refused.
func TestJSONOffLoopback(t *testing.T) {
	x := start(t, named, func(c *Config) { c.HTTP, c.APIToken = "0.0.0.0:0", "s3cret" })
	const service = "rlsidecar.edge.svc.cluster.local:8080"
	refund := strings.Replace(bobRequest, `]}]}`, `],"hitsAddend":"2","isNegativeHits":true}]}`, 1)
	for _, c := range []struct {
		body      string
		want      int
		described string
		with      []string
	}{
		{bobRequest, 200, `"limitRemaining":2`, nil},
		{bobRequest, 200, `"limitRemaining":1`, []string{"Content-Type: application/json"}},
		{bobRequest, 403, "cross-origin", []string{"Origin: http://" + service}},
		{refund, 403, "--api-token-file", nil},
		{refund, 403, "--api-token-file", []string{"Authorization: Bearer wrong"}},
		{bobRequest, 200, `"OK"`, nil},
		{bobRequest, 429, `"OVER_LIMIT"`, nil},
		{refund, 200, `"limitRemaining":2`, []string{"Authorization: Bearer s3cret"}},
	} {
		code, answer := requestAs(t, x.HTTP, service, "POST /json", c.body, c.with...)
		if code != c.want || !strings.Contains(strings.ReplaceAll(answer, " ", ""), c.described) {
			t.Errorf("%s %v: %d %s, want %d %s", c.body, c.with, code, answer, c.want, c.described)
		}
	}
	x = start(t, named, func(c *Config) { c.NoJSON = true })
	if code, answer := post(t, x.HTTP, "/json", bobRequest); code != 404 {
		t.Errorf("with /json switched off: %d %s; want code 404", code, answer)
	}
}

func TestTokensComeFromFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	x := start(t, named, func(c *Config) { c.HTTP, c.APITokenFile = "0.0.0.0:0", file })
	code := func(token string) int {
		return get(t, x.HTTP, "/v1/limits", "Authorization", "Bearer "+token).StatusCode
	}
	if one, two := code("one"), code("two"); one != 200 || two != 401 {
		t.Fatalf("got %d for the token, and %d for another one; want 200 and 401", one, two)
	}
	write("two")
	eventually(t, "the new token counts", func() bool { return code("two") == 200 })
	if one := code("one"); one != 401 {
		t.Errorf("the old token: %d; want 401", one)
	}
}
