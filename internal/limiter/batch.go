package limiter

import (
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Batch answers many Calls with one Batch of the store, in the order in which they were added. A Call with
// Descriptors gets the same answer as from Check. A Call with Limits should use Check, which also handles
// idempotency keys and costs that can never fit. A Batch is not safe for concurrent use. It can be reused:
//
//	b.Reset()
//	b.Add(c) for each c
//	b.Submit(deadline, source, done)
//	b.Finish(c) for each c that Add has planned: after done, or after Submit if c is Known
type Batch struct {
	limiter   *Limiter
	charges   []backend.Charge
	decisions []backend.Decision
	known     []atomic.Bool
	groups    int
	last      *Call

	inner backend.Batch
	done  func()
}

// span is the part [from:to] of Batch.charges.
type span struct{ from, to int }

// NewBatch makes an empty Batch.
func (l *Limiter) NewBatch() *Batch {
	b := &Batch{limiter: l}
	b.inner.Done = func(*backend.Batch) { b.done() }
	return b
}

// Reset empties b. Afterwards its Calls may be reused.
func (b *Batch) Reset() {
	clear(b.charges) // releases limits of an old configuration to the garbage collector
	b.charges, b.decisions, b.known, b.groups, b.last = b.charges[:0], b.decisions[:0], b.known[:0], 0, nil
	b.inner, b.done = backend.Batch{Done: b.inner.Done}, nil
}

// Add plans c. If planned is false, c needs no decision: either its Verdict is complete, or err is the error
// that Check would return.
func (b *Batch) Add(c *Call) (planned bool, err error) {
	from := len(b.charges)
	c.inBatch = span{from, from}
	c.charges = b.charges[from:] // c is planned in place, to avoid a copy
	b.groups++
	c.together, c.groups = b.groups, b.groups
	planned, err = b.limiter.plan(c, b.last)
	if b.last = c; !planned {
		clear(c.charges)
		return false, err
	}
	b.groups = c.groups
	c.inBatch.to = from + len(c.charges)
	if c.inBatch.to > cap(b.charges) { // append has moved the charges to a larger array
		b.charges = append(b.charges, c.charges...)
		c.charges = b.charges[from:]
	}
	b.charges = b.charges[:c.inBatch.to]
	return true, nil
}

// Charges returns the number of charges.
func (b *Batch) Charges() int { return len(b.charges) }

// Submit submits all Calls to the store, with the given deadline unless that is zero. done is like Done of a
// backend.Batch: it is called once, on any goroutine, possibly before Submit returns. done must not block,
// and must not acquire a lock that is held around Submit. After a panic in Submit, b must not be used again.
func (b *Batch) Submit(deadline time.Time, source *backend.Source, done func()) {
	if b.done = done; len(b.charges) == 0 {
		done()
		return
	}
	n := len(b.charges)
	if cap(b.decisions) < n {
		b.decisions = make([]backend.Decision, n, 2*n)
		b.known = make([]atomic.Bool, n, 2*n)
	}
	b.decisions, b.known = b.decisions[:n], b.known[:n]
	clear(b.decisions)
	clear(b.known)
	b.inner.Charges, b.inner.Decisions, b.inner.Known = b.charges, b.decisions, b.known
	b.inner.Deadline, b.inner.Source = deadline, source
	b.limiter.config.store.Submit(&b.inner)
}

// Known reports whether c can be finished before done: the store has already decided c, or nothing is charged
// for it. Add must have planned c. Known may be called after Submit.
func (b *Batch) Known(c *Call) bool {
	for i := c.inBatch.from; i < c.inBatch.to; i++ {
		if !b.known[i].Load() || b.decisions[i].Err != nil { // a failed call waits for done, because a local bucket may decide it
			return false
		}
	}
	return true
}

// Finish completes the Verdict of c, which Add has planned.
func (b *Batch) Finish(c *Call) {
	c.decisions = b.decisions[c.inBatch.from:c.inBatch.to]
	b.limiter.answer(c)
	if !c.Failed || c.Canceled == nil || !c.Canceled.Load() {
		b.limiter.observe(c)
	}
}
