package server

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
)

func TestBufferedBytesFollowTheMemory(t *testing.T) {
	for memory, want := range map[int64]int{math.MaxInt64: 32 << 20, 1 << 30: 32 << 20, 64 << 20: 8 << 20, 16 << 20: 4 << 20} {
		if got := bufferedBytes(memory); got != want {
			t.Errorf("with %d bytes of memory: got %d, want %d", memory, got, want)
		}
	}
}

const admitAll = "domain: d\nauth: {default: allow}\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"

func TestIdleConnectionsAreClosedForNewOnes(t *testing.T) {
	t.Parallel()
	const most = 5
	x := start(t, admitAll, func(c *Config) { c.GRPCMaxConnections, c.HTTPMaxConnections = most, most })
	for range 4 * most {
		connect(t, x.GRPC)
		connect(t, x.HTTP)
	}
	if got := get(t, x.Admin, "/metrics").StatusCode; got != 200 {
		t.Errorf("metrics: %d; want 200", got)
	}
	eventually(t, "gRPC is served", func() bool {
		_, err := x.rls.ShouldRateLimit(t.Context(), request("d", "k=v"))
		return err == nil
	})
	eventually(t, "HTTP is served", func() bool { return get(t, x.HTTP, "/v1/auth").StatusCode == 200 })
	metrics := x.metrics(t)
	for _, want := range []string{`rlsidecar_connections_max{listener="grpc"} 5`, `rlsidecar_connections_max{listener="http"} 5`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if x.logs.FilterLevelExact(zapcore.WarnLevel).FilterMessageSnippet("connections").Len() == 0 {
		t.Error("the log has no warning that contains \"connections\"")
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	const idle = 100 * time.Millisecond
	x := start(t, admitAll, func(c *Config) { c.MaxConnectionIdle, c.HTTPIdleTimeout = idle, idle })
	x.send(t, "k=v")
	nc := connect(t, x.HTTP)
	_, _ = io.WriteString(nc, "GET /v1/auth HTTP/1.1\r\nHost: h\r\n\r\n")
	if _, err := io.Copy(io.Discard, nc); err != nil {
		t.Errorf("the HTTP connection after the idle timeout: %v; want it closed", err)
	}
	eventually(t, "the gRPC connection has ended", func() bool {
		return strings.Contains(x.metrics(t), `rlsidecar_connections{listener="grpc"} 0`)
	})
	x.send(t, "k=v") // on a new connection
}
