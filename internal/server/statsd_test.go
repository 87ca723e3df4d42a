package server

import (
	"io"
	"net"
	"slices"
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
  - {key: path, value: "/a*", value_to_metric: true, descriptors: [{key: user, value_to_metric: true, descriptors: [{key: third, rate_limit: {unit: year, requests_per_unit: 10}}]}]}
  - {key: all, detailed_metric: true, descriptors: [{key: deep, descriptors: [{key: deeper, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}]}]}
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
	r := request("d", descriptor("k=v"))
	r.HitsAddend = 8
	x.put(t, r)
	r.HitsAddend = 5 // 2 of them are near the limit, 3 are over it
	x.put(t, r)
	x.send(t, "path=/ab,user=bo\nb,third=x", "all=1,deep=2,deeper=3")
	x.put(t, request("elsewhere", descriptor("a=b")))
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
	lines, times := slices.Sorted(strings.Lines(string(text))), 0
	lines = slices.DeleteFunc(lines, func(line string) bool {
		is := strings.HasPrefix(line, "ratelimit_server.ShouldRateLimit.response_time:") && strings.HasSuffix(line, "|ms\n")
		if is {
			times++
		}
		return is
	})
	want := []string{
		"ratelimit.service.config_load_success:1|c\n",
		"ratelimit.service.rate_limit.d.all_1.deep_2.deeper_3.total_hits:1|c\n",
		"ratelimit.service.rate_limit.d.all_1.deep_2.deeper_3.within_limit:1|c\n",
		"ratelimit.service.rate_limit.d.k.near_limit:2|c\n",
		"ratelimit.service.rate_limit.d.k.over_limit:3|c\n",
		"ratelimit.service.rate_limit.d.k.total_hits:13|c\n",
		"ratelimit.service.rate_limit.d.k.within_limit:8|c\n",
		"ratelimit.service.rate_limit.d.path_/ab.user_bo_b.third.total_hits:1|c\n",
		"ratelimit.service.rate_limit.d.path_/ab.user_bo_b.third.within_limit:1|c\n",
		"ratelimit.service.rate_limit.unknown.domain_not_found:1|c\n",
		"ratelimit_server.ShouldRateLimit.total_requests:4|c\n",
	}
	if !slices.Equal(lines, want) || times != 4 {
		t.Errorf("got %d response times, and\n%swant 4, and\n%s", times, strings.Join(lines, ""), strings.Join(want, ""))
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
