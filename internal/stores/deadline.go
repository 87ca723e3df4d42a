// Package stores has wrappers: Stores that add behavior to another Store.
//
//   - Deadline answers in time, whatever the wrapped Store does.
//   - Cache decides in this process what it can: charges of hot keys, from units that were charged in advance, and
//     denials of buckets that were denied before.
//   - Divided keeps some buckets in a second Store.
//
// The Redis store and Divided use Router, Parts and Undos. Router divides a batch by server, Parts charges a group
// in several steps, and Undos refunds the units that an incomplete group consumed.
package stores

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Deadline returns a wrapper of another Store (next). The wrapper ends each Batch within timeout after its Submit. A
// Batch with a Deadline of its own ends at least margin before that Deadline, so that there is time to send the
// answer. If the wrapped Store has not decided a group by then, the group gets ErrUnavailable, because it may be
// charged later. A Batch with no time left is not submitted to the wrapped Store, and gets ErrNotTaken.
//
// Deadline must be the outermost wrapper, because it may end a Batch before the Stores below do. Therefore it submits
// a copy of the Batch to the wrapped Store. The copy lives until the wrapped Store has ended it. Late decisions are
// written to the copy and never read. Groups that the wrapped Store decides at once (immediate) are not copied.
//
// panicked is called with the value of each panic in a Done that the timer calls. A nil clock means that of the system.
func Deadline(by clock.Clock, next backend.Store, timeout, margin time.Duration, panicked func(value any)) backend.Store {
	s := &deadlineStore{clock: cmp.Or(by, clock.System), next: next, timeout: timeout, margin: margin, panicked: panicked}
	s.immediate, _ = next.(immediate)
	s.attempts.New = func() any {
		t := &attempt{store: s, at: notQueued}
		t.inner.Done = func(*backend.Batch) { s.ended(t) }
		return t
	}
	return s
}

// immediate is a Store that decides some groups at once.
type immediate interface {
	// decideAtOnce decides groups of b, and adds the other groups to rest. If there are others, it marks the decided
	// groups as known. It does not block.
	decideAtOnce(b *backend.Batch, rest *excerpt)
}

type deadlineStore struct {
	clock           clock.Clock
	next            backend.Store
	immediate       immediate // next, or nil
	timeout, margin time.Duration
	panicked        func(value any)
	attempts        sync.Pool

	mu        sync.Mutex
	deadlines deadlines   // guarded by mu
	timer     clock.Timer // calls overdue; guarded by mu
}

// attempt is a Batch of a caller, with the copy that was submitted to the wrapped Store.
type attempt struct {
	store *deadlineStore
	rest  excerpt       // the copied groups
	keys  []byte        // the keys of rest's charges
	inner backend.Batch // has rest
	until time.Time
	// users is 2 at first: the submitting goroutine, and the wrapped Store until it has ended inner. An attempt with
	// 0 users is reused.
	users atomic.Int32
	outer *backend.Batch // the caller's batch, nil if it has ended; guarded by store.mu
	at    int            // the position in the queue, or notQueued; guarded by store.mu
}

// maxReused is the largest number of charges that an attempt may have room for if it is kept for reuse.
const maxReused = 1024

var (
	errNoTime   = fmt.Errorf("%w: no time left to call it: %w", backend.ErrNotTaken, context.DeadlineExceeded)
	errNoAnswer = fmt.Errorf("%w: no answer in time: %w", backend.ErrUnavailable, context.DeadlineExceeded)
)

func (s *deadlineStore) Submit(b *backend.Batch) {
	now := s.clock.Now()
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
	t := s.attempts.Get().(*attempt)
	if s.immediate != nil {
		s.immediate.decideAtOnce(b, &t.rest)
	} else {
		t.rest.add(b.Charges, 0)
	}
	if len(t.rest.charges) == 0 {
		s.attempts.Put(t)
		b.Done(b)
		return
	}
	t.load(b, until)
	s.next.Submit(&t.inner)
	s.await(t)
	t.release()
}

func (t *attempt) load(b *backend.Batch, until time.Time) {
	t.outer, t.until = b, until
	t.users.Store(2)
	t.rest.prepare()
	in := &t.inner
	in.Charges, in.Decisions, in.Known = t.rest.charges, t.rest.decisions, t.rest.known
	in.Deadline, in.Waits, in.Source = until, b.Waits, b.Source
	size := 0
	for i := range in.Charges {
		size += len(in.Charges[i].Key)
	}
	keys := slices.Grow(t.keys[:0], size)
	for i := range in.Charges {
		from := len(keys)
		keys = append(keys, in.Charges[i].Key...)
		in.Charges[i].Key = keys[from:]
	}
	t.keys = keys
}

// await adds t to the deadlines, unless t has ended already. It also copies the decisions that are known
// already to the caller's batch.
func (s *deadlineStore) await(t *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.outer == nil {
		return
	}
	for at, end := range t.rest.groups() {
		if isKnown(&t.inner, at, end) {
			t.rest.pass(t.outer, at, end)
		}
	}
	s.setTimer(s.deadlines.add(t))
}

// setTimer does nothing if at is zero. mu must be held.
func (s *deadlineStore) setTimer(at time.Time) {
	switch {
	case at.IsZero():
	case s.timer == nil:
		s.timer = s.clock.AfterFunc(clock.Until(s.clock, at), s.overdue)
	default:
		s.timer.Reset(clock.Until(s.clock, at))
	}
}

func (s *deadlineStore) overdue() {
	s.mu.Lock()
	attempts, next := s.deadlines.tick(s.clock.Now())
	s.setTimer(next)
	late := make([]*backend.Batch, len(attempts))
	for i, t := range attempts {
		late[i] = t.outer
		t.failUnknown()
		t.outer = nil
	}
	s.mu.Unlock()
	sources := make([]*backend.Source, len(late))
	for i, b := range late {
		sources[i] = b.Source
		s.expire(b)
	}
	for _, source := range sources {
		if source != nil && source.Flush != nil {
			source.Flush()
		}
	}
}

// failUnknown writes all decisions of the caller's batch: the known decisions, and errors for all other
// groups. store.mu must be held, so that t does not end meanwhile. The wrapped Store may still be writing
// unknown decisions, so failUnknown does not read them.
func (t *attempt) failUnknown() {
	for at, end := range t.rest.groups() {
		if isKnown(&t.inner, at, end) {
			t.rest.fill(t.outer, at, end)
			continue
		}
		for _, i := range t.rest.positions[at:end] {
			if !t.outer.IsKnown(int(i)) {
				t.outer.Decisions[i] = backend.Decision{Err: errNoAnswer}
			}
		}
	}
}

// isKnown reports whether all of b.Decisions[first:end], which belong to one group, are known. The elements of Known
// are set one after the other, so only some of them may be set.
func isKnown(b *backend.Batch, first, end int) bool {
	for i := first; i < end; i++ {
		if !b.IsKnown(i) {
			return false
		}
	}
	return true
}

// expire recovers from a panic in Done, so that overdue still ends the other batches.
func (s *deadlineStore) expire(b *backend.Batch) {
	defer func() {
		if p := recover(); p != nil {
			s.panicked(p)
		}
	}()
	b.Done(b)
}

// ended is the Done function of t.inner.
func (s *deadlineStore) ended(t *attempt) {
	s.mu.Lock()
	b := t.outer
	t.outer = nil
	s.deadlines.remove(t)
	s.mu.Unlock()
	if b != nil {
		t.rest.fill(b, 0, len(t.rest.charges))
		defer b.Done(b)
	}
	t.release()
}

func (t *attempt) release() {
	if t.users.Add(-1) > 0 {
		return
	}
	t.rest.reset()
	t.inner.Source = nil
	if cap(t.rest.charges) <= maxReused {
		t.store.attempts.Put(t)
	}
}

// deadlines has the attempts in flight, ordered by deadline. It is a state machine without clock, lock and
// timer.
type deadlines struct {
	queue  attemptQueue
	tickAt time.Time // when tick will be called; zero means never
}

// add adds t. If nextTick is not zero, the caller must call tick at that time, and need not call it at the time
// requested before.
func (d *deadlines) add(t *attempt) (nextTick time.Time) {
	heap.Push(&d.queue, t)
	if d.tickAt.IsZero() || t.until.Before(d.tickAt) {
		d.tickAt = t.until
		return d.tickAt
	}
	return time.Time{}
}

// remove leaves the time of the next tick unchanged: most attempts end long before their deadline, and an
// unnecessary tick costs less than setting the timer for each attempt.
func (d *deadlines) remove(t *attempt) {
	if t.at != notQueued {
		heap.Remove(&d.queue, t.at)
	}
}

// tick removes and returns the attempts whose deadline is now or earlier, the earliest first. If nextTick is not zero,
// the caller must call tick at that time.
func (d *deadlines) tick(now time.Time) (late []*attempt, nextTick time.Time) {
	for len(d.queue) > 0 && !now.Before(d.queue[0].until) {
		late = append(late, heap.Pop(&d.queue).(*attempt))
	}
	if d.tickAt = (time.Time{}); len(d.queue) > 0 {
		d.tickAt = d.queue[0].until
	}
	return late, d.tickAt
}

// attemptQueue implements heap.Interface, with the earliest deadline first.
type attemptQueue []*attempt

const notQueued = -1

func (q attemptQueue) Len() int { return len(q) }

func (q attemptQueue) Less(i, j int) bool { return q[i].until.Before(q[j].until) }

func (q attemptQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

func (q *attemptQueue) Push(t any) {
	t.(*attempt).at = len(*q)
	*q = append(*q, t.(*attempt))
}

func (q *attemptQueue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	t.at = notQueued
	(*q)[last] = nil
	*q = (*q)[:last]
	return t
}
