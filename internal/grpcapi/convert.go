package grpcapi

import (
	"math"
	"math/bits"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// unit is a RateLimitResponse.RateLimit.Unit. The units of overrides in requests (envoy.type.v3.RateLimitUnit) have the
// same numbers and names, but no WEEK.
type unit struct {
	number  int32
	name    string
	seconds int64
}

// units lists all units, the longest first. As in the reference server, a month has 30 days and a year has 365.
var units = [...]unit{
	{6, "YEAR", 365 * 86400},
	{5, "MONTH", 30 * 86400},
	{7, "WEEK", 7 * 86400},
	{4, "DAY", 86400},
	{3, "HOUR", 3600},
	{2, "MINUTE", 60},
	{1, "SECOND", 1},
}

// convert copies the cost and the override from a to d. requestHits is the hits_addend of the request.
func (a *descriptorFields) convert(d *limiter.Descriptor, requestHits uint32) {
	d.Cost = a.cost(requestHits)
	d.Explicit, d.Declared = a.hasHits && !a.negative, a.hasHits || requestHits > 0
	if a.hasLimit {
		d.HasOverride = true
		d.Override = limiter.Override{Rate: a.requests, Period: a.period()}
	}
}

// cost returns the descriptor's hits_addend, where 0 means a dry run. If the descriptor has none, it
// returns that of the request. In the request 0 means 1, because Envoy sends 0 if no cost is configured.
// is_negative_hits makes the cost a refund.
func (a *descriptorFields) cost(requestHits uint32) int64 {
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

// period returns the length of the override's window. It is 0 if the unit is unknown or the length exceeds
// the range of Micros.
func (a *descriptorFields) period() algorithms.Micros {
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

// window is a limit in the form of RateLimitResponse.RateLimit.
type window struct {
	requests   uint32
	unit       int32 // 0 if no unit fits; Envoy then omits it from its headers
	multiplier uint32
}

func windowOf(l *algorithms.Limit) window {
	capacity, seconds := limiter.Shown(l)
	w := window{requests: uint32(min(capacity, math.MaxUint32))}
	for i := range units {
		if u := &units[i]; seconds >= u.seconds && seconds%u.seconds == 0 && seconds/u.seconds <= math.MaxUint32 {
			w.unit, w.multiplier = u.number, uint32(seconds/u.seconds)
			break
		}
	}
	return w
}
