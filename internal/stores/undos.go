package stores

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	maxUndos   = 1024
	maxRepeats = 100_000
	// repeatFor is how long a charge is repeated. repeatFirst and repeatLast are the first and the longest interval.
	repeatFor   = 10 * time.Second
	repeatFirst = 50 * time.Millisecond
	repeatLast  = 2 * time.Second
)

// Undos makes calls for which no caller waits, such as refunds and returns of slots. It bounds the number of these calls
// in flight, and the time until each is sent.
type Undos struct {
	clock   clock.Clock
	timeout time.Duration
	dropped atomic.Int64
	running sync.WaitGroup

	mu       sync.Mutex
	inFlight int  // guarded by mu, like the following fields
	closed   bool // no call begins, and nothing is repeated
	watched  map[[16]byte]*slotReturns
}

// slotReturns are the returns of the slots with one ID, for a caller of AfterReturns.
type slotReturns struct {
	open int // the returns that have begun and were not decided at their first call, and 1 until end is known
	end  func()
}

// NewUndos makes an Undos. A call that cannot be sent within timeout is not sent. A nil clock means that of the system.
func NewUndos(by clock.Clock, timeout time.Duration) *Undos {
	return &Undos{clock: cmp.Or(by, clock.System), timeout: timeout, watched: map[[16]byte]*slotReturns{}}
}

// Submit submits charges to store as a Detached batch. It copies the charges and their keys first. If
// maxUndos calls are in flight, or u is closed, Submit drops the charges. A limit whose refund is dropped admits
// less than it could, never more. The return of a slot is repeated until the store decides it (Repeat).
func (u *Undos) Submit(store backend.Store, charges []backend.Charge) {
	rest := charges[:0:0]
	for i := range charges {
		if charges[i].Terms.Slot == nil {
			rest = append(rest, charges[i])
		} else {
			u.returnSlot(store, &charges[i])
		}
	}
	if len(rest) > 0 {
		u.submit(store, rest)
	}
}

func (u *Undos) returnSlot(store backend.Store, c *backend.Charge) {
	u.mu.Lock()
	watch := u.watched[c.Terms.Slot.ID]
	if watch != nil {
		watch.open++
	}
	u.mu.Unlock()
	failed := false
	u.Repeat(store, c, func(d *backend.Decision) bool {
		failed = failed || d.Err != nil && !errors.Is(d.Err, backend.ErrNotTaken)
		return false
	}, func(d *backend.Decision) {
		if watch != nil && d.Err == nil && !failed {
			u.returned(watch)
		}
	})
}

// AfterReturns is for a caller that is about to submit a group with slots of this ID. Once that group is decided, the
// caller calls then with a function. It is called when the store has decided the returns of the slots that began
// meanwhile; at once if there are none. It is never called if such a return was dropped, or if the outcome of a call for it
// is unknown: that call may still reach the store.
func (u *Undos) AfterReturns(id [16]byte) (then func(end func())) {
	watch := &slotReturns{open: 1}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.watched[id] = watch
	return func(end func()) {
		u.mu.Lock()
		if watch.end = end; u.watched[id] == watch {
			delete(u.watched, id)
		}
		u.mu.Unlock()
		u.returned(watch)
	}
}

func (u *Undos) returned(watch *slotReturns) {
	u.mu.Lock()
	watch.open--
	ended := watch.open == 0
	u.mu.Unlock()
	if ended {
		watch.end()
	}
}

func (u *Undos) submit(store backend.Store, charges []backend.Charge) {
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

// repeated is a charge that is submitted until the store decides it, with its last decision.
type repeated struct {
	undos     *Undos
	store     backend.Store
	batch     backend.Batch
	charges   [1]backend.Charge
	decisions [1]backend.Decision
	unless    func(*backend.Decision) bool
	done      func(*backend.Decision)
	until     time.Time
	pause     time.Duration
}

// Repeat submits a copy of c, a charge that changes nothing when it is repeated, to store. It submits it again if the Store
// fails, or if unless is not nil and returns true for the decision, but for no longer than ten seconds. unless gets each
// decision, also one with an Err. Then Repeat calls done with the last decision, whose Err is set if there was none. If
// 100,000 calls are in flight, or u is closed, the charge is not submitted.
func (u *Undos) Repeat(store backend.Store, c *backend.Charge, unless func(*backend.Decision) bool, done func(*backend.Decision)) {
	if !u.begin(maxRepeats) {
		done(&backend.Decision{Err: backend.ErrNotTaken})
		return
	}
	t := &repeated{undos: u, store: store, unless: unless, done: done, until: u.clock.Now().Add(repeatFor), pause: repeatFirst}
	t.charges[0] = *c
	t.charges[0].Key = append([]byte(nil), c.Key...)
	t.submit()
}

func (t *repeated) submit() {
	t.decisions[0] = backend.Decision{}
	t.batch = backend.Batch{
		Charges: t.charges[:], Decisions: t.decisions[:], Deadline: t.undos.Deadline(), Detached: true,
		Done: func(*backend.Batch) { t.decided() },
	}
	t.store.Submit(&t.batch)
}

func (t *repeated) decided() {
	u, d, pause := t.undos, &t.decisions[0], t.pause
	if again := t.unless != nil && t.unless(d) || d.Err != nil; again && u.clock.Now().Add(pause).Before(t.until) && !u.isClosed() {
		t.pause = min(2*pause, repeatLast)
		u.clock.AfterFunc(pause, t.submit)
		return
	}
	t.done(d)
	u.End()
}

func (u *Undos) isClosed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closed
}

// Begin reports whether the caller may make a call. If so, Begin counts the call, and the caller must call End after
// it.
func (u *Undos) Begin() bool { return u.begin(maxUndos) }

func (u *Undos) begin(most int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || u.inFlight >= most {
		u.dropped.Add(1)
		return false
	}
	u.inFlight++
	u.running.Add(1)
	return true
}

// End ends a call counted by Begin.
func (u *Undos) End() {
	u.mu.Lock()
	u.inFlight--
	u.mu.Unlock()
	u.running.Done()
}

// InFlight returns the number of calls in flight.
func (u *Undos) InFlight() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.inFlight
}

// Timeout returns how long after Begin a call may still be sent.
func (u *Undos) Timeout() time.Duration { return u.timeout }

// Deadline returns the deadline of a call that begins now.
func (u *Undos) Deadline() time.Time { return u.clock.Now().Add(u.timeout) }

// Dropped returns how many calls Begin has refused.
func (u *Undos) Dropped() int64 { return u.dropped.Load() }

// Close waits for the calls in flight. A charge that waits for its repetition is submitted once more. Later calls are
// dropped.
func (u *Undos) Close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.running.Wait()
}
