package stores

import (
	"sync"
	"sync/atomic"
	"time"
)

// elapsed measures the time since it was made. The monotonic clock stands still while a machine is suspended,
// and the wall clock is corrected afterwards. So elapsed uses the monotonic clock, and adds the forward steps
// of the wall clock. If the wall clock steps forward for another reason, the measured time is too long. The
// measured time never decreases.
type elapsed struct {
	read  func() (monotonic, wall time.Duration)
	start time.Duration // the time of the monotonic clock when elapsed was made

	gap  atomic.Int64 // ns by which the wall clock is ahead of the monotonic clock
	lost atomic.Int64 // ns, the sum of the forward steps

	mu sync.Mutex // held to change gap and lost
}

// clockStep is the largest change of the gap between the clocks that does not count as a step. It is usually larger
// than the time between the readings of the two clocks. Smaller steps add up until they count, so the measured time
// is at most clockStep too short.
const clockStep = 100 * time.Microsecond

// read must return what both clocks show; each clock counts from an arbitrary moment.
func newElapsed(read func() (monotonic, wall time.Duration)) *elapsed {
	e := &elapsed{read: read}
	monotonic, wall := read()
	e.start = monotonic
	e.gap.Store(int64(wall - monotonic))
	return e
}

func systemClocks() func() (monotonic, wall time.Duration) {
	base := time.Now()
	return func() (monotonic, wall time.Duration) {
		now := time.Now()
		return now.Sub(base), time.Duration(now.UnixNano())
	}
}

func (e *elapsed) now() time.Duration {
	monotonic, wall := e.read()
	if e.stepped(monotonic, wall) {
		monotonic = e.step()
	}
	return monotonic - e.start + e.steps()
}

// steps returns the sum of the forward steps of the wall clock. While it stays the same, the differences of two times
// are exact, because they do not contain a step.
func (e *elapsed) steps() time.Duration { return time.Duration(e.lost.Load()) }

func (e *elapsed) stepped(monotonic, wall time.Duration) bool {
	return (wall - monotonic - time.Duration(e.gap.Load())).Abs() > clockStep
}

// step records a step of one of the clocks, and returns what the monotonic clock shows. It reads both clocks
// again first: if a thread was preempted between the two readings, the difference only looks like a step.
func (e *elapsed) step() (monotonic time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	monotonic, wall := e.read()
	if e.stepped(monotonic, wall) {
		gap := int64(wall - monotonic)
		e.lost.Add(max(0, gap-e.gap.Load()))
		e.gap.Store(gap)
	}
	return monotonic
}
