package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// TestEveryListenerIsTimed has few decisions, so each of them is timed. Those of Envoy's API also have the reference
// server's name.
func TestEveryListenerIsTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New("", "")
		for i := range limiter.Listeners {
			c := &limiter.Call{Request: limiter.Request{Listener: limiter.Listener(i), Arrived: time.Now()}, Verdict: limiter.Verdict{Snapshot: &limiter.Snapshot{}}}
			time.Sleep(3 * time.Millisecond)
			for range i + 1 {
				m.Observe(c)
			}
		}
		m.Observe(&limiter.Call{Verdict: limiter.Verdict{Snapshot: &limiter.Snapshot{}}}) // without a time of arrival
		got := scrape(t, m, "")
		const service = `ratelimit_service_response_time_seconds`
		for series, want := range map[string]string{
			`rlsidecar_decision_seconds_count{listener="grpc"}`: "1", `rlsidecar_decision_seconds_count{listener="json"}`: "2",
			`rlsidecar_decision_seconds_count{listener="v1"}`: "3", `rlsidecar_decision_seconds_sum{listener="v1"}`: "0.009",
			`rlsidecar_decision_seconds_bucket{listener="auth",le="0.0025"}`: "0", `rlsidecar_decision_seconds_bucket{listener="auth",le="0.005"}`: "4",
			service + `_count{grpc_method="ShouldRateLimit"}`: "3", service + `_bucket{grpc_method="ShouldRateLimit",le="0.005"}`: "3",
			`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`: "4",
		} {
			if got[series] != want {
				t.Errorf("%s is %q, want %s", series, got[series], want)
			}
		}
	})
}

// TestManyDecisionsAreSampled has 200,000 decisions in a second, and then ten seconds with a few.
func TestManyDecisionsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New("", "")
		observe := func(n int) {
			for range n {
				m.Observe(&limiter.Call{Request: limiter.Request{Arrived: time.Now()}, Verdict: limiter.Verdict{Snapshot: &limiter.Snapshot{}}})
			}
		}
		observe(200_000)
		all := m.latency.listeners[limiter.OverGRPC].count()
		if every := m.latency.every.Load(); every != mostEvery || all < 180_000 || all > 220_000 {
			t.Errorf("one of %d decisions is timed, and %d are estimated; want %d, and about 200,000", every, all, mostEvery)
		}
		for range 100 {
			time.Sleep(time.Second)
			observe(100)
		}
		if every := m.latency.every.Load(); every != 1 {
			t.Errorf("one of %d decisions is timed; want all, because there are few", every)
		}
	})
}
