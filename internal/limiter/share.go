package limiter

import (
	"math/bits"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// ShareOf returns n*share, rounded down. share is from 0 to 1; its decimals after the ninth do not count. n is at least 0.
func ShareOf(n int64, share float64) int64 {
	const one = 1_000_000_000
	billionths := min(one, uint64(share*one+1e-3)) // 0.29*one may be less than 290,000,000 in floating point
	high, low := bits.Mul64(uint64(n), billionths)
	part, _ := bits.Div64(high, low, one)
	return int64(part)
}

// SpecShare returns s with all amounts multiplied by share (0 to 1) and rounded down. A rate or capacity above 0 stays
// at least 1.
func SpecShare(s algorithms.Spec, share float64) algorithms.Spec {
	part := func(n *int64, least int64) *int64 {
		if n == nil {
			return nil
		}
		m := min(*n, max(least, ShareOf(*n, share)))
		return &m
	}
	s.Rate = *part(&s.Rate, 1)
	s.Capacity, s.MaxReserved, s.MaxDebt = part(s.Capacity, 1), part(s.MaxReserved, 0), part(s.MaxDebt, 0)
	if s.Initial = part(s.Initial, 0); s.Initial != nil && s.Capacity == nil {
		*s.Initial = min(*s.Initial, s.Rate)
	}
	if s.Minimum != nil {
		s.Minimum = &algorithms.Rate{Units: *part(&s.Minimum.Units, 1), Period: s.Minimum.Period}
	}
	return s
}
