package advise

import (
	"math"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// none is the need of a client that every limit of a shape denies something.
const none = math.MaxInt64

// shape makes limits that differ from a configured one in a number, n: the rate, and the capacity
// where there is one; of a guaranteed minimum the capacity of the bank.
type shape struct {
	policy *descriptors.Policy
	limits map[int64]*algorithms.Limit // made before; nil: out of range
}

func newShape(p *descriptors.Policy) *shape { return &shape{p, map[int64]*algorithms.Limit{}} }

// at is the limit of n; nil where it cannot be computed exactly.
func (s *shape) at(n int64) *algorithms.Limit {
	if l, made := s.limits[n]; made {
		return l
	}
	var made *algorithms.Limit
	if l, err := algorithms.Compile(s.spec(n)); err == nil {
		made = &l
	}
	s.limits[n] = made
	return made
}

func (s *shape) spec(n int64) algorithms.Spec {
	l := s.policy.Limit
	spec := algorithms.Spec{
		Kind: l.Kind, Rate: n, Period: algorithms.Micros(l.Period) * l.Tick, Calendar: l.Calendar,
		Overdraw: l.Overdraw, TakesDenied: l.TakesDenied, PerRequest: l.PerRequest,
	}
	if l.Penalty.After > 0 {
		spec.Penalty = &l.Penalty
	}
	switch l.Kind {
	case algorithms.FixedWindow:
		if start := algorithms.Micros(l.Phase) * l.Tick; l.Calendar == nil && !l.PhaseFromKey {
			spec.Start = &start
		}
	case algorithms.Guaranteed:
		spec.Kind, spec.Rate, spec.Capacity = algorithms.TokenBucket, l.Rate, &n
		spec.Minimum = &algorithms.Rate{Units: l.V1 / l.Q, Period: algorithms.Micros(l.V1/l.P1) * l.Tick}
	case algorithms.LeakyBucket:
		spec.Capacity = &n
	case algorithms.TokenBucket, algorithms.SlidingWindow, algorithms.SlidingLog: // the rate is all
	}
	return spec
}

// need is the smallest n with which none of c's requests is denied; none: there is no such n.
func (s *shape) need(c *Client) int64 {
	low, high := int64(0), int64(1) // low denies, high does not
	for {
		l := s.at(high)
		if l == nil {
			if high = s.largest(low, high); high == low {
				return none
			}
			l = s.at(high)
		}
		if spares(l, s.policy.Extra().MaxDelay, c) {
			break
		}
		if low = high; low > math.MaxInt64/2 {
			return none
		}
		high *= 2
	}
	for low+1 < high {
		if middle := low + (high-low)/2; spares(s.at(middle), s.policy.Extra().MaxDelay, c) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// largest is the largest n from low on, and below high, of which there is a limit.
func (s *shape) largest(low, high int64) int64 {
	for low+1 < high {
		if middle := low + (high-low)/2; s.at(middle) != nil {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// spares reports whether l denies none of c's requests.
func spares(l *algorithms.Limit, wait algorithms.Micros, c *Client) bool {
	return replay(l, wait, c, func(algorithms.Micros, bool) {}, true) == 0
}

// replay answers c's requests by l as for a bucket never seen, and returns how many l denies. It
// reports each to see, and ends at the first denial where that is all the caller wants to know.
func replay(l *algorithms.Limit, wait algorithms.Micros, c *Client, see func(at algorithms.Micros, denied bool), first bool) (denied int64) {
	var state algorithms.State
	var d algorithms.Decision
	for r := c.cursor(); ; {
		at, cost, more := r.next()
		if !more {
			return denied
		}
		l.TakeAt(&state, at, &algorithms.Charge{Cost: cost, Hash: c.Hash, MaxWait: wait}, &d)
		if !d.Allowed {
			if denied++; first {
				return denied
			}
		}
		see(at, !d.Allowed)
	}
}
