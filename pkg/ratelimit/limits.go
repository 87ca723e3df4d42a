package ratelimit

import (
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Limits has limits by name.
type Limits map[string]Limit

// Limit configures one limit. Make one with TokenBucket, FixedWindow, SlidingWindow, SlidingLog or LeakyBucket, and set
// other fields if necessary. docs/algorithms.md compares the algorithms.
type Limit struct {
	// Algorithm is one of the kinds of package algorithms.
	Algorithm algorithms.Kind
	// Rate is the number of units per Period. A rate of 0 denies everything.
	Rate int64
	// Period is a whole number of microseconds.
	Period time.Duration
	// Capacity is the most units that a token bucket or a fixed window can hold; nil means Rate. For a leaky bucket it
	// is the number of places in the queue; nil means none.
	Capacity *int64
	// Initial is the number of units in a new bucket; nil means Capacity.
	Initial *int64
	// MaxReserved is how many units below zero reservations and Overdraw may go; nil means as many as can be counted
	// exactly.
	MaxReserved *int64
	// Start is a moment at which a fixed window starts. The zero Time means that the windows of each key start at a time
	// derived from the key, so that not all buckets are refilled at once.
	Start time.Time
	// Calendar, if not nil, makes the windows of a fixed window those of a calendar, such as days in a time zone. See
	// package calendar. Then Period and Start must be zero.
	Calendar *algorithms.Calendar
	// Overdraw charges the cost even if it is not available, and denies while the bucket is below zero.
	Overdraw bool
	// Penalty, if not nil, blocks a key after repeated denials.
	Penalty *Penalty
	// Guaranteed, if not nil, is a rate that a token bucket guarantees beside its own.
	Guaranteed *Rate
}

// Penalty blocks a key after repeated denials.
type Penalty struct {
	// After is the number of denials within Period that starts a block.
	After int64
	// For is the length of the first block. Each further block in a row lasts twice as long, up to Max.
	For, Max time.Duration
}

// Rate is a number of units per period.
type Rate struct {
	Units  int64
	Period time.Duration
}

// TokenBucket returns a limit of rate units per period with bursts of up to rate units. Units flow in continuously.
func TokenBucket(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.TokenBucket, Rate: rate, Period: period}
}

// FixedWindow returns a limit of rate units in each window of one period. A client can use the units of two windows
// within a short time around their edge.
func FixedWindow(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.FixedWindow, Rate: rate, Period: period}
}

// SlidingWindow returns a limit of about rate units in any span of one period. It estimates the count of the span from
// the counts of two windows.
func SlidingWindow(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.SlidingWindow, Rate: rate, Period: period}
}

// SlidingLog returns a limit of exactly rate units in any span of one period. It stores the time of every unit, so
// that rate is at most algorithms.MaxLogRate.
func SlidingLog(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.SlidingLog, Rate: rate, Period: period}
}

// LeakyBucket returns a limit that spaces requests: one each period/rate. Up to queue further requests are allowed with
// a Result.Wait, which the caller must wait for.
func LeakyBucket(rate int64, period time.Duration, queue int64) Limit {
	return Limit{Algorithm: algorithms.LeakyBucket, Rate: rate, Period: period, Capacity: &queue}
}

// compile checks l. Its errors name the fields.
func (l Limit) compile() (algorithms.Limit, error) {
	spec := algorithms.Spec{
		Kind: l.Algorithm, Rate: l.Rate, Capacity: l.Capacity, Initial: l.Initial, MaxReserved: l.MaxReserved,
		Calendar: l.Calendar, Overdraw: l.Overdraw,
	}
	var err error
	if spec.Period, err = micros("period", l.Period); err != nil {
		return algorithms.Limit{}, err
	}
	if !l.Start.IsZero() {
		start := algorithms.Micros(l.Start.UnixMicro())
		spec.Start = &start
	}
	if p := l.Penalty; p != nil {
		penalty := algorithms.Penalty{After: p.After}
		if penalty.For, err = micros("penalty: for", p.For); err != nil {
			return algorithms.Limit{}, err
		}
		if penalty.Max, err = micros("penalty: max", p.Max); err != nil {
			return algorithms.Limit{}, err
		}
		spec.Penalty = &penalty
	}
	if g := l.Guaranteed; g != nil {
		minimum := algorithms.Rate{Units: g.Units}
		if minimum.Period, err = micros("guaranteed: period", g.Period); err != nil {
			return algorithms.Limit{}, err
		}
		spec.Minimum = &minimum
	}
	return algorithms.Compile(spec)
}

// micros converts d, which must be a whole number of microseconds.
func micros(field string, d time.Duration) (algorithms.Micros, error) {
	if d%time.Microsecond != 0 {
		return 0, fmt.Errorf("%s must be a whole number of microseconds, is %v", field, d)
	}
	return algorithms.Micros(d / time.Microsecond), nil
}
