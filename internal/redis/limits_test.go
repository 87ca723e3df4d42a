package redis

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// TestALimitOfACallHasOneNumber whether the limits of a call are few or many, and in calls that reuse memory.
func TestALimitOfACallHasOneNumber(t *testing.T) {
	x := &scriptRun{}
	for _, n := range []int{1, fewLimits, fewLimits + 1, fewLimits + 2, 1000, 3} {
		x.reset(n)
		limits := make([]algorithms.Limit, n)
		for range 2 {
			for i := range limits {
				if got := x.limit(&limits[i]); got != i+1 {
					t.Fatalf("limit %d of %d has number %d", i, n, got)
				}
			}
		}
		if len(x.limits) != n {
			t.Errorf("%d limits are listed, want %d", len(x.limits), n)
		}
	}
}

// TestTimeGrowsAsTheNumberOfLimits: sixteen times as many limits must not take a hundred times as long. When each was
// searched in a list it was up to 256 times.
func TestTimeGrowsAsTheNumberOfLimits(t *testing.T) {
	taken := func(n int) time.Duration {
		limits, x := make([]algorithms.Limit, n), &scriptRun{}
		x.reset(n)
		start := time.Now()
		for i := range limits {
			x.limit(&limits[i])
		}
		return time.Since(start)
	}
	var few, many time.Duration
	for range 5 {
		few, many = taken(4_000), taken(64_000)
		if many < 100*few {
			return
		}
	}
	t.Errorf("4,000 limits took %v, 64,000 took %v", few, many)
}
