package backend

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Parts makes a Store of groups that next cannot take in one step: it takes the parts of each at once, each as a
// group of its own, and where one denies or fails, refunds what the others charged. So it is never over a limit, and
// under it only until the refund has arrived; a process that dies in between leaves it under until the
// tokens have flowed in again.
//
// Parts with a refund wait for the others: undoing them could fail. Refunds of what was charged go by undos: the
// answer does not wait for them.
//
// number returns a number for charge i of a group: those with equal numbers can be taken in one step. A group must not be
// taken once (Charge.Once), nor be a Reset.
func Parts(next Store, number func(i int, c *Charge) int, undos *Undos) Store {
	s := &partsStore{next: next, number: number, undos: undos}
	s.takes.New = func() any {
		t := &partsTake{store: s}
		t.steps.Bind(next, t.step)
		return t
	}
	return s
}

type partsStore struct {
	next   Store
	number func(i int, c *Charge) int
	undos  *Undos
	takes  sync.Pool
}

// partsTake is a batch that is taken by parts.
type partsTake struct {
	store *partsStore
	steps Steps
	outer *Batch
	parts parted
}

// Submit implements Store.
func (s *partsStore) Submit(b *Batch) {
	t := s.takes.Get().(*partsTake)
	t.outer = b
	t.parts.plan(b.Charges, s.number)
	t.steps.Run(b)
}

func (t *partsTake) step([]Decision) ([]Charge, []Decision) {
	if charges, room := t.parts.next(); len(charges) > 0 {
		return charges, room
	}
	b := t.outer
	if undo := t.parts.conclude(b.Decisions); len(undo) > 0 {
		t.store.undos.Submit(t.store.next, undo)
	}
	t.outer = nil
	t.parts.reset()
	t.store.takes.Put(t)
	b.Done(b)
	return nil, nil
}

// parted is groups that are taken by parts, without the taking.
type parted struct {
	charges   []Charge   // of the parts, one after the other; first those of the parts that do not wait
	decisions []Decision // of charges
	of        []int      // the numbers of charges in the whole
	parts     []part
	groups    []partedGroup
	waiting   int // the number of the first charge that waits
	sent      int // how many charges were returned by next
	undo      []Charge
	numbers   []int // used by split
}

// part is charges of one group that are taken in one step.
type part struct {
	from, to int // in charges
	group    int // in groups
}

// partedGroup is what is known of one group.
type partedGroup struct {
	from, to int // in the whole
	parts    int
	refused  bool  // a part denied or failed
	refunded bool  // a part that waited was taken
	failed   error // the gravest
}

// plan splits charges into parts.
func (p *parted) plan(charges []Charge, number func(i int, c *Charge) int) {
	waits := p.split(charges, number, false)
	p.waiting = len(p.charges)
	if waits {
		p.split(charges, number, true)
	}
	p.decisions = slices.Grow(p.decisions[:0], len(p.charges))[:len(p.charges)]
	clear(p.decisions)
}

// split appends the parts that wait, or the others. It reports whether there are any that wait.
func (p *parted) split(charges []Charge, number func(i int, c *Charge) int, waiting bool) (waits bool) {
	for at, g := 0, 0; at < len(charges); g++ {
		group := charges[at:][:GroupLen(charges[at:])]
		if !waiting {
			p.groups = append(p.groups, partedGroup{from: at, to: at + len(group)})
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
		}
		at += len(group)
	}
	return waits
}

// next returns the charges to be taken now, each part as a group, and room for their decisions; none: all are taken.
func (p *parted) next() ([]Charge, []Decision) {
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

// look makes what waits for the others of a group mere looks where one of them was refused.
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
			p.charges[i].Ask.Look = true
		}
	}
}

func (p *parted) allowed(part part) bool {
	for i := part.from; i < part.to; i++ {
		if !p.decisions[i].Allowed {
			return false
		}
	}
	return true
}

// charged reports whether a part took something that can be undone.
func (p *parted) charged(part part) bool {
	for i := part.from; i < part.to; i++ {
		if d := &p.decisions[i]; d.Err != nil || !d.Allowed || p.charges[i].Ask.Look {
			return false
		}
	}
	return true
}

// conclude writes the decisions of the whole, and returns the charges that undo what was charged in vain. Their
// keys are those of the whole.
func (p *parted) conclude(decisions []Decision) (undo []Charge) {
	for _, part := range p.parts {
		g := &p.groups[part.group]
		g.refused = g.refused || !p.allowed(part)
		g.refunded = g.refunded || part.from >= p.waiting && p.charged(part)
		for i := part.from; i < part.to; i++ {
			decisions[p.of[i]] = p.decisions[i]
			g.failed = Graver(g.failed, p.decisions[i].Err)
		}
	}
	for n, part := range p.parts {
		if g := &p.groups[part.group]; g.parts > 1 && g.refused && p.charged(part) {
			p.undoPart(part, n, decisions)
		}
	}
	for i := range p.groups {
		g := &p.groups[i]
		if g.failed == nil {
			continue
		}
		if errors.Is(g.failed, ErrNotTaken) && g.refunded {
			g.failed = MaybeTaken(g.failed) // undoing a refund can fail
		}
		for i := g.from; i < g.to; i++ {
			decisions[i] = Decision{Err: g.failed}
		}
	}
	return p.undo
}

// undoPart appends what undoes part n to the undo charges, and tells so in the decisions of the whole.
func (p *parted) undoPart(part part, n int, decisions []Decision) {
	for i := part.from; i < part.to; i++ {
		c := p.charges[i]
		if c.Limit.ChargesDenied() { // it pays whatever the others say
			continue
		}
		d := &decisions[p.of[i]]
		d.Remaining = min(d.Remaining+c.Ask.Cost, c.Limit.Capacity)
		d.Wait = 0
		c.Ask = algorithms.Ask{Cost: -c.Ask.Cost, Hash: c.Ask.Hash, Of: p.decisions[i].At}
		c.Group, c.Canceled = n, nil
		p.undo = append(p.undo, c)
	}
}

// reset empties p for another use.
func (p *parted) reset() {
	clear(p.charges) // limits of a configuration that is gone are not kept alive
	clear(p.undo)
	p.charges, p.of, p.parts, p.groups, p.undo = p.charges[:0], p.of[:0], p.parts[:0], p.groups[:0], p.undo[:0]
	p.sent = 0
}

// Graver returns the one of two errors, either may be nil, that says less of what was consumed: any
// error takes precedence over nil and over ErrNotTaken. Of two parts of which one was never sent and
// the other got no answer, the whole may have been consumed.
func Graver(a, b error) error {
	if b == nil || a != nil && !errors.Is(a, ErrNotTaken) {
		return a
	}
	return b
}

// MaybeTaken is err, an ErrNotTaken of one step, for the several steps of a group of which others
// consumed something: an ErrUnavailable that is no ErrNotTaken.
func MaybeTaken(err error) error { return fmt.Errorf("%w (partly: %v)", ErrUnavailable, err) } //nolint:errorlint // it must not be found
