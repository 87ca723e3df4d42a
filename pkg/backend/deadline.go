package backend

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Deadline ends each Batch at the latest timeout after its Submit, and margin before its own Deadline, so that
// there is time to give the answer. What next has not decided by then is ErrUnavailable: it may be charged later. A
// Batch with no time left is not submitted to next: it is ErrNotTaken.
//
// It is the outermost wrapper, and the only one that ends a Batch before the Store below does. So it submits a copy,
// which lives until next has ended it: what next writes late is written there and read by nobody.
//
// panicked is called with what a Done panicked with that the timer called; it may be nil.
func Deadline(next Store, timeout, margin time.Duration, panicked func(value any)) Store {
	s := &deadlineStore{next: next, timeout: timeout, margin: margin, panicked: panicked}
	s.trials.New = func() any {
		t := &trial{store: s, at: notQueued}
		t.inner.Done = func(*Batch) { s.ended(t) }
		return t
	}
	return s
}

type deadlineStore struct {
	next            Store
	timeout, margin time.Duration
	panicked        func(value any)
	trials          sync.Pool

	mu        sync.Mutex
	deadlines deadlines   // guarded by mu
	timer     *time.Timer // calls overdue; guarded by mu
}

// trial is a Batch that has been submitted to next.
type trial struct {
	store *deadlineStore
	inner Batch  // the copy
	keys  []byte // of inner's charges
	until time.Time
	users atomic.Int32 // the goroutine that submits, and next until it has ended inner; without any it is reused
	outer *Batch       // the caller's; nil: it has ended; guarded by store.mu
	at    int          // place in the queue, or notQueued; guarded by store.mu
}

// maxTrial bounds the charges that a trial keeps room for when it is reused.
const maxTrial = 1024

var (
	errNoTime   = fmt.Errorf("%w: no time left to ask it: %w", ErrNotTaken, context.DeadlineExceeded)
	errNoAnswer = fmt.Errorf("%w: no answer in time: %w", ErrUnavailable, context.DeadlineExceeded)
)

// Submit implements Store.
func (s *deadlineStore) Submit(b *Batch) {
	now := time.Now()
	until := now.Add(s.timeout)
	if !b.Deadline.IsZero() {
		if end := b.Deadline.Add(-s.margin); end.Before(until) {
			until = end
		}
	}
	if !now.Before(until) {
		b.Fail(errNoTime)
		return
	}
	t := s.trials.Get().(*trial)
	t.load(b, until)
	s.next.Submit(&t.inner)
	s.await(t)
	t.release()
}

// load makes inner a copy of b.
func (t *trial) load(b *Batch, until time.Time) {
	t.outer, t.until = b, until
	t.users.Store(2)
	in := &t.inner
	in.Charges = append(in.Charges[:0], b.Charges...)
	in.Decisions = slices.Grow(in.Decisions[:0], len(b.Charges))[:len(b.Charges)]
	clear(in.Decisions)
	in.Known = slices.Grow(in.Known[:0], len(b.Charges))[:len(b.Charges)]
	clear(in.Known)
	in.Deadline, in.Waits, in.Source = until, b.Waits, b.Source
	size := 0
	for i := range b.Charges {
		size += len(b.Charges[i].Key)
	}
	keys := slices.Grow(t.keys[:0], size)
	for i := range b.Charges {
		from := len(keys)
		keys = append(keys, b.Charges[i].Key...)
		in.Charges[i].Key = keys[from:]
	}
	t.keys = keys
}

// await has the timer look after t, unless it has ended already. It passes on what is known by now.
func (s *deadlineStore) await(t *trial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := t.outer
	if b == nil {
		return
	}
	if b.Known != nil {
		t.tellKnown()
	}
	s.wake(s.deadlines.add(t))
}

// tellKnown passes on the decisions that are known. store.mu is held.
func (t *trial) tellKnown() {
	b := t.outer
	for i := range t.inner.Known {
		if t.inner.Known[i].Load() && !b.known(i) {
			b.Decisions[i] = t.inner.Decisions[i]
			b.know(i, i+1)
		}
	}
}

// wake has overdue called at a time, unless that is zero. mu is held.
func (s *deadlineStore) wake(at time.Time) {
	switch {
	case at.IsZero():
	case s.timer == nil:
		s.timer = time.AfterFunc(time.Until(at), s.overdue)
	default:
		s.timer.Reset(time.Until(at))
	}
}

// overdue ends the batches whose time is over.
func (s *deadlineStore) overdue() {
	s.mu.Lock()
	trials, wake := s.deadlines.tick(time.Now())
	s.wake(wake)
	late := make([]*Batch, len(trials))
	for i, t := range trials {
		late[i] = t.outer
		t.failUnknown()
		t.outer = nil
	}
	s.mu.Unlock()
	sources := make([]*Source, len(late))
	for i, b := range late {
		sources[i] = b.Source
		s.giveUp(b)
	}
	for _, source := range sources {
		source.flush()
	}
}

// failUnknown writes the decisions of the caller's batch: those that are known, and that there is no answer.
// store.mu is held: from now on t's own may change.
func (t *trial) failUnknown() {
	b := t.outer
	for i := range b.Decisions {
		switch {
		case b.known(i):
		case t.inner.known(i):
			b.Decisions[i] = t.inner.Decisions[i]
		default:
			b.Decisions[i] = Decision{Err: errNoAnswer}
		}
	}
}

// giveUp ends b, whose time is over. If its Done panics, the others still end.
func (s *deadlineStore) giveUp(b *Batch) {
	defer func() {
		if p := recover(); p != nil && s.panicked != nil {
			s.panicked(p)
		}
	}()
	b.Done(b)
}

// ended follows the end of t.inner.
func (s *deadlineStore) ended(t *trial) {
	s.mu.Lock()
	b := t.outer
	t.outer = nil
	s.deadlines.remove(t)
	s.mu.Unlock()
	if b != nil {
		for i := range b.Decisions {
			if !b.known(i) {
				b.Decisions[i] = t.inner.Decisions[i]
			}
		}
		defer b.Done(b)
	}
	t.release()
}

// release ends one use of t; after the last one it is reused.
func (t *trial) release() {
	if t.users.Add(-1) > 0 {
		return
	}
	clear(t.inner.Charges) // limits of a configuration that is gone are not kept alive
	t.inner.Source = nil
	if cap(t.inner.Charges) <= maxTrial {
		t.store.trials.Put(t)
	}
}

// deadlines are the trials that are in flight, by the time at which they end. It is a state machine: it has no clock,
// lock or timer of its own.
type deadlines struct {
	queue  trialQueue
	wakeAt time.Time // when tick will be called; zero: it will not
}

// add adds t. If wake is not zero, tick must be called then, and not when it was to be called before.
func (d *deadlines) add(t *trial) (wake time.Time) {
	heap.Push(&d.queue, t)
	if d.wakeAt.IsZero() || t.until.Before(d.wakeAt) {
		d.wakeAt = t.until
		return d.wakeAt
	}
	return time.Time{}
}

// remove removes t, which has ended, if it is there. When tick is called stays as it is: most trials end long before
// their deadline, and setting a timer for each would cost more than a tick for nothing.
func (d *deadlines) remove(t *trial) {
	if t.at != notQueued {
		heap.Remove(&d.queue, t.at)
	}
}

// tick removes the trials whose time is over. wake is as in add.
func (d *deadlines) tick(now time.Time) (late []*trial, wake time.Time) {
	for len(d.queue) > 0 && !now.Before(d.queue[0].until) {
		late = append(late, heap.Pop(&d.queue).(*trial))
	}
	if d.wakeAt = (time.Time{}); len(d.queue) > 0 {
		d.wakeAt = d.queue[0].until
	}
	return late, d.wakeAt
}

// trialQueue is a heap.Interface: the trial whose time is over first is the first.
type trialQueue []*trial

const notQueued = -1

// Len implements heap.Interface.
func (q trialQueue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q trialQueue) Less(i, j int) bool { return q[i].until.Before(q[j].until) }

// Swap implements heap.Interface.
func (q trialQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *trialQueue) Push(t any) {
	t.(*trial).at = len(*q)
	*q = append(*q, t.(*trial))
}

// Pop implements heap.Interface.
func (q *trialQueue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	t.at = notQueued
	(*q)[last] = nil
	*q = (*q)[:last]
	return t
}
