package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// front is an application behind a proxy that calls rlsidecar over HTTP. Configurations and ports are those
// of an example, but on a loopback address that no other test uses. The limits are those of examples/nginx.
type front struct {
	*stack
	proxy    *process
	dir      string
	args     []string
	arrived  atomic.Int64 // requests that reached the application
	lastKey  atomic.Value // the values of X-Api-Key in the last request to the application, joined by "|"
	lastPath atomic.Value // the cleaned path of the last request to the application
	body     atomic.Value // the last body that the application received
}

func newFront(t *testing.T, socket string, args ...string) *front {
	t.Helper()
	s := &front{
		stack: &stack{owner: t, addr: loopback(), socket: socket},
		dir:   t.TempDir(), args: args,
	}
	s.serveApp(t)
	s.startFrontSidecar(t)
	return s
}

func (s *front) write(t *testing.T, name string, changes ...change) {
	t.Helper()
	text := strings.ReplaceAll(example(t, name, changes...), "127.0.0.1", s.addr)
	if err := os.WriteFile(filepath.Join(s.dir, filepath.Base(name)), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *front) run(t *testing.T, program string, args ...string) {
	t.Helper()
	s.proxy = startIn(t, s.dir, program, args...)
	awaitPort(t, s.proxy, "tcp", s.addr+":8000")
}

func awaitPort(t *testing.T, p *process, network, address string) {
	t.Helper()
	eventually(t, "it listens on "+address, func() bool {
		if !p.running() {
			t.Fatalf("%s ended: %v", p.cmd.Path, p.err)
		}
		conn, err := net.Dial(network, address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// serveApp starts an application that answers 403 to /forbidden, 500 to /broken, and 200 to all other
// requests. Its answers contain no byte of the request.
func (s *front) serveApp(t *testing.T) {
	t.Helper()
	serveAt(t, s.addr+":9000", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.body.Store(string(body))
		s.receive(r)
		s.lastKey.Store(strings.Join(r.Header["X-Api-Key"], "|"))
		s.lastPath.Store(path.Clean(r.URL.Path))
		s.arrived.Add(1)
		code := http.StatusOK
		if r.URL.Path == "/forbidden" || r.URL.Path == "/broken" {
			code = map[string]int{"/forbidden": 403, "/broken": 500}[r.URL.Path]
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "application")
	})
}

func (s *front) startFrontSidecar(t *testing.T) {
	t.Helper()
	network, address, flag := "tcp", s.addr+":8080", s.addr+":8080"
	if s.socket != "" {
		network, address, flag = "unix", s.socket, "unix://"+s.socket
	}
	s.sidecar = start(s.owner, sidecarProgram, append([]string{"serve", "--config", root + "/examples/nginx/rlsidecar.yaml",
		"--grpc-listen", s.addr + ":8081", "--http-listen", flag, "--admin-listen", s.addr + ":6070", "--drain-delay", "0s"}, s.args...)...)
	awaitPort(t, s.sidecar, network, address)
}

// from is the client's address; "" means any.
func (s *front) do(t *testing.T, from, request string) answer {
	t.Helper()
	a, err := s.try(t, from, request)
	if err != nil {
		t.Fatalf("%.100q: %v", request, err)
	}
	return a
}

// try returns an error if the connection ends without a valid answer.
func (s *front) try(t *testing.T, from, request string) (answer, error) {
	t.Helper()
	var dialer net.Dialer
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", s.addr+":8000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(maxWait))
	if _, err := io.WriteString(conn, request); err != nil {
		return answer{}, err
	}
	raw, err := io.ReadAll(conn)
	if err != nil {
		return answer{}, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		return answer{}, fmt.Errorf("%w in %.200q", err, raw)
	}
	_ = resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(raw)}, nil
}

// send sends GET path with headers ("name: value").
func (s *front) send(t *testing.T, from, path string, headers ...string) answer {
	t.Helper()
	lines := append([]string{"GET " + path + " HTTP/1.1", "Host: shop.test", "Connection: close"}, headers...)
	return s.do(t, from, strings.Join(lines, "\r\n")+"\r\n\r\n")
}

func (s *front) asKey(t *testing.T, value string) func() answer {
	t.Helper()
	return func() answer { t.Helper(); return s.send(t, "", "/", "X-Api-Key: "+value) }
}

func (s *front) decisions(t *testing.T, limit, outcome string) int {
	t.Helper()
	resp, err := http.Get("http://" + s.addr + ":6070/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), fmt.Sprintf("rlsidecar_decisions_total{domain=%q,limit=%q,outcome=%q} ", "shop", limit, outcome)); ok {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// firstAnswer has headers of the answer to the first request of the key; "" means that the answer must not have the
// header.
func (s *front) keysAreLimited(t *testing.T, firstAnswer map[string]string) {
	t.Helper()
	first := s.asKey(t, "alice")()
	if first.code != http.StatusOK {
		t.Fatalf("first answer: status %d, want 200", first.code)
	}
	for name, want := range firstAnswer {
		if got := strings.Join(first.header.Values(name), "|"); got != want {
			t.Errorf("first answer: %s %q, want %q", name, got, want)
		}
	}
	denial := bucket{perKey.capacity - 1, perKey.each}.drain(t, s.asKey(t, "alice"))
	if got := denial.header.Get("Content-Type"); got != "application/problem+json" || !strings.Contains(denial.raw, `"status":429`) {
		t.Errorf("%s: got %s; want application/problem+json with status 429", got, denial.raw)
	}
	if got, err := strconv.Atoi(denial.header.Get("Retry-After")); err != nil || got < 1 || got > 6 || len(denial.header.Values("Retry-After")) != 1 {
		t.Errorf("Retry-After %q, want 1 to 6 s, once", denial.header.Values("Retry-After"))
	}
	if got := denial.header.Values("RateLimit"); len(got) != 1 || !strings.HasPrefix(got[0], `"per_key";r=0;t=`) {
		t.Errorf("got RateLimit %q, want one that begins with %q", got, `"per_key";r=0;t=`)
	}
	if a := s.asKey(t, "bob")(); a.code != http.StatusOK {
		t.Errorf("another key: status %d, want 200", a.code)
	}
	if a := s.send(t, "", "/"); a.code != http.StatusOK {
		t.Errorf("no key: status %d, want 200", a.code)
	}
}

// forged are headers with which a client could claim another address or another path.
var forged = []string{"X-Real-IP: 9.9.9.9", "X-Forwarded-For: 9.9.9.9", "X-Original-URI: /", "X-Forwarded-Uri: /", "X-Original-Method: PUT", "X-Forwarded-Method: PUT"}

// loginIsLimited sends the five logins that an address may send in a minute, and then other spellings of the
// path. A proxy may refuse a spelling, but must not allow one. network is a part of the client's address that
// no other test uses.
func (s *front) loginIsLimited(t *testing.T, network int) {
	t.Helper()
	var client string
	sameMinute(t, func(attempt int) bool {
		client = fmt.Sprintf("127.66.%d.%d", network, attempt)
		for range 5 {
			if s.send(t, client, "/login").code != 200 {
				return false
			}
		}
		for _, path := range []string{
			"/login", "/login?next=1", "//login", "/x/../login", "/./login", "/%6cogin", "/x/%2e%2e/login", "/login#x", "/login?a=b#c",
			"http://shop.test/login", "/nginx/../login",
		} {
			code := s.send(t, client, path, forged...).code
			if got, _ := s.lastPath.Load().(string); code == 200 && got != "/login" {
				continue // the proxy sent another path to the application, such as /login%23x for /login#x
			}
			if code != 429 && code != 400 {
				t.Logf("%s: %d", path, code)
				return false
			}
		}
		// Proxies drop the headers that Connection names. They must not drop those that describe the client and its
		// request to rlsidecar.
		hops := s.send(t, client, "/login", "Connection: X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Method, X-Original-URI, X-Real-IP")
		return hops.code == 429
	})
	if code := s.send(t, fmt.Sprintf("127.66.%d.99", network), "/login").code; code != 200 {
		t.Errorf("another address: status %d, want 200", code)
	}
	if code := s.send(t, client, "/").code; code != 200 {
		t.Errorf("another path: status %d, want 200", code)
	}
}

func (s *front) bodiesArriveUnchanged(t *testing.T) {
	t.Helper()
	post := func() answer {
		return s.do(t, "", "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Api-Key: poster\r\nContent-Length: 7\r\n\r\na=b&c=d")
	}
	if a := post(); a.code != 200 || s.body.Load() != "a=b&c=d" {
		t.Errorf("got %d %v; want status 200 and the body a=b&c=d", a.code, s.body.Load())
	}
	chunked := s.do(t, "", "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	if chunked.code != http.StatusLengthRequired && (chunked.code != 200 || s.body.Load() != "abc") { // HAProxy before 3.2 cannot drop trailers
		t.Errorf("got %d %v; want status 200 and the body abc", chunked.code, s.body.Load())
	}
	bucket{perKey.capacity - 1, perKey.each}.drain(t, post)
}

// The application answers with statuses that rlsidecar or the proxy uses for denials and failures.
func (s *front) answersAreUnchanged(t *testing.T) {
	t.Helper()
	for path, code := range map[string]int{"/forbidden": 403, "/broken": 500} {
		if a := s.send(t, "", path); a.code != code || !strings.HasSuffix(a.raw, "application") {
			t.Errorf("%s: got %d; want status %d", path, a.code, code)
		}
	}
}

// code and retryAfter are the status and the Retry-After that the proxy must answer while the sidecar does not run.
func (s *front) failsClosedWithoutSidecar(t *testing.T, code int, retryAfter string) {
	t.Helper()
	s.sidecar.kill()
	before := s.arrived.Load()
	for range 20 {
		if a := s.send(t, "", "/"); a.code != code || a.header.Get("Retry-After") != retryAfter {
			t.Fatalf("got %d %v; want status %d and Retry-After %q", a.code, a.header, code, retryAfter)
		}
	}
	if s.arrived.Load() != before {
		t.Error("a request reached the application")
	}
	s.startFrontSidecar(t)
	eventually(t, "it is found again", func() bool { return s.send(t, "", "/").code == 200 })
	perKey.drain(t, s.asKey(t, "back"))
}

func (s *front) failsOpenWithoutSidecar(t *testing.T) {
	t.Helper()
	before := s.arrived.Load()
	s.sidecar.kill()
	for range 20 {
		if a := s.asKey(t, "anybody")(); a.code != 200 {
			t.Fatalf("failing open: status %d, want 200", a.code)
		}
	}
	if n := s.arrived.Load() - before; n != 20 {
		t.Errorf("%d requests reached the application, want 20", n)
	}
}

// The proxy must have the timeout of the example, which is about 100 ms.
func (s *front) deniesAfterTheTimeout(t *testing.T) {
	t.Helper()
	s.sidecar.freeze(t)
	from := time.Now()
	a := s.asKey(t, "alice")()
	if waited := time.Since(from); a.code != 503 || waited < 90*time.Millisecond || waited > 5*time.Second {
		t.Errorf("got status %d after %v; want 503 after about 100 ms", a.code, waited)
	}
	s.sidecar.thaw(t)
	eventually(t, "it answers again", func() bool { return s.asKey(t, "bob")().code == 200 })
}

// marker is part of all values in hostile requests. No answer may contain it.
const marker = "zq7injected"

// refusedByApp corrects the status of an answer to 200 if rlsidecar allowed the request and the application
// refused its Host header. The header RateLimit shows that rlsidecar was called.
func refusedByApp(a answer) answer {
	if a.code == 400 && strings.Contains(a.raw, "malformed Host header") && a.header.Get("RateLimit") != "" {
		a.code = 200
	}
	return a
}

// hostileRequestsAreLimited sends requests that could make rlsidecar answer with an error. A proxy that can
// fail open should do so in this test, because then such an error lets a request avoid its limit.
func (s *front) hostileRequestsAreLimited(t *testing.T) {
	t.Helper()
	get := func(path string, headers ...string) func() answer {
		return func() answer { t.Helper(); return s.send(t, "", path, headers...) }
	}
	for _, c := range []struct {
		name  string
		send  func() answer
		limit bucket
	}{
		{"a key that is not UTF-8", get("/", "X-Api-Key: "+marker+"\xff"), perKey},
		{"a key of UTF-8", get("/", "X-Api-Key: "+marker+"ключ"), perKey},
		{"a cut-off rune", get("/", "X-Api-Key: "+marker+"\xe2\x82"), perKey},
		{"control bytes", get("/", "X-Api-Key: "+marker+"\x01\x1b[31m\x7f"), perKey},
		{"a key that contains the name of another entry", get("/", "X-Api-Key: "+marker+",remote_address=1.2.3.4_api_key"), perKey},
		{"a key of 16 KiB", get("/", "X-Api-Key: "+marker+strings.Repeat("x", 16<<10)), perKey},
		{"CR LF in a query", get("/?tenant=" + marker + "%0d%0aX-Injected:%20yes%0d%0a%0d%0a"), perTenant},
		{"CR LF in a path", get("/%0d%0aX-Api-Key:%20x?tenant=" + marker + "crlf"), perTenant},
		{"ampersands and equals signs", get("/?a=b&tenant=" + marker + "%26tenant%3Dx&tenant=2"), perTenant},
		{"an escaped name in the query", get("/?a=b&%74enant=" + marker + "%26tenant%3dy&tenant=2"), perTenant},
		{"escaped bytes that are not UTF-8 in a query", get("/?tenant=" + marker + "%ff%fe%00%7f"), perTenant},
		{"raw bytes that are not UTF-8 in a query", get("/?tenant=" + marker + "\xff\xfe"), perTenant},
		{"a target of 16 KiB", get("/" + strings.Repeat("x", 16<<10) + "?tenant=" + marker + "long"), perTenant},
		{"dots", get("/a//b/../../v1/auth/../x?tenant=" + marker + "dots"), perTenant},
		{"a malformed host", func() answer {
			return refusedByApp(s.do(t, "", "GET /?tenant="+marker+"host HTTP/1.1\r\nHost: a\"b<c>\r\nConnection: close\r\n\r\n"))
		}, perTenant},
		{"a host that is not UTF-8", func() answer {
			return refusedByApp(s.do(t, "", "GET /?tenant="+marker+"host2 HTTP/1.1\r\nHost: \xff\r\nConnection: close\r\n\r\n"))
		}, perTenant},
		{"a control byte in the host", func() answer {
			return refusedByApp(s.do(t, "", "GET /?tenant="+marker+"host3 HTTP/1.1\r\nHost: a\x01b\r\nConnection: close\r\n\r\n"))
		}, perTenant},
		{"a delete byte in the host", func() answer {
			return refusedByApp(s.do(t, "", "GET /?tenant="+marker+"host4 HTTP/1.1\r\nHost: a\x7fb\r\nConnection: close\r\n\r\n"))
		}, perTenant},
		{"a tab in the host", func() answer {
			return refusedByApp(s.do(t, "", "GET /?tenant="+marker+"host5 HTTP/1.1\r\nHost: a\tb\r\nConnection: close\r\n\r\n"))
		}, perTenant},
		{"forged headers of an auth request", get("/?tenant="+marker+"head", append(forged, "X-Forwarded-Host: a,b")...), perTenant},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := func(code int) bool { return code == 400 || code == 414 || code == 431 || code == 501 }
			if a := c.send(); refused(a.code) { // the proxy itself refuses it
				for range 2 * c.limit.capacity {
					if a := c.send(); a.code < 400 {
						t.Errorf("the proxy refused the request once, and then allowed it with status %d", a.code)
					}
				}
				t.Logf("the proxy refused the request with status %d", a.code)
				return
			}
			bucket{c.limit.capacity - 1, c.limit.each}.drain(t, func() answer {
				a := c.send()
				if strings.Contains(a.raw, marker) {
					t.Errorf("the answer contains bytes of the request:\n%.500q", a.raw)
				}
				return a
			})
		})
	}
	// Each value had a bucket of its own.
	if a := s.asKey(t, marker)(); a.code != 200 {
		t.Errorf("a key that none of the requests above sent: status %d, want 200", a.code)
	}
}

// everyHeaderSizeIsLimited sends keys and paths from 1 KiB to 600 KiB. If the proxy accepts one, it must fit
// into the auth request. An allowed answer without a RateLimit header was not limited.
func (s *front) everyHeaderSizeIsLimited(t *testing.T) {
	t.Helper()
	for n := 1 << 10; n < 600<<10; n += n/64 + 1 {
		big := strings.Repeat("x", n)
		for _, request := range []string{
			"GET /?tenant=big HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\nX-Api-Key: " + big + "\r\n\r\n",
			"GET /" + big + " HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n",
		} {
			a, err := s.try(t, "", request)
			if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
				continue // the proxy refused the request before it had read all of it
			}
			if err != nil || a.code < 400 && a.header.Get("RateLimit") == "" {
				t.Errorf("%d bytes: got %v %d %v; want an error status or a RateLimit header", n, err, a.code, a.header)
			}
		}
	}
}
