package redis

import (
	"context"
	"fmt"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	// latencyCalls is the number of calls that are measured, one after the other. The measurement ends earlier
	// if latencyMost has passed, but not before latencyLeast calls.
	latencyCalls = 50
	latencyLeast = 10
	latencyMost  = 500 * time.Millisecond
	// envoyMargin is how much longer Envoy must wait than this process waits for Redis.
	envoyMargin = 10 * time.Millisecond
)

// measure returns the sorted durations of dry runs of probe. It stops at the first error, so the result may be empty.
func (s *Store) measure(ctx context.Context, client *goredis.Client, probe backend.Charge) []time.Duration {
	probe.Terms.DryRun = true
	n := s.node(client.Options(), func() {})
	defer n.wire.close()
	n.replicas.count = 0
	var took []time.Duration
	for began := time.Now(); len(took) < latencyCalls && (len(took) < latencyLeast || time.Since(began) < latencyMost); {
		var d [1]backend.Decision
		start := time.Now()
		if n.Take(ctx, []backend.Charge{probe}, d[:]); d[0].Err != nil {
			break
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took
}

// judgeLatency compares measured durations with the timeout of calls. took must be sorted.
func judgeLatency(took []time.Duration, timeout time.Duration) (Severity, string) {
	if len(took) == 0 {
		return Warning, "could not be measured"
	}
	median, p99 := took[len(took)/2], took[(len(took)-1)*99/100]
	measured := fmt.Sprintf("of %d calls the median took %v and 99 %% at most %v; --backend-timeout is %v",
		len(took), median.Round(10*time.Microsecond), p99.Round(10*time.Microsecond), timeout)
	// Twice the 99th percentile leaves room for variation that fifty calls do not show.
	needed := (2*p99 + time.Millisecond - 1).Truncate(time.Millisecond)
	advice := fmt.Sprintf("set --backend-timeout to %v (RLSIDECAR_BACKEND_TIMEOUT), and the proxy's timeout for the rate limit service to at least %v",
		needed, needed+envoyMargin)
	switch {
	case median >= timeout:
		return Problem, measured + ": most requests are answered by on_backend_failure; " + advice
	case p99 >= timeout:
		return Warning, measured + ": some requests are answered by on_backend_failure; " + advice
	default:
		return Fine, measured
	}
}
