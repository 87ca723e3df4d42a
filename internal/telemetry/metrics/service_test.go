package metrics

import (
	"errors"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestTheReferenceServersOwnCounters(t *testing.T) {
	m := New("", "")
	m.Loaded(true, time.Now())
	m.Loaded(false, time.Now())
	for _, reason := range []string{grpcapi.NoDomain, grpcapi.NoDescriptors, grpcapi.NoConfig, grpcapi.Malformed, grpcapi.TooMuch} {
		m.Refused(reason)
	}
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: m, Modes: limiter.Modes{Shadow: true}})
	l.Swap(snapshot(&limiter.Policy{Name: "k", Limit: limit(t, 1)}))
	send(t, l, "d", "k", "v", 1)
	send(t, l, "d", "k", "v", 1)
	m.Observe(&limiter.Call{Verdict: limiter.Verdict{Snapshot: l.Current(), Failed: true}})
	m.Observe(&limiter.Call{Verdict: limiter.Verdict{Snapshot: l.Current(), Err: errors.New("unreachable")}})
	got := scrape(t, m, "ratelimit_service_")
	wantSome(t, got, map[string]string{
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`:     "8",
		`ratelimit_service_config_load_success`:                               "1",
		`ratelimit_service_config_load_error`:                                 "1",
		`ratelimit_service_should_rate_limit_error{err_type="service_error"}`: "4",
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"}`:   "2",
		`ratelimit_service_global_shadow_mode`:                                "1",
	})
}

func TestNearLimitRatio(t *testing.T) {
	for ratio, want := range map[float64]string{0.8: "2", 0.5: "5", 1: "0"} {
		m, l := observed(&limiter.Policy{Name: "k", Limit: limit(t, 10)})
		m.SetNearLimit(ratio)
		send(t, l, "d", "k", "v", 10)
		name := `ratelimit_service_rate_limit_near_limit{domain="d",key1="k",key2=""}`
		if got := scrape(t, m, name)[name]; got != want {
			t.Errorf("%g: %s, want %s", ratio, got, want)
		}
	}
}
