package soak

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

// hugeRate is the rate of limits that the soak never reaches.
const hugeRate = 2_000_000_000

// limits returns the configuration. The version changes the text, so that each reload finds a change.
func limits(version int) string {
	return fmt.Sprintf(`
domain: soak
limits:
  calls: {algorithm: fixed_window, rate: %[1]d, period: 365d, start: 2026-01-01T00:00:00Z}
  work: {algorithm: fixed_window, rate: %[1]d, period: 365d, start: 2026-01-01T00:00:00Z}
  adjusted: {algorithm: token_bucket, rate: %[2]d, period: 1s}
auth:
  routes: [{match: {path: "/*"}, descriptors: [[{key: address, from: client_ip}]]}]
descriptors:
  - {key: call, limit: calls}
  - {key: work, limit: work}
  - {key: adjusted, limit: adjusted}
  - {key: address, rate_limit: {algorithm: sliding_window, rate: %[2]d, period: 10s}}
`, hugeRate, 100+version%50)
}

// duration returns the length of the soak: the environment variable FOR, or 10 s.
func duration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("FOR")
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 10*time.Second {
		t.Fatalf("FOR=%s: write a duration of at least 10s, such as 5m or 1h", text)
	}
	return d
}

// world has the processes of the soak, and counts the events that happen to them.
type world struct {
	t        *testing.T
	dir      string
	redis    *redistest.Server
	ca       *certtest.Authority
	sidecars []*sidecartest.Sidecar
	http     *http.Client
	over     chan struct{}

	password               atomic.Pointer[string]
	changing               sync.Mutex   // held while Redis restarts or its password changes
	passwords, adjustments atomic.Int64 // how many changes have succeeded
	failures               atomic.Int64 // answers from on_backend_failure
	serials                sync.Map     // serial numbers of the certificates that clients received

	calls, work count
}

// count bounds the units that a limit has consumed: at least sure, and at most sure plus unknown.
type count struct{ sure, unknown atomic.Int64 }

func TestMain(m *testing.M) { sidecartest.Main(m, "../..") }

// TestSoak sends gRPC and HTTP traffic, reservations and adjustments to two sidecars. Meanwhile the
// configuration is reloaded every second, Redis is paused, restarted and loses its scripts, and passwords and
// certificates change. Memory, goroutines and open files must not grow, and every consumed unit must be
// counted once.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("the soak takes ten seconds; run the tests without -short")
	}
	w := start(t)
	lasts := duration(t)
	var traffic, faults sync.WaitGroup
	for i := range 4 {
		s := w.sidecars[i%len(w.sidecars)]
		traffic.Go(func() { w.rpc(s) })
		traffic.Go(func() { w.apply(s) })
	}
	traffic.Go(func() { w.proxy(w.sidecars[0]) })
	faults.Go(func() { w.every(time.Second, w.reload) })
	faults.Go(func() { w.every(time.Second, w.adjust) })
	faults.Go(func() { w.every(1500*time.Millisecond, w.rotate) })
	faults.Go(func() { w.every(700*time.Millisecond, w.fault) })
	slack := 4 << 10
	if lasts < time.Minute {
		slack = 16 << 10 // in a short run the heap is still growing to its final size
	}
	var usages [][]usage
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(lasts / 60) {
		var now []usage
		for _, s := range w.sidecars {
			now = append(now, w.usage(s))
		}
		usages = append(usages, now)
	}
	close(w.over)
	faults.Wait()
	traffic.Wait()
	w.counts()
	w.happened()
	for i := range w.sidecars {
		var of []usage
		for _, u := range usages {
			of = append(of, u[i])
		}
		t.Logf("sidecar %d: at first %+v, at last %+v", i, of[len(of)/4], of[len(of)-1])
		for _, wrong := range judge(of, float64(slack)) {
			t.Errorf("sidecar %d: %s", i, wrong)
		}
	}
}

func start(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, dir: dir, ca: certtest.New(t), http: &http.Client{Timeout: 10 * time.Second}, over: make(chan struct{})}
	first := "first"
	w.password.Store(&first)
	w.write("password", first)
	w.write("limits.yaml", limits(0))
	w.write("api-token", "api")
	w.write("admin-token", "admin")
	w.ca.Secret(t, dir, 1, "localhost")
	w.redis = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--requirepass", first)
	for range 2 {
		w.launch()
	}
	for _, s := range w.sidecars {
		s.Await("/readyz")
	}
	return w
}

func (w *world) write(name, text string) {
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		w.t.Error(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		w.t.Error(err)
	}
}

func (w *world) launch() {
	file := func(name string) string { return filepath.Join(w.dir, name) }
	s := sidecartest.Start(w.t, "--config", file("limits.yaml"), "--tls-cert", file("tls.crt"), "--tls-key", file("tls.key"),
		"--api-token-file", file("api-token"), "--admin-token-file", file("admin-token"),
		"--redis-url", "redis://"+w.redis.Addr, "--redis-password-file", file("password"))
	w.sidecars = append(w.sidecars, s)
	w.t.Cleanup(s.Stop)
}

// every calls f after each pause of d, until the soak is over. f gets the number of the call, from 1.
func (w *world) every(d time.Duration, f func(i int)) {
	for i := 1; ; i++ {
		select {
		case <-w.over:
			return
		case <-time.After(d):
			f(i)
		}
	}
}

func (w *world) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

func (w *world) dial(s *sidecartest.Sidecar) *grpc.ClientConn {
	config := &tls.Config{RootCAs: w.ca.Pool(), ServerName: "localhost", VerifyConnection: func(c tls.ConnectionState) error {
		w.serials.Store(c.PeerCertificates[0].SerialNumber.String(), true)
		return nil
	}}
	conn, err := grpc.NewClient("dns:///"+s.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

func (w *world) rpc(s *sidecartest.Sidecar) {
	for !w.isOver() {
		conn := w.dial(s)
		for i := 0; i < 200 && !w.isOver(); i++ {
			answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(w.t.Context(), rlstest.Request("soak", "call=1"))
			switch {
			case err != nil:
				w.t.Errorf("an RPC failed, so Envoy would have allowed the request: %v", err)
				w.calls.unknown.Add(1)
			case answer.OverallCode == rls.RateLimitResponse_OK:
				w.calls.sure.Add(1)
			case answer.Statuses[0].CurrentLimit == nil: // on_backend_failure decided
				w.calls.unknown.Add(1)
				w.failures.Add(1)
			}
			time.Sleep(time.Millisecond)
		}
		conn.Close()
	}
}

// post sends a request to the HTTP API, and returns its answer. code is 0 if there is none.
func (w *world) post(url, token, body string) (code int, answer struct {
	Reservation string `json:"reservation"`
	Degraded    bool   `json:"degraded"`
}) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return 0, answer
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	got, err := w.http.Do(r)
	if err != nil {
		w.t.Errorf("%s: %v", url, err)
		return 0, answer
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body)
	_ = json.Unmarshal(text, &answer)
	return got.StatusCode, answer
}

// apply reserves units for work, and then sends the settlement until it is confirmed.
func (w *world) apply(s *sidecartest.Sidecar) {
	for !w.isOver() {
		code, answer := w.post("http://"+s.HTTP+"/v1/limit", "api", `{"domain":"soak","name":"work","key":"1","count":5,"reserve":true}`)
		if code != http.StatusOK || answer.Reservation == "" {
			w.work.unknown.Add(5)
			w.failures.Add(1)
			time.Sleep(5 * time.Millisecond)
			continue
		}
		cost := rand.IntN(6)
		for code = 0; code != http.StatusOK; time.Sleep(5 * time.Millisecond) {
			code, _ = w.post("http://"+s.HTTP+"/v1/limit", "api", fmt.Sprintf(`{"reservation":%q,"count":%d}`, answer.Reservation, cost))
			if code == http.StatusGone || code == http.StatusConflict || code == http.StatusNotFound {
				w.t.Errorf("the settlement of a reservation: status %d, want 200", code)
				return
			}
		}
		w.work.sure.Add(int64(cost))
	}
}

// proxy sends auth requests as NGINX does.
func (w *world) proxy(s *sidecartest.Sidecar) {
	for !w.isOver() {
		answer, err := w.http.Get("http://" + s.HTTP + "/v1/auth/page")
		if err != nil {
			w.t.Errorf("/v1/auth: %v", err)
			continue
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusTooManyRequests {
			w.t.Errorf("/v1/auth: status %d, want 200 or 429", answer.StatusCode)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (w *world) reload(i int) {
	w.write("limits.yaml", limits(i))
}

func (w *world) adjust(i int) {
	body := fmt.Sprintf(`{"domain":"soak","limit":"adjusted","key":["k%d"],"factor":%d,"for":"1m","author":"soak","reason":"test"}`, i%20, 2+i%5)
	if code, _ := w.post("http://"+w.sidecars[i%2].Admin+"/api/adjustments", "admin", body); code == http.StatusOK {
		w.adjustments.Add(1)
	}
}

func (w *world) rotate(i int) {
	if i%2 == 0 {
		w.ca.Secret(w.t, w.dir, int64(i), "localhost")
		return
	}
	w.changing.Lock()
	defer w.changing.Unlock()
	next := fmt.Sprint("password", i)
	if w.command("CONFIG", "SET", "requirepass", next) {
		w.password.Store(&next)
		w.write("password", next)
		w.passwords.Add(1)
	}
}

func (w *world) fault(i int) {
	switch i % 6 {
	case 0:
		w.redis.Pause()
		time.Sleep(50 * time.Millisecond)
		w.redis.Resume()
	case 1, 4:
		w.command("SCRIPT", "FLUSH")
	case 2, 5:
		w.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	case 3:
		w.changing.Lock()
		defer w.changing.Unlock()
		w.redis.Kill()
		w.redis.Restart("--requirepass", *w.password.Load())
		redistest.Eventually(w.t, "Redis answers again", func() bool { return w.command("PING") })
	}
}

// command runs a command in Redis, and reports whether it succeeded. It may fail because Redis restarts.
func (w *world) command(words ...any) bool {
	c := goredis.NewClient(&goredis.Options{Addr: w.redis.Addr, Password: *w.password.Load(), MaxRetries: -1, Protocol: 2, DisableIdentity: true})
	defer c.Close()
	return c.Do(context.Background(), words...).Err() == nil
}

func (w *world) consumed(which string) (n int64) {
	conn := w.dial(w.sidecars[0])
	defer conn.Close()
	redistest.Eventually(w.t, which+" is decided by Redis again", func() bool {
		answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(w.t.Context(), rlstest.Request("soak", which+";hits=0"))
		if err != nil || answer.Statuses[0].CurrentLimit == nil {
			return false
		}
		n = hugeRate - int64(answer.Statuses[0].LimitRemaining)
		return true
	})
	return n
}

func (w *world) counts() {
	for which, c := range map[string]*count{"call=1": &w.calls, "work=1": &w.work} {
		n, sure, unknown := w.consumed(which), c.sure.Load(), c.unknown.Load()
		w.t.Logf("%s: %d consumed, %d admitted, %d answered by on_backend_failure", which, n, sure, unknown)
		if sure == 0 || n < sure || n > sure+unknown {
			w.t.Errorf("%s: %d consumed, want %d to %d", which, n, sure, sure+unknown)
		}
	}
}

func (w *world) happened() {
	seen := 0
	w.serials.Range(func(any, any) bool { seen++; return true })
	w.t.Logf("%d passwords, %d certificates seen, %d adjustments, %d failures", w.passwords.Load(), seen, w.adjustments.Load(), w.failures.Load())
	if w.passwords.Load() == 0 || w.adjustments.Load() == 0 || seen < 2 {
		w.t.Error("no password or certificate has changed, or no limit was adjusted")
	}
	for _, s := range w.sidecars {
		if sidecartest.Metrics(s.Admin, "admin")["rlsidecar_config_last_reload_successful"] != 1 {
			w.t.Error("the last reload failed")
		}
	}
}

func (w *world) usage(s *sidecartest.Sidecar) usage {
	all := sidecartest.Metrics(s.Admin, "admin")
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Cmd.Process.Pid))
	if err != nil {
		w.t.Error(err)
	}
	u := usage{Goroutines: all["go_goroutines"], Files: float64(len(files)), Series: float64(len(all))}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Cmd.Process.Pid))
	if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
		_, _ = fmt.Sscan(rest, &u.KiB)
	}
	return u
}
