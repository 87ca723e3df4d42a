package stores

import (
	"iter"
	"slices"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// excerpt is a copy of some groups of a batch, which are submitted separately. Its slices are reused.
type excerpt struct {
	charges   []backend.Charge
	decisions []backend.Decision
	known     []atomic.Bool
	positions []int32 // the positions of the charges in the whole batch
}

// add appends one or more adjacent groups of the whole batch. position is the position of their first charge there.
func (e *excerpt) add(charges []backend.Charge, position int) {
	from, group := len(e.charges), position
	e.charges = append(e.charges, charges...)
	for i := range charges {
		if i > 0 && charges[i].Group != charges[i-1].Group {
			group = position + i
		}
		e.charges[from+i].Group = group // unique, because groups that were not adjacent in the whole batch may have equal numbers
		e.positions = append(e.positions, int32(position+i))
	}
}

func (e *excerpt) prepare() {
	e.decisions, e.known = zeroed(e.decisions, len(e.charges)), zeroed(e.known, len(e.charges))
}

// pass copies e.decisions[from:to], which belong to whole groups, to the whole batch, and marks them there as known.
// It does not overwrite known decisions.
func (e *excerpt) pass(whole *backend.Batch, from, to int) {
	for from < to {
		n, at := backend.GroupLen(e.charges[from:to]), int(e.positions[from])
		if !whole.IsKnown(at) {
			copy(whole.Decisions[at:at+n], e.decisions[from:from+n])
			whole.SetKnown(at, at+n)
		}
		from += n
	}
}

// fill copies e.decisions[from:to], if they are not known in the whole batch. It does not mark them as known, because
// the whole batch ends now.
func (e *excerpt) fill(whole *backend.Batch, from, to int) {
	for i := from; i < to; i++ {
		if at := int(e.positions[i]); !whole.IsKnown(at) {
			whole.Decisions[at] = e.decisions[i]
		}
	}
}

// groups yields the position of the first charge of each group, and the one behind its last charge.
func (e *excerpt) groups() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for from := 0; from < len(e.charges); {
			to := from + backend.GroupLen(e.charges[from:])
			if !yield(from, to) {
				return
			}
			from = to
		}
	}
}

// markOthers marks the decisions of the groups that are not in e as known.
func (e *excerpt) markOthers(whole *backend.Batch) {
	from := 0
	for _, position := range e.positions {
		if to := int(position); from < to {
			whole.SetKnown(from, to)
		}
		from = int(position) + 1
	}
	if from < len(whole.Charges) {
		whole.SetKnown(from, len(whole.Charges))
	}
}

func (e *excerpt) reset() {
	clear(e.charges) // so that limits of an old configuration can be garbage-collected
	e.charges, e.positions = e.charges[:0], e.positions[:0]
}

func zeroed[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
