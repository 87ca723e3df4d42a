package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// TestEnvoyExtAuthz runs examples/envoy-extauthz with longer timeouts and no other change.
func TestEnvoyExtAuthz(t *testing.T) {
	t.Parallel()
	s := newExtAuthzStack(t)
	first := s.key(t, "alice")()
	if got := first.header.Get("RateLimit"); first.code != http.StatusOK || got != `"per_key";r=4;t=6` {
		t.Errorf("got %d %q; want status 200 and \"per_key\";r=4;t=6", first.code, got)
	}
	denial := bucket{perKey.capacity - 1, perKey.each}.drain(t, s.key(t, "alice"))
	if got, err := strconv.Atoi(denial.header.Get("Retry-After")); err != nil || got < 1 || got > 6 || !strings.Contains(denial.raw, `"violated-policies":["per_key"]`) {
		t.Errorf("got %q; want a Retry-After of 1 to 6 s, and the violated policy per_key", denial.raw)
	}
	loginOverExtAuthz(t, s)
	for _, value := range []string{"\xff", "\xe2\x82", strings.Repeat("x", 40<<10)} {
		perKey.drain(t, s.key(t, value))
	}
	s.sidecar.kill()
	if a := s.get(t, "", "/"); a.code != http.StatusServiceUnavailable {
		t.Errorf("without a sidecar: status %d, want 503", a.code)
	}
}

// TestEnvoyExtAuthzAppendingPaths configures Envoy to append the path of its client's request to /v1/auth, and
// to allow requests if rlsidecar does not answer.
func TestEnvoyExtAuthzAppendingPaths(t *testing.T) {
	t.Parallel()
	s := newExtAuthzStack(t,
		change{"path_override: /v1/auth ", "path_prefix: /v1/auth "},
		change{"- { key: x-original-uri, value: \"%REQ(:path)%\" }\n", "\n"},
		change{"failure_mode_allow: false", "failure_mode_allow: true"})
	loginOverExtAuthz(t, s)
	if a := s.get(t, "", "/nginx/x?y=/v1/auth"); a.code != http.StatusOK {
		t.Errorf("got %d; want status 200", a.code)
	}
}

// loginOverExtAuthz sends the five logins that an address may send in a minute. Then it sends logins with
// other spellings of the path and with forged headers, of which each must be denied.
func loginOverExtAuthz(t *testing.T, s *stack) {
	t.Helper()
	sameMinute(t, func(attempt int) bool {
		client := fmt.Sprintf("127.66.3.%d", attempt+1)
		for range 5 {
			if s.get(t, client, "/login").code != 200 {
				return false
			}
		}
		for _, path := range []string{"/login", "/login?next=1", "//login", "/x/../login", "/./login", "/%6cogin", "/x/%2e%2e/login", "/../../login", "/nginx/../login", "/json/../../login"} {
			if code := s.get(t, client, path, "x-real-ip: 9.9.9.9", "x-forwarded-for: 9.9.9.9", "x-original-uri: /", "x-forwarded-uri: /").code; code != 429 {
				t.Logf("%s: %d", path, code)
				return false
			}
		}
		return true
	})
}

func newExtAuthzStack(t *testing.T, changes ...change) *stack {
	t.Helper()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	s := sidecarStack(t, "")
	s.serveApplication(t)
	s.sidecar = start(t, sidecarProgram, "serve", "--config", root+"/examples/envoy-extauthz/rlsidecar.yaml",
		"--grpc-listen", s.addr+":8081", "--http-listen", s.addr+":8080", "--admin-listen", s.addr+":6070", "--drain-delay", "0s")
	eventually(t, "rlsidecar is ready", func() bool {
		resp, err := s.client.Get("http://" + s.addr + ":8080/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	s.runEnvoy(t, s.envoyFile(t, "envoy-extauthz/envoy.yaml", append(changes, change{"timeout: 0.1s }", "timeout: 10s }"})...))
	return s
}
