package backend

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxUndos is how many calls of Undos may be under way.
const maxUndos = 1024

// Undos submits charges whose decisions nobody needs, bounded in number and time, until it is closed.
type Undos struct {
	timeout time.Duration
	dropped atomic.Int64
	running sync.WaitGroup

	mu     sync.Mutex
	under  int  // guarded by mu, and so is what follows
	closed bool // then Begin reports false
}

// NewUndos makes one; timeout is the time after which a call is not sent any more.
func NewUndos(timeout time.Duration) *Undos { return &Undos{timeout: timeout} }

// Submit submits copies of charges and of their keys to store, Detached. Where 1,024 calls are under way, or u is
// closed, it drops them: that leaves limits under, not over.
func (u *Undos) Submit(store Store, charges []Charge) {
	if !u.Begin() {
		return
	}
	n := 0
	for i := range charges {
		n += len(charges[i].Key)
	}
	keys, copies := make([]byte, 0, n), append([]Charge(nil), charges...)
	for i := range copies {
		at := len(keys)
		keys = append(keys, copies[i].Key...)
		copies[i].Key = keys[at:len(keys):len(keys)]
	}
	store.Submit(&Batch{
		Charges: copies, Decisions: make([]Decision, len(copies)),
		Deadline: time.Now().Add(u.timeout), Detached: true, Done: func(*Batch) { u.End() },
	})
}

// Begin counts a call that its caller makes, and reports whether it may. End must follow.
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

// End ends a call that Begin has counted.
func (u *Undos) End() {
	u.mu.Lock()
	u.under--
	u.mu.Unlock()
	u.running.Done()
}

// Timeout is the time after which a call should not be sent any more.
func (u *Undos) Timeout() time.Duration { return u.timeout }

// Dropped is how many calls were dropped.
func (u *Undos) Dropped() int64 { return u.dropped.Load() }

// Close waits for the calls that are under way; from then on all are dropped.
func (u *Undos) Close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.running.Wait()
}
