// Package limiter answers requests: it plans what to charge, lets a store charge it, and folds
// the store's decisions into a verdict. Planning and folding are functions of the request, the
// configuration and the decisions; the store is the only effect.
package limiter

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// ErrNoConfig is returned until a first configuration, or that of a domain, has been loaded; see
// AnswerEarly and Domain.Broken.
var ErrNoConfig = errors.New("no rate limit configuration loaded")

// Observer is told of every answered Call, and of every configuration before it is used.
type Observer interface {
	Swapped(*Snapshot)
	Observe(*Call)
}

// Limiter answers Calls by the current Snapshot.
type Limiter struct {
	store    backend.Taker
	local    backend.Taker
	observer Observer
	modes    Modes
	early    descriptors.OnFailure
	current  atomic.Pointer[Snapshot] // replaced whole, never edited
}

// New makes a Limiter that has no configuration yet. observer may be nil.
func New(store backend.Taker, observer Observer) *Limiter {
	return &Limiter{store: store, observer: observer, early: descriptors.Error}
}

// AnswerEarly lets l answer what descriptors ask before there is a configuration, as a limit with that
// on_backend_failure would while the store is away. Local denies: no bucket is known. It is called
// before the first Check.
func (l *Limiter) AnswerEarly(answer descriptors.OnFailure) { l.early = answer }

// StandIn gives l this process's own buckets, for limits that are answered from them while the
// store cannot decide. It is called before the first Check.
func (l *Limiter) StandIn(local backend.Taker) { l.local = local }

// Modes change what denials come to, whatever the configuration says.
type Modes struct {
	// Shadow lets every request pass. What each descriptor is told stays.
	Shadow bool
	// Quota makes a quota limit of every limit: a request is denied only where each of its descriptors
	// is, those that meet no limit included.
	Quota bool
}

// SetModes is called before the first Check.
func (l *Limiter) SetModes(m Modes) { l.modes = m }

// Swap makes s the configuration of all Calls that start from now on.
func (l *Limiter) Swap(s *Snapshot) {
	if l.observer != nil {
		l.observer.Swapped(s)
	}
	l.current.Store(s)
}

// Current is the configuration in use; nil before the first.
func (l *Limiter) Current() *Snapshot { return l.current.Load() }

// Check answers c.Request in c.Verdict. An error means that the request itself is wrong: it names
// a limit that is not there, or there is no configuration; or it is backend.ErrReused or ErrPending,
// of an ID that it is taken once under. A store that fails is a Verdict.
func (l *Limiter) Check(ctx context.Context, c *Call) error {
	planned, err := l.plan(c, nil)
	if !planned {
		return err
	}
	if n := len(c.charges); n > 0 {
		c.decisions = slices.Grow(c.decisions[:0], n)[:n]
		clear(c.decisions)
		mistaken := c.neverFits()
		l.store.Take(ctx, c.charges, c.decisions)
		if mistaken {
			c.answerMistake()
		}
		if err := c.refused(); err != nil {
			return err
		}
	}
	l.finish(ctx, c)
	return nil
}

// plan makes the charges of c. Where it does not, c is answered, or err says why it is not. last, which may
// be nil, was planned before c.
func (l *Limiter) plan(c, last *Call) (planned bool, err error) {
	s := l.current.Load() // once: a request sees one configuration
	if s == nil {
		return false, l.withoutConfig(c, l.early)
	}
	c.modes = l.modes
	if err := c.plan(s, last); err != nil {
		return false, err
	}
	if d := c.Verdict.Domain; d != nil && d.Broken {
		return false, l.withoutConfig(c, d.OnFailure)
	}
	return true, nil
}

// finish answers c from its decisions.
func (l *Limiter) finish(ctx context.Context, c *Call) {
	if len(c.charges) > 0 {
		c.standIn(ctx, l.local)
	}
	c.fold()
	if abandoned := c.Failed && errors.Is(ctx.Err(), context.Canceled); !abandoned { // or nobody gets the failure policy's answer
		l.observe(c)
	}
}

// observe reports c to the observer, unless it was reported before or belongs to an operator.
func (l *Limiter) observe(c *Call) {
	if l.observer != nil && !c.Replayed && !c.Inspect {
		l.observer.Observe(c)
	}
}

// withoutConfig answers c where there is no configuration for it yet. What asks for limits by name is
// told: it knows what an error means, while a proxy lets the request pass.
func (l *Limiter) withoutConfig(c *Call, answer descriptors.OnFailure) error {
	if answer == descriptors.Error || len(c.Limits) > 0 {
		return ErrNoConfig
	}
	denied := answer != descriptors.Allow
	for range c.Descriptors {
		c.Statuses = append(c.Statuses, Status{Result: -1, Denied: denied})
	}
	c.Failed, c.Denied, c.Spared = true, denied && !l.modes.Shadow, denied && l.modes.Shadow
	l.observe(c)
	return nil
}
