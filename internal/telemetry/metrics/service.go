package metrics

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
)

// service holds the counters that the reference server keeps about itself. They have the names of its
// Prometheus exporter. No label comes from requests.
type service struct {
	others                atomic.Uint64 // requests that did not come through ShouldRateLimit
	loaded, refused       atomic.Uint64
	unlimited             atomic.Uint64
	badRequests, failures atomic.Uint64
}

const shouldRateLimit = "ShouldRateLimit"

// defaultNearRatio is the default of the reference server.
const defaultNearRatio = 0.8

// SetNearLimit sets the share of a limit above which hits count as near_limit. Call it before the first
// request.
func (m *Metrics) SetNearLimit(ratio float64) { m.nearRatio = float32(ratio) }

func (s *service) observe(c *limiter.Call) {
	if !c.Listener.IsRateLimitService() {
		s.others.Add(1)
	}
	if c.WouldDeny {
		s.unlimited.Add(1)
	}
	if c.Failed || c.Err != nil {
		s.failures.Add(1)
	}
}

var (
	callsDesc = newDesc("ratelimit_service_total_requests{grpc_method}",
		"Requests of Envoy's RateLimitService that were answered, over gRPC or in JSON.")
	errorsDesc = newDesc("ratelimit_service_should_rate_limit_error{err_type}",
		"Requests that were rejected (service_error), and those that the backend could not decide (redis_error), whatever their answer was.")
	loadsDesc = newDesc("rlsidecar_config_reloads_total{result}",
		"Configurations loaded or rejected, including the first.")
	loadedDesc   = newDesc("ratelimit_service_config_load_success", "Configurations loaded.")
	refusedDesc  = newDesc("ratelimit_service_config_load_error", "Configurations rejected.")
	shadowedDesc = newDesc("ratelimit_service_global_shadow_mode",
		"Requests that would have been denied without the global shadow mode.")
)

// calls returns the number of requests of Envoy's RateLimitService. all is the number of requests that the limiter
// answered.
func (s *service) calls(all uint64) uint64 {
	return all - min(all, s.others.Load()) + s.badRequests.Load()
}

func (s *service) collect(send func(*prometheus.Desc, uint64, ...string), requests uint64) {
	send(callsDesc, s.calls(requests), shouldRateLimit)
	send(errorsDesc, s.badRequests.Load(), "service_error")
	send(errorsDesc, s.failures.Load(), "redis_error")
	send(loadsDesc, s.loaded.Load(), "success")
	send(loadsDesc, s.refused.Load(), "failure")
	send(loadedDesc, s.loaded.Load())
	send(refusedDesc, s.refused.Load())
	send(shadowedDesc, s.unlimited.Load())
}

// Statsd returns the source of the counters and response times that a StatsD server receives. They are the
// reference server's, with their StatsD names. Call Statsd once, before the first request. From then on, limits with
// value_to_metric or detailed_metric have a counter for each combination of values in all levels of their descriptors.
// Without Statsd, only the first two levels count, because the metrics of Prometheus have labels for two levels.
func (m *Metrics) Statsd() statsd.Source {
	m.series.levels = maxLevels
	m.latency.sent = &timings{}
	return m
}

// maxLevels is more than the number of levels in any configuration.
const maxLevels = 64

// Counters implements statsd.Source.
func (m *Metrics) Counters() map[string]uint64 {
	totals := map[string]uint64{}
	add := func(name string, n uint64) {
		if n > 0 {
			totals[name] = n
		}
	}
	const limits, own = "ratelimit.service.rate_limit.", "ratelimit.service."
	requests := m.Requests()
	add(limits+"unknown.domain_not_found", m.domainNotFound.sum(0)) // a fixed name, because the domain's name comes from the client
	add(own+"config_load_success", m.service.loaded.Load())
	add(own+"config_load_error", m.service.refused.Load())
	add(own+"global_shadow_mode", m.service.unlimited.Load())
	add(own+"call.should_rate_limit.redis_error", m.service.failures.Load())
	add(own+"call.should_rate_limit.service_error", m.service.badRequests.Load())
	add("ratelimit_server."+shouldRateLimit+".total_requests", m.service.calls(requests.Allowed+requests.Denied))
	m.series.mu.RLock()
	defer m.series.mu.RUnlock()
	for name, one := range m.series.byName.all {
		if name == overflow {
			name = "overflow" // all other names contain a dot
		}
		for i, what := range hitNames {
			add(limits+name+"."+what, one.sum(i))
		}
	}
	return totals
}

// Timings implements statsd.Source.
func (m *Metrics) Timings() (string, []time.Duration) {
	return "ratelimit_server." + shouldRateLimit + ".response_time", m.latency.sent.take()
}

// timings keeps a random sample of the durations since the last call of take. Each of them is in the sample with the
// same probability.
type timings struct {
	mu   sync.Mutex
	seen int
	kept []time.Duration
}

const maxTimings = 1000

func (t *timings) add(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen++; len(t.kept) < maxTimings {
		t.kept = append(t.kept, d)
	} else if i := rand.IntN(t.seen); i < maxTimings {
		t.kept[i] = d
	}
}

// take returns the sample and starts a new one.
func (t *timings) take() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.kept
	t.seen, t.kept = 0, nil
	return list
}
