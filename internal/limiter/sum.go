package limiter

import (
	"math"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// sum combines a and b, which are for the same bucket, into one Charge. It adds their costs, cut to the range of int64,
// and reserves only if both do.
func sum(a, b algorithms.Charge) algorithms.Charge {
	a.Reserve = a.Reserve && b.Reserve
	switch total := a.Cost + b.Cost; {
	case a.Cost > 0 && b.Cost > 0 && total < 0:
		a.Cost = math.MaxInt64
	case a.Cost < 0 && b.Cost < 0 && total >= 0:
		a.Cost = math.MinInt64
	default:
		a.Cost = total
	}
	return a
}
