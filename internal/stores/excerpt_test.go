package stores_test

import (
	"sync/atomic"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The caller may use a decision from the moment at which it is known. So it must not be written again, even
// if its part of the batch ends last.
func TestAKnownDecisionIsNotWrittenAgain(t *testing.T) {
	a, b := &pendingStore{}, &pendingStore{}
	charges := []backend.Charge{of(nil, "a1", 1), of(nil, "b1", 1), of(nil, "b2", 1)}
	charges[1].Group, charges[2].Group = 1, 2
	outer := backend.Batch{
		Charges: charges, Decisions: make([]backend.Decision, 3), Known: make([]atomic.Bool, 3), Done: func(*backend.Batch) {},
	}
	byFirstByte(a, b).Submit(&outer)
	first, last := a.remove(0), b.remove(0)
	first.Done(first)
	last.Decisions[0].Remaining = 7
	last.SetKnown(0, 1)
	if !outer.IsKnown(1) || outer.Decisions[1].Remaining != 7 {
		t.Fatalf("before the end: %+v; want outer.IsKnown(1) true and 7 remaining", outer.Decisions)
	}
	outer.Decisions[1].Remaining = 6 // the caller overwrites its decision
	last.Decisions[1].Remaining = 5
	last.Done(last)
	if outer.Decisions[1].Remaining != 6 || outer.Decisions[2].Remaining != 5 {
		t.Errorf("at the end: %+v; want outer.Decisions[1].Remaining 6 and outer.Decisions[2].Remaining 5", outer.Decisions)
	}
}
