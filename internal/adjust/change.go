package adjust

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Spec returns the numbers of l with the change c. The error is the reason why l cannot have them.
func (c *Change) Spec(l *algorithms.Limit) (algorithms.Spec, error) {
	if l.Rate == 0 {
		return algorithms.Spec{}, errors.New("the limit is configured to allow nothing: it has no numbers to change")
	}
	s := l.Spec()
	if l.Kind == algorithms.Concurrency && (c.Rate != nil || c.Period != 0) {
		return s, errors.New("a concurrency limit has no rate and no period; adjust capacity")
	}
	tied := s.Capacity != nil && *s.Capacity == s.Rate && l.Kind != algorithms.LeakyBucket // a capacity that equals the rate counts as not configured
	if c.Factor != 0 {
		s.Rate = c.Factor.multiply(s.Rate)
		if s.Capacity != nil {
			*s.Capacity = c.Factor.multiply(*s.Capacity)
		}
		if s.Minimum != nil {
			s.Minimum = &algorithms.Rate{Units: c.Factor.multiply(s.Minimum.Units), Period: s.Minimum.Period}
		}
		if s.Rate < 1 && l.Kind != algorithms.Concurrency {
			return s, fmt.Errorf("%s times a rate of %d is less than 1; to deny every request, use block", c.Factor, l.Rate)
		}
		return fitInitial(s, l), nil
	}
	if c.Period != 0 {
		if l.Calendar != nil {
			return s, fmt.Errorf("the period of this limit is a calendar %s, which cannot be adjusted; adjust rate or capacity instead", l.Calendar.Unit)
		}
		s.Period = algorithms.Micros(c.Period)
	}
	if c.Rate != nil {
		s.Rate = *c.Rate
		if tied {
			s.Capacity = nil
		}
	}
	if c.Capacity != nil {
		if l.Kind == algorithms.SlidingWindow || l.Kind == algorithms.SlidingLog {
			return s, fmt.Errorf("a %s has no capacity: it admits rate in each period", KindName(l.Kind))
		}
		capacity := *c.Capacity
		s.Capacity = &capacity
	}
	return fitInitial(s, l), nil
}

// fitInitial makes the initial units of s fit its capacity, which the adjustment of l has changed. If those of l are
// below its capacity, the limit is a balance, and stays one: they stay below the capacity.
func fitInitial(s algorithms.Spec, l *algorithms.Limit) algorithms.Spec {
	if capacity := s.Rate; s.Initial != nil {
		if s.Capacity != nil {
			capacity = *s.Capacity
		}
		if l.Initial < l.Capacity {
			capacity = max(0, capacity-1)
		}
		*s.Initial = min(*s.Initial, capacity)
	}
	return s
}

func (f Factor) multiply(n int64) int64 { return Scale(n, int64(f), int64(one)) }

// Scale returns n*factor/divisor, rounded down. If the result is out of range, it is the largest int64. n and factor
// must be at least 0, and divisor at least 1.
func Scale(n, factor, divisor int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(factor))
	if hi >= uint64(divisor) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(divisor))
	if quotient > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(quotient)
}
