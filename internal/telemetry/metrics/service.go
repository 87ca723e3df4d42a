package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// service holds the counters that the reference server keeps about itself. They have the names of its
// Prometheus exporter. No label comes from requests.
type service struct {
	seconds               *prometheus.HistogramVec
	answered              prometheus.Observer // the histogram of ShouldRateLimit, in seconds
	calls                 atomic.Uint64
	loaded, refused       atomic.Uint64
	unlimited             atomic.Uint64
	badRequests, failures atomic.Uint64

	times *timings // nil without StatsD
}

func newService() *service {
	s := &service{seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "ratelimit_service_response_time_seconds",
		Help: "Duration of gRPC calls. Measured only with --metrics-listen or StatsD, because measuring takes time.",
		// Envoy's default timeout is 20 ms. It ignores later answers.
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .02, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	}, []string{"grpc_method"})}
	s.answered = s.seconds.WithLabelValues(shouldRateLimit)
	return s
}

const shouldRateLimit = "ShouldRateLimit"

// Answered counts a gRPC call that took d to answer.
func (m *Metrics) Answered(d time.Duration) {
	m.service.calls.Add(1)
	m.service.answered.Observe(d.Seconds())
	if m.service.times != nil {
		m.service.times.add(d)
	}
}

// defaultNearRatio is the default of the reference server.
const defaultNearRatio = 0.8

// SetNearLimit sets the share of a limit above which hits count as near_limit. Call it before the first
// request.
func (m *Metrics) SetNearLimit(ratio float64) { m.nearRatio = float32(ratio) }

// refuse counts a request that was answered without any limit, if the reference server counts a service_error for the
// same reason. The reasons are those of package grpcapi.
func (s *service) refuse(reason string) {
	switch reason {
	case "malformed", "no_domain", "no_descriptors", "no_config":
		s.badRequests.Add(1)
	}
}

func (s *service) observe(c *limiter.Call) {
	if c.WouldDeny {
		s.unlimited.Add(1)
	}
	if c.Failed || c.Err != nil {
		s.failures.Add(1)
	}
}

var (
	callsDesc = prometheus.NewDesc("ratelimit_service_total_requests",
		"gRPC calls answered. Counted only with --metrics-listen or StatsD.", []string{"grpc_method"}, nil)
	errorsDesc = prometheus.NewDesc("ratelimit_service_should_rate_limit_error",
		"Requests that were rejected (service_error), and those that the backend could not decide (redis_error), whatever their answer was.", []string{"err_type"}, nil)
	loadedDesc = prometheus.NewDesc("ratelimit_service_config_load_success",
		"Configurations loaded.", nil, nil)
	refusedDesc = prometheus.NewDesc("ratelimit_service_config_load_error",
		"Configurations rejected.", nil, nil)
	shadowedDesc = prometheus.NewDesc("ratelimit_service_global_shadow_mode",
		"Requests that would have been denied without the global shadow mode.", nil, nil)
)

func (s *service) collect(send func(*prometheus.Desc, uint64, ...string)) {
	send(callsDesc, s.calls.Load(), shouldRateLimit)
	send(errorsDesc, s.badRequests.Load(), "service_error")
	send(errorsDesc, s.failures.Load(), "redis_error")
	send(loadedDesc, s.loaded.Load())
	send(refusedDesc, s.refused.Load())
	send(shadowedDesc, s.unlimited.Load())
}
