package redis

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/cputest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

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
