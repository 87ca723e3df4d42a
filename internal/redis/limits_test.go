package redis

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/cputest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestEachLimitOfACallHasOneIndex(t *testing.T) {
	x := &scriptRun{}
	for _, n := range []int{1, fewLimits, fewLimits + 1, fewLimits + 2, 1000, 3} {
		x.reset(n)
		limits := make([]algorithms.Limit, n)
		for range 2 {
			for i := range limits {
				if got := x.limit(&limits[i]); got != i+1 {
					t.Fatalf("limit %d of %d has number %d; want %v", i, n, got, i+1)
				}
			}
		}
		if len(x.limits) != n {
			t.Errorf("%d limits are listed, want %d", len(x.limits), n)
		}
	}
}

// Sixteen times as many limits must not take a hundred times the processor time. A search for each limit in a list takes
// up to 256 times as long.
func TestTimeGrowsAsTheNumberOfLimits(t *testing.T) {
	taken := func(n int) time.Duration {
		limits, x := make([]algorithms.Limit, n), &scriptRun{}
		x.reset(n)
		return cputest.Time(func() {
			for i := range limits {
				x.limit(&limits[i])
			}
		})
	}
	var few, many time.Duration
	for range 5 {
		few, many = taken(4_000), taken(64_000)
		if many < 100*few {
			return
		}
	}
	t.Errorf("4,000 limits took %v, 64,000 took %v; want less than a hundred times as long", few, many)
}
