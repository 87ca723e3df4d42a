package stores

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Parts returns a wrapper of a Router (next), for groups that the Router cannot charge in one step.
//
// The wrapper charges the parts of a group at the same time, each as its own group. If one part is denied or fails,
// it refunds what the other parts consumed. So a limit never admits too much. Until the refund arrives, the limit
// admits too little. If the process dies before the refund, the limit admits too little until as many units have
// flowed in, or until its window ends.
//
// Parts that contain a refund of the caller are sent after the other parts, because such a refund cannot be undone
// reliably. The answer does not wait for the charges that undo a part; these charges are sent through the Undos.
//
// partOf returns the number of the part to which charge i of a group belongs. The charges of one part can be charged
// in one step. Groups must not have an idempotency key, and must not be a Reset.
func Parts(next *Router, partOf func(i int, c *backend.Charge) int, undos *Undos) backend.Store {
	s := &partsStore{next: next, partOf: partOf, undos: undos}
	s.batches.New = func() any {
		t := &partsBatch{store: s, now: division{router: next}, later: division{router: next}}
		t.now.decided, t.now.done = t.decided, t.ended
		t.later.decided, t.later.done = func(*divisionPart, int, int) {}, t.conclude
		return t
	}
	return s
}

type partsStore struct {
	next    *Router
	partOf  func(i int, c *backend.Charge) int
	undos   *Undos
	batches sync.Pool
}

// partsBatch is a batch that is charged in parts. In its divisions, Charge.Group is a position in partsBatch.parts.
type partsBatch struct {
	store      *partsStore
	outer      *backend.Batch
	now, later division // later has the parts that contain a refund, now has all other parts
	parts      []part
	groups     []partedGroup
	undo       []backend.Charge
	numbers    []int // used by plan
}

func (s *partsStore) Submit(b *backend.Batch) {
	t := s.batches.Get().(*partsBatch)
	t.outer, t.now.outer, t.later.outer = b, b, b
	t.plan()
	if t.now.usedParts > 0 {
		t.now.submit()
	} else {
		t.later.submit()
	}
}

// decided handles p.inner.decisions[from:to], which are known before the batch ends. Once all parts of a group are
// decided, it passes the group's decisions on. Groups that failed, or that have parts to send later, are concluded at
// the end.
func (t *partsBatch) decided(p *divisionPart, from, to int) {
	for at := from; at < to; {
		part := &t.parts[p.inner.charges[at].Group]
		at = part.to
		if g := &t.groups[part.group]; g.undecidedParts.Add(-1) == 0 {
			t.passDecided(g)
		}
	}
}

// ended is called when the parts that are sent at once have been decided. It sends the other parts, if there are any.
func (t *partsBatch) ended() {
	if t.later.usedParts == 0 {
		t.conclude()
		return
	}
	t.peekRefused()
	t.later.submit()
}

// part has the charges of one group that are charged in one step.
type part struct {
	in       *divisionPart
	from, to int  // the charges are in.inner.charges[from:to]
	group    int  // a position in partsBatch.groups
	later    bool // in belongs to partsBatch.later
}

type partedGroup struct {
	from, to       int // the charges are partsBatch.outer.Charges[from:to]
	first          int // the position of its first part; its other parts follow
	parts          int
	undecidedParts atomic.Int32
	refused        bool  // a part was denied or failed
	refunded       bool  // a part in partsBatch.later consumed or refunded units
	failed         error // the error of a part that takes precedence (MoreSevere), or nil
}

func (t *partsBatch) plan() {
	charges := t.outer.Charges
	for at := 0; at < len(charges); {
		group := charges[at:][:backend.GroupLen(charges[at:])]
		t.groups = append(t.groups, partedGroup{from: at, to: at + len(group), first: len(t.parts)})
		t.numbers = t.numbers[:0]
		for i := range group {
			t.numbers = append(t.numbers, t.store.partOf(i, &group[i]))
		}
		for i, number := range t.numbers {
			if !slices.Contains(t.numbers[:i], number) {
				t.addPart(group, at, i)
			}
		}
		g := &t.groups[len(t.groups)-1]
		g.parts = len(t.parts) - g.first
		g.undecidedParts.Store(int32(g.parts))
		at += len(group)
	}
}

// addPart adds the part whose first charge is group[first]. group is the last one of t.groups, and at is its position
// in the whole batch.
func (t *partsBatch) addPart(group []backend.Charge, at, first int) {
	number, later, refunds := t.numbers[first], false, refundsOrResets(group)
	for i := first; i < len(group); i++ {
		later = later || t.numbers[i] == number && refundsOrResets(group[i:i+1])
	}
	d := &t.now
	if later {
		d = &t.later
	}
	in := d.part(t.store.next.find(group[first : first+1]))
	e := &in.inner
	from := len(e.charges)
	for i := first; i < len(group); i++ {
		if t.numbers[i] == number {
			e.charges, e.positions = append(e.charges, group[i]), append(e.positions, int32(at+i))
			last := &e.charges[len(e.charges)-1]
			last.Group, last.Terms.Free = len(t.parts), last.Terms.Free || refunds
		}
	}
	t.parts = append(t.parts, part{in, from, len(e.charges), len(t.groups) - 1, later})
}

// peekRefused runs before the parts that are sent later. If another part of a group was refused, peekRefused makes the
// later parts of that group dry runs.
func (t *partsBatch) peekRefused() {
	for i := range t.parts {
		if part := &t.parts[i]; !part.later {
			g := &t.groups[part.group]
			g.refused = g.refused || !part.allowed()
		}
	}
	for i := range t.parts {
		if part := &t.parts[i]; part.later && t.groups[part.group].refused {
			charges := part.charges()
			for i := range charges {
				charges[i].Terms.DryRun = true
			}
		}
	}
}

func (p *part) charges() []backend.Charge     { return p.in.inner.charges[p.from:p.to] }
func (p *part) decisions() []backend.Decision { return p.in.inner.decisions[p.from:p.to] }

func (p *part) allowed() bool { return backend.Allowed(p.charges(), p.decisions()) }

// charged reports whether p was allowed and has no dry run, so that it consumed or refunded its units.
func (p *part) charged() bool {
	charges, decisions := p.charges(), p.decisions()
	for i := range charges {
		if decisions[i].Err != nil || charges[i].Terms.DryRun {
			return false
		}
	}
	return p.allowed()
}

// passDecided passes the decisions of g on to the whole batch, unless a part failed. A denied group needs this as much
// as an allowed one: if it ended with an error at the deadline, a failure policy could allow it.
func (t *partsBatch) passDecided(g *partedGroup) {
	parts := t.parts[g.first : g.first+g.parts]
	refused := false
	for i := range parts {
		if parts[i].err() != nil {
			return
		}
		refused = refused || !parts[i].allowed()
	}
	g.refused = refused
	for i := range parts {
		t.pass(&parts[i])
	}
	t.outer.SetKnown(g.from, g.to)
}

func (p *part) err() (err error) {
	decisions := p.decisions()
	for i := range decisions {
		err = MoreSevere(err, decisions[i].Err)
	}
	return err
}

// pass copies the decisions of p to the whole batch. If p will be undone, Remaining and Wait of the copies are those
// after the undo. What stays charged, although another part denied, has its own retry time (algorithms.TakeAll).
func (t *partsBatch) pass(p *part) {
	decisions, e := t.outer.Decisions, &p.in.inner
	for i := p.from; i < p.to; i++ {
		decisions[e.positions[i]] = e.decisions[i]
	}
	if !t.mustUndo(p) {
		return
	}
	for i, units := range p.refundable() {
		d := &decisions[e.positions[i]]
		d.Remaining = min(d.Remaining+units, e.charges[i].Limit.Capacity)
		d.Wait = 0
	}
	for i := p.from; i < p.to; i++ {
		if d, c := &decisions[e.positions[i]], &e.charges[i]; d.Allowed && c.ChargesDenied() {
			d.RetryAfter = allowedAfter(c, d)
		}
	}
}

// conclude ends the batch. It writes all decisions that are not known yet, and undoes the consumption of
// refused groups.
func (t *partsBatch) conclude() {
	b := t.outer
	for i := range t.parts {
		part := &t.parts[i]
		g := &t.groups[part.group]
		g.refused = g.refused || !part.allowed()
		g.refunded = g.refunded || part.later && part.charged()
		g.failed = MoreSevere(g.failed, part.err())
	}
	for i := range t.parts {
		part := &t.parts[i]
		if !b.IsKnown(int(part.in.inner.positions[part.from])) {
			t.pass(part)
		}
		if t.mustUndo(part) {
			t.undoPart(part, i)
		}
	}
	for i := range t.groups {
		t.fail(&t.groups[i])
	}
	if len(t.undo) > 0 {
		t.store.undos.Submit(t.store.next, t.undo)
	}
	t.reset()
	t.store.batches.Put(t)
	b.Done(b)
}

func (t *partsBatch) fail(g *partedGroup) {
	if g.failed == nil {
		return
	}
	if errors.Is(g.failed, backend.ErrNotTaken) && g.refunded {
		g.failed = MaybeConsumed(g.failed) // another part made a refund; its undo is a charge, which may be denied or consume units of other requests
	}
	for i := g.from; i < g.to; i++ {
		t.outer.Decisions[i] = backend.Decision{Err: g.failed}
	}
}

func (t *partsBatch) mustUndo(p *part) bool {
	g := &t.groups[p.group]
	return g.parts > 1 && g.refused && p.charged()
}

func (t *partsBatch) undoPart(p *part, n int) {
	for i, units := range p.refundable() {
		c := p.in.inner.charges[i]
		if slot := c.Terms.Slot; slot != nil {
			c.Terms = algorithms.Charge{Cost: units, Slot: &algorithms.Slot{ID: slot.ID, Part: slot.Part, Op: algorithms.ReturnSlot}}
		} else {
			c.Terms = algorithms.Charge{Cost: -units, Scaled: c.Terms.Scaled, Hash: c.Terms.Hash, ChargedAt: p.in.inner.decisions[i].At, Open: c.Terms.Open}
		}
		c.Group, c.Canceled, c.Then, c.Own = n, nil, false, nil
		t.undo = append(t.undo, c)
	}
}

// refundable yields the positions in p.in of the charges of p that consumed units, and these units, for the undo. It
// leaves out what is charged even if the group is denied.
func (p *part) refundable() iter.Seq2[int, int64] {
	return func(yield func(int, int64) bool) {
		e := &p.in.inner
		for at, size := p.from, 0; at < p.to; at += size {
			size = backend.Alternatives(e.charges[at:p.to])
			one, decisions := e.charges[at:at+size], e.decisions[at:at+size]
			from, to := backend.Paid(one, decisions)
			for i := from; i < to; i++ {
				if units := backend.Cost(one, decisions, i); units != 0 && !one[i].ChargesDenied() && !yield(at+i, units) {
					return
				}
			}
		}
	}
}

func (t *partsBatch) reset() {
	t.now.reset()
	t.later.reset()
	clear(t.undo) // so that limits of an old configuration can be garbage-collected
	t.outer, t.parts, t.groups, t.undo = nil, t.parts[:0], t.groups[:0], t.undo[:0]
}

// MoreSevere returns the error that takes precedence; a and b may be nil. An error takes precedence over nil,
// and any other error over ErrNotTaken. If one of two parts was never sent and the other one got no answer,
// units may have been consumed.
func MoreSevere(a, b error) error {
	if b == nil || a != nil && !errors.Is(a, backend.ErrNotTaken) {
		return a
	}
	return b
}

// MaybeConsumed converts err to the error of a whole group. err is the ErrNotTaken of one step, and other
// steps of the group consumed units. So the result is an ErrUnavailable, but not an ErrNotTaken.
func MaybeConsumed(err error) error {
	return fmt.Errorf("%w (partly: %v)", backend.ErrUnavailable, err) //nolint:errorlint // errors.Is must not find err
}
