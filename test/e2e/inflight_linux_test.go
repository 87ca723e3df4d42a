package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// The tests of this file send requests that end in every way, and check that at most inFlight of them were in flight,
// that each slot was returned once, and that none stays occupied. RLSIDECAR_IN_FLIGHT sets the number of requests of each
// proxy: make in-flight sends 12,000.
const inFlight = 20

func requestsInFlight() int {
	if n, err := strconv.Atoi(os.Getenv("RLSIDECAR_IN_FLIGHT")); err == nil {
		return n
	}
	return 600
}

// flights is an application that counts the requests that are in flight: those that it serves, and whose clients have
// not left.
type flights struct {
	mu      sync.Mutex
	running map[string]int
	left    map[string]bool
	most    int
	slots   int           // requests that had the header with the id of a slot
	release chan struct{} // ends the requests that hold
}

func (f *flights) begin(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running[id]++
	n := 0
	for id := range f.running {
		if !f.left[id] {
			n++
		}
	}
	f.most = max(f.most, n)
}

func (f *flights) end(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[id]--; f.running[id] == 0 {
		delete(f.running, id)
	}
}

func (f *flights) leave(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left[id] = true
}

// serve answers by the last part of the path. The proxy may end a request below /late before this function notices it,
// so those are not counted.
func (f *flights) serve(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Id")
	if r.Header.Get("X-Ratelimit-Slot") != "" {
		f.mu.Lock()
		f.slots++
		f.mu.Unlock()
	}
	ended := sync.OnceFunc(func() {})
	if !strings.HasPrefix(r.URL.Path, "/late") {
		f.begin(id)
		ended = sync.OnceFunc(func() { f.end(id) })
	}
	defer ended()
	cut := func() {
		conn, _, err := http.NewResponseController(w).Hijack()
		ended()
		if err == nil {
			conn.Close()
		}
	}
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
	}
	_, kind, _ := strings.Cut(r.URL.Path[1:], "/")
	switch kind {
	case "hold":
		select {
		case <-f.release:
		case <-r.Context().Done():
		}
	case "slow":
		wait(time.Duration(rand.IntN(20)) * time.Millisecond)
	case "stream":
		for range 4 {
			_, _ = io.WriteString(w, strings.Repeat("x", 1000))
			_ = http.NewResponseController(w).Flush()
			wait(5 * time.Millisecond)
		}
	case "upload":
		_, _ = io.Copy(io.Discard, r.Body)
	case "500":
		w.WriteHeader(http.StatusInternalServerError)
	case "redirect":
		w.Header().Set("Location", "http://"+r.Host+"/a/fast") // Envoy follows only absolute ones
		w.WriteHeader(http.StatusFound)
	case "reset":
		cut()
	case "break":
		w.Header().Set("Content-Length", "100000")
		_, _ = io.WriteString(w, strings.Repeat("x", 1000))
		_ = http.NewResponseController(w).Flush()
		wait(5 * time.Millisecond)
		cut()
	case "websocket":
		f.echo(w, ended)
	}
}

// echo accepts an upgrade, and sends back what it receives until the client ends.
func (f *flights) echo(w http.ResponseWriter, ended func()) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_ = rw.Flush()
	for {
		line, err := rw.ReadString('\n')
		if err != nil || line == "end\n" {
			ended()
			return
		}
		_, _ = rw.WriteString(line)
		_ = rw.Flush()
	}
}

// ending is a way in which a request ends.
type ending struct {
	path string
	when leaves
}

type leaves int

const (
	never         leaves = iota // the client reads the whole answer
	midRequest                  // the client leaves when it has sent a part of the header section
	atOnce                      // when it has sent the request
	soon                        // up to 20 ms later
	inTheBody                   // when it has received a part of the answer
	inTheUpload                 // when it has sent a part of the body
	overHTTP2                   // never, over HTTP/2
	resetHTTP2                  // up to 20 ms later, with a reset of its stream
	halfClosed                  // it closes its side when it has sent the request
	afterUpgrades               // it uses a WebSocket, and leaves
)

// endings are those of each proxy.
var endings = []ending{
	{"/a/fast", never}, {"/a/slow", never}, {"/a/stream", never}, {"/a/500", never}, {"/a/reset", never}, {"/a/break", never}, {"/a/upload", never},
	{"/a/slow", midRequest}, {"/a/slow", atOnce}, {"/a/slow", soon}, {"/a/stream", soon}, {"/a/stream", inTheBody}, {"/a/upload", inTheUpload}, {"/a/slow", halfClosed},
}

// run sends a request that ends like e. It returns the status, or 0 if the client left.
func (f *flights) run(t *testing.T, s *stack, e ending, id string) (status int) {
	t.Helper()
	if e.when == overHTTP2 || e.when == resetHTTP2 {
		return f.runHTTP2(t, s, e, id)
	}
	conn := dialFrom(t, "", net.JoinHostPort(s.addr, s.port)).(*net.TCPConn)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(maxWait))
	if rand.IntN(2) == 0 {
		_ = conn.SetLinger(0) // it leaves with a reset
	}
	// A client must not be able to return a slot, or to show the application one.
	head := "GET " + e.path + " HTTP/1.1\r\nHost: a\r\nX-Id: " + id + "\r\nX-RateLimit-Slot: forged\r\n"
	switch {
	case e.when == midRequest:
		_, _ = io.WriteString(conn, head)
		return 0
	case e.when == inTheUpload:
		_, _ = io.WriteString(conn, strings.Replace(head, "GET", "POST", 1)+"Content-Length: 100000\r\n\r\n"+strings.Repeat("x", 1000))
	case e.when == afterUpgrades:
		_, _ = io.WriteString(conn, head+"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	case strings.HasSuffix(e.path, "/upload"):
		_, _ = io.WriteString(conn, strings.Replace(head, "GET", "POST", 1)+"Connection: close\r\nContent-Length: 10\r\n\r\n0123456789")
	default:
		_, _ = io.WriteString(conn, head+"Connection: close\r\n\r\n")
	}
	switch e.when {
	case atOnce, halfClosed:
		f.leave(id)
	case soon, inTheUpload:
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		f.leave(id)
		return 0
	}
	switch e.when {
	case atOnce:
		return 0
	case halfClosed:
		_ = conn.CloseWrite()
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	switch {
	case e.when == inTheBody:
		_, _ = io.ReadFull(resp.Body, make([]byte, 1500))
		f.leave(id)
	case e.when == afterUpgrades && resp.StatusCode == http.StatusSwitchingProtocols:
		_, _ = io.WriteString(conn, "hello\n")
		_, _ = in.ReadString('\n')
		if rand.IntN(2) == 0 {
			_, _ = io.WriteString(conn, "end\n") // the application ends it
			_, _ = io.Copy(io.Discard, in)
		}
		f.leave(id)
	default:
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	return resp.StatusCode
}

func (f *flights) runHTTP2(t *testing.T, s *stack, e ending, id string) (status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+":"+s.port+e.path, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	r.Header.Set("X-Id", id)
	if e.when == resetHTTP2 {
		time.AfterFunc(time.Duration(rand.IntN(20))*time.Millisecond, func() { f.leave(id); cancel() })
	}
	resp, err := overH2C.RoundTrip(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

var overH2C = &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}}

// test sends requests through s that end randomly, and checks what it can check of every proxy. It returns the statuses.
// meanwhile, if not nil, runs at the same time, until its argument is closed.
func (f *flights) test(t *testing.T, s *stack, list []ending, meanwhile func(ended <-chan struct{})) {
	t.Helper()
	const clients = 2 * inFlight
	statuses, ended := map[string]int{}, make(chan struct{})
	var mu sync.Mutex
	var all, other sync.WaitGroup
	if meanwhile != nil {
		other.Go(func() { meanwhile(ended) })
	}
	n := requestsInFlight()
	for client := range clients {
		all.Go(func() {
			for i := client; i < n; i += clients {
				e := list[rand.IntN(len(list))]
				status := f.run(t, s, e, strconv.Itoa(i))
				mu.Lock()
				statuses[fmt.Sprint(status)]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	close(ended)
	other.Wait()
	s.awaitSlots(t, inFlight)
	_, page := fetch("http://" + s.addr + ":6070/metrics")
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "rlsidecar_slots") || strings.HasSuffix(line, " 0\n") {
			continue
		}
		t.Log(strings.TrimSpace(line))
		// HAProxy logs errors of Lua too, such as an action that ends because its client has left.
		if strings.Contains(line, `outcome="gone"`) || strings.Contains(line, `outcome="bad-id"`) && !strings.HasSuffix(t.Name(), "haproxy") {
			t.Errorf("%s; want no slot that was returned twice, and no id that is none", strings.TrimSpace(line))
		}
	}
	t.Logf("statuses %v, at most %d in flight", statuses, f.most)
	if f.most > inFlight || statuses["200"] == 0 || statuses["429"] == 0 {
		t.Errorf("%d requests were in flight, statuses %v; want at most %d, and both 200 and 429", f.most, statuses, inFlight)
	}
	if f.slots > 0 && s.port == "8000" { // Envoy does not carry ids in headers
		t.Errorf("%d requests to the application had a header with a slot; want none", f.slots)
	}
}

func (s *stack) awaitSlots(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d slots are free", want), func() bool { return s.slotsLeft(t) == want })
}

// slotsLeft returns how many more requests may be in flight.
func (s *stack) slotsLeft(t *testing.T) int {
	t.Helper()
	key := "127.0.0.1"
	if s.port == "10000" { // Envoy's masked_remote_address
		key += "/32"
	}
	left := unitsLeft(s.addr, "edge", "in_flight", key)
	if left < 0 {
		t.Fatal("the sidecar does not report the units left")
	}
	return left
}

// startInFlight starts an example for requests in flight: the application, and the sidecar with changed limits.
func startInFlight(t *testing.T, name, port string, changes []change, args ...string) (*stack, *flights) {
	t.Helper()
	f := &flights{running: map[string]int{}, left: map[string]bool{}, release: make(chan struct{})}
	s := newStack(t, port, fileOf(t, "limits.yaml", example(t, name+"/limits.yaml", changes...)))
	for _, arg := range args {
		s.args = append(s.args, strings.Replace(arg, "udp://127.0.0.1", "udp://"+s.addr, 1))
	}
	serveAt(t, s.addr+":9000", f.serve)
	s.startSidecar(t)
	return s, f
}

// Proxies whose access logs return slots. The sidecar is stopped again and again for a moment, so that clients leave
// while the proxy waits for its answer.
func TestInFlightByAccessLogs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files   []string
		changes []change // of the first file
		args    []string // {} is the folder of the files
	}{
		"nginx":   {[]string{"nginx.conf"}, longNginx, []string{"-p", "{}", "-e", "stderr", "-c", "nginx.conf"}},
		"haproxy": {[]string{"haproxy.cfg", "rlsidecar.lua"}, longHAProxy, []string{"-f", "haproxy.cfg"}},
		"caddy":   {[]string{"Caddyfile"}, longCaddy, []string{"run", "--config", "Caddyfile"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, folder := tooltest.Path(t, name), name+"-in-flight/"
			s, f := startInFlight(t, name+"-in-flight", "8000", []change{{"ttl: 15m", "ttl: 10s"}}, "--log-listen", "udp://127.0.0.1:5140")
			changes, args := c.changes, slices.Clone(c.args)
			for i := range args {
				args[i] = strings.Replace(args[i], "{}", s.dir, 1)
			}
			for _, file := range c.files {
				if name == "haproxy" {
					changes = append(changes[:len(changes):len(changes)], change{"rlsidecar-auth", "rlsidecar-auth-" + s.addr})
				}
				s.write(t, folder+file, changes...)
				changes = nil
			}
			s.writeText(t, "tmp/file", "") // NGINX needs the folder
			s.run(t, program, args...)
			f.test(t, s, endings, s.sidecar.freezeAgain(t))
		})
	}
}

// freezeAgain returns a function that freezes p for a moment, again and again, until its argument is closed.
func (p *process) freezeAgain(t *testing.T) func(ended <-chan struct{}) {
	t.Helper()
	return func(ended <-chan struct{}) {
		for {
			select {
			case <-ended:
				return
			case <-time.After(100 * time.Millisecond):
				p.freeze(t)
				time.Sleep(30 * time.Millisecond)
				p.thaw(t)
			}
		}
	}
}

// envoyRoutes are further ways in which Envoy ends a request.
const envoyRoutes = `
              - { match: { prefix: /refused }, route: { cluster: refused } }
              - { match: { prefix: /nohost }, route: { cluster: nohost } }
              - { match: { prefix: /overflow }, route: { cluster: overflow } }
              - { match: { prefix: /late/timeout }, route: { cluster: app, prefix_rewrite: /late/slow, timeout: 0.01s } }
              - { match: { prefix: /late/idle }, route: { cluster: app, prefix_rewrite: /late/slow, idle_timeout: 0.01s } }
              - { match: { prefix: /late/duration }, route: { cluster: app, prefix_rewrite: /late/stream, max_stream_duration: { max_stream_duration: 0.01s } } }
              - { match: { prefix: /late/hedge }, route: { cluster: app, prefix_rewrite: /late/slow, retry_policy: { retry_on: 5xx, num_retries: 2, per_try_timeout: 0.01s }, hedge_policy: { hedge_on_per_try_timeout: true } } }
              - { match: { prefix: /late/mirror }, route: { cluster: app, prefix_rewrite: /late/slow, request_mirror_policies: [ { cluster: app } ] } }
              - { match: { prefix: /retry }, route: { cluster: app, prefix_rewrite: /a/500, retry_policy: { retry_on: 5xx, num_retries: 2 } } }
              - { match: { prefix: /redirect }, route: { cluster: app, prefix_rewrite: /a/redirect, internal_redirect_policy: {} } }
              - match: { prefix: /fault }
                route: { cluster: app }
                typed_per_filter_config:
                  envoy.filters.http.fault: { "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, abort: { http_status: 418, percentage: { numerator: 100 } } }
`

const envoyClusters = `
  clusters:
  - { name: nohost, type: STATIC, load_assignment: { cluster_name: nohost } }
  - name: refused
    type: STATIC
    load_assignment: { cluster_name: refused, endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 9 } } } } ] } ] }
  - name: overflow
    type: STATIC
    circuit_breakers: { thresholds: [ { max_requests: 0 } ] }
    load_assignment: { cluster_name: overflow, endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 9000 } } } } ] } ] }
`

// TestInFlightBehindEnvoy sends requests that end in every way. The sidecar is frozen again and again, so that clients
// leave during the check.
func TestInFlightBehindEnvoy(t *testing.T) {
	t.Parallel()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	s, f := startInFlight(t, "envoy-in-flight", "10000", []change{{"ttl: 30s", "ttl: 10s"}}, "RLSIDECAR_ACCESS_LOG_SERVICE=true")
	s.runEnvoy(t, s.write(t, "envoy-in-flight/envoy.yaml", longTimeout, change{"access_log_flush_interval: 10s", "access_log_flush_interval: 1s"},
		change{"              - match: { prefix: / }\n", envoyRoutes[1:] + "              - match: { prefix: / }\n"},
		change{"\n  clusters:\n", envoyClusters},
		change{"          - name: envoy.filters.http.router\n", "          - { name: envoy.filters.http.fault, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault } }\n          - name: envoy.filters.http.router\n"},
	))
	list := append([]ending{
		{"/a/slow", overHTTP2}, {"/a/stream", overHTTP2}, {"/a/slow", resetHTTP2}, {"/a/stream", resetHTTP2}, {"/a/websocket", afterUpgrades},
	}, endings...)
	for _, path := range []string{"refused", "nohost", "overflow", "late/timeout", "late/idle", "late/duration", "late/hedge", "late/mirror", "retry", "redirect", "fault"} {
		list = append(list, ending{"/" + path, never}, ending{"/" + path, soon})
	}
	f.test(t, s, list, s.sidecar.freezeAgain(t))
}

// hold starts n requests that last until f.release is closed, and returns a function that waits for their end.
func (f *flights) hold(t *testing.T, s *stack, n int) (wait func()) {
	t.Helper()
	var held sync.WaitGroup
	for i := range n {
		held.Go(func() {
			if status := f.run(t, s, ending{"/a/hold", never}, "held "+strconv.Itoa(i)); status != http.StatusOK {
				t.Errorf("a held request: status %d, want 200", status)
			}
		})
	}
	eventually(t, "all are in flight", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.running) == n })
	return held.Wait
}

// 200 requests end while no sidecar runs. Envoy repeats their done calls, so all slots are free when it runs again.
func TestDoneCallsAreRepeated(t *testing.T) {
	t.Parallel()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	const n = 200
	s, f := startInFlight(t, "envoy-in-flight", "10000", []change{{"capacity: 20", "capacity: 200"}, {"ttl: 30s", "ttl: 1h"}},
		"--redis-url", "redis://"+redistest.Start(t).Addr, "--backend-timeout", "10s")
	s.runEnvoy(t, s.write(t, "envoy-in-flight/envoy.yaml", longTimeout))
	wait := f.hold(t, s, n)
	s.awaitSlots(t, 0)
	s.sidecar.kill()
	close(f.release)
	wait()
	if code := s.get(t, "", "/a/fast").code; code != http.StatusServiceUnavailable {
		t.Errorf("a request while no sidecar runs: status %d, want 503", code)
	}
	time.Sleep(3 * time.Second)
	s.startSidecar(t)
	s.awaitSlots(t, n)
}

// Envoy reports requests that run for longer than ttl.
func TestLongRequestsKeepTheirSlots(t *testing.T) {
	t.Parallel()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	s, f := startInFlight(t, "envoy-in-flight", "10000", []change{{"ttl: 30s", "ttl: 3s"}}, "RLSIDECAR_ACCESS_LOG_SERVICE=true")
	s.runEnvoy(t, s.write(t, "envoy-in-flight/envoy.yaml", longTimeout, change{"access_log_flush_interval: 10s", "access_log_flush_interval: 0.5s"}))
	wait := f.hold(t, s, 5)
	for from := time.Now(); time.Since(from) < 7*time.Second; time.Sleep(100 * time.Millisecond) {
		if left := s.slotsLeft(t); left != inFlight-5 {
			t.Fatalf("%v: %d slots are free, want %d", time.Since(from), left, inFlight-5)
		}
	}
	close(f.release)
	wait()
	s.awaitSlots(t, inFlight)
}
