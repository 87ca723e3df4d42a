package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ok   = rls.RateLimitResponse_OK
	over = rls.RateLimitResponse_OVER_LIMIT
)

type instance struct {
	Running
	file   string
	logs   *observer.ObservedLogs
	hangup chan os.Signal
	rls    rls.RateLimitServiceClient
	health healthpb.HealthClient
	stop   func() error // stops the server, and returns the result of Run
}

func start(tb testing.TB, yaml string, edit ...func(*Config)) *instance {
	tb.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	x := &instance{file: filepath.Join(tb.TempDir(), "limits.yaml"), logs: logs, hangup: make(chan os.Signal)}
	x.write(tb, yaml)
	c := Config{
		Paths: []string{x.file}, Hangup: x.hangup,
		GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", DrainTimeout: 10 * time.Second,
	}
	for _, e := range edit {
		e(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Run(ctx, c, zap.New(core), func(r Running) {
			x.Running = r
			close(started)
		})
	}()
	x.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	select {
	case <-started:
	case err := <-ended:
		cancel()
		tb.Fatalf("Run: %v", err)
	}
	tb.Cleanup(func() {
		if err := x.stop(); err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	conn := dial(tb, x.GRPC)
	x.rls, x.health = rls.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
	return x
}

func dial(tb testing.TB, a net.Addr, options ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	target := "dns:///" + a.String()
	if a.Network() == "unix" {
		target = "unix:" + a.String()
		if name, abstract := strings.CutPrefix(a.String(), "@"); abstract {
			target = "unix-abstract:" + name
		}
	}
	if len(options) == 0 {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn
}

func (x *instance) write(tb testing.TB, yaml string) {
	tb.Helper()
	writeFile(tb, x.file+".new", yaml)
	if err := os.Rename(x.file+".new", x.file); err != nil {
		tb.Fatal(err)
	}
}

func (x *instance) reload(tb testing.TB) {
	tb.Helper()
	x.hangup <- os.Interrupt // any signal requests a reload
	x.hangup <- os.Interrupt // the server receives it after the first reload
}

var request = rlstest.Request

func (x *instance) send(tb testing.TB, texts ...string) *rls.RateLimitResponse {
	tb.Helper()
	return x.put(tb, request("d", texts...))
}

func (x *instance) put(tb testing.TB, r *rls.RateLimitRequest) *rls.RateLimitResponse {
	tb.Helper()
	answer, err := x.rls.ShouldRateLimit(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return answer
}

// connect opens a connection that fails after a minute, and ends with the test.
func writeFile[Text string | []byte](tb testing.TB, name string, text Text) {
	tb.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func connect(tb testing.TB, a net.Addr) net.Conn {
	tb.Helper()
	nc, err := net.Dial(a.Network(), a.String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(time.Minute))
	return nc
}

func get(tb testing.TB, a net.Addr, path string, header ...string) *http.Response {
	tb.Helper()
	return exchange(tb, "GET", a, path, "", header...)
}

// metrics returns the metrics of the admin listener.
func (x *instance) metrics(tb testing.TB) string {
	tb.Helper()
	return body(tb, get(tb, x.Admin, "/metrics"))
}

// exchange sends a request with header, which has names and values in turn.
func exchange(tb testing.TB, method string, a net.Addr, path, body string, header ...string) *http.Response {
	tb.Helper()
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		tb.Fatal(err)
	}
	r, err := http.NewRequest(method, "http://127.0.0.1:"+port+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	r.Close = true
	for pair := range slices.Chunk(header, 2) {
		if r.Header.Set(pair[0], pair[1]); pair[0] == "Host" {
			r.Host = pair[1]
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { answer.Body.Close() })
	return answer
}

func post(tb testing.TB, a net.Addr, path, text string, header ...string) (code int, answer string) {
	tb.Helper()
	got := exchange(tb, "POST", a, path, text, header...)
	return got.StatusCode, body(tb, got)
}

func body(tb testing.TB, r *http.Response) string {
	tb.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

var eventually = redistest.Eventually
