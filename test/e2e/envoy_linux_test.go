package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

type bucket struct {
	capacity int
	each     time.Duration // the time in which one unit refills
}

// These are the limits in examples/envoy/rlsidecar.yaml.
var (
	perKey      = bucket{5, 6 * time.Second}
	perTenant   = bucket{10, 3 * time.Second}
	connections = bucket{5, 6 * time.Second}
)

// drain sends requests until one is denied, and returns the denial. It checks that b.capacity requests were
// allowed, and at most one more for each unit that has refilled meanwhile.
func (b bucket) drain(t *testing.T, send func() answer) answer {
	t.Helper()
	from := time.Now()
	for admitted := 0; ; admitted++ {
		a := send()
		most := b.capacity + int(time.Since(from)/b.each)
		switch {
		case a.code == http.StatusOK && admitted < most:
		case a.code == http.StatusTooManyRequests && admitted >= b.capacity:
			return a
		default:
			t.Fatalf("request %d: status %d, want 200 for the first %d to %d requests and then 429\n%.500s", admitted+1, a.code, b.capacity, most, a.raw)
		}
	}
}

func (s *stack) key(t *testing.T, value string) func() answer {
	t.Helper()
	return func() answer { t.Helper(); return s.get(t, "", "/", "x-api-key: "+value) }
}

// TestEnvoy runs examples/envoy with a longer timeout and no other change.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")

	t.Run("a key is limited, and the headers describe the limit", func(t *testing.T) {
		first := s.key(t, "alice")()
		if got := first.header.Get("x-ratelimit-remaining"); first.code != http.StatusOK || got != "4" {
			t.Errorf("first answer: %d, x-ratelimit-remaining %q, want 200 and 4", first.code, got)
		}
		denial := bucket{perKey.capacity - 1, perKey.each}.drain(t, s.key(t, "alice"))
		if got := denial.header.Get("x-ratelimit-remaining"); got != "0" {
			t.Errorf("x-ratelimit-remaining %q, want 0", got)
		}
		// The headers describe the limit that denies: a bucket of 5, which fills in 30 s.
		if got := denial.header.Get("x-ratelimit-limit"); !strings.HasPrefix(got, "5, ") || !strings.Contains(got, `5;w=30;name="per_key"`) {
			t.Errorf("x-ratelimit-limit %q, want 5, and that it is per_key's", got)
		}
		for _, name := range []string{"retry-after", "x-ratelimit-reset"} {
			if got, err := strconv.Atoi(denial.header.Get(name)); err != nil || got < 1 || got > 6 {
				t.Errorf("%s %q, want 1 to 6 s", name, denial.header.Get(name))
			}
		}
	})

	t.Run("each key has its own bucket", func(t *testing.T) {
		for _, value := range []string{"bob", "bo", "b_ob", "Bob", ""} {
			perKey.drain(t, s.key(t, value))
		}
		if a := s.get(t, "", "/"); a.code != http.StatusOK {
			t.Errorf("a request without a key: %d, want 200", a.code)
		}
	})

	t.Run("a path is limited in every spelling", func(t *testing.T) {
		login := func(from, path string) int { return s.get(t, from, path).code }
		var client string
		sameMinute(t, func(attempt int) bool { // windows of a minute start with the minute
			client = fmt.Sprintf("127.66.1.%d", attempt)
			for range 5 {
				if login(client, "/login") != http.StatusOK {
					return false
				}
			}
			for _, path := range []string{"/login", "/login?next=1", "//login", "/x/../login", "/./login", "/%6cogin"} {
				if login(client, path) != http.StatusTooManyRequests {
					t.Logf("%s was allowed", path)
					return false
				}
			}
			return true
		})
		if code := login("127.66.0.1", "/login"); code != http.StatusOK {
			t.Errorf("another address: %d, want 200", code)
		}
		if code := login(client, "/"); code != http.StatusOK {
			t.Errorf("another path: %d, want 200", code)
		}
	})

	t.Run("connections are limited", func(t *testing.T) {
		const greedy, other = "127.66.0.3", "127.66.0.4"
		connections.drain(t, func() answer { return s.connect(t, greedy) })
		if a := s.connect(t, other); a.code != http.StatusOK {
			t.Errorf("another address: refused\n%s", a.raw)
		}
	})

	t.Run("hostile values", func(t *testing.T) { hostileValues(t, s) })

	t.Run("without a sidecar no request is allowed", func(t *testing.T) {
		s.sidecar.kill()
		for range 20 {
			if a := s.get(t, "", "/"); a.code != http.StatusServiceUnavailable {
				t.Fatalf("%d, want 503", a.code)
			}
		}
		if a := s.connect(t, "127.66.0.5"); a.code == http.StatusOK {
			t.Error("a connection was allowed")
		}
	})

	t.Run("a restarted sidecar limits again", func(t *testing.T) {
		s.startSidecar(t)
		s.awaitSidecar(t)
		perKey.drain(t, s.key(t, "bob"))
	})
}

// TestEnvoyFailingOpen configures Envoy to allow requests that get no answer. A client could then avoid its
// limit with any request that makes rlsidecar answer late or with an error.
func TestEnvoyFailingOpen(t *testing.T) {
	t.Parallel()
	s := newStack(t, "", failOpen)
	hostileValues(t, s)

	s.sidecar.kill()
	for range 2 * perKey.capacity {
		if a := s.key(t, "bob")(); a.code != http.StatusOK {
			t.Fatalf("without a sidecar: %d, want 200", a.code)
		}
	}
	s.startSidecar(t)
	s.awaitSidecar(t)
	perKey.drain(t, s.key(t, "bob"))
}

func TestEnvoyOverUnixSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "rls.sock")
	s := newStack(t, socket, overSocket(socket))
	perKey.drain(t, s.key(t, "alice"))

	s.sidecar.kill() // the file of the socket remains, and the next start must replace it
	s.startSidecar(t)
	s.awaitSidecar(t)
	perKey.drain(t, s.key(t, "alice"))
}

// hostileValues sends values that a client can put into a descriptor. Each value must have a bucket of its
// own. Envoy must get an answer without an error and without any byte of the value.
func hostileValues(t *testing.T, s *stack) {
	t.Helper()
	const marker = "zq7injected"
	header := func(value string) func() answer { return s.key(t, marker+value) }
	query := func(value string) func() answer {
		return func() answer { return s.get(t, "", "/?tenant="+marker+value) }
	}
	for _, c := range []struct {
		name  string
		send  func() answer
		limit bucket
	}{
		{"a byte that is not UTF-8", header("\xff"), perKey},
		{"a cut-off rune", header("\xe2\x82"), perKey},
		{"a surrogate", header("\xed\xa0\x80"), perKey},
		{"the same from the query", query("%ff"), perTenant},
		{"CR LF", query("%0d%0a" + marker + ":%20yes%0d%0a%0d%0a"), perTenant},
		{"NUL", query("%00"), perTenant},
		{"all of them", query("%00%0d%0a%ff%7f%1b%5b31m"), perTenant},
		{"50 KiB", header(strings.Repeat("x", 50<<10)), perKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			errors := max(0, s.stat("cluster.app.ratelimit.error"))
			denial := c.limit.drain(t, func() answer {
				a := c.send()
				if strings.Contains(a.raw, marker) {
					t.Errorf("the answer contains bytes of the request:\n%.500q", a.raw)
				}
				return a
			})
			if denial.header.Get("retry-after") == "" {
				t.Errorf("no retry-after in %v", denial.header)
			}
			if now := max(0, s.stat("cluster.app.ratelimit.error")); now != errors {
				t.Errorf("Envoy counts %d errors of the service, want %d as before", now, errors)
			}
		})
	}
	// Envoy refuses headers beyond its own limit.
	if a := header(strings.Repeat("x", 60<<10))(); a.code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("60 KiB: %d, want 431", a.code)
	}
}

// connect sends a request through the TCP listener. It returns status 429 if the connection was closed without
// an answer, and 0 if there was another answer than 200.
func (s *stack) connect(t *testing.T, from string) answer {
	t.Helper()
	raw, err := s.exchange(t, from, "10001", "/")
	switch {
	case strings.HasPrefix(string(raw), "HTTP/1.1 200"):
		return answer{code: http.StatusOK, raw: string(raw)}
	case len(raw) == 0:
		return answer{code: http.StatusTooManyRequests, raw: fmt.Sprint(err)}
	default:
		return answer{raw: string(raw)}
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

func TestEnvoyWithGRPCGo(t *testing.T) {
	t.Setenv("RLSIDECAR_GRPC_ENGINE", "grpc-go")
	t.Run("closed", TestEnvoy)
	t.Run("open", TestEnvoyFailingOpen)
	t.Run("socket", TestEnvoyOverUnixSocket)
}
