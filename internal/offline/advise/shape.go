package advise

import (
	"math"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// none is the need of a client if no number of the limit is large enough for its requests.
const none = math.MaxInt64

// shape makes limits that differ from a configured one in a number n. n is the rate and the capacity. For a limit with
// a guaranteed minimum, n is the capacity of the burst bucket.
type shape struct {
	policy *limiter.Policy
	limits map[int64]*algorithms.Limit // limits that were made before; nil if the number is out of range
}

func newShape(p *limiter.Policy) *shape { return &shape{p, map[int64]*algorithms.Limit{}} }

// at returns the limit with number n, or nil if it cannot be computed exactly.
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
	is := l.Spec()
	spec := algorithms.Spec{
		Kind: l.Kind, Rate: n, Period: l.Period(), Calendar: l.Calendar,
		Overdraw: l.Overdraw, TakesDenied: l.TakesDenied, PerRequest: l.PerRequest,
	}
	if l.Penalty.After > 0 {
		spec.Penalty = &l.Penalty
	}
	switch l.Kind {
	case algorithms.FixedWindow:
		spec.Start = is.Start
	case algorithms.Guaranteed:
		spec.Kind, spec.Rate, spec.Capacity = algorithms.TokenBucket, l.Rate, &n
		spec.Minimum = is.Minimum
	case algorithms.Concurrency:
		spec.Rate, spec.Capacity = 0, &n
	case algorithms.LeakyBucket:
		spec.Capacity = &n
	case algorithms.TokenBucket, algorithms.SlidingWindow, algorithms.SlidingLog: // without a Capacity in the Spec, the capacity is the rate
	}
	return spec
}

// need returns the smallest n above 0 with which no request of c is denied, or the constant none if there is no such n.
// A number without a limit counts as too small.
func (s *shape) need(c *Client) int64 {
	low, high := int64(0), int64(1) // low is too small; after the first loop, high is large enough
	for !s.allowsAll(high, c) {
		if s.at(high) != nil {
			low = high
		}
		if high *= 2; high > math.MaxInt64/2 {
			if high = s.largest(low, high); high == low || !s.allowsAll(high, c) {
				return none
			}
		}
	}
	for low+1 < high {
		if middle := low + (high-low)/2; s.allowsAll(middle, c) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// largest returns an n from low to below high for which a limit exists and, if smaller numbers have limits too, the
// largest one.
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

func (s *shape) allowsAll(n int64, c *Client) bool {
	l := s.at(n)
	return l != nil && replay(l, s.policy.Extra().MaxDelay, c, func(algorithms.Micros, bool) {}, true) == 0
}

// replay answers c's requests with l, starting with a new bucket, and returns the number of denials. It calls
// report with each answer. If stopEarly is true, it returns at the first denial, without reporting it.
func replay(l *algorithms.Limit, maxWait algorithms.Micros, c *Client, report func(at algorithms.Micros, denied bool), stopEarly bool) (denied int64) {
	var state algorithms.State
	var d algorithms.Decision
	for r := c.cursor(); ; {
		at, cost, more := r.next()
		if !more {
			return denied
		}
		l.TakeAt(&state, at, &algorithms.Charge{Cost: cost, Hash: c.Hash, MaxWait: maxWait}, &d)
		if !d.Allowed {
			if denied++; stopEarly {
				return denied
			}
		}
		report(at, !d.Allowed)
	}
}
