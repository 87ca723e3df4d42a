package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestCostsOfOneBucketAreAddedUp(t *testing.T) {
	const most, least = 1<<63 - 1, -1 << 63
	for _, c := range []struct{ a, b, want int64 }{
		{2, 3, 5}, {2, -3, -1}, {0, 0, 0}, {most, 1, most}, {most, most, most}, {least, -1, least}, {least, least, least}, {most, least, -1}, {1, most, most}, {-1, least, least}, {-3, 5, 2}, {5, -3, 2}, {-5, 3, -2}, {3, -5, -2}, {-2, -3, -5}, {-3, 3, 0}, {0, -3, -3},
	} {
		if got := sum(algorithms.Charge{Cost: c.a}, algorithms.Charge{Cost: c.b}).Cost; got != c.want {
			t.Errorf("%d and %d are %d, want %d", c.a, c.b, got, c.want)
		}
	}
	for _, both := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
		if got := sum(algorithms.Charge{Reserve: both[0]}, algorithms.Charge{Reserve: both[1]}).Reserve; got != (both[0] && both[1]) {
			t.Errorf("%v: the sum reserves: %v; want %v", both, got, both[0] && both[1])
		}
		for cost := range int64(2) {
			if got, want := sum(algorithms.Charge{Cost: cost, Open: both[0]}, algorithms.Charge{Open: both[1]}).Open, cost > 0 && (both[0] || both[1]); got != want {
				t.Errorf("%v, cost %d: the sum is open: %v; want %v", both, cost, got, want)
			}
		}
	}
}
