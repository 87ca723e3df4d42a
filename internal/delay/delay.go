// Package delay delays answers until their turn in a leaky bucket. The number of delayed answers and the delay
// are bounded.
package delay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// defaultMost is the default bound on delayed answers. The number is bounded because each delayed answer needs
	// memory for its request, and often a goroutine.
	defaultMost = 10_000
	// longest is the longest delay, even if the caller's deadline is later.
	longest = 60 * algorithms.Second
	// margin is the part of the caller's deadline that is reserved for sending the answer.
	margin = 2 * time.Millisecond
	// none is the smallest bound on a delay, 1 us. In effect it allows only requests whose turn is now. A bound of
	// 0 would mean that the delay is not bounded.
	none = algorithms.Micros(1)
)

// Room delays answers until their turn. The zero Room has room for 10,000 answers.
type Room struct {
	// Most is the number of delayed answers from which on Longest and LongestFor permit no further delay. 0 means
	// the default. A negative number permits none. Wait and Later do not check Most, so concurrent callers may
	// exceed it a little.
	Most    int64
	waiting atomic.Int64
}

// Longest returns how long an answer may be delayed: until shortly before the deadline of ctx, and at most 60 s. If
// there is no room or no time, the result is 1 us.
func (r *Room) Longest(ctx context.Context) algorithms.Micros {
	deadline, ok := ctx.Deadline()
	if !ok {
		return r.LongestFor(0)
	}
	return r.LongestFor(max(1, time.Until(deadline)))
}

// LongestFor does what Longest does. remaining is the time until the caller's deadline; 0 means that the caller has
// no deadline, and a negative duration that the deadline has passed.
func (r *Room) LongestFor(remaining time.Duration) algorithms.Micros {
	most := r.Most
	if most == 0 {
		most = defaultMost
	}
	switch {
	case r.waiting.Load() >= most:
		return none
	case remaining == 0:
		return longest
	default:
		return max(none, min(algorithms.Micros((remaining-margin).Microseconds()), longest))
	}
}

// Wait waits for the duration d. It returns the error of ctx if ctx ends first.
func (r *Room) Wait(ctx context.Context, d algorithms.Micros) error {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	return For(ctx, time.Duration(d)*time.Microsecond)
}

// For waits for the duration d. It returns the error of ctx if ctx ends first.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Later calls answer on a goroutine of its own after the duration d, unless stop is called first.
func (r *Room) Later(d algorithms.Micros, answer func()) (stop func()) {
	r.waiting.Add(1)
	done := func() { r.waiting.Add(-1) }
	timer := time.AfterFunc(time.Duration(d)*time.Microsecond, func() {
		done()
		answer()
	})
	return func() {
		if timer.Stop() {
			done()
		}
	}
}

// Waiting returns the number of delayed answers.
func (r *Room) Waiting() int64 { return r.waiting.Load() }
