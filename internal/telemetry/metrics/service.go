package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
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

// refuse counts a request that was answered without any limit, if the reference server counts a service_error for the
// same reason. The reasons are those of package grpcapi.
func (s *service) refuse(reason string) {
	switch reason {
	case "malformed", "no_domain", "no_descriptors", "no_config":
		s.badRequests.Add(1)
	}
}

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
	callsDesc = prometheus.NewDesc("ratelimit_service_total_requests",
		"Requests of Envoy's RateLimitService that were answered, over gRPC or in JSON.", []string{"grpc_method"}, nil)
	errorsDesc = prometheus.NewDesc("ratelimit_service_should_rate_limit_error",
		"Requests that were rejected (service_error), and those that the backend could not decide (redis_error), whatever their answer was.", []string{"err_type"}, nil)
	loadsDesc = prometheus.NewDesc("rlsidecar_config_reloads_total",
		"Configurations loaded or rejected, including the first.", []string{"result"}, nil)
	loadedDesc = prometheus.NewDesc("ratelimit_service_config_load_success",
		"Configurations loaded.", nil, nil)
	refusedDesc = prometheus.NewDesc("ratelimit_service_config_load_error",
		"Configurations rejected.", nil, nil)
	shadowedDesc = prometheus.NewDesc("ratelimit_service_global_shadow_mode",
		"Requests that would have been denied without the global shadow mode.", nil, nil)
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
