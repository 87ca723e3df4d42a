package metrics

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
)

// Statsd returns the source of the counters and response times that a StatsD server receives. They are the
// reference server's, with their StatsD names. Call Statsd once, before the first request. From then on, limits with
// value_to_metric or detailed_metric have a counter for each combination of values in all levels of their descriptors.
// Without Statsd, only the first two levels count, because the metrics of Prometheus have labels for two levels.
func (m *Metrics) Statsd() statsd.Source {
	m.series.levels = maxLevels
	m.latency.sent = &timings{}
	return source{m}
}

// maxLevels is more than the number of levels in any configuration.
const maxLevels = 64

type source struct{ m *Metrics }

var hitNames = [...]string{
	totalHits: ".total_hits", withinLimit: ".within_limit", nearLimit: ".near_limit", overLimit: ".over_limit", shadowMode: ".shadow_mode",
}

func (s source) Counters() map[string]uint64 {
	totals := map[string]uint64{}
	add := func(name string, n uint64) {
		if n > 0 {
			totals[name] = n
		}
	}
	const limits, own = "ratelimit.service.rate_limit.", "ratelimit.service."
	m := s.m
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
			add(limits+name+what, one.sum(i))
		}
	}
	return totals
}

func (s source) Timings() (string, []time.Duration) {
	return "ratelimit_server." + shouldRateLimit + ".response_time", s.m.latency.sent.take()
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
