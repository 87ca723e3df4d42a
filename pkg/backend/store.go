// Package backend defines Stores, which keep buckets and charge them. Every Store decides exactly as package
// algorithms does. Keys are opaque bytes.
//
// Package memory keeps buckets in the process, package redis in Redis. A program may wrap a Store to add behaviour: the
// interface has one method.
package backend

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Store keeps buckets and charges them. Several goroutines may call Submit at the same time.
//
// A wrapper passes batches on to another Store. It may replace Done, and must restore it before it calls the original.
//
// A wrapper that counts requests must skip the charges of a Limiter that are not requests:
//
//   - dry runs (Terms.DryRun), which Peek makes;
//   - refunds (Charge.Refunds), settlements (Terms.Settle) and resets (Reset);
//   - alternatives that were not needed (see Decision).
type Store interface {
	// Submit decides b.Charges and writes b.Decisions.
	//
	// Consecutive charges with equal Group form a group, which is charged together or not at all. The
	// charges of a group must name different buckets. A denial is a Decision, not an error.
	//
	// Submit does not block, unless b.Waits is set. It may call b.Done before it returns.
	Submit(b *Batch)
}

// Batch has groups of charges that are submitted together, and their decisions.
//
// From Submit until Done the Batch belongs to the Store, including the slices and the bytes of the keys. After Done
// the Store neither reads nor writes any of it.
type Batch struct {
	Charges []Charge
	// Decisions has the length of Charges. Its elements must be zero when the Batch is submitted.
	Decisions []Decision
	// Known, if not nil, has the length of Charges. Once Known[i] is set, decision i is final and may be
	// read. A Store may set elements before Done, for groups that it decides without waiting or whose server
	// answers before others. It sets the elements of a whole group, once.
	Known []atomic.Bool
	// OnKnown, if not nil, is called after elements of Known were set, with their positions: start is the
	// first, end is one behind the last. A Store that passes a part of its batch to another Store forwards
	// that Store's calls. OnKnown must not block. Several goroutines may call it at a time, each for other
	// groups. It is not called after Done.
	OnKnown func(start, end int)
	// Deadline is the time by which the caller needs the decisions; the zero Time means none. A group that
	// has not been sent by then is never sent; its error is ErrNotTaken. A Store may call Done after the
	// Deadline. A Store that decides in this process may ignore the Deadline.
	Deadline time.Time
	// Detached means that no caller waits for the decisions. They may be late, but the Store should still
	// find out the outcome.
	Detached bool
	// Waits means that the goroutine which calls Submit does nothing until Done. So the Store may use that
	// goroutine for its work, and Submit may block until Done.
	Waits bool
	// Source is the origin of the Batch; it may be nil.
	Source *Source
	// Done is called exactly once, from any goroutine, possibly before Submit returns. It must not block. The caller
	// of Submit must not hold a lock that Done acquires.
	Done func(b *Batch)
}

// Source is the origin of batches, usually a client's connection. Stores that queue batches serve the sources in
// turn. A caller that serves many connections gives each of them a Source.
type Source struct {
	// Flush is called by the Store after it has called Done for batches of this source, so that the answers to
	// several batches can be written together. It is not called for batches whose Done was called before
	// Submit returned. Flush must not block.
	Flush func()
}

func (s *Source) flush() {
	if s != nil && s.Flush != nil {
		s.Flush()
	}
}

// IsKnown reports whether decision i is already final, so that it may be read before Done.
func (b *Batch) IsKnown(i int) bool { return b.Known != nil && b.Known[i].Load() }

// SetKnown is for Stores. It marks the decisions with the indexes start <= i < end as final. They must be those of
// whole groups. The caller must not hold a lock that OnKnown acquires.
func (b *Batch) SetKnown(start, end int) {
	if b.Known == nil {
		return
	}
	for i := start; i < end; i++ {
		b.Known[i].Store(true)
	}
	if b.OnKnown != nil {
		b.OnKnown(start, end)
	}
}

// Finish is for Stores. It calls Done of b and then Flush of its Source. A Store that completes several batches
// of one Source at once calls Done of each, and then Flush once.
func (b *Batch) Finish() {
	source := b.Source // after Done, b belongs to the caller
	b.Done(b)
	source.flush()
}

// Fail is for Stores. It sets the error of all decisions that are not final (IsKnown) to err, and calls Done. Unlike
// Finish, it does not call Flush.
func (b *Batch) Fail(err error) {
	for i := range b.Decisions {
		if !b.IsKnown(i) {
			b.Decisions[i] = Decision{Err: err}
		}
	}
	b.Done(b)
}

// Take submits charges to s and waits for the decisions. decisions must have the length of charges, and its
// elements must be zero. The deadline of ctx becomes the Deadline of the Batch. If ctx has already ended, the
// Deadline is the current time. Take still waits if ctx is canceled later, because a Store answers within its
// own timeout.
func Take(ctx context.Context, s Store, charges []Charge, decisions []Decision) {
	b := Batch{Charges: charges, Decisions: decisions}
	if end, ok := ctx.Deadline(); ok {
		b.Deadline = end
	}
	if ctx.Err() != nil {
		b.Deadline = time.Now()
	}
	Wait(s, b)
}

// Wait submits b, whose Done must be nil, to s, and waits until it is decided. It sets Waits.
func Wait(s Store, b Batch) {
	w := waiters.Get().(*waiter)
	w.batch, w.ended = b, false
	w.batch.Waits, w.batch.Done = true, w.done
	s.Submit(&w.batch)
	w.mu.Lock()
	for !w.ended {
		w.wake.Wait()
	}
	w.mu.Unlock()
	w.batch = Batch{}
	waiters.Put(w)
}

type waiter struct {
	batch Batch
	done  func(*Batch)

	mu    sync.Mutex
	wake  *sync.Cond
	ended bool // guarded by mu
}

var waiters = sync.Pool{New: func() any {
	w := &waiter{}
	w.wake = sync.NewCond(&w.mu)
	w.done = func(*Batch) {
		w.mu.Lock()
		w.ended = true
		w.wake.Signal()
		w.mu.Unlock()
	}
	return w
}}

// Charge is one limit's part of a request.
type Charge struct {
	// Key identifies the bucket. A Store that needs it after Done must copy it. ratelimit.KeyText describes
	// it in readable form.
	Key []byte
	// Limit has the numbers of the limit. It is immutable.
	Limit *algorithms.Limit
	// Terms has the units requested, and the options of the charge.
	Terms algorithms.Charge
	// Owner identifies the limit of the bucket. Stores that divide their room among limits use it.
	Owner string
	// Slot, if not 0, is equal for buckets that a Store of several nodes keeps in one place, so that they can be
	// charged in one step.
	Slot uint64
	// Shards, if not empty, has the parts into which a Store of several nodes splits the bucket.
	// algorithms.Split makes them.
	Shards []algorithms.Limit
	// Lease, if not nil, allows this process to borrow units of the bucket.
	Lease *algorithms.Lease
	// Group is equal for the consecutive charges of one group.
	Group int
	// Then means that this charge has an alternative (algorithms.Bucket). A row of alternatives consists of
	// consecutive charges with Then and of the next charge, which has no Then and must be in the same group. If all
	// charges with Then are allowed, they are charged. Otherwise the last charge of the row is charged instead, if it
	// is allowed. The charges of a row must be in one Slot, and have neither Shards nor a Lease.
	Then bool
	// Reset makes the bucket a new one instead of charging it. The charge must be alone in its group; only Key,
	// Limit, Slot and Shards are used. The decision is Allowed, or has an error that wraps ErrUnavailable.
	Reset bool
	// Own belongs to the last charge of a row (algorithms.Bucket). If it is not nil, the request also names this bucket
	// itself: Own is then charged together with the row, and Terms has the sum of Own and of what the bucket pays for
	// the row.
	Own *algorithms.Own
	// IdempotencyKey identifies the group for repetition; nil means that it cannot be repeated. All charges
	// of a group have the same.
	IdempotencyKey *IdempotencyKey
	// Canceled, if not nil, becomes true when the caller no longer needs the decision. A Store that queues charges
	// does not send such a group, and answers ErrNotTaken.
	Canceled *atomic.Bool
}

// NeverFits reports whether the bucket can never hold the cost of c. It is false for a charge of any cost that the
// limit makes in any case: a limit with Overdraw charges even what it denies, except for reservations, and a limit with
// Settles allows every settlement.
func (c *Charge) NeverFits() bool {
	if c.Limit.Overdraw && (!c.Terms.Reserve || c.Terms.Settle) || c.Limit.Settles && c.Terms.Settle {
		return false
	}
	return c.Terms.Cost > c.Limit.Most(c.Terms.Reserve)
}

// Refunds reports whether c may be a refund.
func (c *Charge) Refunds() bool { return c.Terms.Cost < 0 || c.Own != nil && c.Own.Cost < 0 }

// ChargesDenied is for Stores. It reports whether c is charged even if it is denied. If a group contains a refund, none
// of its charges is.
func (c *Charge) ChargesDenied() bool {
	return c.Limit.ChargesDenied() && c.Terms.Cost > 0 && !c.Terms.Free && (!c.Terms.Reserve || c.Terms.Settle)
}

// GroupLen returns the length of the first group in charges, which must not be empty.
func GroupLen(charges []Charge) int {
	n := 1
	for n < len(charges) && charges[n].Group == charges[0].Group {
		n++
	}
	return n
}

// Alternatives is for Stores. It returns how many charges of a group, from the first on, are alternatives of each
// other (Charge.Then). It is 1 for a charge without alternatives.
func Alternatives(group []Charge) int {
	n := 1
	for n < len(group) && group[n-1].Then {
		n++
	}
	return n
}

func fits(decisions []Decision) bool {
	for i := range decisions {
		if !decisions[i].Allowed {
			return false
		}
	}
	return true
}

// Paid is for Stores. one has the charges that Alternatives counts, at least one, and decisions has theirs. Paid
// returns the indexes start <= i < end of the charges that were consumed: either all charges with Then, and the last
// one if it has an Own, or only the last charge. start equals end if neither was allowed.
func Paid(one []Charge, decisions []Decision) (start, end int) {
	last := len(decisions) - 1
	within := last > 0 && fits(decisions[:last])
	switch {
	case within && one[last].Own == nil:
		return 0, last
	case !decisions[last].Allowed:
		return 0, 0
	case within:
		return 0, last + 1
	default:
		return last, last + 1
	}
}

// Cost is for Stores. It returns the units that charge i of the alternatives consumed, if Paid has counted it. one and
// decisions are those of Paid.
func Cost(one []Charge, decisions []Decision, i int) int64 {
	if last := len(one) - 1; last > 0 && i == last && one[last].Own != nil && fits(decisions[:last]) {
		return one[last].Own.Cost
	}
	return one[i].Terms.Cost
}

// Allowed reports whether a decided group is allowed. All charges without alternatives must be allowed. Of each row of
// alternatives (see Alternatives), either all charges with Then or the last charge must be allowed.
func Allowed(group []Charge, decisions []Decision) bool {
	for at, n := 0, 0; at < len(group); at += n {
		n = Alternatives(group[at:])
		if start, end := Paid(group[at:at+n], decisions[at:at+n]); start == end {
			return false
		}
	}
	return true
}

// Decision is the answer to one Charge. If a row of alternatives did not need its last charge, that
// charge's Decision is zero except for At and Replayed.
type Decision struct {
	algorithms.Decision
	// At is the time of the decision by the Store's clock. An undo passes it as Terms.ChargedAt.
	At algorithms.Micros
	// Replayed means that this is the stored decision of an earlier group with the same idempotency key. At
	// is then the time of the earlier decision.
	Replayed bool
	// Err is set if the Store could not decide; the other fields are then zero. It wraps one of the errors
	// of this package. All charges of a group have the same Err.
	Err error
}

var (
	// ErrUnavailable means that the Store could not decide, for example because a server did not answer in time. Units
	// may have been consumed, unless the error is also an ErrNotTaken.
	ErrUnavailable = errors.New("backend unavailable")
	// ErrNotTaken is an ErrUnavailable for charges that certainly consumed nothing, because they were never sent or
	// the server refused them.
	ErrNotTaken error = notTaken{}
	// ErrFull means that a new bucket was needed, but the Store is full. Nothing was consumed.
	ErrFull = errors.New("no room for another bucket")
	// ErrTooLarge means that the group has more charges than the Store supports. Nothing was consumed. The cause is
	// the request, not a failure of the Store.
	ErrTooLarge = errors.New("too many limits are charged together")
	// ErrReused means that IdempotencyKey.ID was used for another group. Nothing was consumed now.
	ErrReused = errors.New("the id was used for something else")
	// ErrPending means that a group with this IdempotencyKey.ID is in flight, or that its outcome is unknown. Nothing was
	// consumed now.
	ErrPending = errors.New("a call with the same id is in progress, or its outcome is unknown")
)

type notTaken struct{}

func (notTaken) Error() string { return ErrUnavailable.Error() }
func (notTaken) Unwrap() error { return ErrUnavailable }
