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

// Parts returns a Store for groups that next cannot charge in one step.
//
// It charges the parts of a group at the same time, each as its own group. If one part is denied or fails,
// Parts refunds what the other parts consumed. So a limit never admits too much. Until the refund arrives,
// the limit admits too little. If the process dies before the refund, the limit admits too little until as
// many tokens have flowed in again.
//
// Parts that contain a refund of the caller are sent after the other parts, because such a refund could not
// be undone. The answer does not wait for the refunds that undo charges; these are sent through undos.
//
// number returns a number for charge i of a group: charges with equal numbers can be charged in one step.
// Groups must not have an idempotency key, and must not be a Reset.
func Parts(next backend.Store, number func(i int, c *backend.Charge) int, undos *Undos) backend.Store {
	s := &partsStore{next: next, number: number, undos: undos}
	s.batches.New = func() any {
		t := &partsBatch{store: s}
		t.steps.Bind(next, t.step)
		t.steps.OnKnown(t.knows)
		return t
	}
	return s
}

type partsStore struct {
	next    backend.Store
	number  func(i int, c *backend.Charge) int
	undos   *Undos
	batches sync.Pool
}

// partsBatch is a batch that is charged in parts.
type partsBatch struct {
	store *partsStore
	steps Steps
	outer *backend.Batch
	parts parted
}

// Submit implements Store.
func (s *partsStore) Submit(b *backend.Batch) {
	t := s.batches.Get().(*partsBatch)
	t.outer = b
	t.parts.plan(b.Charges, s.number)
	t.steps.Run(b)
}

// knows forwards the decisions of groups that next has decided before the other groups.
func (t *partsBatch) knows(from, to int) { t.parts.knows(from, to, t.outer) }

func (t *partsBatch) step([]backend.Decision) ([]backend.Charge, []backend.Decision) {
	if charges, room := t.parts.next(); len(charges) > 0 {
		return charges, room
	}
	b := t.outer
	if undo := t.parts.conclude(b); len(undo) > 0 {
		t.store.undos.Submit(t.store.next, undo)
	}
	t.outer = nil
	t.parts.reset()
	t.store.batches.Put(t)
	b.Done(b)
	return nil, nil
}

// parted has groups that are split into parts. It is a state machine: it returns charges, but submits none.
type parted struct {
	charges   []backend.Charge   // the charges of the parts, one part after the other; the parts that are sent later come last
	decisions []backend.Decision // of charges
	of        []int              // the positions of charges in the whole batch
	parts     []part
	groups    []partedGroup
	waiting   int // the position of the first charge that is sent later
	sent      int // the number of charges returned by next
	undo      []backend.Charge
	numbers   []int // used by split
}

// part has the charges of one group that are charged in one step.
type part struct {
	from, to int // in charges
	group    int // in groups
}

// partedGroup is the state of one group.
type partedGroup struct {
	from, to int // positions in the whole batch
	first    int // the position of its first part; its other parts that are sent at once follow
	parts    int
	open     atomic.Int32 // the number of parts whose decisions are not known
	refused  bool         // a part was denied or failed
	refunded bool         // a part that was sent later consumed or refunded units
	failed   error        // the error that takes precedence
}

// plan splits charges into parts. number is the one of Parts.
func (p *parted) plan(charges []backend.Charge, number func(i int, c *backend.Charge) int) {
	waits := p.split(charges, number, false)
	p.waiting = len(p.charges)
	if waits {
		p.split(charges, number, true)
	}
	p.decisions = slices.Grow(p.decisions[:0], len(p.charges))[:len(p.charges)]
	clear(p.decisions)
}

// split appends the parts that are sent later (waiting), or the other parts. It reports whether it left out
// any parts that are sent later.
func (p *parted) split(charges []backend.Charge, number func(i int, c *backend.Charge) int, waiting bool) (waits bool) {
	for at, g := 0, 0; at < len(charges); g++ {
		group := charges[at:][:backend.GroupLen(charges[at:])]
		if !waiting {
			p.groups = append(p.groups, partedGroup{from: at, to: at + len(group), first: len(p.parts)})
		}
		p.numbers = p.numbers[:0]
		for i := range group {
			p.numbers = append(p.numbers, number(i, &group[i]))
		}
		for i := range group {
			if slices.Contains(p.numbers[:i], p.numbers[i]) {
				continue
			}
			from := len(p.charges)
			for j := i; j < len(group); j++ {
				if p.numbers[j] == p.numbers[i] {
					p.charges, p.of = append(p.charges, group[j]), append(p.of, at+j)
					p.charges[len(p.charges)-1].Group = len(p.parts)
				}
			}
			if refundsAny(p.charges[from:]) != waiting {
				waits = true
				p.charges, p.of = p.charges[:from], p.of[:from]
				continue
			}
			p.parts = append(p.parts, part{from, len(p.charges), g})
			p.groups[g].parts++
			p.groups[g].open.Add(1)
		}
		at += len(group)
	}
	return waits
}

// next returns the charges to submit now, each part as a group, and room for their decisions. After the last
// charges it returns none.
func (p *parted) next() ([]backend.Charge, []backend.Decision) {
	from, to := p.sent, p.waiting
	if from >= p.waiting {
		to = len(p.charges)
		if from == p.waiting {
			p.peekRefused()
		}
	}
	p.sent = to
	return p.charges[from:to], p.decisions[from:to]
}

// peekRefused runs before the parts that are sent later. If another part of their group was refused, it makes
// them dry runs.
func (p *parted) peekRefused() {
	if p.waiting == len(p.charges) {
		return
	}
	for _, part := range p.parts {
		g := &p.groups[part.group]
		if part.from < p.waiting {
			g.refused = g.refused || !p.allowed(part)
			continue
		}
		for i := part.from; i < part.to && g.refused; i++ {
			p.charges[i].Terms.DryRun = true
		}
	}
}

func (p *parted) allowed(part part) bool {
	return backend.Allowed(p.charges[part.from:part.to], p.decisions[part.from:part.to])
}

// charged reports whether part consumed or refunded units.
func (p *parted) charged(part part) bool {
	for i := part.from; i < part.to; i++ {
		if p.decisions[i].Err != nil || p.charges[i].Terms.DryRun {
			return false
		}
	}
	return p.allowed(part)
}

// knows handles the decisions on the charges from from to to, where to is one behind the last. Once all parts
// of a group are decided, it passes the group's decisions on to whole. Groups that failed, or that have parts
// to send later, are concluded at the end.
func (p *parted) knows(from, to int, whole *backend.Batch) {
	for at := from; at < to && p.sent == p.waiting; {
		part := p.parts[p.charges[at].Group]
		at = part.to
		if g := &p.groups[part.group]; g.open.Add(-1) == 0 {
			p.passDecided(g, whole)
		}
	}
}

// passDecided passes the decisions of g on to whole, unless a part failed. A denied group needs this as much
// as an allowed one: if it ended with an error at the deadline, a failure policy could allow it.
func (p *parted) passDecided(g *partedGroup, whole *backend.Batch) {
	parts := p.parts[g.first : g.first+g.parts]
	refused := false
	for _, part := range parts {
		for i := part.from; i < part.to; i++ {
			if p.decisions[i].Err != nil {
				return
			}
		}
		refused = refused || !p.allowed(part)
	}
	g.refused = refused
	for _, part := range parts {
		p.pass(part, whole.Decisions)
	}
	whole.SetKnown(g.from, g.to)
}

// pass copies the decisions of part to decisions, which belong to the whole batch. If part will be undone,
// the copies describe the buckets after the undo.
func (p *parted) pass(part part, decisions []backend.Decision) {
	for i := part.from; i < part.to; i++ {
		decisions[p.of[i]] = p.decisions[i]
	}
	if !p.mustUndo(part) {
		return
	}
	for i := range p.refundable(part) {
		d := &decisions[p.of[i]]
		d.Remaining = min(d.Remaining+p.charges[i].Terms.Cost, p.charges[i].Limit.Capacity)
		d.Wait = 0
	}
}

// conclude writes all decisions of whole that are not known yet. It returns the charges that undo the
// consumption of refused groups. Their keys share memory with whole.
func (p *parted) conclude(whole *backend.Batch) (undo []backend.Charge) {
	for _, part := range p.parts {
		g := &p.groups[part.group]
		g.refused = g.refused || !p.allowed(part)
		g.refunded = g.refunded || part.from >= p.waiting && p.charged(part)
		for i := part.from; i < part.to; i++ {
			g.failed = MoreSevere(g.failed, p.decisions[i].Err)
		}
	}
	for n, part := range p.parts {
		if !whole.IsKnown(p.of[part.from]) {
			p.pass(part, whole.Decisions)
		}
		if p.mustUndo(part) {
			p.undoPart(part, n)
		}
	}
	for i := range p.groups {
		g := &p.groups[i]
		if g.failed == nil {
			continue
		}
		if errors.Is(g.failed, backend.ErrNotTaken) && g.refunded {
			g.failed = MaybeConsumed(g.failed) // a refund was accepted, and undoing it could consume units of others
		}
		for i := g.from; i < g.to; i++ {
			whole.Decisions[i] = backend.Decision{Err: g.failed}
		}
	}
	return p.undo
}

// mustUndo reports whether part must be undone: it consumed units, and its group is refused.
func (p *parted) mustUndo(part part) bool {
	g := &p.groups[part.group]
	return g.parts > 1 && g.refused && p.charged(part)
}

// undoPart appends the charges that undo part n.
func (p *parted) undoPart(part part, n int) {
	for i := range p.refundable(part) {
		c := p.charges[i]
		c.Terms = algorithms.Charge{Cost: -c.Terms.Cost, Hash: c.Terms.Hash, ChargedAt: p.decisions[i].At}
		c.Group, c.Canceled, c.Then = n, nil, false
		p.undo = append(p.undo, c)
	}
}

// refundable yields the positions of the charges of part that consumed units, for the undo. It leaves out
// charges of limits that charge denied requests.
func (p *parted) refundable(part part) iter.Seq[int] {
	return func(yield func(int) bool) {
		for at, size := part.from, 0; at < part.to; at += size {
			size = backend.Alternatives(p.charges[at:part.to])
			from, to := backend.Paid(p.decisions[at : at+size])
			for i := at + from; i < at+to; i++ {
				if !p.charges[i].Limit.ChargesDenied() && !yield(i) {
					return
				}
			}
		}
	}
}

// reset empties p for another use.
func (p *parted) reset() {
	clear(p.charges) // so that limits of an old configuration can be garbage-collected
	clear(p.undo)
	p.charges, p.of, p.parts, p.groups, p.undo = p.charges[:0], p.of[:0], p.parts[:0], p.groups[:0], p.undo[:0]
	p.sent = 0
}

// MoreSevere returns the error that takes precedence; a and b may be nil. An error takes precedence over nil,
// and any other error over ErrNotTaken. For if one of two parts was never sent and the other one got no
// answer, units may have been consumed.
func MoreSevere(a, b error) error {
	if b == nil || a != nil && !errors.Is(a, backend.ErrNotTaken) {
		return a
	}
	return b
}

// MaybeConsumed converts err to the error of a whole group. err is the ErrNotTaken of one step, and other
// steps of the group consumed units. So the result is an ErrUnavailable, but not an ErrNotTaken.
func MaybeConsumed(err error) error {
	return fmt.Errorf("%w (partly: %v)", backend.ErrUnavailable, err)
} //nolint:errorlint // errors.Is must not find err
