package stores

import (
	"errors"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// flight is a call of the wrapped Store, with a Batch or a part of it. flights are reused.
type flight struct {
	store  *CacheStore
	outer  *backend.Batch
	inner  backend.Batch
	number uint64
	began  time.Duration // when the flight began, by CacheStore.now
	steps  time.Duration // elapsed.steps at that time

	whole       bool // inner is the whole outer batch, and shares its slices
	refunds     bool // inner has refunds or resets
	groups      []flightGroup
	parts       []cachePart      // the charges of the groups that may lease
	returns     []backend.Charge // refunds of unused units, which are sent before the other charges
	returnsOf   []*hotKey        // the hot key of each return
	rest        excerpt          // unless whole: the charges of inner; Group is the index in groups, or negative for returns
	ahead       *ahead           // leases for later charges, which are requested after the other charges
	revalidated []*denial
	onKnown     func(from, to int)
}

type flightGroup struct {
	at, end int  // the charges are outer.Charges[at:end]
	parts   int  // the index in flight.parts, or noParts
	from    int  // unless whole: the index in flight.rest of the first charge that is submitted
	done    bool // the group is decided
}

const noParts = -1

// cachePart is one charge of a group that is decided.
type cachePart struct {
	denial *denial          // the remembered decision that answers the charge, or nil
	hotKey *hotKey          // nil if the key is not hot, or if the charge cannot be leased
	leased bool             // the charge was made to leases
	held   bool             // it was when the group was submitted, so this charge was not submitted
	from   [2]consumedUnits // if leased: the units from each grant
}

func (s *CacheStore) newFlight(b *backend.Batch, now time.Duration) *flight {
	t := s.flights.Get().(*flight)
	t.outer, t.began, t.steps, t.number = b, now, s.elapsed.steps(), s.submitted.Add(1)
	return t
}

// plan decides the groups of t.outer that the cache can decide, and prepares the submission of the others. If the cache
// has nothing to contribute, consult is false.
func (t *flight) plan(consult bool) {
	b := t.outer
	t.whole = true
	if t.refunds = refundsOrResets(b.Charges); t.refunds {
		t.store.forgetRefunded(b.Charges)
	}
	for at := 0; at < len(b.Charges); {
		end := at + backend.GroupLen(b.Charges[at:])
		if consult {
			t.planGroup(at, end)
		} else {
			t.groups = append(t.groups, flightGroup{at: at, end: end, parts: noParts})
		}
		at = end
	}
}

func (t *flight) planGroup(at, end int) {
	s, charges, decisions := t.store, t.outer.Charges[at:end], t.outer.Decisions[at:end]
	g := flightGroup{at: at, end: end, parts: len(t.parts)}
	all, known := s.consult(charges, t.parts, decisions, t.began)
	parts := all[g.parts:]
	if known != unanswered && !t.revalidates(parts) {
		s.answerKnown(known, charges, parts, decisions, t.began)
		t.outer.SetKnown(at, end)
		t.whole = false
		return
	}
	if t.parts = all; !mayLease(charges) {
		t.parts, g.parts = all[:g.parts], noParts
		clear(decisions)
	} else {
		t.lease(charges, parts, decisions)
	}
	t.groups = append(t.groups, g)
}

// revalidates reports whether t must submit a group that is denied by remembered decisions, because one of them is old
// and no other call revalidates it.
func (t *flight) revalidates(parts []cachePart) (claimed bool) {
	for i := range parts {
		if d := parts[i].denial; d != nil && d.isOld(t.began) && d.revalidating.CompareAndSwap(false, true) {
			t.revalidated = append(t.revalidated, d)
			claimed = true
		}
	}
	return claimed
}

func anyOld(parts []cachePart, now time.Duration) bool {
	for i := range parts {
		if d := parts[i].denial; d != nil && d.isOld(now) {
			return true
		}
	}
	return false
}

// isOld reports whether a call must revalidate d.
func (d *denial) isOld(now time.Duration) bool {
	return now >= d.revalidateAt && !d.revalidating.Load()
}

// lease determines which charges of a group are submitted. The leases of their buckets are returned before.
func (t *flight) lease(charges []backend.Charge, parts []cachePart, decisions []backend.Decision) {
	s := t.store
	for i := range charges {
		p := &parts[i]
		ending := p.leased && !p.lastsUntil(s.config.Clock, t.outer.Deadline, t.began)
		if ending {
			s.putBack(&charges[i], p, &decisions[i], t.began)
		}
		if p.leased {
			p.held, t.whole = true, false
			continue
		}
		if canLease(&charges[i]) {
			var request *ahead
			if p.hotKey, t.returns, request = s.miss(&charges[i], ending, t.returns, t.began); request != nil {
				request.following, t.ahead = t.ahead, request
			}
			for len(t.returnsOf) < len(t.returns) {
				t.returnsOf = append(t.returnsOf, p.hotKey)
			}
		}
		t.whole = t.whole && len(t.returns) == 0
		decisions[i] = backend.Decision{}
	}
}

// lastsUntil reports whether the lease that p was charged to lasts until deadline, the latest time at which the
// wrapped Store answers. It returns false if deadline is zero, which means that there is none.
func (p *cachePart) lastsUntil(c clock.Clock, deadline time.Time, now time.Duration) bool {
	return !deadline.IsZero() && p.from[0].grant.until >= now+clock.Until(c, deadline)
}

// submit submits the groups of t to the wrapped Store.
func (t *flight) submit() {
	if len(t.groups) == 0 {
		t.finish()
		return
	}
	in, b := &t.inner, t.outer
	if t.whole {
		in.Charges, in.Decisions, in.Known, in.OnKnown = b.Charges, b.Decisions, b.Known, b.OnKnown
	} else {
		t.gather()
		in.Charges, in.Decisions, in.Known, in.OnKnown = t.rest.charges, t.rest.decisions, t.rest.known, t.onKnown
	}
	in.Deadline, in.Detached, in.Waits, in.Source = b.Deadline, b.Detached, b.Waits, b.Source
	defer t.ahead.submit()
	t.store.next.Submit(in)
}

// gather fills t.rest.
func (t *flight) gather() {
	for i := range t.returns {
		t.add(&t.returns[i], -1-i, -1)
	}
	if len(t.returns) > 0 {
		t.refunds = true
		t.store.forgetRefunded(t.returns)
	}
	for n := range t.groups {
		g := &t.groups[n]
		g.from = len(t.rest.charges)
		parts := t.partsOf(g)
		for i := range t.outer.Charges[g.at:g.end] {
			if parts == nil || !parts[i].held {
				t.add(&t.outer.Charges[g.at+i], n, g.at+i)
			}
		}
	}
	t.rest.prepare()
}

func (t *flight) add(c *backend.Charge, group, position int) {
	t.rest.charges, t.rest.positions = append(t.rest.charges, *c), append(t.rest.positions, int32(position))
	t.rest.charges[len(t.rest.charges)-1].Group = group
}

func (t *flight) partsOf(g *flightGroup) []cachePart {
	if g.parts == noParts {
		return nil
	}
	return t.parts[g.parts : g.parts+g.end-g.at]
}

// answerKnown answers the groups that the wrapped Store has decided before the end of the call.
func (t *flight) answerKnown(from, to int) {
	t.concludeGroups(max(0, t.rest.charges[from].Group), t.rest.charges[to-1].Group+1) // returns, which come first, belong to no group
}

// ended is the Done function of inner.
func (t *flight) ended(*backend.Batch) {
	t.concludeGroups(0, len(t.groups))
	for _, d := range t.revalidated {
		t.store.forgetDenial(d)
	}
	for i := range t.returns {
		if errors.Is(t.rest.decisions[i].Err, backend.ErrNotTaken) { // the deadline of the callers was too short
			t.store.returnLater(t.returnsOf[i], &t.returns[i])
		}
	}
	if t.refunds {
		t.store.forgetRefunded(t.inner.Charges)
	}
	t.finish()
}

// concludeGroups answers t.groups[from:to] with the decisions of the wrapped Store, unless that is done.
//
// The other groups of the batch may not be decided yet. These may need more time than a group has until its deadline.
func (t *flight) concludeGroups(from, to int) {
	for n := from; n < to; n++ {
		g := &t.groups[n]
		if g.done {
			continue
		}
		charges, decisions, parts := t.outer.Charges[g.at:g.end], t.outer.Decisions[g.at:g.end], t.partsOf(g)
		for i, at := 0, g.from; i < len(charges) && !t.whole; i++ {
			if parts == nil || !parts[i].held {
				decisions[i] = t.rest.decisions[at]
				at++
			}
		}
		if parts != nil {
			t.settle(charges, parts, decisions)
		}
		t.store.remember(t, charges, parts, decisions)
		if g.done = true; !t.whole {
			t.outer.SetKnown(g.at, g.end)
		}
	}
}

// settle completes the answer to a group that may lease. decisions has those of the wrapped Store.
func (t *flight) settle(charges []backend.Charge, parts []cachePart, decisions []backend.Decision) {
	var failed error
	all, now := true, t.store.now()
	for i := range parts {
		if !parts[i].held {
			failed, all = decisions[i].Err, all && decisions[i].Allowed
		}
	}
	for i := range parts {
		p, c, d := &parts[i], &charges[i], &decisions[i]
		switch {
		case p.leased && !all:
			t.store.putBack(c, p, d, now)
		case p.leased:
			t.store.served.Add(1)
		case p.hotKey != nil && failed == nil:
			t.store.receive(p.hotKey, d, t.began, now)
		}
		if failed != nil {
			*d = backend.Decision{Err: failed}
		}
	}
}

// finish ends the caller's Batch.
func (t *flight) finish() {
	b := t.outer
	t.release()
	b.Done(b)
}

func (t *flight) release() {
	clear(t.parts)
	clear(t.returns)
	clear(t.returnsOf)
	clear(t.revalidated)
	t.rest.reset()
	t.groups, t.parts, t.revalidated = t.groups[:0], t.parts[:0], t.revalidated[:0]
	t.returns, t.returnsOf = t.returns[:0], t.returnsOf[:0]
	t.outer, t.ahead, t.whole, t.refunds = nil, nil, false, false
	t.inner = backend.Batch{Done: t.inner.Done}
	t.store.flights.Put(t)
}
