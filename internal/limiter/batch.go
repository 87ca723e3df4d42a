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
}

// span is a part of Batch.charges.
type span struct{ from, to int }

// NewBatch makes an empty Batch.
func (l *Limiter) NewBatch() *Batch { return &Batch{limiter: l} }

// Reset empties b. Its Calls may be used for something else from now on.
func (b *Batch) Reset() {
	clear(b.charges) // limits of a configuration that is gone are not kept alive
	b.charges, b.decisions, b.groups = b.charges[:0], b.decisions[:0], 0
}

// Add plans c. Where it is not planned it is answered already, or the error is Check's.
func (b *Batch) Add(c *Call) (planned bool, err error) {
	planned, err = b.limiter.plan(c)
	c.inBatch = span{len(b.charges), len(b.charges)}
	if !planned {
		return false, err
	}
	for i := range c.charges {
		if i == 0 || c.charges[i].Group != c.charges[i-1].Group {
			b.groups++
		}
		b.charges = append(b.charges, c.charges[i])
		b.charges[len(b.charges)-1].Group = b.groups
	}
	c.inBatch.to = len(b.charges)
	return true, nil
}

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
	b.charges, b.decisions = b.charges[:from], b.decisions[:from]
	return false
}

// Take asks the store.
func (b *Batch) Take(ctx context.Context) {
	n := len(b.charges)
	if n == 0 {
		return
	}
	if cap(b.decisions) < n {
		b.decisions = make([]backend.Decision, n, 2*n)
	}
	b.decisions = b.decisions[:n]
	clear(b.decisions)
	b.limiter.store.Take(ctx, b.charges, b.decisions)
}

// Finish answers c, which is planned, after Take.
func (b *Batch) Finish(ctx context.Context, c *Call) {
	c.decisions = append(c.decisions[:0], b.decisions[c.inBatch.from:c.inBatch.to]...)
	b.limiter.finish(ctx, c)
}

// GiveUp answers c, which is planned, without the store's answer, as if that had been err: it wraps
// backend.ErrUnavailable. It takes the place of Finish, and may be called while Take is under way.
func (b *Batch) GiveUp(ctx context.Context, c *Call, err error) {
	c.decisions = c.decisions[:0]
	for range c.charges {
		c.decisions = append(c.decisions, backend.Decision{Err: err})
	}
	b.limiter.finish(ctx, c)
}
