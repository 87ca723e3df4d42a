package limiter

import (
	"math"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// sum combines two charges of the same bucket into one. It adds their costs, bounded to the range of int64.
// The sum is reserved only if both costs are, and waits no longer than either of them accepts. It is an open reservation if
// one of them is.
func sum(a, b algorithms.Charge) algorithms.Charge {
	a.Reserve = a.Reserve && b.Reserve
	if a.MaxWait == 0 || b.MaxWait > 0 && b.MaxWait < a.MaxWait {
		a.MaxWait = b.MaxWait
	}
	switch total := a.Cost + b.Cost; {
	case a.Cost > 0 && b.Cost > 0 && total < 0:
		a.Cost = math.MaxInt64
	case a.Cost < 0 && b.Cost < 0 && total >= 0:
		a.Cost = math.MinInt64
	default:
		a.Cost = total
	}
	a.Open = (a.Open || b.Open) && a.Cost > 0
	return a
}
