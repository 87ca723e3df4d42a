package histories

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const (
	slotTTL = 2 * time.Second
	slotKey = "127.0.0.1/32" // of all requests, as Envoy describes this machine
)

const slotConfig = `
domain: edge
limits:
  in_flight: {algorithm: concurrency, capacity: %d, ttl: 2s}
descriptors:
  - {key: masked_remote_address, limit: in_flight}
auth:
  trusted_proxies: [127.0.0.1]
  routes: [{descriptors: [[{key: masked_remote_address, value: 127.0.0.1/32}]]}]
`

// held is a time during which a request was in flight for certain: from the answer that its slot was taken, to the moment
// before its return was sent, or before its slot could expire.
type held struct{ from, to time.Duration }

// most returns the largest number of requests that were in flight at the same time.
func most(all []held) (n int) {
	type edge struct {
		at   time.Duration
		step int
	}
	var edges []edge
	for _, h := range all {
		if h.from < h.to {
			edges = append(edges, edge{h.from, 1}, edge{h.to, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.step - b.step // ends come first
	})
	now := 0
	for _, e := range edges {
		now += e.step
		n = max(n, now)
	}
	return n
}

func TestMostInFlight(t *testing.T) {
	for want, all := range map[int][]held{
		0: {{3, 3}, {5, 4}}, 1: {{0, 3}, {3, 5}}, 2: {{0, 3}, {2, 5}, {3, 4}}, 3: {{0, 9}, {1, 4}, {3, 5}, {4, 6}},
	} {
		if got := most(all); got != want {
			t.Errorf("%v: got %d, want %d", all, got, want)
		}
	}
}

// slotWorld is several sidecars on one Redis, and proxies and applications that take and return slots of one bucket.
type slotWorld struct {
	t        *testing.T
	capacity int
	sidecars []*sidecar
	logs     []net.Conn // to the log listener of each sidecar
	http     http.Client
	began    time.Time
	stop     chan struct{}
	clients  sync.WaitGroup

	mu    sync.Mutex
	held  []held             // guarded by mu
	real  int                // guarded by mu; how many of held are of requests through Envoy
	app   map[string]*held   // guarded by mu; by id: when the application served a request through Envoy
	count map[string]float64 // by series: the sums of sidecars that were killed
}

func newSlotWorld(t *testing.T, sidecars, capacity int, redis string) *slotWorld {
	t.Helper()
	t.Setenv("RLSIDECAR_ACCESS_LOG_SERVICE", "true")
	w := &slotWorld{t: t, capacity: capacity, stop: make(chan struct{}), app: map[string]*held{}, count: map[string]float64{}}
	for range sidecars {
		log := fmt.Sprint("127.0.0.1:", redistest.FreePort(t))
		w.sidecars = append(w.sidecars, startSidecar(t, fmt.Sprintf(slotConfig, capacity), "--backend-timeout", "200ms", "--redis-url", redis, "--log-listen", "udp://"+log))
		conn, err := net.Dial("udp", log)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		w.logs = append(w.logs, conn)
	}
	w.http = http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(w.http.CloseIdleConnections)
	w.began = time.Now()
	return w
}

func (w *slotWorld) now() time.Duration { return time.Since(w.began) }

func (w *slotWorld) pick() int { return rand.IntN(len(w.sidecars)) }

// run runs n simulated proxies and applications, and the requests of browse, during faults.
func (w *slotWorld) run(n int, faults func(), browse ...func()) {
	for i := range n {
		take := w.takeHTTP
		switch i % 4 {
		case 0, 1:
			take = w.takeGRPC(newGRPC(w.t, w.sidecars[i%len(w.sidecars)].GRPC))
		case 2:
			take = w.takeAuth
		}
		browse = append(browse, func() { take() })
	}
	for _, one := range browse {
		w.clients.Go(func() {
			for !w.stopped() {
				one()
			}
		})
	}
	faults()
	close(w.stop)
	w.clients.Wait()
}

func (w *slotWorld) stopped() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// work holds a slot that was taken by a request sent at sent. renew renews it, or is nil. It returns false if the client
// dies, so that it does not return the slot.
func (w *slotWorld) work(sent time.Duration, renew func() bool) (returns bool) {
	const early = 50 * time.Millisecond // before the slot expires
	h := held{from: w.now()}
	end, expires := h.from+time.Duration(rand.Int64N(int64(30*time.Millisecond))), sent+slotTTL-early
	if renew != nil && rand.IntN(60) == 0 {
		end = h.from + slotTTL*3/2
	}
	for w.now() < min(end, expires) && !w.stopped() {
		time.Sleep(min(end-w.now(), slotTTL/5))
		if at := w.now(); end-h.from > slotTTL && renew() {
			expires = at + slotTTL - early
		}
	}
	h.to = min(w.now(), expires)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = append(w.held, h)
	return rand.IntN(60) > 0
}

// again repeats f until it succeeds or a bound is reached, like a proxy that repeats its done calls.
func again(f func() bool) {
	for range 100 {
		if f() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// takeGRPC returns what a simulated Envoy does: it checks a request, whose client leaves during some checks, and sends a
// done call when it ends.
func (w *slotWorld) takeGRPC(envoy rls.RateLimitServiceClient) func() {
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
		defer cancel()
		if rand.IntN(6) == 0 {
			time.AfterFunc(time.Duration(rand.IntN(1500))*time.Microsecond, cancel)
		}
		sent := w.now()
		answer, err := envoy.ShouldRateLimit(ctx, rlstest.Request("edge", "masked_remote_address="+slotKey))
		if err != nil || answer.GetOverallCode() != rls.RateLimitResponse_OK {
			time.Sleep(time.Millisecond)
			return
		}
		id := answer.GetDynamicMetadata().GetFields()["settle"].GetStringValue()
		if !w.work(sent, nil) {
			return
		}
		again(func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := envoy.ShouldRateLimit(ctx, rlstest.Request("edge", "settle_end="+id+";hits=0"))
			return err == nil
		})
	}
}

// post sends a request to the HTTP API of any sidecar.
func (w *slotWorld) post(path string, body map[string]any) (code int, reservation string) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	response, err := w.http.Post("http://"+w.sidecars[w.pick()].HTTP+path, "application/json", bytes.NewReader(text))
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	var answer struct{ Reservation string }
	if json.NewDecoder(response.Body).Decode(&answer) != nil {
		return 0, ""
	}
	return response.StatusCode, answer.Reservation
}

// takeHTTP is an application. Some of its work lasts longer than the ttl, so it renews its slot.
func (w *slotWorld) takeHTTP() {
	sent := w.now()
	code, id := w.post("/v1/limit", map[string]any{"name": "in_flight", "key": slotKey})
	if code != http.StatusOK {
		time.Sleep(time.Millisecond)
		return
	}
	renew := func() bool {
		code, _ := w.post("/v1/renew", map[string]any{"reservation": id})
		return code == http.StatusOK
	}
	if w.work(sent, renew) {
		again(func() bool {
			code, _ := w.post("/v1/limit", map[string]any{"reservation": id})
			return code == http.StatusOK
		})
	}
}

// takeAuth is a proxy that returns its slots by its access log, to any sidecar. Lines to a sidecar that was killed are
// lost.
func (w *slotWorld) takeAuth() {
	request, err := http.NewRequest(http.MethodGet, "http://"+w.sidecars[w.pick()].HTTP+"/v1/auth/nginx", nil)
	if err != nil {
		panic(err)
	}
	request.Header.Set("X-Original-Method", "GET")
	request.Header.Set("X-Original-Uri", "/")
	sent := w.now()
	response, err := w.http.Do(request)
	if err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	response.Body.Close()
	if id := response.Header.Get("X-Ratelimit-Slot"); id == "" {
		time.Sleep(time.Millisecond)
	} else if w.work(sent, nil) {
		_, _ = w.logs[w.pick()].Write([]byte("slot " + id + "\n"))
	}
}

// kill kills a sidecar and starts it again. Its counts are kept.
func (w *slotWorld) kill(s *sidecar) {
	add(w.count, sidecartest.Metrics(s.Admin, ""))
	s.Kill()
	s.Restart()
}

func add(to, more map[string]float64) {
	for name, n := range more {
		to[name] += n
	}
}

// counts returns the sums of all sidecars.
func (w *slotWorld) counts() map[string]float64 {
	sums := maps.Clone(w.count)
	for _, s := range w.sidecars {
		add(sums, sidecartest.Metrics(s.Admin, ""))
	}
	return sums
}

func returned(counts map[string]float64, reporter string) float64 {
	return counts[`rlsidecar_slots_ended_total{door="`+reporter+`",outcome="returned"}`]
}

// awaitReporters waits until each way to return slots has returned some.
func (w *slotWorld) awaitReporters() {
	redistest.Eventually(w.t, "each reporter has returned slots", func() bool {
		counts := w.counts()
		return !slices.ContainsFunc([]string{"done", "http", "log", "reset"}, func(reporter string) bool { return returned(counts, reporter) == 0 })
	})
}

// inFlight returns the units in flight, or -1 if they are unknown.
func (w *slotWorld) inFlight() int {
	response, err := w.http.Get("http://" + w.sidecars[0].HTTP + "/v1/limits/in_flight?domain=edge&key=" + url.QueryEscape(slotKey))
	if err != nil {
		return -1
	}
	defer response.Body.Close()
	bucket := struct {
		InFlight int `json:"in_flight"`
	}{-1}
	_ = json.NewDecoder(response.Body).Decode(&bucket)
	return bucket.InFlight
}

// check checks that capacity was never exceeded, and that all slots are free after the ttl. It logs how slots ended.
func (w *slotWorld) check() {
	w.t.Helper()
	answers := func() bool { return w.inFlight() >= 0 }
	redistest.Eventually(w.t, "the sidecars answer again", answers)
	left := w.inFlight()
	time.Sleep(slotTTL + time.Second/2)
	redistest.Eventually(w.t, "the sidecars answer again", answers)
	if n := w.inFlight(); n != 0 {
		w.t.Errorf("%d slots are taken after the ttl, want 0", n)
	}
	n, counts := most(w.held), w.counts()
	taken := counts["rlsidecar_slots_taken_total"]
	others, ended := taken, ""
	for _, reporter := range []string{"done", "http", "log", "reset", "self"} {
		by := returned(counts, reporter)
		others -= by
		ended += fmt.Sprintf("by %s %.0f (%.1f %%), ", reporter, by, 100*by/max(1, taken))
	}
	w.t.Logf("%d requests held a slot, %d of them through Envoy, at most %d of %d at the same time; of %.0f slots that were taken were returned: %sby ttl %.0f (%.1f %%), of these %d at the end; %.0f renewals",
		len(w.held), w.real, n, w.capacity, taken, ended, others, 100*others/max(1, taken), left, counts[`rlsidecar_slots_ended_total{door="http",outcome="renewed"}`])
	if n > w.capacity || n < w.capacity/2 {
		w.t.Errorf("%d requests were in flight at the same time, want at most %d, and many", n, w.capacity)
	}
}

// proxy is a real Envoy, with the configuration of the example.
type proxy struct {
	w    *slotWorld
	file string
	addr string
	cmd  *exec.Cmd
}

func (w *slotWorld) startEnvoy(program string, app net.Addr, s *sidecar) *proxy {
	w.t.Helper()
	text, err := os.ReadFile("../../examples/envoy-in-flight/envoy.yaml")
	if err != nil {
		w.t.Fatal(err)
	}
	port := func(addr string) string { return "port_value: " + addr[strings.LastIndexByte(addr, ':')+1:] }
	free := func() string { return fmt.Sprint("127.0.0.1:", redistest.FreePort(w.t)) }
	p := &proxy{w: w, addr: free(), file: filepath.Join(w.t.TempDir(), "envoy.yaml")}
	changed := strings.NewReplacer(
		"port_value: 10000", port(p.addr), "port_value: 9901", port(free()), "port_value: 9000", port(app.String()), "port_value: 8081", port(s.GRPC),
	).Replace(string(text))
	if err := os.WriteFile(p.file, []byte(changed), 0o600); err != nil {
		w.t.Fatal(err)
	}
	p.start(program)
	w.t.Cleanup(p.kill)
	return p
}

func (p *proxy) start(program string) {
	p.cmd = exec.Command(program, "-c", p.file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "off")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.w.t.Fatal(err)
	}
}

func (p *proxy) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// serveApp starts the application behind Envoy. It notes how long it serves each request.
func (w *slotWorld) serveApp() net.Addr {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h := &held{from: w.now(), to: math.MaxInt64}
		w.mu.Lock()
		w.app[r.Header.Get("X-Id")] = h
		w.mu.Unlock()
		select {
		case <-time.After(time.Duration(rand.Int64N(int64(20 * time.Millisecond)))):
		case <-r.Context().Done():
		}
		w.mu.Lock()
		h.to = w.now()
		w.mu.Unlock()
		if r.URL.Path == "/reset" {
			if conn, _, err := http.NewResponseController(rw).Hijack(); err == nil {
				conn.Close()
			}
		}
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	w.t.Cleanup(func() { _ = server.Close(); <-served })
	return listener.Addr()
}

// browse sends a request through Envoy, and leaves before the answer to some.
func (p *proxy) browse() {
	id, path, left := fmt.Sprint(rand.Uint64()), []string{"/", "/", "/reset"}[rand.IntN(3)], make(chan time.Duration, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if rand.IntN(4) == 0 {
		time.AfterFunc(time.Duration(rand.IntN(20))*time.Millisecond, func() { left <- p.w.now(); cancel() })
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+path, nil)
	if err != nil {
		panic(err)
	}
	request.Header.Set("X-Id", id)
	sent := p.w.now()
	if response, err := p.w.http.Do(request); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	} else {
		time.Sleep(time.Millisecond)
	}
	ended := min(p.w.now(), sent+slotTTL)
	if len(left) > 0 {
		ended = min(ended, <-left)
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if h := p.w.app[id]; h != nil {
		delete(p.w.app, id)
		p.w.held = append(p.w.held, held{h.from, min(h.to, ended)})
		p.w.real++
	}
}

// TestSlots takes, renews and returns slots while Redis, sidecars and proxies are killed. Redis comes back with all
// acknowledged writes. make histories runs it with four sidecars, two Envoys and 50 simulated proxies and applications,
// and Redis is then away for longer than the ttl, too.
func TestSlots(t *testing.T) {
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes")
	sidecars, capacity, simulated, envoys := 3, 5, 12, 0
	if os.Getenv("HISTORIES") != "" {
		sidecars, capacity, simulated, envoys = 4, 20, 50, 2
	}
	w := newSlotWorld(t, sidecars, capacity, "redis://"+redis.Addr)
	faults := []func(){
		func() { redis.Do("CLIENT", "KILL", "TYPE", "normal") },
		func() { w.kill(w.sidecars[0]) },
		func() { redis.Pause(); time.Sleep(250 * time.Millisecond); redis.Resume() },
		func() { redis.Do("SCRIPT", "FLUSH") },
		func() { w.kill(w.sidecars[1]) },
		func() { redis.Kill(); time.Sleep(100 * time.Millisecond); redis.Restart(); redis.Wait() },
	}
	var browse []func()
	if envoys > 0 {
		program, app := tooltest.Path(t, "envoy"), w.serveApp()
		for i := range envoys {
			p := w.startEnvoy(program, app, w.sidecars[i])
			browse = append(browse, slices.Repeat([]func(){p.browse}, capacity/2)...)
			faults = append(faults, func() { p.kill(); p.start(program) })
		}
		faults = append(faults, func() { redis.Kill(); time.Sleep(slotTTL + time.Second); redis.Restart(); redis.Wait() })
	}
	fail := repeat(t, 200*time.Millisecond, faults...)
	w.run(simulated, func() { fail(); w.awaitReporters() }, browse...)
	w.check()
}
