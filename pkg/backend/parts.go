package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Part is the charges of one group that can be taken in one step.
type Part struct {
	Of        []int // their numbers in the group
	Charges   []Charge
	Decisions []Decision
	// Take takes charges of this part: these, and later the undoing of them.
	Take func(ctx context.Context, charges []Charge, decisions []Decision)
}

// Add adds charge number i of the group.
func (p *Part) Add(i int, charge Charge) {
	p.Of = append(p.Of, i)
	p.Charges = append(p.Charges, charge)
}

// TakeParts takes a group that cannot be taken in one step: all its parts at once, and where one
// denies or fails, what the others charged is given back. So it is never over a limit, and under it
// only until the give-back has arrived; a process that dies in between leaves it under until the
// tokens have flowed in again.
//
// Parts that give something back themselves wait for the others: undoing them could fail. What is
// given back goes by background: the answer does not wait for it, and a caller that leaves does not
// stop it.
func TakeParts(ctx context.Context, parts []*Part, decisions []Decision, background *Background) {
	for _, p := range parts {
		p.Decisions = make([]Decision, len(p.Charges))
	}
	first, later := parts, []*Part(nil)
	if slices.ContainsFunc(parts, (*Part).givesBack) {
		first = slices.DeleteFunc(slices.Clone(parts), (*Part).givesBack)
		later = slices.DeleteFunc(slices.Clone(parts), func(p *Part) bool { return !p.givesBack() })
	}
	takeAtOnce(ctx, first)
	all := allowed(first)
	if !all {
		for _, p := range later {
			p.look()
		}
	}
	takeAtOnce(ctx, later)
	all = all && allowed(later)
	var failed error
	for _, p := range parts {
		for n, i := range p.Of {
			decisions[i] = p.Decisions[n]
			failed = Graver(failed, p.Decisions[n].Err)
		}
	}
	if errors.Is(failed, ErrNotTaken) && slices.ContainsFunc(later, (*Part).charged) {
		failed = MaybeTaken(failed) // undoing a refund can fail
	}
	if len(parts) > 1 && !all {
		giveBack(parts, decisions, background)
	}
	if failed != nil {
		for i := range decisions {
			decisions[i] = Decision{Err: failed}
		}
	}
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

// takeAtOnce takes parts at the same time.
func takeAtOnce(ctx context.Context, parts []*Part) {
	if len(parts) == 0 {
		return
	}
	var wg sync.WaitGroup
	for _, p := range parts[1:] {
		wg.Go(func() { p.Take(ctx, p.Charges, p.Decisions) })
	}
	parts[0].Take(ctx, parts[0].Charges, parts[0].Decisions)
	wg.Wait()
}

func allowed(parts []*Part) bool {
	for _, p := range parts {
		for i := range p.Decisions {
			if !p.Decisions[i].Allowed {
				return false
			}
		}
	}
	return true
}

func (p *Part) givesBack() bool { return givesBack(p.Charges) }

// look makes p's charges mere looks.
func (p *Part) look() {
	for i := range p.Charges {
		p.Charges[i].Ask.Look = true
	}
}

// giveBack undoes what parts charged.
func giveBack(parts []*Part, decisions []Decision, background *Background) {
	for _, p := range parts {
		if !p.charged() {
			continue
		}
		undo := make([]Charge, 0, len(p.Charges))
		for i, charge := range p.Charges {
			d := &p.Decisions[i]
			if charge.Limit.ChargesDenied() { // it pays whatever the others say
				continue
			}
			charge.Key = append([]byte(nil), charge.Key...)
			charge.Ask = algorithms.Ask{Cost: -charge.Ask.Cost, Hash: charge.Ask.Hash, Of: d.At}
			undo = append(undo, charge)
			there := &decisions[p.Of[i]]
			there.Remaining = min(there.Remaining-charge.Ask.Cost, charge.Limit.Capacity)
			there.Wait = 0
		}
		if len(undo) > 0 {
			background.Do(func(ctx context.Context) { p.Take(ctx, undo, make([]Decision, len(undo))) })
		}
	}
}

// charged tells whether p took something that can be undone.
func (p *Part) charged() bool {
	for i := range p.Charges {
		d, ask := &p.Decisions[i], &p.Charges[i].Ask
		if d.Err != nil || !d.Allowed || ask.Look {
			return false
		}
	}
	return true
}
