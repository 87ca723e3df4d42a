package server

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

const named = `
domain: d
limits:
  send: {algorithm: token_bucket, rate: 3, period: 365d}
descriptors:
  - {key: user, limit: send}
`

const bobRequest = `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}`

// A page of another site can send requests to a port of this machine under its own host name, with DNS rebinding. All
// listeners refuse them, except for the paths that show whether the program is ready.
func TestOtherSitesCanReadNothing(t *testing.T) {
	x := start(t, named, func(c *Config) { c.Metrics, c.MetricsPath = "127.0.0.1:0", "/metrics" })
	for _, c := range []struct {
		at                 net.Addr
		method, path, text string
		evil, local        int
	}{
		{x.Admin, "GET", "/api/buckets?limit=send&key=bob", "", 421, 200},
		{x.Metrics, "GET", "/metrics", "", 421, 200},
		{x.HTTP, "POST", "/json", bobRequest, 403, 200},
		{x.HTTP, "GET", "/v1/limits/send?key=bob", "", 403, 200},
		{x.HTTP, "GET", "/readyz", "", 200, 200},
	} {
		for host, want := range map[string]int{"evil.example": c.evil, "evil.example:6070": c.evil, "localhost": c.local, "127.0.0.1": c.local} {
			got := exchange(t, c.method, c.at, c.path, c.text, "Host", host)
			if text := body(t, got); got.StatusCode != want || want >= 400 && strings.Contains(text, `"send"`) {
				t.Errorf("%s as %s: %s %s, want %d", c.path, host, got.Status, text, want)
			}
		}
	}
}

func TestTheAPIIsClosedToOtherMachinesWithoutAToken(t *testing.T) {
	t.Parallel()
	const limit, inJSON = `{"name":"send"}`, "/json"
	refund := strings.Replace(bobRequest, `]}]}`, `],"hitsAddend":"2","isNegativeHits":true}]}`, 1)
	check := func(x *instance, path, text, token string, want int) (answer string) {
		t.Helper()
		code, answer := post(t, x.HTTP, path, text, "Host", "rlsidecar.edge.svc.cluster.local", "Authorization", "Bearer "+token)
		if code != want {
			t.Errorf("%s %s with the token %q: %d %s; want status %d", path, text, token, code, answer, want)
		}
		return answer
	}
	x := start(t, named, func(c *Config) { c.HTTP = "0.0.0.0:0" })
	for path, text := range map[string]string{"/v1/limit": limit, inJSON: refund} {
		want := map[string]int{"/v1/limit": 401, inJSON: 403}[path]
		if answer := check(x, path, text, "", want); !strings.Contains(answer, "--api-token-file") {
			t.Errorf("%s: got %s; want an answer that contains --api-token-file", path, answer)
		}
	}
	check(x, inJSON, bobRequest, "", 200)
	if n := x.logs.FilterMessageSnippet("the HTTP API is off").Len(); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}

	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, "one\n")
	x = start(t, named, func(c *Config) { c.HTTP, c.APITokenFile = "0.0.0.0:0", file })
	check(x, "/v1/limit", limit, "one", 200)
	check(x, "/v1/limit", limit, "two", 401)
	check(x, inJSON, refund, "two", 403)
	check(x, inJSON, refund, "one", 200)
	writeFile(t, file, "two\n") // the file is read again when it changes
	eventually(t, "the new token counts", func() bool {
		return get(t, x.HTTP, "/v1/limits", "Authorization", "Bearer two").StatusCode == 200
	})
	check(x, "/v1/limit", limit, "one", 401)

	x = start(t, named, func(c *Config) { c.NoJSON = true })
	if code, answer := post(t, x.HTTP, inJSON, bobRequest); code != http.StatusNotFound {
		t.Errorf("with /json switched off: %d %s; want code 404", code, answer)
	}
}

func TestChangesNeedTheAdminToken(t *testing.T) {
	const block = `{"limit":"calls","all_keys":true,"block":true,"for":"1h","author":"eve","reason":"none"}`
	x := start(t, oneLimit, withTokens(t))
	for _, test := range []struct {
		token, method, path, body string
		code                      int
	}{
		{"another", "POST", "/api/adjustments", block, 401},
		{readSecret, "GET", "/api/adjustments", "", 200},
		{readSecret, "POST", "/api/adjustments", block, 403},
		{adminSecret, "POST", "/api/adjustments", block, 200},
	} {
		if code, answer := x.as(t, test.token, test.method, test.path, test.body); code != test.code {
			t.Errorf("%s %s with %q: %d %v, want %d", test.method, test.path, test.token, code, answer, test.code)
		}
	}

	x = start(t, oneLimit) // without a token; every local process can connect
	if code, answer := x.as(t, "", "POST", "/api/adjustments", block); code != 403 {
		t.Errorf("without a token: %d %v; want code 403", code, answer)
	}
}
