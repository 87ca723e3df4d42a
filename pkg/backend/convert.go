package backend

import "context"

// Blocking makes a Taker of a Store, and Async a Store of a Taker. Both go when all Stores are converted.
func Blocking(s Store) Taker { return blocking{s} }

type blocking struct{ store Store }

// Take implements Taker.
func (s blocking) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	Take(ctx, s.store, charges, decisions)
}

// Reset implements Resetter.
func (s blocking) Reset(ctx context.Context, charge Charge) error {
	return ResetBucket(ctx, s.store, charge)
}

// Start implements Starter.
func (s blocking) Start(charges []Charge, decisions []Decision, done func()) bool {
	b := &Batch{Charges: charges, Decisions: decisions}
	b.Done = func(*Batch) { go done() }
	s.store.Submit(b)
	return true
}

// Async makes a Store of t.
func Async(t Taker) Store { return async{t} }

type async struct{ taker Taker }

// Submit implements Store.
func (s async) Submit(b *Batch) {
	if b.Waits {
		s.take(b)
		return
	}
	go func() {
		s.take(b)
	}()
}

func (s async) take(b *Batch) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if b.Detached {
		ctx = patiently(ctx)
	}
	if !b.Deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, b.Deadline)
	}
	defer cancel()
	resets := false
	for i := range b.Charges {
		resets = resets || b.Charges[i].Reset
	}
	if !resets {
		s.taker.Take(ctx, b.Charges, b.Decisions)
	} else {
		for at := 0; at < len(b.Charges); {
			n := GroupLen(b.Charges[at:])
			if !b.Charges[at].Reset {
				s.taker.Take(ctx, b.Charges[at:at+n], b.Decisions[at:at+n])
			} else if b.Decisions[at].Err = Reset(ctx, s.taker, b.Charges[at]); b.Decisions[at].Err == nil {
				b.Decisions[at].Allowed = true
			}
			at += n
		}
	}
	b.Finish()
}
