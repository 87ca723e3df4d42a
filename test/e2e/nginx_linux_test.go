package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// nginxProgram finds NGINX: $NGINX, PATH, or where Debian puts it.
func nginxProgram(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("NGINX"), "nginx", "/usr/sbin/nginx"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const remedy = "there is no NGINX here; scripts/install-tools.sh installs it"
	if os.Getenv("CI") != "" {
		t.Fatal(remedy)
	}
	t.Skip(remedy)
	return ""
}

// nginxStack is an application behind NGINX, which asks rlsidecar, all of them as in examples/nginx,
// ports too, but on a loopback address that no other test uses.
type nginxStack struct {
	*stack
	dir     string       // where NGINX runs
	asked   atomic.Int64 // by NGINX of the application
	lastKey atomic.Value // the X-Api-Key it got, all lines
	body    atomic.Value // what it was sent
}

// The changes of examples/nginx/nginx.conf that tests make. The first is made always: on a busy
// machine 50 ms may be too short.
var (
	patientNginx   = change{"_timeout 50ms", "_timeout 10s"}
	patientConnect = change{"_timeout    50ms", "_timeout 10s"}
	patientRead    = change{"proxy_read_timeout    100ms", "proxy_read_timeout 10s"}
	nginxFailsOpen = change{"error_page 500 = @rl_closed;", "error_page 500 = @rl_open;"}
	longTargets    = change{"access_log access.log limited;", "access_log access.log limited; large_client_header_buffers 4 32k;"}
	rememberPath   = change{"#proxy_cache_path ", "proxy_cache_path "}
	remember       = change{"#proxy_cache denials;", "proxy_cache denials;"}
	rememberKey    = change{"#proxy_cache_key ", "proxy_cache_key "}
)

func nginxOverSocket(path string) change {
	return change{"server 127.0.0.1:8080 max_fails=0;", "server unix:" + path + " max_fails=0;"}
}

func newNginxStack(t *testing.T, socket string, changes ...change) *nginxStack {
	t.Helper()
	program := nginxProgram(t) // may skip
	pid := os.Getpid()
	s := &nginxStack{
		stack: &stack{owner: t, addr: fmt.Sprintf("127.%d.%d.%d", 100+pid>>8&0x7f, pid&0xff, stacks.Add(1)), socket: socket},
		dir:   t.TempDir(),
	}
	s.serveApp(t)
	s.startNginxSidecar(t)
	text, err := os.ReadFile(root + "/examples/nginx/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	conf := string(text)
	// The default of user is nobody, who may not read what a test of root's writes.
	changes = append(changes, change{"127.0.0.1", s.addr}, change{"worker_processes auto;", "worker_processes 1;" + userDirective()})
	for _, c := range changes {
		if !strings.Contains(conf, c.old) {
			t.Fatalf("examples/nginx/nginx.conf no longer has %q", c.old)
		}
		conf = strings.ReplaceAll(conf, c.old, c.new)
	}
	for _, name := range []string{"tmp", "html/static/folder"} {
		if err := os.MkdirAll(filepath.Join(s.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"nginx.conf": conf, "html/static/a.txt": "a file", "html/static/folder/index.html": "an index"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nginx := start(t, program, "-p", s.dir, "-e", "stderr", "-c", "nginx.conf")
	eventually(t, "NGINX listens", func() bool {
		if !nginx.running() {
			t.Fatalf("NGINX ended: %v", nginx.err)
		}
		conn, err := net.Dial("tcp", s.addr+":8000")
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return s
}

func userDirective() string {
	if os.Getuid() == 0 {
		return " user root;"
	}
	return ""
}

// serveApp answers what NGINX lets through, with nothing of what it was sent.
func (s *nginxStack) serveApp(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", s.addr+":9000")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		ReadHeaderTimeout: patience, MaxHeaderBytes: 1 << 20,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			s.body.Store(string(body))
			s.lastKey.Store(strings.Join(r.Header["X-Api-Key"], "|"))
			s.asked.Add(1)
			code := http.StatusOK
			if r.URL.Path == "/forbidden" || r.URL.Path == "/broken" {
				code = map[string]int{"/forbidden": 403, "/broken": 500}[r.URL.Path]
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "application")
		}),
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
}

func (s *nginxStack) startNginxSidecar(t *testing.T) {
	t.Helper()
	network, address, flag := "tcp", s.addr+":8080", s.addr+":8080"
	if s.socket != "" {
		network, address, flag = "unix", s.socket, "unix://"+s.socket
	}
	s.sidecar = start(s.owner, sidecarProgram, "serve", "--config", root+"/examples/nginx/rlsidecar.yaml",
		"--grpc-listen", s.addr+":8081", "--http-listen", flag, "--admin-listen", s.addr+":6070", "--drain-delay", "0s")
	eventually(t, "rlsidecar listens", func() bool {
		if !s.sidecar.running() {
			t.Fatalf("rlsidecar ended: %v", s.sidecar.err)
		}
		conn, err := net.Dial(network, address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// do sends a request byte for byte and reads the answer; a "" from is any address.
func (s *nginxStack) do(t *testing.T, from, request string) answer {
	t.Helper()
	var dialer net.Dialer
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", s.addr+":8000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("%.100q: %v", request, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatalf("%.100q: %v in %.200q", request, err, raw)
	}
	_ = resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// ask sends GET path with headers ("name: value").
func (s *nginxStack) ask(t *testing.T, from, path string, headers ...string) answer {
	t.Helper()
	lines := append([]string{"GET " + path + " HTTP/1.1", "Host: shop.test", "Connection: close"}, headers...)
	return s.do(t, from, strings.Join(lines, "\r\n")+"\r\n\r\n")
}

// asKey makes askers with an X-Api-Key header.
func (s *nginxStack) asKey(t *testing.T, value string) func() answer {
	t.Helper()
	return func() answer { t.Helper(); return s.ask(t, "", "/", "X-Api-Key: "+value) }
}

// decisions is how often a limit decided so, by the sidecar's metrics.
func (s *nginxStack) decisions(t *testing.T, limit, outcome string) int {
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

var patientAll = []change{patientNginx, patientConnect, patientRead}

// TestNginx runs examples/nginx as it is, but for patience.
func TestNginx(t *testing.T) {
	s := newNginxStack(t, "", patientAll...)

	t.Run("a key has its limit, and the answers say so", func(t *testing.T) {
		first := s.asKey(t, "alice")()
		want := map[string]string{
			"RateLimit-Policy":  `"per_key";q=5;w=30, "address";q=200;w=1`,
			"RateLimit":         `"per_key";r=4;t=6`,
			"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "6",
			"Retry-After": "",
		}
		for name, value := range want {
			if got := first.header.Get(name); first.code != http.StatusOK || got != value {
				t.Errorf("first answer: %d, %s %q, want %q", first.code, name, got, value)
			}
		}
		denial := bucket{perKey.capacity - 1, perKey.each}.drain(t, s.asKey(t, "alice"))
		if got := denial.header.Get("Content-Type"); got != "application/problem+json" {
			t.Error(got)
		}
		for _, name := range []string{"Retry-After", "X-RateLimit-Reset"} {
			if got, err := strconv.Atoi(denial.header.Get(name)); err != nil || got < 1 || got > 6 || len(denial.header.Values(name)) != 1 {
				t.Errorf("%s %q, want 1 to 6 s, once", name, denial.header.Values(name))
			}
		}
		if got := denial.header.Get("RateLimit"); !strings.HasPrefix(got, `"per_key";r=0;t=`) {
			t.Error(got)
		}
		if a := s.asKey(t, "bob")(); a.code != 200 {
			t.Errorf("another key: %d", a.code)
		}
		if a := s.ask(t, "", "/"); a.code != 200 {
			t.Errorf("no key: %d", a.code)
		}
	})

	t.Run("a path has its limit however it is written", func(t *testing.T) {
		var guesser string
		sameMinute(t, func(attempt int) bool {
			guesser = fmt.Sprintf("127.66.2.%d", attempt)
			for range 5 {
				if s.ask(t, guesser, "/login").code != 200 {
					return false
				}
			}
			for _, path := range []string{"/login", "/login?next=1", "//login", "/x/../login", "/./login", "/%6cogin", "/x/%2e%2e/login", "/login#x", "/login?a=b#c", "http://shop.test/login"} {
				if code := s.ask(t, guesser, path, "X-Real-IP: 9.9.9.9", "X-Forwarded-For: 9.9.9.9", "X-Original-URI: /", "X-Forwarded-Uri: /").code; code != 429 {
					t.Logf("%s: %d", path, code)
					return false
				}
			}
			return true
		})
		if code := s.ask(t, "127.66.2.9", "/login").code; code != 200 {
			t.Errorf("another address: %d", code)
		}
		if code := s.ask(t, guesser, "/").code; code != 200 {
			t.Errorf("another path: %d", code)
		}
	})

	t.Run("what is sent twice is counted as the application sees it", func(t *testing.T) {
		ask := func() answer { return s.ask(t, "", "/", "X-Api-Key: twice", "X-Api-Key: other") }
		perKey.drain(t, ask)
		if key := s.lastKey.Load(); key == "twice|other" {
			t.Errorf("the application gets %q", key)
		} else if key == "twice" { // NGINX < 1.23 takes the first, later ones join them
			if a := s.asKey(t, "twice")(); a.code != 429 {
				t.Errorf("alone: %d", a.code)
			}
		}
	})

	t.Run("bodies pass", func(t *testing.T) {
		post := func() answer {
			return s.do(t, "", "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Api-Key: poster\r\nContent-Length: 7\r\n\r\na=b&c=d")
		}
		if a := post(); a.code != 200 || s.body.Load() != "a=b&c=d" {
			t.Errorf("%d %v", a.code, s.body.Load())
		}
		chunked := s.do(t, "", "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
		if chunked.code != 200 || s.body.Load() != "abc" {
			t.Errorf("%d %v", chunked.code, s.body.Load())
		}
		bucket{perKey.capacity - 1, perKey.each}.drain(t, post)
	})

	t.Run("the application's own answers are left alone", func(t *testing.T) {
		for path, code := range map[string]int{"/forbidden": 403, "/broken": 500} {
			if a := s.ask(t, "", path); a.code != code || !strings.HasSuffix(a.raw, "application") {
				t.Errorf("%s: %d", path, a.code)
			}
		}
	})

	t.Run("redirects inside NGINX charge once", func(t *testing.T) {
		for path, want := range map[string]struct {
			code int
			body string
		}{"/static/a.txt": {200, "a file"}, "/static/folder": {200, "an index"}, "/static/none": {404, ""}, "/static/": {404, ""}} {
			before := s.decisions(t, "remote_address", "allowed")
			if a := s.ask(t, "", path); a.code != want.code || !strings.HasSuffix(a.raw, want.body) {
				t.Errorf("%s: %d %q", path, a.code, a.raw)
			}
			if n := s.decisions(t, "remote_address", "allowed") - before; n != 1 {
				t.Errorf("%s: asked %d times", path, n)
			}
		}
	})

	t.Run("without a sidecar nothing passes", func(t *testing.T) {
		s.sidecar.kill()
		before := s.asked.Load()
		for range 20 {
			if a := s.ask(t, "", "/"); a.code != 503 || a.header.Get("Retry-After") != "1" {
				t.Fatalf("%d %v, want 503", a.code, a.header)
			}
		}
		if s.asked.Load() != before {
			t.Error("the application was asked")
		}
	})

	t.Run("it comes back, and limits again", func(t *testing.T) {
		s.startNginxSidecar(t)
		perKey.drain(t, s.asKey(t, "bob"))
	})
}

// refusedByApp is a with 200 for what was let through, to an application that does not take it.
func refusedByApp(a answer) answer {
	if a.code == 400 && strings.Contains(a.raw, "malformed Host header") {
		a.code = 200
	}
	return a
}

// TestNginxHostileRequests also has NGINX let through what it gets no answer to: whatever makes
// rlsidecar answer with an error would pass its limit.
func TestNginxHostileRequests(t *testing.T) {
	s := newNginxStack(t, "", append(patientAll, nginxFailsOpen, longTargets)...)
	const marker = "zq7injected"
	get := func(path string, headers ...string) func() answer {
		return func() answer { t.Helper(); return s.ask(t, "", path, headers...) }
	}
	for _, c := range []struct {
		name  string
		ask   func() answer
		limit bucket
	}{
		{"a key that is not UTF-8", get("/", "X-Api-Key: "+marker+"\xff"), perKey},
		{"a cut-off rune", get("/", "X-Api-Key: "+marker+"\xe2\x82"), perKey},
		{"control bytes", get("/", "X-Api-Key: "+marker+"\x01\x1b[31m\x7f"), perKey},
		{"what looks like another entry", get("/", "X-Api-Key: "+marker+",remote_address=1.2.3.4_api_key"), perKey},
		{"16 KiB", get("/", "X-Api-Key: "+marker+strings.Repeat("x", 16<<10)), perKey},
		{"CR LF", get("/?tenant=" + marker + "%0d%0aX-Injected:%20yes%0d%0a%0d%0a"), perTenant},
		{"ampersands and equals signs", get("/?a=b&tenant=" + marker + "%26tenant%3Dx&tenant=2"), perTenant},
		{"the same, spelled otherwise", get("/?a=b&%74enant=" + marker + "%26tenant%3dy&tenant=2"), perTenant},
		{"bytes that are not UTF-8", get("/?tenant=" + marker + "%ff%fe%00%7f"), perTenant},
		{"raw ones", get("/?tenant=" + marker + "\xff\xfe"), perTenant},
		{"a target of 16 KiB", get("/" + strings.Repeat("x", 16<<10) + "?tenant=" + marker + "long"), perTenant},
		{"dots", get("/a//b/../../v1/auth/../x?tenant="+marker+"dots", "X-Api-Key:"), perTenant},
		{"a host that is none", func() answer {
			return refusedByApp(s.do(t, "", "GET /?tenant="+marker+"host HTTP/1.1\r\nHost: a\"b<c>\r\nConnection: close\r\n\r\n"))
		}, perTenant},
		{"a host that is not UTF-8", func() answer {
			return refusedByApp(s.do(t, "", "GET /?tenant="+marker+"host2 HTTP/1.1\r\nHost: \xff\r\nConnection: close\r\n\r\n"))
		}, perTenant},
		{"headers of the question", get("/?tenant="+marker+"head", "X-Original-URI: /", "X-Original-Method: PUT", "X-Real-IP: 1.1.1.1", "X-Forwarded-Host: a,b"), perTenant},
	} {
		t.Run(c.name, func(t *testing.T) {
			if a := c.ask(); a.code == 400 || a.code == 501 { // NGINX itself turns it away
				for range 2 * c.limit.capacity {
					if a := c.ask(); a.code < 400 {
						t.Errorf("now %d", a.code)
					}
				}
				t.Logf("NGINX: %d", a.code)
				return
			}
			bucket{c.limit.capacity - 1, c.limit.each}.drain(t, func() answer {
				a := c.ask()
				if strings.Contains(a.raw, marker) {
					t.Errorf("comes back in\n%.500q", a.raw)
				}
				return a
			})
		})
	}
	// Each had a bucket of its own, but for two spellings of one and what is no key.
	log, err := os.ReadFile(filepath.Join(s.dir, "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if !strings.Contains(line, "rl=200") && !strings.Contains(line, "rl=403") && !strings.Contains(line, "rl=-") {
			t.Errorf("not an answer: %.300s", line)
		}
	}

	before := s.asked.Load()
	s.sidecar.kill()
	for range 20 {
		if a := s.asKey(t, "anybody")(); a.code != 200 {
			t.Fatalf("failing open: %d", a.code)
		}
	}
	if n := s.asked.Load() - before; n != 20 {
		t.Errorf("the application was asked %d times", n)
	}
}

func TestNginxOverUnixSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "http.sock")
	s := newNginxStack(t, socket, append(patientAll, nginxOverSocket(socket))...)
	perKey.drain(t, s.asKey(t, "alice"))

	s.sidecar.kill() // leaves the socket's file behind
	if a := s.asKey(t, "alice")(); a.code != 503 {
		t.Errorf("without a sidecar: %d", a.code)
	}
	s.startNginxSidecar(t)
	perKey.drain(t, s.asKey(t, "alice"))
}

// TestNginxDoesNotWaitForLong has a sidecar that does not answer.
func TestNginxDoesNotWaitForLong(t *testing.T) {
	s := newNginxStack(t, "") // impatient, as it is shipped
	if err := s.sidecar.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	a := s.asKey(t, "alice")()
	if waited := time.Since(from); a.code != 503 || waited < 90*time.Millisecond || waited > 5*time.Second {
		t.Errorf("%d after %v", a.code, waited)
	}
	if err := s.sidecar.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it answers again", func() bool { return s.asKey(t, "bob")().code == 200 })
}

func TestNginxRemembersDenials(t *testing.T) {
	s := newNginxStack(t, "", append(patientAll, rememberPath, remember, rememberKey)...)
	perKey.drain(t, s.asKey(t, "alice"))
	eventually(t, "most of ten denials are remembered", func() bool {
		before := s.decisions(t, "per_key", "denied")
		for range 10 {
			if a := s.asKey(t, "alice")(); a.code != 429 || a.header.Get("Retry-After") == "" {
				t.Fatalf("%d %v", a.code, a.header)
			}
		}
		return before > 0 && s.decisions(t, "per_key", "denied")-before <= 5
	})
	for range perKey.capacity { // what is allowed is not remembered
		if a := s.asKey(t, "bob")(); a.code != 200 {
			t.Fatal(a.code)
		}
	}
	if a := s.asKey(t, "bob")(); a.code != 429 {
		t.Error(a.code)
	}
}
