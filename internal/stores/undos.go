package stores

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// maxUndos is the largest number of calls in flight.
const maxUndos = 1024

// Undos submits charges whose decisions are not needed, such as refunds. The number and the duration of its calls
// are bounded.
type Undos struct {
	clock   outside.Clock
	timeout time.Duration
	dropped atomic.Int64
	running sync.WaitGroup

	mu     sync.Mutex
	under  int  // guarded by mu, like the following fields
	closed bool // Begin returns false
}

// NewUndos makes an Undos. A call that could not be sent within timeout is dropped.
func NewUndos(timeout time.Duration) *Undos { return NewUndosBy(outside.System, timeout) }

// NewUndosBy is NewUndos with a given clock.
func NewUndosBy(clock outside.Clock, timeout time.Duration) *Undos {
	return &Undos{clock: clock, timeout: timeout}
}

// Submit submits copies of charges and of their keys to store, as a Detached batch. If 1,024 calls are in
// flight, or u is closed, it drops them. Limits then admit less than they could, never more.
func (u *Undos) Submit(store backend.Store, charges []backend.Charge) {
	if !u.Begin() {
		return
	}
	n := 0
	for i := range charges {
		n += len(charges[i].Key)
	}
	keys, copies := make([]byte, 0, n), append([]backend.Charge(nil), charges...)
	for i := range copies {
		at := len(keys)
		keys = append(keys, copies[i].Key...)
		copies[i].Key = keys[at:len(keys):len(keys)]
	}
	store.Submit(&backend.Batch{
		Charges: copies, Decisions: make([]backend.Decision, len(copies)),
		Deadline: u.Deadline(), Detached: true, Done: func(*backend.Batch) { u.End() },
	})
}

// Begin counts a call that the caller wants to make, and reports whether it may. If so, the caller must
// call End afterwards.
func (u *Undos) Begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || u.under >= maxUndos {
		u.dropped.Add(1)
		return false
	}
	u.under++
	u.running.Add(1)
	return true
}

// End ends a call counted by Begin.
func (u *Undos) End() {
	u.mu.Lock()
	u.under--
	u.mu.Unlock()
	u.running.Done()
}

// InFlight returns the number of calls in flight.
func (u *Undos) InFlight() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.under
}

// Timeout returns how long after its beginning a call may still be sent.
func (u *Undos) Timeout() time.Duration { return u.timeout }

// Deadline returns the time until which a call that begins now may be sent.
func (u *Undos) Deadline() time.Time { return u.clock.Now().Add(u.timeout) }

// Dropped returns the number of dropped calls.
func (u *Undos) Dropped() int64 { return u.dropped.Load() }

// Close waits for the calls in flight. Later calls are dropped.
func (u *Undos) Close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.running.Wait()
}
