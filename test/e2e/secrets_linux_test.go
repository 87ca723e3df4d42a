package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func TestNoPageShowsASecret(t *testing.T) {
	const secret, apiSecret, adminSecret = "hunter2", "hunter2api", "hunter2admin" // secret is a prefix of the others, so a search for it finds all three
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	text := "domain: d\nlimits: {send: {algorithm: token_bucket, rate: 3, period: 1h}}\ndescriptors: [{key: user, limit: send}]\n"
	if err := os.WriteFile(limits, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := loopback()
	p := start(t, sidecarProgram, "serve", "--config", limits, "--log-level", "debug", "--drain-delay", "0s",
		"--grpc-listen", at+":8081", "--http-listen", at+":8080", "--admin-listen", at+":6070", "--metrics-listen", at+":9090",
		"--api-token", apiSecret, "--admin-token", adminSecret,
		"--redis-url", fmt.Sprintf("redis://bob:%s@127.0.0.1:%d/0", secret, redistest.FreePort(t)), // no server listens there
	)
	client := &http.Client{Timeout: maxWait, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	read := func(port, token, line, body string) (code int, page string) {
		method, path, _ := strings.Cut(line, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+at+":"+port+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if plain, err := gzip.NewReader(bytes.NewReader(content)); err == nil { // profiles are compressed
			if content, err = io.ReadAll(plain); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		return answer.StatusCode, fmt.Sprint(answer.Header, string(content))
	}
	eventually(t, "it serves", func() bool {
		code, _ := read("8080", "", "GET /livez", "")
		return code == http.StatusOK
	})
	const one = `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}`
	for _, c := range []struct{ port, token, line, body string }{
		{"8080", "", "POST /json", one},
		{"8080", "", "POST /json", "nonsense"},
		{"8080", apiSecret, "POST /json", one},
		{"8080", "", "POST /v1/limit", `{"name":"send","key":"bob"}`},
		{"8080", apiSecret, "POST /v1/limit", `{"name":"send","key":"bob","reserve":true}`},
		{"8080", apiSecret, "POST /v1/reset", `{"name":"send","key":"bob"}`},
		{"8080", apiSecret, "GET /v1/limits/send?key=bob", ""},
		{"8080", "", "GET /v1/auth", ""},
		{"8080", "", "GET /healthcheck", ""},
		{"8080", "", "GET /openapi.json", ""},
		{"9090", "", "GET /metrics", ""},
		{"6070", "", "GET /", ""},
		{"6070", "wrong", "GET /metrics", ""},
		{"6070", adminSecret, "GET /", ""},
		{"6070", adminSecret, "GET /metrics", ""},
		{"6070", adminSecret, "GET /rlconfig", ""},
		{"6070", adminSecret, "GET /api/top", ""},
		{"6070", adminSecret, "GET /api/buckets?limit=send&key=bob", ""},
		{"6070", adminSecret, "POST /api/reset?limit=send&key=bob", ""},
		{"6070", adminSecret, "GET /debug/vars", ""},
		{"6070", adminSecret, "GET /debug/pprof/", ""},
		{"6070", adminSecret, "GET /debug/pprof/cmdline", ""},
		{"6070", adminSecret, "GET /debug/pprof/symbol", ""},
		{"6070", adminSecret, "GET /debug/pprof/allocs", ""},
		{"6070", adminSecret, "GET /debug/pprof/heap?debug=1", ""},
		{"6070", adminSecret, "GET /debug/pprof/threadcreate?debug=1", ""},
		{"6070", adminSecret, "GET /debug/pprof/goroutine?debug=2", ""},
		{"6070", adminSecret, "GET /debug/pprof/profile?seconds=1", ""},
		{"6070", adminSecret, "GET /debug/pprof/trace?seconds=1", ""},
	} {
		code, page := read(c.port, c.token, c.line, c.body)
		if code == 0 || strings.Contains(page, secret) {
			t.Errorf("%s: got status %d; want an answer without a secret: %.2000s", c.line, code, page)
		}
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if log := p.output.String(); strings.Contains(log, secret) || !strings.Contains(log, "redis") {
		t.Errorf("the log shows a secret, or lacks the error of Redis:\n%s", log)
	}
}
