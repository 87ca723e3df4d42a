// Package limiter answers requests. It plans the charges, submits them to a store, and folds the store's
// decisions into a verdict. Planning and folding do no I/O. They depend only on the request, the configuration
// with its adjustments and learned estimates, the time, and the decisions.
package limiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// ErrNoConfig means that no valid configuration has been loaded yet. See Config.NoConfig.
var ErrNoConfig = errors.New("no rate limit configuration loaded")

// ErrReloaded means that Request.MadeFor is no longer in use. Nothing was charged.
var ErrReloaded = errors.New("another configuration is in use now")

// Observer receives answered Calls and configurations.
type Observer interface {
	// Swapped receives each configuration before it is used.
	Swapped(*Snapshot)
	// Observe receives each answered Call, with three exceptions: a Call with Inspect, a Replayed one, and a
	// Failed one whose client no longer waits.
	Observe(*Call)
}

// Config configures a Limiter. The zero Config is valid.
type Config struct {
	Observer Observer
	// Local has this process's own buckets, for limits with on_backend_failure: local. It decides before Submit
	// returns.
	Local backend.Store
	Modes Modes
	// NoConfig is the on_backend_failure for requests with descriptors that arrive before a configuration is
	// loaded. Local denies them, because no bucket is known. nil means that they get ErrNoConfig, as all other
	// requests do.
	NoConfig *OnFailure
	// IDs encodes reservations. nil means that no reservation can be settled, and that all ids count as
	// forged.
	IDs IDs
	// Estimates learns the costs of requests. nil means that limits keep their configured estimate.
	Estimates Estimates
	// Repeater submits the returns and renewals of slots for which no caller waits. nil submits each of them once, and waits.
	Repeater Repeater
	// Process is different for each process if the store, or Local, belongs to one process only. It is 0 if slots need no
	// origin.
	Process uint64
	// Now returns the time that decides whether reservations are late or expired. It is required if IDs is
	// set.
	Now func() algorithms.Micros
	// Deadline returns the Batch.Deadline that leaves a call which starts now its full time. If a request needs several
	// calls, all of them have this deadline. nil means that each call has its full time.
	Deadline func() time.Time

	store backend.Store
	slots *slotCounters
}

// Modes change the outcome of denials, whatever the configuration is.
type Modes struct {
	// Shadow allows every request, unless an operator blocks its key. The answers to single descriptors do not
	// change.
	Shadow bool
	// Quota makes every limit a quota limit: a request is denied only if all its descriptors are. A
	// descriptor without a limit is never denied.
	Quota bool
}

// Limiter answers Calls with the current Snapshot.
type Limiter struct {
	config  Config
	current atomic.Pointer[inUse] // replaced as a whole, under mu; immutable

	mu     sync.Mutex
	set    *adjust.Set              // nil if there are none; guarded by mu
	now    func() algorithms.Micros // decides whether adjustments have expired; guarded by mu
	effect Adjusted                 // guarded by mu
}

// New returns a Limiter without a Snapshot.
func New(store backend.Store, c Config) *Limiter {
	c.store, c.slots = store, &slotCounters{}
	return &Limiter{config: c}
}

// Swap uses s for all Calls that start from now on.
func (l *Limiter) Swap(s *Snapshot) {
	if l.config.Observer != nil {
		l.config.Observer.Swapped(s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.use(s)
}

// Current returns the configuration in use, or nil before the first one.
func (l *Limiter) Current() *Snapshot {
	if u := l.current.Load(); u != nil {
		return u.snapshot
	}
	return nil
}

// Check answers c.Request in c.Verdict. An error means that the request is wrong, for example that it names a
// limit that does not exist, or that there is no configuration. With an idempotency key the error may also be
// backend.ErrReused or ErrPending. If the store fails, there is no error: the Verdict then depends on
// on_backend_failure.
func (l *Limiter) Check(ctx context.Context, c *Call) error {
	planned, err := l.plan(c, nil)
	if !planned {
		return err
	}
	if c.Settle != nil || c.IdempotencyKey.ID != "" {
		ctx = l.withDeadline(ctx)
	}
	if c.IdempotencyKey.ID != "" && c.excepted && l.isRepeat(ctx, c) {
		l.answer(c)
		return nil
	}
	if err := l.take(ctx, c); err != nil {
		return err
	}
	l.answer(c)
	if !c.Failed || !errors.Is(ctx.Err(), context.Canceled) {
		l.observe(c)
	}
	return nil
}

// withDeadline returns ctx with the deadline of one call of the store, for a request that may need several calls.
func (l *Limiter) withDeadline(ctx context.Context) context.Context {
	if l.config.Deadline == nil {
		return ctx
	}
	end := l.config.Deadline()
	if own, ok := ctx.Deadline(); ok && own.Before(end) {
		return ctx
	}
	return deadlined{ctx, end}
}

// deadlined is a context with a deadline and without a timer, because the store watches the deadline.
type deadlined struct {
	context.Context
	end time.Time
}

func (d deadlined) Deadline() (time.Time, bool) { return d.end, true }

// take submits the charges of c and waits for the decisions. The error is that of refused.
func (l *Limiter) take(ctx context.Context, c *Call) error {
	n := len(c.charges)
	if n == 0 {
		return nil
	}
	c.decisions = slices.Grow(c.decisions[:0], n)[:n]
	clear(c.decisions)
	mistake := c.dryRunMistake()
	if c.Settle != nil {
		if err := l.dropRefunds(ctx, c); err != nil {
			for i := range c.decisions {
				c.decisions[i].Err = err
			}
			return nil
		}
	}
	first := n
	if c.IdempotencyKey.ID != "" { // the first group shows whether the ID belongs to another request; then no other group is charged
		first = backend.GroupLen(c.charges)
	}
	backend.Take(ctx, l.config.store, c.charges[:first], c.decisions[:first])
	if err := c.refused(); err != nil {
		return err
	}
	if first < n {
		backend.Take(ctx, l.config.store, c.charges[first:], c.decisions[first:])
	}
	if mistake {
		c.answerMistake()
	}
	return c.refused()
}

// plan makes the charges of c. If planned is false, c is already answered, or err is the reason why it has no
// answer. last is the call that was planned before c, or nil.
func (l *Limiter) plan(c, last *Call) (planned bool, err error) {
	c.config = &l.config
	u := l.current.Load() // loaded once, so that one configuration and its adjustments decide the whole request
	if u == nil {
		return false, l.withoutConfig(c)
	}
	if c.MadeFor != nil && c.MadeFor != u.snapshot {
		return false, ErrReloaded
	}
	c.adjusted, c.since = u.adjusted, u.since
	if c.Settle != nil {
		err := c.planSettle(u.snapshot, l.config.Now())
		if unknown, ok := errors.AsType[*RequestError](err); errors.Is(err, ErrChanged) || errors.Is(err, ErrExpired) || ok && unknown.Missing {
			l.endReserved(c.Settle.Reserved, algorithms.ReturnSlot, ReporterHTTP) // no later settlement can succeed
		}
		return err == nil, err
	}
	if err := c.plan(u.snapshot, last); err != nil {
		return false, err
	}
	if c.Verdict.Domain == nil || c.Verdict.Domain.Settle == nil {
		l.returnFormer(c)
	}
	if (c.done > 0 || c.header.opened) && l.config.Now != nil && !c.DryRun {
		c.planSettlements(l.config.Now())
	}
	return true, nil
}

// answer completes c from its decisions. The caller then reports c to the Observer (observe), unless c was
// canceled and on_backend_failure answered it: no client gets that answer.
func (l *Limiter) answer(c *Call) {
	if c.slots > 0 {
		l.returnUnknown(c)
	}
	l.repeatReturns(c)
	c.decideLocally(l.config.Local)
	c.fold()
	if c.slots > 0 {
		l.foldSlots(c)
	}
	if l.config.Estimates != nil {
		c.updateEstimates()
	}
}

func (l *Limiter) observe(c *Call) {
	if l.config.Observer != nil && !c.Replayed && !c.Inspect {
		l.config.Observer.Observe(c)
	}
}

// withoutConfig answers c before the first configuration. Named limits get an error, because their client
// can handle it. Descriptors get a Verdict, because a proxy would allow the request after an error.
func (l *Limiter) withoutConfig(c *Call) error {
	answer := l.config.NoConfig
	if answer == nil || *answer == Error || len(c.Limits) > 0 || c.Settle != nil {
		return ErrNoConfig
	}
	denied := *answer != Allow
	for range c.Descriptors {
		c.Statuses = append(c.Statuses, Status{Result: -1, Denied: denied})
	}
	c.Failed, c.Denied, c.WouldDeny = true, denied && !l.config.Modes.Shadow, denied && l.config.Modes.Shadow
	l.observe(c)
	return nil
}
