// Package backend keeps buckets. A Store holds the State of each and applies charges to it; what
// a charge means is decided in package algorithms, which every Store computes exactly. A Key is
// opaque here.
package backend

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Store keeps the States of buckets and charges them.
type Store interface {
	// Submit decides b.Charges and writes b.Decisions. A run of charges of equal Group is taken together
	// or not at all, and must name different buckets. A denied charge is a Decision, not an error.
	//
	// Submit returns without waiting for others, unless b.Waits; b.Done may be called before it returns.
	Submit(b *Batch)
}

// Batch is groups of charges that are submitted together, and their decisions.
//
// From Submit until Done all of it belongs to the Store: the slices, and the bytes of the keys. After Done the
// Store neither reads nor writes any of it.
type Batch struct {
	Charges []Charge
	// Decisions has the length of Charges, and holds zero values when b is submitted.
	Decisions []Decision
	// Known, where it is not nil, has the length of Charges. An element that is set before Done says that the decision is
	// final, and may be read: that of a group that was answered without waiting, or by a server that
	// answered before others. It is set for whole groups only.
	Known []atomic.Bool
	// Deadline is the time by which the caller needs the decisions; zero: none. A group that could not be sent by
	// then is never sent, and is answered ErrNotTaken. A Store below the Deadline wrapper may call Done later.
	Deadline time.Time
	// Detached says that nobody waits for the decisions: they may come late, but the outcome should become known.
	Detached bool
	// Waits says that the goroutine that calls Submit waits for Done and does nothing else, so that the Store may
	// use it to do its work. Then Submit may block until Done.
	Waits bool
	// Source is where b comes from; nil: nowhere in particular.
	Source *Source
	// Done is called exactly once, from any goroutine, and possibly before Submit returns. It must not block. No
	// lock that Done acquires may be held around Submit.
	Done func(b *Batch)
}

// Source is one of those that share a Store: usually a connection of a client. Stores that queue batches serve
// sources in turn.
type Source struct {
	// Flush is called by a Store that has called Done of one or several batches of the source after Submit returned,
	// once for all of them where it can. It must not block.
	Flush func()
}

// flush flushes s, which may be nil.
func (s *Source) flush() {
	if s != nil && s.Flush != nil {
		s.Flush()
	}
}

// known reports whether decision i is final.
func (b *Batch) known(i int) bool { return b.Known != nil && b.Known[i].Load() }

// know marks the decisions from one to another as final.
func (b *Batch) know(from, to int) {
	if b.Known != nil {
		for i := from; i < to; i++ {
			b.Known[i].Store(true)
		}
	}
}

// Finish ends b: it calls Done, and Flush of its Source. A Store that ends several batches at once calls Done of
// each, and then Flush.
func (b *Batch) Finish() {
	source := b.Source // b is the caller's after Done
	b.Done(b)
	source.flush()
}

// Fail answers all charges of b that are not Known with err, and calls Done.
func (b *Batch) Fail(err error) {
	for i := range b.Decisions {
		if !b.known(i) {
			b.Decisions[i] = Decision{Err: err}
		}
	}
	b.Done(b)
}

// Take submits charges to s and waits for the decisions. The deadline of ctx is that of the Batch; its
// cancellation is not noticed meanwhile, because a Store answers within its own timeout.
func Take(ctx context.Context, s Store, charges []Charge, decisions []Decision) {
	b := Batch{Charges: charges, Decisions: decisions}
	if end, ok := ctx.Deadline(); ok {
		b.Deadline = end
	}
	if ctx.Err() != nil {
		b.Deadline = time.Now()
	}
	submitAndWait(s, b)
}

// submitAndWait submits b, without Done, to s and waits for its end.
func submitAndWait(s Store, b Batch) {
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

// waiter is a Take under way.
type waiter struct {
	batch Batch
	done  func(*Batch)

	mu    sync.Mutex
	wake  *sync.Cond // ended has changed
	ended bool       // guarded by mu
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

// Charge is one thing asked of a Store.
type Charge struct {
	// Key names the bucket. The Store copies it if it needs it after Take.
	Key []byte
	// Limit is the numbers; immutable.
	Limit *algorithms.Limit
	// Ask is what is wanted of the bucket.
	Ask algorithms.Ask
	// Owner names the limit the bucket belongs to, for bounds that are shared out among limits.
	Owner string
	// Slot, where it is not 0, is shared by buckets that a Store of several nodes keeps where one
	// step can reach them all.
	Slot uint64
	// Shards, where there are any, is how a Store of several nodes splits the bucket, as
	// algorithms.Split made them.
	Shards []algorithms.Limit
	// Lease, where there is one, lets a process borrow from the bucket (LeaseStore).
	Lease *algorithms.Lease
	// Group numbers the charges that are taken together.
	Group int
	// Once, the same for all of a Group, makes it one that is taken once; nil: each time.
	Once *Once
	// Reset makes the bucket one never seen. Such a charge is alone in its Group; of the rest of it, Key, Limit, Slot and
	// Shards say which bucket. It is answered Allowed, or with an error that wraps ErrUnavailable.
	Reset bool
	// Canceled, where it is not nil, tells a Store that queues charges not to send the Group any more when it is
	// true: nobody wants the answer. Such a Group is answered ErrNotTaken.
	Canceled *atomic.Bool
}

// NeverFits reports whether the bucket can never give the cost of c. A limit with overdraw takes any cost.
func (c *Charge) NeverFits() bool {
	return !c.Limit.Overdraw && c.Ask.Cost > c.Limit.Most(c.Ask.Reserve)
}

// GroupLen is the length of the Group that charges start with; there must be one.
func GroupLen(charges []Charge) int {
	n := 1
	for n < len(charges) && charges[n].Group == charges[0].Group {
		n++
	}
	return n
}

// Decision is the answer to one Charge.
type Decision struct {
	algorithms.Decision
	// At is the moment it was decided for, by the Store's clock; an undo (Ask.Of) names it.
	At algorithms.Micros
	// Replayed: this is what was answered before to a Group that is taken once. At is of then.
	Replayed bool
	// Err is set where the Store could not decide; the rest is zero then. It wraps one of the
	// errors below. Every charge of a Group has the same one.
	Err error
}

var (
	// ErrUnavailable: the Store could not answer in time, or at all. Whether the charge was taken
	// is not known.
	ErrUnavailable = errors.New("backend unavailable")
	// ErrNotTaken is an ErrUnavailable of charges that certainly consumed nothing: they were never sent,
	// or the server refused to run them.
	ErrNotTaken error = notTaken{}
	// ErrFull: a new bucket was needed and the Store is at its bound. Nothing was taken.
	ErrFull = errors.New("no room for another bucket")
	// ErrTooLarge: the Group has more charges than the Store takes in one step. Nothing was taken. It is an
	// answer about the request; the Store is well.
	ErrTooLarge = errors.New("too many limits are charged together")
	// ErrReused: the Group has the Once.ID of another that was taken. Nothing was taken now.
	ErrReused = errors.New("the id is that of something else")
	// ErrPending: a Group with this Once.ID is under way, or there is no telling what came of it.
	// Nothing was taken now.
	ErrPending = errors.New("the same is under way, or its outcome is not known")
)

type notTaken struct{}

func (notTaken) Error() string { return ErrUnavailable.Error() }
func (notTaken) Unwrap() error { return ErrUnavailable }
