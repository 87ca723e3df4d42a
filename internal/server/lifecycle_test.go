package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
)

const small = `
domain: d
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}
`

// run returns the error of Run, which must not start the server.
func run(t *testing.T, c Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a server that waits for a control plane ends without an error
	defer cancel()
	return Run(ctx, c, zap.NewNop(), func(Running) {
		t.Error("the server started; want an error")
		cancel()
	})
}

func TestWrongSettingsDoNotStart(t *testing.T) {
	folder := t.TempDir()
	empty, full, valid := filepath.Join(folder, "empty"), filepath.Join(folder, "full"), filepath.Join(folder, "valid.yaml")
	writeFile(t, empty, "")
	writeFile(t, full, "secret")
	writeFile(t, valid, small)
	for name, c := range map[string]Config{
		"admin for all, no token":       {Admin: ":6070"},
		"admin at a name, no token":     {Admin: "example.com:6070"},
		"certificate without key":       {TLS: tlsfiles.Server{Cert: "a"}},
		"key without certificate":       {TLS: tlsfiles.Server{Key: "a"}},
		"an empty token file":           {APITokenFile: empty},
		"no admin token file":           {AdminTokenFile: filepath.Join(t.TempDir(), "none")},
		"two API tokens":                {APIToken: "x", APITokenFile: full},
		"CA alone":                      {TLS: tlsfiles.Server{ClientCA: "a"}},
		"a header that cannot be sent":  {Answers: grpcapi.Options{Headers: &grpcapi.Headers{Limit: "a b", Remaining: "b", Reset: "c"}}},
		"--redis-url":                   {Redis: Redis{PerSecondURL: "redis://127.0.0.1:1"}},
		"tracing to zipkin":             {Tracing: &tracing.Config{Protocol: "zipkin"}},
		"too many traces":               {Tracing: &tracing.Config{Protocol: "http", Share: new(1.5)}},
		"fewer traces than none":        {Tracing: &tracing.Config{Protocol: "http", Share: new(-1.0)}},
		"files and a control plane":     {Paths: []string{"x"}, XDS: XDS{Server: "x:1"}},
		"xDS, TLS files, no TLS":        {XDS: XDS{Server: "x:1", CA: "f"}},
		"xDS, certificate, no key":      {XDS: XDS{Server: "x:1", TLS: true, Cert: "f"}},
		"xDS, a header of no use":       {XDS: XDS{Server: "x:1", Headers: map[string]string{"a b": "c"}}},
		"xDS, a message of less than 0": {XDS: XDS{Server: "x:1", MaxMessage: -1}},
		"xDS, no such overlay":          {XDS: XDS{Server: "x:1", Overlay: "/nowhere/overlay.yaml"}},
		"xDS, no such CA":               {XDS: XDS{Server: "x:1", TLS: true, CA: "/nowhere/ca.pem"}},
	} {
		if c.GRPC = "127.0.0.1:0"; c.XDS.Server == "" || len(c.Paths) > 0 {
			c.Paths = []string{valid}
		}
		if err := run(t, c); err == nil || strings.HasPrefix(name, "--") && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: Run returned %v; want an error", name, err)
		}
	}
	for _, c := range []Config{{Admin: "127.0.0.1:0"}, {Admin: "[::1]:0"}, {Admin: "localhost:0"}, {Admin: "unix:///x"}, {Admin: ":0", AdminToken: "x"}, {}} {
		if err := c.Check(); err != nil {
			t.Errorf("%+v: Check returned %v; want no error", c, err)
		}
	}
}

func TestUnixSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rls.sock")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	x := start(t, small, func(c *Config) { c.GRPC, c.HTTP, c.Admin = "unix://"+path, "", "" })
	if got := x.send(t, "k=v"); got.OverallCode != ok || x.HTTP != nil || x.Admin != nil {
		t.Errorf("got %v; want OK, without HTTP and admin listeners", got)
	}
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "unix://" + path + ".other", Admin: "unix://" + path}); err == nil {
		t.Error("a socket in use: Run returned no error; want one")
	}
	if _, err := os.Lstat(path + ".other"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other listener of the server that did not start: got %v; want it closed", err)
	}
	if got := x.send(t, "k=v"); got.OverallCode != ok {
		t.Errorf("got %v; want OK", got)
	}
	if err := x.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket was not removed: %v; want the error os.ErrNotExist", err)
	}
	writeFile(t, path, "precious")
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "unix://" + path}); err == nil {
		t.Error("a file that is no socket: Run returned no error; want one")
	}
	if data, _ := os.ReadFile(path); string(data) != "precious" {
		t.Errorf("the file contains %q; want its content unchanged", data)
	}
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "unix://"}); err == nil {
		t.Error("a socket without a path: Run returned no error; want one")
	}
	name := fmt.Sprintf("@rlsidecar-test-%d", os.Getpid())
	abstract := start(t, small, func(c *Config) { c.GRPC = "unix://" + name })
	if got := abstract.send(t, "k=v"); got.OverallCode != ok {
		t.Errorf("got %v; want OK", got)
	}
}

const delaying = `
domain: d
limits:
  jobs: {algorithm: leaky_bucket, rate: 1, period: 500ms, capacity: 1000, max_delay: 1m}
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: job, limit: jobs}
`

func (x *instance) awaitJobs(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d jobs are allowed", n), func() bool {
		return strings.Contains(x.metrics(t), fmt.Sprintf(`limit="jobs",outcome="allowed"} %d`, n))
	})
}

func TestDrainAnswersEveryRequest(t *testing.T) {
	t.Parallel()
	// The delay must be longer than all steps before the clients stop, even on a busy machine.
	x := start(t, strings.Replace(delaying, "500ms", "6s", 1), func(c *Config) { c.DrainDelay, c.DrainTimeout = 5*time.Second, time.Hour })
	watch, err := x.health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: grpcapi.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	// Like Envoy, clients send requests until the server reports that it is not ready.
	var going atomic.Bool
	var requests atomic.Int64
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for !going.Load() {
				if _, err := x.rls.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
					t.Error(err)
				}
				requests.Add(1)
			}
		})
	}
	x.send(t, "job=1")
	clients.Go(func() { // the leaky bucket delays this request by 6 s, which is longer than the drain delay
		if r, err := x.rls.ShouldRateLimit(t.Context(), request("d", "job=1")); err != nil || r.OverallCode != ok {
			t.Errorf("the delayed request: %v, %v; want no error and OK", r, err)
		}
	})
	x.awaitJobs(t, 2)
	eventually(t, "100 requests are answered", func() bool { return requests.Load() > 100 })
	stopped := make(chan error)
	go func() { stopped <- x.stop() }()
	if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("got %v, %v; want no error and status %v", r, err, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	for path, code := range map[string]int{"/healthcheck": 500, "/readyz": 503, "/livez": 200} {
		if r := get(t, x.HTTP, path); r.StatusCode != code {
			t.Errorf("%s while draining: %d; want status %v", path, r.StatusCode, code)
		}
	}
	for listener, err := range map[string]error{"HTTP": CheckHTTP(t.Context(), flagAddress(x.HTTP)), "gRPC": CheckGRPC(t.Context(), flagAddress(x.GRPC), false)} {
		if !errors.Is(err, ErrNotReady) {
			t.Errorf("%s while draining: got %v; want ErrNotReady", listener, err)
		}
	}
	if r := exchangeRaw(t, x.HTTP, requestStart+"\r\n"); r.StatusCode != 200 || !r.Close {
		t.Errorf("while draining: %d, closes the connection: %t; want 200 and true, so that the client continues elsewhere", r.StatusCode, r.Close)
	}
	going.Store(true)
	clients.Wait()
	if err := <-stopped; err != nil { // the server does not wait for watch until DrainTimeout
		t.Error(err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ends with %v; want codes.Unavailable", err)
	}
}

// 20 answers are delayed, two for each of ten clients: by 20 and by 40 seconds. All of them are aborted when
// DrainTimeout, 50 ms, has passed.
func TestDrainIsBounded(t *testing.T) {
	x := start(t, strings.Replace(delaying, "500ms", "20s", 1), func(c *Config) { c.DrainTimeout = 50 * time.Millisecond })
	failed := make(chan error)
	for client := range 10 {
		job := fmt.Sprintf("job=%d", client)
		x.send(t, job)
		for range 2 {
			go func() {
				_, err := x.rls.ShouldRateLimit(context.Background(), request("d", job))
				failed <- err
			}()
		}
	}
	x.awaitJobs(t, 30)
	start := time.Now()
	if err := x.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("took %v; want at most %v", took, 15*time.Second)
	}
	for range 20 {
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("a delayed answer: %v, want Unavailable", err)
		}
	}
}

func TestReloadUnderLoad(t *testing.T) {
	config := func(n int) string { return strings.ReplaceAll(small, "1000000", fmt.Sprint(1_000_000+n)) }
	garbageCollection := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(90))
	x := start(t, config(0))
	var clients sync.WaitGroup
	var done atomic.Bool
	var requests atomic.Int64
	for range 8 {
		clients.Go(func() {
			for last := uint32(0); !done.Load(); requests.Add(1) {
				r, err := x.rls.ShouldRateLimit(t.Context(), request("d", "k=v"))
				if err != nil {
					t.Error(err)
					return
				}
				n := r.Statuses[0].CurrentLimit.GetRequestsPerUnit()
				if r.OverallCode != ok || n < last || n%10 == 9 {
					t.Errorf("got limit %d after %d: %v; want OK, a limit that is not lower, and none of a refused configuration", n, last, r)
				}
				last = n
			}
		})
	}
	const reloads = 30
	for n := 1; n <= reloads; n++ {
		text := config(n)
		if n%10 == 9 { // valid except for its last line
			text += "nonsense: true\n"
		}
		x.write(t, text)
		x.reload(t)
		before := requests.Load()
		eventually(t, "20 more requests are answered", func() bool { return requests.Load() > before+20 })
		want := n
		if n%10 == 9 {
			want--
		}
		if got := x.send(t, "k=v").Statuses[0].CurrentLimit.RequestsPerUnit; got != uint32(1_000_000+want) {
			t.Errorf("reload %d: the limit is %d, want %d", n, got, 1_000_000+want)
		}
		if got := x.conditions(t); n%10 == 9 != (strings.HasPrefix(got, "degraded configuration-refused: ") && strings.Contains(got, "limits.yaml:5:")) {
			t.Errorf("reload %d: got the conditions %q; want one only if the configuration was refused, with the line", n, got)
		}
		page := body(t, get(t, x.Admin, "/"))
		if refused := strings.Contains(page, "nonsense"); refused != (n%10 == 9) {
			t.Errorf("reload %d: the page shows %v; want %v refused", n, refused, n%10 == 9)
		}
	}
	done.Store(true)
	clients.Wait()
	refused := x.logs.FilterMessageSnippet("refused").Len()
	if refused < reloads/10 {
		t.Errorf("%d refusals in the log; want at least %d", refused, reloads/10)
	}
	if !strings.Contains(x.metrics(t), "rlsidecar_config_last_reload_successful 1") {
		t.Error("the metrics lack rlsidecar_config_last_reload_successful 1")
	}
	// Consumption survives all reloads.
	if left := x.send(t, "k=v").Statuses[0].LimitRemaining; int64(1_000_000+reloads-left) < requests.Load() {
		t.Errorf("%d of %d left after %d requests; want less", left, 1_000_000+reloads, requests.Load())
	}
	eventually(t, "the garbage collector has the setting from before the start", func() bool { return garbageCollection() == 90 })
}

func TestTheLogHasReloadsAndNoRequests(t *testing.T) {
	const limit = "domain: d\nlimits: {per_user: {algorithm: token_bucket, rate: %d, period: 1m, capacity: 3}}\ndescriptors: [{key: user, limit: per_user}]\n"
	x := start(t, fmt.Sprintf(limit, 300))
	before := x.logs.Len()
	for range 5 {
		x.send(t, "user=bob")
	}
	if added := x.logs.All()[before:]; len(added) > 0 {
		t.Errorf("5 requests, of which 2 are denied: got the log lines %v; want none", added)
	}
	x.write(t, fmt.Sprintf(limit, 3))
	x.reload(t)
	var got []string
	eventually(t, "the log has the change", func() bool {
		for _, line := range x.logs.FilterMessage("limit changed").All() {
			got = append(got, fmt.Sprint(line.ContextMap()))
		}
		return len(got) > 0
	})
	if !strings.Contains(got[0], "d/per_user") || !strings.Contains(got[0], "300 per 1m, up to 3 at once -> token bucket: 3 per 1m") {
		t.Errorf("the log says %s; want that d/per_user had 300, and has 3 now", got)
	}
}

// A reload within a second is documented. The test makes three changes, because other tests use the processor too. One of
// them must be in use within a second.
func TestChangedFilesAreReloaded(t *testing.T) {
	x := start(t, small)
	fastest := time.Duration(math.MaxInt64)
	for n := uint32(1_000_001); n <= 1_000_003; n++ {
		x.write(t, strings.ReplaceAll(small, "1000000", fmt.Sprint(n)))
		changed := time.Now()
		eventually(t, "reload", func() bool { return x.send(t, "k=v").Statuses[0].CurrentLimit.RequestsPerUnit == n })
		fastest = min(fastest, time.Since(changed))
	}
	if fastest > time.Second {
		t.Errorf("each reload took %v or longer; want at most 1 s", fastest)
	}
}

func TestARenamedFileIsThePlaceOfItsLimits(t *testing.T) {
	x := start(t, small, func(c *Config) { c.Paths = []string{filepath.Dir(c.Paths[0])} })
	renamed := filepath.Join(filepath.Dir(x.file), "renamed.yaml")
	if err := os.Rename(x.file, renamed); err != nil {
		t.Fatal(err)
	}
	x.reload(t)
	if page := body(t, get(t, x.Admin, "/limit?domain=d&name=k")); !strings.Contains(page, renamed+":") {
		t.Errorf("the page:\n%s; want the place of the limit in %s", page, renamed)
	}
}

func TestAFailingListenerEndsTheServer(t *testing.T) {
	broken := errors.New("broken")
	stopped := make(chan struct{})
	s := &server{log: zap.NewNop(), redisReadiness: newReadiness(0), config: Config{DrainDelay: time.Hour, DrainTimeout: time.Second}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = s.serve(t.Context(), []listener{
		{socket: l, serve: func(net.Listener) error { return broken }, stop: func(context.Context) {}},
		{socket: l, serve: func(net.Listener) error { <-stopped; return nil }, stop: func(context.Context) { close(stopped) }},
	}, func() {})
	if !errors.Is(err, broken) || s.ready.Load() {
		t.Errorf("got %v, ready %t; want the error broken, and not ready", err, s.ready.Load())
	}
}
