package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

func pageFiles(t *testing.T, page string) map[string]string {
	t.Helper()
	text := read(t, filepath.Join(root, page))
	steps, _ := parsePage(text)
	files := map[string]string{}
	for _, s := range steps {
		if s.file != "" {
			files[s.file] = s.content
		}
	}
	return files
}

// TestOpenAIPackage runs the Python package openai with the configuration of
// docs/howto/answer-llm-clients.md. To suit a test, a request refills in 12 s instead of 20 s, tokens do not
// refill, and Envoy's timeout is longer.
func TestOpenAIPackage(t *testing.T) {
	t.Parallel()
	envoy, python := tooltest.Path(t, "envoy"), tooltest.Path(t, "python-openai")
	files := pageFiles(t, "docs/howto/answer-llm-clients.md")
	s := newStack(t, "10000", "")
	s.limits = s.writeText(t, "limits.yaml", changed(t, "limits.yaml", files["limits.yaml"], change{"rate: 3, period: 1m", "rate: 3, period: 36s"}, change{"rate: 100000, period: 1m", "rate: 100000, period: 30d"}))
	s.writeText(t, "envoy.yaml", changed(t, "envoy.yaml", files["envoy.yaml"], longTimeout))
	serveAt(t, s.addr+":9000", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		w.Header().Set("x-ratelimit-limit-tokens", "7") // a header that the model sends itself
		_, _ = io.WriteString(w, `{"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
			{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}]}`)
	})
	s.args = []string{"--backend-timeout", "2s"}
	s.startSidecar(t)
	s.run(t, envoy, "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn")

	output := run(t, python, "testdata/openai_client.py", "http://"+s.addr+":10000/v1")
	lines := strings.Split(output, "\n")
	if len(lines) < 7 {
		t.Fatalf("the client printed\n%s\nwant 7 lines", output)
	}
	for i, left := range []int{98500, 97000, 95500} {
		if want := fmt.Sprintf("bob: hello x-ratelimit-limit-tokens=100000 x-ratelimit-remaining-tokens=%d x-ratelimit-limit-requests=3", left); lines[i] != want {
			t.Errorf("call %d: %s\nwant %s", i, lines[i], want)
		}
	}
	for i, want := range map[int]string{
		3: `bob, no retries: RateLimitError rate_limit_exceeded requests: Rate limit reached for "calls".`,
		4: `bob, retries: hello`,
		5: `nobody: RateLimitError missing_descriptor invalid_request_error: The request lacks a value that is required.`,
	} {
		if lines[i] != want {
			t.Errorf("%s\nwant %s", lines[i], want)
		}
	}
	// The package repeats a denied request once, after a wait. It does not repeat a request that can never be
	// allowed. The client prints "late" if a unit has refilled before the fifth call, as on a slow machine. Then
	// the first request of that call may have been allowed.
	denials := "3"
	if lines[6] == "late" {
		denials = "[23]"
	}
	_, metrics := fetch("http://" + s.addr + ":6070/metrics")
	for _, want := range []string{
		`rlsidecar_requests_total{code="over_limit",domain="ai"} ` + denials, `rlsidecar_requests_total{code="ok",domain="ai"} 4`,
		`rlsidecar_requests_missing_descriptor_total{domain="ai"} 1`,
	} {
		if !regexp.MustCompile(`(?m)^` + strings.ReplaceAll(want, "{", `\{`) + `$`).MatchString(metrics) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
