package limiter

import (
	"context"
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Batch answers many Calls with one Take of the store, each as Check would, in the order in which
// they were added. It is for one goroutine, but for GiveUp, and is kept to be used again.
//
//	b.Reset()
//	b.Add(c) for each c
//	b.Take(ctx)
//	b.Finish(ctx, c) for each c whose Add has said so
type Batch struct {
	limiter   *Limiter
	charges   []backend.Charge
	decisions []backend.Decision
	groups    int
	last      *Call // added; nil: none
}

// span is a part of Batch.charges.
type span struct{ from, to int }

// NewBatch makes an empty Batch.
func (l *Limiter) NewBatch() *Batch { return &Batch{limiter: l} }

// Reset empties b. Its Calls may be used for something else from now on.
func (b *Batch) Reset() {
	clear(b.charges) // limits of a configuration that is gone are not kept alive
	b.charges, b.decisions, b.groups, b.last = b.charges[:0], b.decisions[:0], 0, nil
}

// Add plans c. Where it is not planned it is answered already, or the error is Check's.
func (b *Batch) Add(c *Call) (planned bool, err error) {
	from := len(b.charges)
	c.inBatch = span{from, from}
	c.charges = b.charges[from:] // so that they need not be copied
	planned, err = b.limiter.plan(c, b.last)
	if b.last = c; !planned {
		clear(c.charges)
		return false, err
	}
	for i, was := 0, 0; i < len(c.charges); i++ {
		group := c.charges[i].Group
		if i == 0 || group != was {
			b.groups++
		}
		c.charges[i].Group, was = b.groups, group
	}
	c.inBatch.to = from + len(c.charges)
	if c.inBatch.to > cap(b.charges) { // they had no room there
		b.charges = append(b.charges, c.charges...)
		c.charges = b.charges[from:]
	}
	b.charges = b.charges[:c.inBatch.to]
	return true, nil
}

// Charges is how many charges there are.
func (b *Batch) Charges() int { return len(b.charges) }

// Now takes c, which was added last and is planned, if the store can answer it without waiting; then
// Finish comes next, and not Take. Otherwise it is as if c had not been added.
func (b *Batch) Now(c *Call) bool {
	from, to := c.inBatch.from, c.inBatch.to
	if from == to { // nothing is charged
		return true
	}
	b.decisions = slices.Grow(b.decisions[:from], to-from)[:to]
	clear(b.decisions[from:])
	if early, ok := b.limiter.store.(backend.Early); ok && early.TakeEarly(b.charges[from:], b.decisions[from:]) {
		return true
	}
	clear(b.charges[from:])
	b.charges, b.decisions, b.last = b.charges[:from], b.decisions[:from], nil
	return false
}

// Take asks the store.
func (b *Batch) Take(ctx context.Context) {
	if len(b.charges) > 0 {
		b.decide()
		b.limiter.store.Take(ctx, b.charges, b.decisions)
	}
}

// decide makes room for the decisions.
func (b *Batch) decide() {
	n := len(b.charges)
	if cap(b.decisions) < n {
		b.decisions = make([]backend.Decision, n, 2*n)
	}
	b.decisions = b.decisions[:n]
	clear(b.decisions)
}

// Start is Take, but does not wait: done is called when Finish may be. false: the store cannot do so, and
// Take comes next.
func (b *Batch) Start(done func()) bool {
	if len(b.charges) == 0 {
		return false
	}
	b.decide()
	return backend.Start(b.limiter.store, b.charges, b.decisions, done)
}

// Finish answers c, which is planned, after Take.
func (b *Batch) Finish(ctx context.Context, c *Call) {
	c.decisions = b.decisions[c.inBatch.from:c.inBatch.to]
	b.limiter.finish(ctx, c)
}

// GiveUp answers c, which is planned, without the store's answer, as if that had been err: it wraps
// backend.ErrUnavailable. It takes the place of Finish, and may be called while Take is under way.
func (b *Batch) GiveUp(ctx context.Context, c *Call, err error) {
	c.decisions = make([]backend.Decision, len(c.charges)) // the store may be writing to the Batch's
	for i := range c.decisions {
		c.decisions[i].Err = err
	}
	b.limiter.finish(ctx, c)
}
