package stores

import (
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	maxRepeats = 100_000
	// repeatFor is how long a charge is repeated. repeatFirst and repeatLast are the first and the longest interval.
	repeatFor   = 10 * time.Second
	repeatFirst = 50 * time.Millisecond
	repeatLast  = 2 * time.Second
)

// Repeats submits charges for which no caller waits, again and again until a Store decides them. It is for charges
// that change nothing when they are repeated, such as the return of a slot.
type Repeats struct {
	clock   clock.Clock
	timeout time.Duration

	mu      sync.Mutex
	waiting int           // charges without a final decision; guarded by mu, like the following fields
	closed  bool          // nothing is submitted again
	empty   chan struct{} // closed when no charge is waiting; nil before Close
}

// NewRepeats makes a Repeats. A charge that cannot be sent within timeout is not sent before its next turn.
func NewRepeats(timeout time.Duration) *Repeats { return NewRepeatsBy(clock.System, timeout) }

// NewRepeatsBy does what NewRepeats does, with a given clock.
func NewRepeatsBy(clock clock.Clock, timeout time.Duration) *Repeats {
	return &Repeats{clock: clock, timeout: timeout}
}

// repeated is a charge with its last decision.
type repeated struct {
	of        *Repeats
	store     backend.Store
	batch     backend.Batch
	charges   [1]backend.Charge
	decisions [1]backend.Decision
	unless    func(*backend.Decision) bool
	done      func(*backend.Decision)
	until     time.Time
	pause     time.Duration
}

// Repeat submits a copy of c to store. It submits it again if the Store fails, or if unless is not nil and returns true
// for the decision, but for no longer than ten seconds. unless gets each decision, also one with an Err. Then Repeat
// calls done with the last decision, whose Err is set if there was none. If 100,000 charges are waiting, or r is closed,
// the charge is not submitted.
func (r *Repeats) Repeat(store backend.Store, c *backend.Charge, unless func(*backend.Decision) bool, done func(*backend.Decision)) {
	r.mu.Lock()
	refused := r.closed || r.waiting >= maxRepeats
	if !refused {
		r.waiting++
	}
	r.mu.Unlock()
	if refused {
		done(&backend.Decision{Err: backend.ErrNotTaken})
		return
	}
	t := &repeated{of: r, store: store, unless: unless, done: done, until: r.clock.Now().Add(repeatFor), pause: repeatFirst}
	t.charges[0] = *c
	t.charges[0].Key = append([]byte(nil), c.Key...)
	t.submit()
}

func (t *repeated) submit() {
	t.decisions[0] = backend.Decision{}
	t.batch = backend.Batch{
		Charges: t.charges[:], Decisions: t.decisions[:], Deadline: t.of.clock.Now().Add(t.of.timeout), Detached: true,
		Done: func(*backend.Batch) { t.decided() },
	}
	t.store.Submit(&t.batch)
}

func (t *repeated) decided() {
	d := &t.decisions[0]
	if again := t.unless != nil && t.unless(d) || d.Err != nil; again && t.of.clock.Now().Add(t.pause).Before(t.until) && !t.of.isClosed() {
		pause := t.pause
		t.pause = min(2*t.pause, repeatLast)
		t.of.clock.AfterFunc(pause, t.submit)
		return
	}
	t.done(d)
	t.of.ended()
}

func (r *Repeats) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

func (r *Repeats) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting--; r.waiting == 0 && r.empty != nil {
		close(r.empty)
		r.empty = nil
	}
}

// Close waits for the charges without a final decision, for at most patience. Then nothing is submitted again.
func (r *Repeats) Close(patience time.Duration) {
	r.mu.Lock()
	var empty chan struct{}
	if r.waiting > 0 {
		empty = make(chan struct{})
		r.empty = empty
	}
	r.mu.Unlock()
	if empty != nil {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-empty:
		case <-timer.C:
		}
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}
