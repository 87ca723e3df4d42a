// Package delay holds answers back until their turn in a leaky bucket. The number of held answers and the delay are
// bounded.
package delay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// defaultMost is the default bound of held answers. There is a bound because each held answer needs a
	// goroutine.
	defaultMost = 10_000
	// longest is the longest delay for a caller without a deadline.
	longest = 60 * algorithms.Second
	// margin is the part of the caller's deadline that is reserved for sending the answer.
	margin = 2 * time.Millisecond
	// none allows only requests whose turn is now. 0 would mean no bound.
	none = algorithms.Micros(1)
)

// Room holds answers back. The zero Room has room for 10,000 answers.
type Room struct {
	// Most is the largest number of held answers; 0 means the default, and a negative number means none.
	Most int64
	held atomic.Int64
}

// Longest returns how long an answer may be held, which is until shortly before the deadline of ctx. If
// there is no room, it returns the shortest delay.
func (r *Room) Longest(ctx context.Context) algorithms.Micros {
	deadline, ok := ctx.Deadline()
	if !ok {
		return r.LongestFor(0)
	}
	return r.LongestFor(max(1, time.Until(deadline)))
}

// LongestFor is Longest for a caller with the time left until its deadline. 0 means no deadline.
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

// Wait waits for d. It returns the error of ctx if that ends before.
func (r *Room) Wait(ctx context.Context, d algorithms.Micros) error {
	r.held.Add(1)
	defer r.held.Add(-1)
	return For(ctx, time.Duration(d)*time.Microsecond)
}

// For waits for d. It returns the error of ctx if that ends before.
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

// Later calls answer after d, unless stop is called before.
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

// Held returns the number of held answers.
func (r *Room) Held() int64 { return r.held.Load() }
