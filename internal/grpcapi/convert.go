package grpcapi

import (
	"math"
	"math/bits"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// unit is envoy.type.v3.RateLimitUnit, whose numbers are those of RateLimitResponse.RateLimit.Unit.
type unit struct {
	number  int32
	name    string
	seconds int64
}

// units are all of them, longest first. As in the reference server a month has 30 days and a year
// has 365.
var units = [...]unit{
	{6, "YEAR", 365 * 86400},
	{5, "MONTH", 30 * 86400},
	{7, "WEEK", 7 * 86400},
	{4, "DAY", 86400},
	{3, "HOUR", 3600},
	{2, "MINUTE", 60},
	{1, "SECOND", 1},
}

// convert fills in what a says of d. requestHits is the request's own hits_addend.
func (a *ask) convert(d *limiter.Descriptor, requestHits uint32) {
	d.Cost = a.cost(requestHits)
	if a.hasLimit {
		d.HasOverride = true
		d.Override = limiter.Override{Rate: a.requests, Period: a.period()}
	}
}

// cost is the descriptor's hits_addend, where 0 looks; without one the request's, where 0 is 1,
// because Envoy sends 0 with every call. is_negative_hits gives as much back.
func (a *ask) cost(requestHits uint32) int64 {
	hits := uint64(max(1, requestHits))
	if a.hasHits {
		hits = a.hits
	}
	cost := int64(min(hits, math.MaxInt64))
	if a.negative {
		return -cost
	}
	return cost
}

// period is how long the override's window is; 0 where its unit is not known, or the window is
// longer than can be told.
func (a *ask) period() algorithms.Micros {
	for i := range units {
		if units[i].number != a.unit {
			continue
		}
		seconds := uint64(units[i].seconds) * uint64(max(1, a.multiplier)) // at most 2^25 * 2^32
		hi, micros := bits.Mul64(seconds, uint64(algorithms.Second))
		if hi > 0 || micros > math.MaxInt64 {
			return 0
		}
		return algorithms.Micros(micros)
	}
	return 0
}

// window is a limit in the words of RateLimitResponse.RateLimit.
type window struct {
	requests   uint32
	unit       int32 // 0: the window has no unit, and Envoy leaves it out of its headers
	multiplier uint32
}

// windowOf describes l. requests is its capacity, the most that can be left, so that what a client
// is told to be left never exceeds what it is told to be its limit. Where that is not what flows
// in per period, the window is the time in which so much flows in: 10 a minute with room for 20 is
// 20 in 2 minutes, which is as true.
func windowOf(l *algorithms.Limit) window {
	w := window{requests: uint32(min(l.Capacity, math.MaxUint32))}
	period := uint64(l.Period) * uint64(l.Tick)
	switch l.Kind {
	case algorithms.TokenBucket, algorithms.LeakyBucket:
		period = stretch(period, l.Capacity, l.Rate)
	case algorithms.FixedWindow:
		if l.Capacity > l.Rate { // less room than that is still filled once in each period
			period = stretch(period, l.Capacity, l.Rate)
		}
	case algorithms.Guaranteed: // two rates at once: no one window
		return w
	case algorithms.SlidingWindow, algorithms.SlidingLog:
	}
	seconds := int64(period / uint64(algorithms.Second))
	if period%uint64(algorithms.Second) != 0 || seconds == 0 {
		return w
	}
	for i := range units {
		if u := &units[i]; seconds%u.seconds == 0 && seconds/u.seconds <= math.MaxUint32 {
			w.unit, w.multiplier = u.number, uint32(seconds/u.seconds)
			break
		}
	}
	return w
}

// stretch is period * capacity / rate, or 0 where that is not a whole number of us.
func stretch(period uint64, capacity, rate int64) uint64 {
	if capacity == rate || rate <= 0 {
		return period
	}
	hi, lo := bits.Mul64(period, uint64(capacity))
	if hi >= uint64(rate) {
		return 0
	}
	quotient, rest := bits.Div64(hi, lo, uint64(rate))
	if rest != 0 {
		return 0
	}
	return quotient
}
