package descriptors

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

// PartOf returns n*share, rounded down. share is between 0 and 1. For a large n, the result may exceed that by up to
// n/1e9.
func PartOf(n int64, share float64) int64 {
	const grain = 1e-9 // 29 % of 100 is 29, but 0.29*100 is less in floating point
	return min(n, int64(float64(n)*(share+grain)))
}

// Part returns s with all amounts multiplied by share (0 to 1) and rounded down. A rate or capacity above 0 stays
// at least 1.
func Part(s algorithms.Spec, share float64) algorithms.Spec {
	part := func(n *int64, least int64) *int64 {
		if n == nil {
			return nil
		}
		m := min(*n, max(least, PartOf(*n, share)))
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
