// Package delay keeps answers back until their turn in a leaky bucket has come. It is bounded in
// number and in time.
package delay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// defaultMost bounds the answers held; each costs a goroutine.
	defaultMost = 10_000
	// longest is how long an answer may be held where the caller has no deadline.
	longest = 60 * algorithms.Second
	// margin is left of the caller's deadline for the answer to arrive.
	margin = 2 * time.Millisecond
	// none lets only those pass whose turn is now; 0 would not bound the wait.
	none = algorithms.Micros(1)
)

// Room is for answers that are held. The zero Room has place for 10,000.
type Room struct {
	// Most is how many answers may be held; 0: the default, negative: none.
	Most int64
	held atomic.Int64
}

// Longest is how long an answer may be held: until shortly before the caller's deadline. While
// there is no place it is next to nothing.
func (r *Room) Longest(ctx context.Context) algorithms.Micros {
	deadline, ok := ctx.Deadline()
	if !ok {
		return r.LongestFor(0)
	}
	return r.LongestFor(max(1, time.Until(deadline)))
}

// LongestFor is Longest for a caller that waits for so long still; 0: for ever.
func (r *Room) LongestFor(left time.Duration) algorithms.Micros {
	most := r.Most
	if most == 0 {
		most = defaultMost
	}
	switch {
	case r.held.Load() >= most:
		return none
	case left == 0:
		return longest
	default:
		return max(none, min(algorithms.Micros((left-margin).Microseconds()), longest))
	}
}

// Wait waits for d; the error is ctx's.
func (r *Room) Wait(ctx context.Context, d algorithms.Micros) error {
	r.held.Add(1)
	defer r.held.Add(-1)
	timer := time.NewTimer(time.Duration(d) * time.Microsecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Later calls answer after d, unless it is stopped before.
func (r *Room) Later(d algorithms.Micros, answer func()) (stop func()) {
	r.held.Add(1)
	leave := func() { r.held.Add(-1) }
	timer := time.AfterFunc(time.Duration(d)*time.Microsecond, func() {
		leave()
		answer()
	})
	return func() {
		if timer.Stop() {
			leave()
		}
	}
}

// Held is how many answers are held.
func (r *Room) Held() int64 { return r.held.Load() }
