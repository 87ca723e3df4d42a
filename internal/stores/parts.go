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
// it refunds what the others charged. So a limit never admits too much. It admits less until the refund has
// arrived. If the process dies before the refund, it admits less until as many tokens have flowed in again.
//
// Parts that contain a refund of the caller are sent after the others, because they could not be undone.
// The answer does not wait for the refunds that undo charges; these are sent through undos.
//
// number returns a number for charge i of a group: charges with equal numbers can be charged in one step.
// Groups must not have an idempotency key, and must not be a Reset.
func Parts(next backend.Store, number func(i int, c *backend.Charge) int, undos *Undos) backend.Store {
	s := &partsStore{next: next, number: number, undos: undos}
	s.takes.New = func() any {
		t := &partsTake{store: s}
		t.steps.Bind(next, t.step)
		t.steps.OnKnown(t.knows)
		return t
	}
	return s
}

type partsStore struct {
	next   backend.Store
	number func(i int, c *backend.Charge) int
	undos  *Undos
	takes  sync.Pool
}

// partsTake is a batch that is charged in parts.
type partsTake struct {
	store *partsStore
	steps Steps
	outer *backend.Batch
	parts parted
}

// Submit implements Store.
func (s *partsStore) Submit(b *backend.Batch) {
	t := s.takes.Get().(*partsTake)
	t.outer = b
	t.parts.plan(b.Charges, s.number)
	t.steps.Run(b)
}

// knows forwards the decisions of groups that next has decided before others.
func (t *partsTake) knows(from, to int) { t.parts.knows(from, to, t.outer) }

func (t *partsTake) step([]backend.Decision) ([]backend.Charge, []backend.Decision) {
	if charges, room := t.parts.next(); len(charges) > 0 {
		return charges, room
	}
	b := t.outer
	if undo := t.parts.conclude(b); len(undo) > 0 {
		t.store.undos.Submit(t.store.next, undo)
	}
	t.outer = nil
	t.parts.reset()
	t.store.takes.Put(t)
	b.Done(b)
	return nil, nil
}

// parted has groups that are split into parts. It is a state machine: it submits nothing.
type parted struct {
	charges   []backend.Charge   // the charges of the parts, one part after the other; parts that wait are last
	decisions []backend.Decision // of charges
	of        []int              // the positions of charges in the whole
	parts     []part
	groups    []partedGroup
	waiting   int // the position of the first charge that waits
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
	from, to int // in the whole
	first    int // the position of its first part; those of its parts that do not wait follow it
	parts    int
	open     atomic.Int32 // the number of parts whose decisions are not known
	refused  bool         // a part was denied or failed
	refunded bool         // a part that waited was charged
	failed   error        // the error that takes precedence
}

// plan splits charges into parts.
func (p *parted) plan(charges []backend.Charge, number func(i int, c *backend.Charge) int) {
	waits := p.split(charges, number, false)
	p.waiting = len(p.charges)
	if waits {
		p.split(charges, number, true)
	}
	p.decisions = slices.Grow(p.decisions[:0], len(p.charges))[:len(p.charges)]
	clear(p.decisions)
}

// split appends the parts that wait, or the others. It reports whether there are any that wait.
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
			if givesBack(p.charges[from:]) != waiting {
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

// next returns the charges to submit now, each part as a group, and room for their decisions. It returns
// none once all have been submitted.
func (p *parted) next() ([]backend.Charge, []backend.Decision) {
	from, to := p.sent, p.waiting
	if from >= p.waiting {
		to = len(p.charges)
		if from == p.waiting {
			p.look()
		}
	}
	p.sent = to
	return p.charges[from:to], p.decisions[from:to]
}

// look makes the waiting parts of a group dry runs if another part was refused.
func (p *parted) look() {
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

// charged reports whether a part consumed units that can be refunded.
func (p *parted) charged(part part) bool {
	for i := part.from; i < part.to; i++ {
		if p.decisions[i].Err != nil || p.charges[i].Terms.DryRun {
			return false
		}
	}
	return p.allowed(part)
}

// knows is called when the charges from index from up to, but not including, index to are decided. Once all
// parts of a group are decided, it passes the group's decisions on to whole. Groups that failed, or that have
// waiting parts, are concluded at the end.
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
// as an allowed one: if it ended as a failure at the deadline, a failure policy could allow it.
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

// pass writes the decisions of part to those of the whole. If the group is refused, they are those after the
// undo of the part.
func (p *parted) pass(part part, decisions []backend.Decision) {
	for i := part.from; i < part.to; i++ {
		decisions[p.of[i]] = p.decisions[i]
	}
	if !p.undone(part) {
		return
	}
	for i := range p.refundable(part) {
		d := &decisions[p.of[i]]
		d.Remaining = min(d.Remaining+p.charges[i].Terms.Cost, p.charges[i].Limit.Capacity)
		d.Wait = 0
	}
}

// conclude writes the decisions of whole that are not known yet. It returns the charges that undo the parts
// of refused groups. Their keys are shared with whole.
func (p *parted) conclude(whole *backend.Batch) (undo []backend.Charge) {
	for _, part := range p.parts {
		g := &p.groups[part.group]
		g.refused = g.refused || !p.allowed(part)
		g.refunded = g.refunded || part.from >= p.waiting && p.charged(part)
		for i := part.from; i < part.to; i++ {
			g.failed = Graver(g.failed, p.decisions[i].Err)
		}
	}
	for n, part := range p.parts {
		if !whole.IsKnown(p.of[part.from]) {
			p.pass(part, whole.Decisions)
		}
		if p.undone(part) {
			p.undoPart(part, n)
		}
	}
	for i := range p.groups {
		g := &p.groups[i]
		if g.failed == nil {
			continue
		}
		if errors.Is(g.failed, backend.ErrNotTaken) && g.refunded {
			g.failed = MaybeConsumed(g.failed) // an accepted refund cannot be undone safely
		}
		for i := g.from; i < g.to; i++ {
			whole.Decisions[i] = backend.Decision{Err: g.failed}
		}
	}
	return p.undo
}

// undone reports whether part must be undone: it consumed units, and its group is refused.
func (p *parted) undone(part part) bool {
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

// refundable yields the positions of the charges of an undone part that consumed units. It leaves out those
// of limits that are charged whatever the others decide.
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

// Graver returns the one of two errors that takes precedence. Either may be nil. An error takes precedence
// over nil, and any other error over ErrNotTaken: if one of two parts was never sent and the other got no
// answer, units may have been consumed.
func Graver(a, b error) error {
	if b == nil || a != nil && !errors.Is(a, backend.ErrNotTaken) {
		return a
	}
	return b
}

// MaybeConsumed converts err, an ErrNotTaken of one step, to the error of a group of which other steps
// consumed units. The result is an ErrUnavailable but not an ErrNotTaken.
func MaybeConsumed(err error) error {
	return fmt.Errorf("%w (partly: %v)", backend.ErrUnavailable, err)
} //nolint:errorlint // errors.Is must not find err
