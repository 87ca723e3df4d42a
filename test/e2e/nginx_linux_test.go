package e2e

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// These are the changes that tests make to examples/nginx/nginx.conf. Most tests make those of longTimeouts, because
// 50 ms may be too short on a busy machine.
var (
	longNginxTimeout   = change{"_timeout 50ms", "_timeout 10s"}
	longConnectTimeout = change{"_timeout    50ms", "_timeout 10s"}
	longReadTimeout    = change{"proxy_read_timeout    100ms", "proxy_read_timeout 10s"}
	nginxFailsOpen     = change{"error_page 500 = @rl_closed;", "error_page 500 = @rl_open;"}
	longTargets        = change{"access_log access.log limited;", "access_log access.log limited; large_client_header_buffers 4 32k;"}
	rememberPath       = change{"#proxy_cache_path ", "proxy_cache_path "}
	remember           = change{"#proxy_cache denials;", "proxy_cache denials;"}
	rememberKey        = change{"#proxy_cache_key ", "proxy_cache_key "}
)

func nginxOverSocket(path string) change {
	return change{"server 127.0.0.1:8080 max_fails=0;", "server unix:" + path + " max_fails=0;"}
}

func newNginxStack(t *testing.T, socket string, changes ...change) *front {
	t.Helper()
	s := newFront(t, socket)
	s.runNginx(t, changes...)
	return s
}

func (s *front) runNginx(t *testing.T, changes ...change) {
	t.Helper()
	program := tooltest.Path(t, "nginx")
	// The default user "nobody" cannot read the files of a test that runs as root.
	s.write(t, "nginx/nginx.conf", append(changes, change{"worker_processes auto;", "worker_processes 1;" + userDirective()})...)
	for _, name := range []string{"tmp", "html/static/folder"} {
		if err := os.MkdirAll(filepath.Join(s.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"html/static/a.txt": "a file", "html/static/folder/index.html": "an index"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, program, "-p", s.dir, "-e", "stderr", "-c", "nginx.conf")
}

func userDirective() string {
	if os.Getuid() == 0 {
		return " user root;"
	}
	return ""
}

var longTimeouts = []change{longNginxTimeout, longConnectTimeout, longReadTimeout}

// TestNginx runs examples/nginx with longer timeouts and no other change.
func TestNginx(t *testing.T) {
	t.Parallel()
	s := newNginxStack(t, "", longTimeouts...)

	t.Run("a key is limited, and the headers describe the limit", func(t *testing.T) {
		s.keysAreLimited(t, map[string]string{
			"RateLimit-Policy":  `"per_key";q=5;w=30, "address";q=200;w=1`,
			"RateLimit":         `"per_key";r=4;t=6`,
			"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "6",
			"Retry-After": "",
		})
		if a := s.asKey(t, "alice")(); a.header.Get("X-RateLimit-Remaining") != "0" || a.header.Get("X-RateLimit-Reset") != a.header.Get("Retry-After") {
			t.Errorf("a denial: got %v; want 0 remaining, and a reset equal to Retry-After", a.header)
		}
	})
	t.Run("a path is limited in every spelling", func(t *testing.T) { s.loginIsLimited(t, 2) })
	t.Run("bodies arrive unchanged", s.bodiesArriveUnchanged)
	t.Run("answers of the application are not changed", s.answersAreUnchanged)

	t.Run("the key that reaches the application is charged", func(t *testing.T) {
		send := func() answer { return s.send(t, "", "/", "X-Api-Key: twice", "X-Api-Key: other") }
		perKey.drain(t, send)
		if key := s.lastKey.Load(); key == "twice|other" {
			t.Errorf("the application gets %q, want one key or none", key)
		} else if key == "twice" { // NGINX < 1.23 uses the first line, later versions join the lines
			if a := s.asKey(t, "twice")(); a.code != 429 {
				t.Errorf("the first key alone: status %d, want 429", a.code)
			}
		}
	})

	t.Run("redirects inside NGINX charge once", func(t *testing.T) {
		for path, want := range map[string]struct {
			code int
			body string
		}{"/static/a.txt": {200, "a file"}, "/static/folder": {200, "an index"}, "/static/none": {404, ""}, "/static/": {404, ""}} {
			before := s.decisions(t, "address", "allowed")
			if a := s.send(t, "", path); a.code != want.code || !strings.HasSuffix(a.raw, want.body) {
				t.Errorf("%s: got %d %q; want %d and a body that ends with %q", path, a.code, a.raw, want.code, want.body)
			}
			if n := s.decisions(t, "address", "allowed") - before; n != 1 {
				t.Errorf("%s: %d requests reached rlsidecar, want 1", path, n)
			}
		}
	})

	t.Run("without a sidecar no request is allowed", func(t *testing.T) { s.failsClosedWithoutSidecar(t, 503, "1") })
}

// TestNginxHostileRequests configures NGINX to allow requests if rlsidecar does not answer. A client could
// then avoid its limit with any request that makes rlsidecar answer with an error.
func TestNginxHostileRequests(t *testing.T) {
	t.Parallel()
	s := newNginxStack(t, "", append(longTimeouts, nginxFailsOpen, longTargets)...)
	s.hostileRequestsAreLimited(t)
	log, err := os.ReadFile(filepath.Join(s.dir, "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if !strings.Contains(line, "rl=200") && !strings.Contains(line, "rl=403") && !strings.Contains(line, "rl=-") {
			t.Errorf("want a line with rl=200, rl=403 or rl=-, which means that rlsidecar decided or was not called: %.300s", line)
		}
	}
	s.everyHeaderSizeIsLimited(t)
	s.failsOpenWithoutSidecar(t)
}

func TestNginxOverUnixSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "http.sock")
	s := newNginxStack(t, socket, append(longTimeouts, nginxOverSocket(socket))...)
	perKey.drain(t, s.asKey(t, "alice"))

	s.sidecar.kill() // the file of the socket remains, and the next start must replace it
	if a := s.asKey(t, "alice")(); a.code != 503 {
		t.Errorf("without a sidecar: status %d, want 503", a.code)
	}
	s.startFrontSidecar(t)
	perKey.drain(t, s.asKey(t, "alice"))
}

func TestNginxDoesNotWaitForLong(t *testing.T) {
	t.Parallel()
	newNginxStack(t, "").deniesAfterTheTimeout(t) // This configuration has the timeouts of the example.
}

func TestNginxRemembersDenials(t *testing.T) {
	t.Parallel()
	s := newNginxStack(t, "", append(longTimeouts, rememberPath, remember, rememberKey)...)
	perKey.drain(t, s.asKey(t, "alice"))
	eventually(t, "most of ten denials are remembered", func() bool {
		before := s.decisions(t, "per_key", "denied")
		for range 10 {
			if a := s.asKey(t, "alice")(); a.code != 429 || a.header.Get("Retry-After") == "" {
				t.Fatalf("got %d %v; want status 429 and Retry-After", a.code, a.header)
			}
		}
		return before > 0 && s.decisions(t, "per_key", "denied")-before <= 5
	})
	for range perKey.capacity { // NGINX must not cache allowed requests.
		if a := s.asKey(t, "bob")(); a.code != 200 {
			t.Fatalf("got %v; want status 200", a.code)
		}
	}
	if a := s.asKey(t, "bob")(); a.code != 429 {
		t.Errorf("got %v; want status 429", a.code)
	}
}

func TestNginxKeepsItsConnection(t *testing.T) {
	t.Parallel()
	s := newFront(t, "")
	between := startRelay(t, s.addr, s.addr+":8080")
	s.runNginx(t, append(longTimeouts, change{"server 127.0.0.1:8080 max_fails=0;", "server " + between.addr + " max_fails=0;"})...)
	codes := map[int]int{}
	for range 50 {
		codes[s.asKey(t, "alice")().code]++
		codes[s.do(t, "", "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Api-Key: poster\r\nContent-Length: 3\r\n\r\na=b").code]++
	}
	if codes[200] < 2*perKey.capacity || codes[429] == 0 || codes[200]+codes[429] != 100 {
		t.Errorf("got the statuses %v of 100 answers; want 200 at least %d times, and otherwise 429", codes, 2*perKey.capacity)
	}
	if n := between.opened.Load(); n != 1 { // NGINX has one worker process
		t.Errorf("100 requests used %d connections, want 1", n)
	}
}

// onSlowRedis starts a front whose Redis delays each answer by the returned duration, in ns. It is 0 at first.
func onSlowRedis(t *testing.T, args ...string) (*front, *atomic.Int64) {
	t.Helper()
	between := startRelay(t, "127.0.0.1", redistest.Start(t).Addr)
	return newFront(t, "", append([]string{"--redis-url", "redis://" + between.addr}, args...)...), &between.late
}

func (s *front) burst(t *testing.T, n int, send func() answer) (codes map[int]int, longest time.Duration) {
	t.Helper()
	codes = map[int]int{}
	var mu sync.Mutex // guards codes and longest
	var sending sync.WaitGroup
	for range n {
		sending.Go(func() {
			from := time.Now()
			a := send()
			waited := time.Since(from)
			mu.Lock()
			defer mu.Unlock()
			codes[a.code]++
			longest = max(longest, waited)
		})
	}
	sending.Wait()
	return codes, longest
}

// TestNginxWithASlowRedis delays answers of Redis by 600 ms, which is longer than rlsidecar waits.
func TestNginxWithASlowRedis(t *testing.T) {
	t.Parallel()
	s, late := onSlowRedis(t, "--backend-timeout", "300ms")
	s.runNginx(t, longTimeouts...)
	perKey.drain(t, s.asKey(t, "alice"))

	late.Store(int64(600 * time.Millisecond))
	before := s.arrived.Load()
	from := time.Now()
	for range 20 {
		if a := s.asKey(t, "bob")(); a.code != 429 || a.header.Get("Retry-After") == "" {
			t.Fatalf("%d %v, want a denial in time", a.code, a.header)
		}
	}
	if waited := time.Since(from); waited > 10*time.Second { // waiting for each answer would take 12 s
		t.Errorf("20 denials took %v, want at most 10 s", waited)
	}
	if s.arrived.Load() != before {
		t.Error("a request reached the application")
	}
	late.Store(0)
	eventually(t, "bob is allowed", func() bool { return s.asKey(t, "bob")().code == 200 })
}

// TestNginxAsShippedWithASlowRedis uses the default timeouts: NGINX waits 100 ms, and rlsidecar 10 ms. Redis
// answers after 50 ms, so requests are denied, and no client waits for long. A request is allowed only if the
// machine stopped rlsidecar for so long that the answer of Redis was there before the timer fired.
func TestNginxAsShippedWithASlowRedis(t *testing.T) {
	t.Parallel()
	s, late := onSlowRedis(t)
	s.runNginx(t)
	late.Store(int64(50 * time.Millisecond))
	codes, longest := s.burst(t, 60, s.asKey(t, "alice"))
	if n := codes[200]; n > perKey.capacity || s.arrived.Load() != int64(n) || n+codes[429]+codes[503] != 60 {
		t.Errorf("answers by status %v, of which at most %d may be 200 and the others 429 or 503; %d requests reached the application", codes, perKey.capacity, s.arrived.Load())
	}
	if longest > 5*time.Second { // generous, because the machine may be busy
		t.Errorf("a client waited for %v, want at most 5 s", longest)
	}
}

// TestNginxWithALateRedis lets rlsidecar wait for answers of Redis that are 50 ms late. Such answers count,
// and concurrent requests get no more units than the limit has.
func TestNginxWithALateRedis(t *testing.T) {
	t.Parallel()
	s, late := onSlowRedis(t, "--backend-timeout", "10s")
	s.runNginx(t, longTimeouts...)
	late.Store(int64(50 * time.Millisecond))
	from := time.Now()
	codes, _ := s.burst(t, 60, s.asKey(t, "alice"))
	most := perKey.capacity + int(time.Since(from)/perKey.each)
	if n := codes[200]; n < perKey.capacity || n > most || n+codes[429] != 60 || s.arrived.Load() != int64(n) {
		t.Errorf("answers by status %v, want %d to %d allowed; %d requests reached the application", codes, perKey.capacity, most, s.arrived.Load())
	}
}

type relay struct {
	addr   string
	late   atomic.Int64 // the delay of answers, in ns
	opened atomic.Int64 // counts connections
}

func startRelay(t *testing.T, host, address string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: listener.Addr().String()}
	var copying sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); copying.Wait() })
	copying.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			r.opened.Add(1)
			server, err := net.Dial("tcp", address)
			if err != nil {
				_ = client.Close()
				continue
			}
			copying.Go(func() { defer server.Close(); _, _ = io.Copy(server, client) })
			copying.Go(func() {
				defer client.Close()
				for buf := make([]byte, 64<<10); ; {
					n, err := server.Read(buf)
					time.Sleep(time.Duration(r.late.Load()))
					if _, failed := client.Write(buf[:n]); err != nil || failed != nil {
						return
					}
				}
			})
		}
	})
	return r
}
