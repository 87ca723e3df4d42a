package adjust

import (
	"math"
	"testing"
)

func TestScaleIsExactAndBounded(t *testing.T) {
	for _, test := range []struct{ n, by, of, want int64 }{
		{7, 1500, 1000, 10},
		{math.MaxInt64, 3, 3, math.MaxInt64},
		{math.MaxInt64, 2, 3, 6148914691236517204},
		{math.MaxInt64, 2, 1, math.MaxInt64},
		{math.MaxInt64, 1000, 1, math.MaxInt64},
		{1 << 62, 4, 1, math.MaxInt64},
		{1 << 62, 3, 1, math.MaxInt64},
	} {
		if got := Scale(test.n, test.by, test.of); got != test.want {
			t.Errorf("%d * %d / %d is %d, want %d", test.n, test.by, test.of, got, test.want)
		}
	}
}
