package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// ErrMustAcquire means that the limit counts units in flight: Acquire takes them, and Slot.Release returns them.
var ErrMustAcquire = errors.New("the limit counts units in flight; use Acquire")

// ErrSlotLost means that a slot was released or has expired, so that others may have its units.
var ErrSlotLost = errors.New("the slot was released or has expired")

// Concurrency returns a limit of capacity units in flight. Acquire takes a slot, which is free again after ttl if it is
// neither released nor renewed. ttl is from a second to a day.
func Concurrency(capacity int64, ttl time.Duration) Limit {
	return Limit{Algorithm: algorithms.Concurrency, Period: ttl, Capacity: &capacity}
}

// Acquires reports whether name is a limit of units in flight.
func (l *Limiter) Acquires(name string) bool {
	return l.named[name] != nil && l.named[name].acquires()
}

func (m *limit) acquires() bool { return m.policy.Limit.Kind == algorithms.Concurrency }

func mustAcquire(name string) error {
	return fmt.Errorf("limit %q: %w", strings.Clone(name), ErrMustAcquire)
}

// Slot has units of a limit of units in flight. Release it when the work is done.
type Slot struct {
	result    Result
	limiter   *Limiter
	released  atomic.Bool
	slot      algorithms.Slot
	charges   [1]backend.Charge
	decisions [1]backend.Decision // of the return
}

// Result describes the limit after the slot was taken.
func (s *Slot) Result() Result { return s.result }

// Acquire is AcquireN for one unit.
func (l *Limiter) Acquire(ctx context.Context, name string, key ...string) (*Slot, error) {
	return l.AcquireN(ctx, 1, name, key...)
}

// AcquireN takes a slot of n units of a limit of units in flight. The caller must release it:
//
//	slot, err := limits.Acquire(ctx, "uploads", tenant)
//	if err != nil {
//		return err
//	}
//	defer slot.Release()
//
// A slot expires after the ttl of its limit; for longer work, see Slot.Renew. The error is ErrDenied, which has no retry
// time, ErrNeverFits, ErrUnits, ErrUnknown, or one of the Store's.
func (l *Limiter) AcquireN(ctx context.Context, n int64, name string, key ...string) (*Slot, error) {
	m := l.named[name]
	switch {
	case m == nil:
		return nil, unknown(name)
	case n < 1:
		return nil, unitsError(name, n)
	case !m.acquires():
		return nil, fmt.Errorf("limit %q counts no units in flight; use Allow", strings.Clone(name))
	}
	s := &Slot{limiter: l, slot: algorithms.Slot{ID: l.keys.NewID()}}
	d := l.direct.Get().(*limiter.Direct)
	defer l.direct.Put(d)
	defer d.Reset()
	d.Add(&m.policy, key, algorithms.Charge{Cost: n, Slot: &s.slot})
	d.Take(ctx, l.store)
	decision, charge := d.Decision(0)
	result, err := m.decided(d, 0)
	s.charges[0] = backend.Charge{Key: charge.Key, Limit: m.policy.Limit, Slot: charge.Slot, Terms: algorithms.Charge{Cost: n, Slot: &s.slot}}
	switch {
	case err == nil:
		s.result, s.charges[0].Key = result, bytes.Clone(charge.Key)
		return s, nil
	case errors.Is(decision.Err, backend.ErrUnavailable) && !errors.Is(decision.Err, backend.ErrNotTaken):
		unknown := s.charges[0]
		unknown.Terms.Slot = &algorithms.Slot{ID: s.slot.ID, Op: algorithms.ReturnSlot} // the Store may still use the other one
		l.repeats.Repeat(l.store, &unknown, isGone, func(*backend.Decision) {})
	}
	return nil, m.naming(err)
}

func isGone(d *backend.Decision) bool { return d.Lost > 0 }

// Release returns the slot. Further calls have no effect. If the Store does not answer, Release returns, and repeats the
// return for ten seconds.
func (s *Slot) Release() {
	if !s.released.CompareAndSwap(false, true) {
		return
	}
	s.slot.Op = algorithms.ReturnSlot
	backend.Take(context.Background(), s.limiter.store, s.charges[:], s.decisions[:])
	if s.decisions[0].Err != nil {
		s.limiter.repeats.Repeat(s.limiter.store, &s.charges[0], nil, func(*backend.Decision) {})
	}
}

// Renew lets the slot expire a ttl from now. For work that may last longer than the ttl, call it every third of the ttl.
// The error is ErrSlotLost, or one of the Store's. It must not be called at the same time as Release.
func (s *Slot) Renew(ctx context.Context) error {
	if s.released.Load() {
		return ErrSlotLost
	}
	charge, decisions := s.charges[0], [1]backend.Decision{}
	charge.Terms.Slot = &algorithms.Slot{ID: s.slot.ID, Op: algorithms.RenewSlot, TTL: charge.Limit.Period()}
	backend.Take(ctx, s.limiter.store, []backend.Charge{charge}, decisions[:])
	switch d := &decisions[0]; {
	case d.Err != nil:
		return fmt.Errorf("renew a slot: %w", d.Err)
	case d.Lost > 0:
		return ErrSlotLost
	default:
		return nil
	}
}
