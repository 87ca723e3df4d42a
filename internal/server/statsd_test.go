package server

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
)

const counted = `
domain: d
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 10}}
`

// The interval is an hour, so the TCP server receives the metrics when the sidecar stops.
func TestStatsdIsSentTheReferenceServersMetrics(t *testing.T) {
	there, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	x := start(t, counted, func(c *Config) {
		c.Statsd = statsd.Config{Address: there.Addr().String(), Network: "tcp", Every: time.Hour}
	})
	r := request("d", "k=v")
	r.HitsAddend = 8
	x.put(t, r)
	x.put(t, request("elsewhere", "a=b"))
	ended := make(chan error, 1)
	go func() { ended <- x.stop() }()
	conn, err := there.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"ratelimit.service.config_load_success:1|c\n", "ratelimit.service.rate_limit.d.k.total_hits:8|c\n",
		"ratelimit.service.rate_limit.unknown.domain_not_found:1|c\n",
		"ratelimit_server.ShouldRateLimit.total_requests:2|c\n", "ratelimit_server.ShouldRateLimit.response_time:",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("got\n%s\nwant a text that contains %q", text, want)
		}
	}
}

// The receivers of metrics and of traces accept connections, and never read or answer. There are more traces than their
// queue can hold.
func TestDeadReceiversDelayNobody(t *testing.T) {
	there, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+there.Addr().String())
	x := start(t, counted, func(c *Config) {
		c.Statsd = statsd.Config{Address: there.Addr().String(), Network: "tcp", Every: time.Millisecond}
		c.Tracing = &tracing.Config{Protocol: "http"}
	})
	for range 3000 {
		if a := x.send(t, "free=v"); a.OverallCode != ok {
			t.Fatalf("got %v; want OK", a)
		}
	}
}
