package backend

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Deadline gives each Take at most timeout, and answers margin before the caller's own deadline,
// so that there is time to give the answer.
func Deadline(next Taker, timeout, margin time.Duration) Taker {
	return deadline{next, timeout, margin}
}

type deadline struct {
	next            Taker
	timeout, margin time.Duration
}

// Take implements Store.
func (s deadline) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	if err := s.late(ctx); err != nil { // no time left: nothing is charged
		failAll(decisions, err)
		return
	}
	bound := &dueContext{Context: ctx, deadline: s}
	defer bound.end()
	s.next.Take(bound, charges, decisions)
}

// Ready implements Early where the Store below does.
func (s deadline) Ready() bool {
	early, ok := s.next.(Early)
	return ok && early.Ready()
}

// TakeEarly implements Early where the Store below does.
func (s deadline) TakeEarly(charges []Charge, decisions []Decision) bool {
	early, ok := s.next.(Early)
	return ok && early.TakeEarly(charges, decisions)
}

// Start implements Starter where the Store below does. Nobody waits, so there is no deadline: it is for
// the caller to give up.
func (s deadline) Start(charges []Charge, decisions []Decision, done func()) bool {
	return Start(s.next, charges, decisions, done)
}

// Reset implements Resetter where the Store below does.
func (s deadline) Reset(ctx context.Context, charge Charge) error {
	if err := s.late(ctx); err != nil {
		return err
	}
	bound := &dueContext{Context: ctx, deadline: s}
	defer bound.end()
	return Reset(bound, s.next, charge)
}

// late tells that there is no time left to ask.
func (s deadline) late(ctx context.Context) error {
	err := ctx.Err()
	if end, ok := ctx.Deadline(); ok && err == nil && time.Until(end) <= s.margin {
		err = context.DeadlineExceeded
	}
	if err != nil {
		return fmt.Errorf("%w: no time left to ask it: %w", ErrNotTaken, err)
	}
	return nil
}

// dueContext is the caller's context with the time there is. It is not made before somebody looks at
// it: most of what is answered without waiting, from a loan or a remembered denial, would cost less
// than a timer.
type dueContext struct {
	context.Context // the caller's
	deadline        deadline

	mu     sync.Mutex
	until  time.Time       // guarded by mu, as what follows; zero: nobody has looked
	armed  context.Context // nil: nobody waits for it
	cancel context.CancelFunc
}

// due is when it ends. The time runs from when somebody looks: nothing has waited before. mu is held.
func (c *dueContext) due() time.Time {
	if c.until.IsZero() {
		c.until = time.Now().Add(c.deadline.timeout)
		if end, ok := c.Context.Deadline(); ok && end.Add(-c.deadline.margin).Before(c.until) {
			c.until = end.Add(-c.deadline.margin)
		}
	}
	return c.until
}

// arm makes the context that is waited for.
func (c *dueContext) arm() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed == nil {
		c.armed, c.cancel = context.WithDeadline(c.Context, c.due())
	}
	return c.armed
}

// end lets go of the timer.
func (c *dueContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	} else {
		c.armed = ended
	}
}

// ended is what is looked at only after its time.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (c *dueContext) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.due(), true
}

func (c *dueContext) Done() <-chan struct{} { return c.arm().Done() }

func (c *dueContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed != nil {
		return c.armed.Err()
	}
	if err := c.Context.Err(); err != nil {
		return err
	}
	if !time.Now().Before(c.due()) {
		return context.DeadlineExceeded
	}
	return nil
}

// Value is that of what has been made, so that contexts made of this one find it.
func (c *dueContext) Value(key any) any {
	c.mu.Lock()
	armed := c.armed
	c.mu.Unlock()
	if armed != nil && armed != ended {
		return armed.Value(key)
	}
	return c.Context.Value(key)
}
