package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// settleStack starts an unmodified Envoy that settles reservations as docs/howto/limit-llm-tokens.md describes, with the
// envoy.yaml of docs/howto/limit-users-behind-envoy.md. The limits are smaller, their estimate is 100, and one more limit
// is for the user careful. The path of a request selects the answer of the application behind it:
//
//   - /cost/N reports the cost N, and /nothing reports none.
//   - /slow/N reports the cost N, sends a part of the answer, and waits until the client has disconnected.
//   - /die/N reports the cost N, sends a part of the answer, and closes the connection.
//   - /silent waits and /dead closes the connection before any byte of the answer, so that no cost is known.
func settleStack(t *testing.T) *stack {
	t.Helper()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	guide := yamlBlocks(t, "docs/howto/limit-llm-tokens.md")
	envoy := yamlBlocks(t, "docs/howto/limit-users-behind-envoy.md")
	if len(guide) != 2 || len(envoy) != 2 {
		t.Fatalf("the pages have %d and %d blocks of YAML, want two each", len(guide), len(envoy))
	}
	s := newStack(t, "10000", "")
	s.limits = s.writeText(t, "limits.yaml", changed(t, "limits.yaml", guide[0],
		change{"token_bucket", "fixed_window"}, change{"rate: 100000", "rate: 1000"}, change{"period: 1m", "period: 1d"},
		change{"{learn: p90, first: 1500, most: 8000}", "100"},
		change{"limits:\n", "limits:\n  careful: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100, unknown_cost: most, most: 400}}\n"},
	)+"  - {key: user, value: careful, limit: careful}\n")
	serveAt(t, s.addr+":9000", func(w http.ResponseWriter, r *http.Request) {
		kind, value, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if kind != "nothing" && kind != "silent" && kind != "dead" {
			w.Header().Set("x-cost", value)
		}
		switch kind {
		case "slow":
			_, _ = io.WriteString(w, "a part")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case "silent":
			<-r.Context().Done()
		case "dead":
			panic(http.ErrAbortHandler)
		case "die":
			_, _ = io.WriteString(w, "a part")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	s.startSidecar(t)
	var config []string
	for line := range strings.Lines(envoy[1]) {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(text, "rate_limits:"), strings.HasPrefix(text, "- actions:"): // the guide for tokens has lines of its own for the virtual host
		case text == "domain: edge":
			config = append(config, indent+"domain: ai\n")
			for line := range strings.Lines(guide[1]) {
				config = append(config, indent+line)
			}
		default:
			config = append(config, strings.ReplaceAll(line, "timeout: 0.05s", "timeout: 10s"))
		}
	}
	s.runEnvoy(t, s.writeText(t, "envoy.yaml", "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 9901 } } }\n"+strings.Join(config, "")))
	return s
}

// wantLeft waits until a user has this number of tokens left, because Envoy sends the settle-done after the
// answer. Without a user, the bucket has no key.
func (s *stack) wantLeft(t *testing.T, limit string, want int, user ...string) {
	t.Helper()
	awaitLeft(t, want, s.addr, "ai", limit, user...)
}

// wantUnknown waits until this number of settlements without a real cost have arrived, in addition to those of
// the users carol and careful.
func (s *stack) wantUnknown(t *testing.T, more int) {
	t.Helper()
	eventually(t, "the settlement without a real cost arrives", func() bool {
		return int(metric(s.addr, `rlsidecar_settlements_total{domain="ai",limit="tokens",result="unknown"}`)+
			metric(s.addr, `rlsidecar_settlements_total{domain="ai",limit="careful",result="unknown"}`)) == 2+more
	})
}

// TestEnvoySettles runs an unmodified Envoy. The answer to the first rate limit request has a reservation id.
// Envoy sends the id at the end of the stream, with the real cost.
func TestEnvoySettles(t *testing.T) {
	t.Parallel()
	s := settleStack(t)
	get := func(user, path string) int { return s.get(t, "", path, "x-user: "+user).code }

	t.Run("less than was reserved is refunded, and more is charged", func(t *testing.T) {
		if code := get("bob", "/cost/37"); code != http.StatusOK {
			t.Fatalf("%d, want 200", code)
		}
		s.wantLeft(t, "tokens", 963, "bob")
		get("bob", "/cost/463")
		s.wantLeft(t, "tokens", 500, "bob")
	})
	t.Run("without a cost the estimate stays charged", func(t *testing.T) {
		get("carol", "/nothing")
		get("carol", "/cost/1") // the settle-done of this request arrives after that of the first one
		s.wantLeft(t, "tokens", 899, "carol")
	})
	t.Run("without a cost, unknown_cost decides", func(t *testing.T) {
		get("careful", "/nothing")
		s.wantLeft(t, "careful", 600)
	})
	t.Run("a denied request costs nothing", func(t *testing.T) {
		get("dave", "/cost/950")
		s.wantLeft(t, "tokens", 50, "dave")
		if code := get("dave", "/cost/10"); code != http.StatusTooManyRequests {
			t.Fatalf("%d, want 429", code)
		}
		get("erin", "/cost/1")
		s.wantLeft(t, "tokens", 999, "erin")
		s.wantLeft(t, "tokens", 50, "dave")
	})
	t.Run("the client disconnects", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.addr+":10000")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "GET /slow/30 HTTP/1.1\r\nhost: shop.test\r\nx-user: frank\r\n\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(maxWait))
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		s.wantLeft(t, "tokens", 970, "frank") // the headers reported the cost
	})
	t.Run("the application closes the connection", func(t *testing.T) {
		_, _ = s.try(t, "", s.port, "GET /die/20 HTTP/1.1\r\nhost: shop.test\r\nx-user: grace\r\n\r\n") // the answer is incomplete
		s.wantLeft(t, "tokens", 980, "grace")
	})
	t.Run("the client disconnects before the answer", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.addr+":10000")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "GET /silent HTTP/1.1\r\nhost: shop.test\r\nx-user: ivan\r\n\r\n")
		s.wantLeft(t, "tokens", 900, "ivan") // the estimate stays charged
		_ = conn.Close()
		s.wantUnknown(t, 1)
		s.wantLeft(t, "tokens", 900, "ivan")
	})
	t.Run("the application closes the connection before the answer", func(t *testing.T) {
		if code := get("judy", "/dead"); code != http.StatusServiceUnavailable {
			t.Errorf("%d, want 503", code)
		}
		s.wantUnknown(t, 2)
		s.wantLeft(t, "tokens", 900, "judy")
	})
	t.Run("a request without a user is denied", func(t *testing.T) {
		if code := s.get(t, "", "/cost/10", "x-other: bob").code; code != http.StatusTooManyRequests {
			t.Errorf("%d, want 429", code)
		}
	})
	t.Run("a client cannot send an id of its own", func(t *testing.T) {
		s.get(t, "", "/cost/5", "x-user: heidi", "settle: forged", "settle_end: forged")
		s.wantLeft(t, "tokens", 995, "heidi")
	})
	if n := s.stat("cluster.app.ratelimit.error"); n > 0 {
		t.Errorf("Envoy counts %d errors of the service, want 0", n)
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```$")

// yamlBlocks returns the blocks of YAML on a page, without their indentation.
func yamlBlocks(t *testing.T, page string) (blocks []string) {
	t.Helper()
	for _, m := range yamlBlock.FindAllStringSubmatch(read(t, filepath.Join(root, page)), -1) {
		blocks = append(blocks, strings.ReplaceAll("\n"+m[2], "\n"+m[1], "\n")[1:])
	}
	return blocks
}
