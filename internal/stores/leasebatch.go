package stores

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// leaseBatch is a part of a Batch that is submitted to the wrapped Store in one call. leaseBatches are reused.
type leaseBatch struct {
	store           *LeaseStore
	outer           *backend.Batch
	first           *leaseBatch  // the call whose groups this call repeats; nil if this call repeats none
	pending         atomic.Int32 // the number of calls in flight: this one, and those that repeat groups of this one
	inner           backend.Batch
	began           time.Duration     // when newBatch was called, by LeaseStore.now
	direct          *hotKey           // the hot key of the only charge, if the Batch is passed on as it is; otherwise nil
	lastAt          algorithms.Micros // with direct: the time of the last known decision of the wrapped Store
	charges         []backend.Charge
	answers         []backend.Decision
	known           []atomic.Bool
	groupOf         []int32 // for each charge in charges: the position of its group in groups, or -1 (see returned)
	onKnown         func(from, to int)
	groups          []leaseGroup
	parts           []leasePart      // the charges of all groups, in order
	returns         []backend.Charge // refunds of unused units, which must be sent before the other charges
	lastGroupNumber int
}

// returned is the element of leaseBatch.groupOf for a charge that returns unused units. Such a charge belongs to no
// element of leaseBatch.groups.
const returned = -1

type leaseGroup struct {
	charges   []backend.Charge
	decisions []backend.Decision
	at        int  // the position of the first of charges in the outer batch
	firstPart int  // a position in leaseBatch.parts
	done      bool // the group is decided, or another call decides it
}

type leasePart struct {
	hotKey   *hotKey          // nil if the key is not hot, or if the charge cannot be leased
	leased   bool             // the charge was made to leases, and is not submitted to the wrapped Store
	from     [2]consumedUnits // if leased: the units from each grant
	borrow   int64            // units requested beyond the cost
	position int              // the position of this charge in leaseBatch.charges
}

func (s *LeaseStore) newBatch(b *backend.Batch, now time.Duration) *leaseBatch {
	t := s.batches.Get().(*leaseBatch)
	t.outer, t.began = b, now
	t.pending.Store(1)
	return t
}

// finishCall is called when t, or a call that repeats groups of t, has ended. After the last of these calls it ends
// the caller's Batch. If t itself repeats groups of another call, it calls finishCall of that call instead.
func (t *leaseBatch) finishCall() {
	if t.pending.Add(-1) > 0 {
		return
	}
	b, first := t.outer, t.first
	t.release()
	if first != nil {
		first.finishCall()
		return
	}
	b.Done(b)
}

func (t *leaseBatch) release() {
	clear(t.charges)
	clear(t.groups)
	clear(t.parts)
	clear(t.returns)
	t.charges, t.groupOf, t.groups, t.parts, t.returns = t.charges[:0], t.groupOf[:0], t.groups[:0], t.parts[:0], t.returns[:0]
	t.outer, t.first, t.direct = nil, nil, nil
	t.inner = backend.Batch{Done: t.inner.Done}
	t.store.batches.Put(t)
}

// add appends c to t.charges, with t.lastGroupNumber as its Group, and returns the position of c. group is the element
// of t.groupOf for c: the position of its group in t.groups, or -1 (see returned).
func (t *leaseBatch) add(c *backend.Charge, group int) int {
	t.charges, t.groupOf = append(t.charges, *c), append(t.groupOf, int32(group))
	t.charges[len(t.charges)-1].Group = t.lastGroupNumber
	return len(t.charges) - 1
}

// plan decides the group t.outer.Charges[at:end] from leases if it can, and otherwise adds the group to the call. It
// reports whether it decided the group.
func (s *LeaseStore) plan(t *leaseBatch, at, end int) (answered bool) {
	now, charges, decisions := t.began, t.outer.Charges[at:end], t.outer.Decisions[at:end]
	g := leaseGroup{charges: charges, decisions: decisions, at: at, firstPart: len(t.parts)}
	leases := !slices.ContainsFunc(charges, func(c backend.Charge) bool { return c.Then }) // only the wrapped Store can decide which of several alternatives is charged
	whole := true
	for i := range charges {
		var p leasePart
		if leases {
			p = s.consumePart(&charges[i], &decisions[i], now)
		}
		whole = whole && p.leased
		t.parts = append(t.parts, p)
	}
	parts := t.parts[g.firstPart:]
	if whole {
		t.parts = t.parts[:g.firstPart]
		for i := range charges {
			s.countServed(&charges[i])
		}
		return true
	}
	t.groups = append(t.groups, g)
	mayBorrow := !denialChangesGroup(charges)
	for i := range charges {
		p := &parts[i]
		ending := p.leased && !p.lastsUntil(s.config.Clock, t.outer.Deadline, now)
		if ending {
			s.putBack(&charges[i], p, &decisions[i], now)
		}
		if p.leased || !leases || !canLease(&charges[i]) {
			continue
		}
		p.hotKey, p.borrow, t.returns = s.borrow(&charges[i], ending, mayBorrow, t.returns[:0], now)
		for i := range t.returns {
			t.lastGroupNumber++
			t.add(&t.returns[i], returned)
		}
	}
	s.addCharges(t, len(t.groups)-1)
	return false
}

// lastsUntil reports whether the lease that p was charged to lasts until deadline, the latest time at which the
// wrapped Store answers. It returns false if deadline is zero, which means that there is none.
func (p *leasePart) lastsUntil(clock outside.Clock, deadline time.Time, now time.Duration) bool {
	return !deadline.IsZero() && p.from[0].grant.until >= now+outside.Until(clock, deadline)
}

func (s *LeaseStore) addCharges(t *leaseBatch, n int) {
	g := &t.groups[n]
	t.lastGroupNumber++
	for i := range g.charges {
		p := &t.parts[g.firstPart+i]
		if p.leased {
			continue
		}
		p.position = t.add(&g.charges[i], n)
		t.charges[p.position].Terms.Cost += p.borrow
	}
}

func (t *leaseBatch) submitCharges(waits bool) {
	t.answers, t.known = zeroed(t.answers, len(t.charges)), zeroed(t.known, len(t.charges))
	t.inner.Known, t.inner.OnKnown = t.known, t.onKnown
	t.submit(t.charges, t.answers, waits)
}

func (t *leaseBatch) submit(charges []backend.Charge, decisions []backend.Decision, waits bool) {
	in, b := &t.inner, t.outer
	in.Charges, in.Decisions, in.Waits = charges, decisions, waits
	in.Deadline, in.Detached, in.Source = b.Deadline, b.Detached, b.Source
	t.store.next.Submit(in)
}

// ended is the Done function of inner.
func (t *leaseBatch) ended(*backend.Batch) {
	if t.direct != nil {
		t.store.recordDecision(t)
	} else {
		t.settle()
	}
	t.finishCall()
}

// answerKnown answers the groups that the wrapped Store has decided before the end of the call.
func (t *leaseBatch) answerKnown(from, to int) {
	now := t.store.now()
	var again *leaseBatch
	for i := from; i < to; i++ {
		if t.groupOf[i] != returned && (i == from || t.groupOf[i] != t.groupOf[i-1]) {
			again = t.conclude(&t.groups[t.groupOf[i]], again, now)
		}
	}
	again.repeat()
}

// settle answers the groups that are still unknown when the call ends.
func (t *leaseBatch) settle() {
	now := t.store.now()
	var again *leaseBatch
	for n := range t.groups {
		if g := &t.groups[n]; !g.done {
			again = t.conclude(g, again, now)
		}
	}
	again.repeat()
}

// conclude answers g with the decisions of the wrapped Store. There is one exception: if the wrapped Store denied g
// although g requested units beyond its cost, g is submitted again with the cost alone. conclude then adds g to
// repetition, the call that repeats such groups. repetition is nil before the first such group. The caller must call
// repeat on the result.
//
// conclude may be called before the other groups of the batch are decided. These may need more time than g has until
// its deadline.
func (t *leaseBatch) conclude(g *leaseGroup, repetition *leaseBatch, now time.Duration) *leaseBatch {
	if t.store.settleGroup(t, g, now) {
		t.outer.SetKnown(g.at, g.at+len(g.charges))
		return repetition
	}
	g.done = true
	if repetition == nil {
		t.pending.Add(1)
		repetition = t.store.newBatch(t.outer, now)
		repetition.first = t
	}
	parts := t.parts[g.firstPart : g.firstPart+len(g.charges)]
	for i := range parts {
		if p := &parts[i]; p.borrow > 0 {
			t.store.receive(&g.charges[i], p, 0, nil, t.began, now)
		}
	}
	repetition.groups = append(repetition.groups, leaseGroup{charges: g.charges, decisions: g.decisions, at: g.at, firstPart: len(repetition.parts)})
	repetition.parts = append(repetition.parts, parts...)
	t.store.addCharges(repetition, len(repetition.groups)-1)
	return repetition
}

// repeat submits the call t, which may be nil. Batch.Waits must be false, because repeat runs in Done or OnKnown,
// which must not block.
func (t *leaseBatch) repeat() {
	if t != nil {
		t.submitCharges(false)
	}
}

// settleGroup answers g with the decisions of the wrapped Store. If the wrapped Store denied a charge that requested
// units beyond its cost, settleGroup changes nothing and returns false.
func (s *LeaseStore) settleGroup(t *leaseBatch, g *leaseGroup, now time.Duration) (done bool) {
	parts := t.parts[g.firstPart : g.firstPart+len(g.charges)]
	var failed error
	all, again := true, false
	for i := range parts {
		if p := &parts[i]; !p.leased {
			d := &t.answers[p.position]
			failed, all = d.Err, all && d.Allowed
			again = again || d.Err == nil && !d.Allowed && p.borrow > 0
		}
	}
	if again {
		return false
	}
	g.done = true
	for i := range parts {
		p, c, d := &parts[i], &g.charges[i], &g.decisions[i]
		switch {
		case p.leased && !all:
			s.putBack(c, p, d, now)
		case p.leased:
			s.countServed(c)
		default:
			t.decide(c, p, d, all, now)
		}
		if failed != nil {
			*d = backend.Decision{Err: failed}
		}
	}
	return true
}

// decide computes d, the decision on c, from the decision of the wrapped Store on the charge that was submitted for c,
// whose cost may include units to lease. groupAllowed means that the wrapped Store allowed all charges of the group.
func (t *leaseBatch) decide(c *backend.Charge, p *leasePart, d *backend.Decision, groupAllowed bool, now time.Duration) {
	answer := &t.answers[p.position]
	*d = *answer
	switch {
	case p.hotKey == nil:
	case answer.Err != nil:
		t.store.receive(c, p, 0, nil, t.began, now)
	case !groupAllowed:
		t.store.receive(c, p, 0, answer, t.began, now)
	default:
		*d = later(c, *answer, p.borrow, 0)
		t.store.receive(c, p, p.borrow, answer, t.began, now)
	}
}

// later returns d, the decision on c, changed for a bucket that has a number of extra units, and for a time that is
// delay microseconds later.
func later(c *backend.Charge, d backend.Decision, extra int64, delay algorithms.Micros) backend.Decision {
	if extra == 0 && delay == 0 {
		return d
	}
	if len(c.Shards) > 0 { // d.Value is a sum over the shards, so peekAt cannot compute from it
		d.Remaining = min(c.Limit.Capacity, d.Remaining+extra)
		d.ResetAfter = max(0, d.ResetAfter-delay)
		d.At += delay
		return d
	}
	was := d.At
	d.At += delay
	there := peekAt(c, d.Value+extra*c.Limit.Unit(), was, d.At)
	d.Value, d.Remaining, d.ResetAfter = there.Value, there.Remaining, there.ResetAfter
	return d
}
