package backend_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func decided(allowed ...bool) []backend.Decision {
	decisions := make([]backend.Decision, len(allowed))
	for i := range allowed {
		decisions[i].Allowed = allowed[i]
	}
	return decisions
}

// Either all charges with Then are consumed, or only the last one.
func TestPaid(t *testing.T) {
	for _, test := range []struct {
		decisions []backend.Decision
		from, to  int
	}{
		{decided(true), 0, 1},
		{decided(false), 0, 0},
		{decided(true, false), 0, 1},
		{decided(false, true), 1, 2},
		{decided(true, true, false), 0, 2},
		{decided(true, false, true), 2, 3},
		{decided(true, false, false), 0, 0},
	} {
		if from, to := backend.Paid(test.decisions); from != test.from || to != test.to {
			t.Errorf("%+v: charges %d to %d were consumed, want %d to %d", test.decisions, from, to, test.from, test.to)
		}
	}
}

// A Store keeps the decisions of a group that may have consumed units, and of no other.
func TestConsumedAny(t *testing.T) {
	usual, overdraw := &algorithms.Limit{}, &algorithms.Limit{Overdraw: true}
	charge := func(l *algorithms.Limit, cost int64, dryRun bool) backend.Charge {
		return backend.Charge{Limit: l, Terms: algorithms.Charge{Cost: cost, DryRun: dryRun}}
	}
	for name, test := range map[string]struct {
		charges   []backend.Charge
		decisions []backend.Decision
		want      bool
	}{
		"allowed":                         {[]backend.Charge{charge(usual, 1, false)}, decided(true), true},
		"denied":                          {[]backend.Charge{charge(usual, 1, false)}, decided(false), false},
		"a dry run":                       {[]backend.Charge{charge(usual, 1, true)}, decided(true), false},
		"one of two denies":               {[]backend.Charge{charge(usual, 1, false), charge(usual, 1, false)}, decided(true, false), false},
		"denied and charged":              {[]backend.Charge{charge(usual, 1, false), charge(overdraw, 1, false)}, decided(true, false), true},
		"a dry run of a limit that would": {[]backend.Charge{charge(overdraw, 1, true)}, decided(false), false},
		"a denied refund":                 {[]backend.Charge{charge(usual, 1, false), charge(overdraw, -1, false)}, decided(false, true), false},
		"a failure":                       {[]backend.Charge{charge(overdraw, 1, false)}, []backend.Decision{{Err: errors.New("test")}}, false},
	} {
		if got := backend.ConsumedAny(test.charges, test.decisions); got != test.want {
			t.Errorf("%s: consumed %v, want %v", name, got, test.want)
		}
	}
}

// Decisions that are known stay as they are. OnKnown may read them.
func TestKnownDecisionsAreFinal(t *testing.T) {
	failure := errors.New("test")
	b := &backend.Batch{Charges: make([]backend.Charge, 3), Decisions: decided(true, true, true), Known: make([]atomic.Bool, 3), Done: func(*backend.Batch) {}}
	b.OnKnown = func(from, to int) {
		if from != 1 || to != 2 || !b.IsKnown(1) || b.IsKnown(0) || b.IsKnown(2) {
			t.Errorf("decisions %d to %d are known: %v, %v, %v; want only 1", from, to, b.IsKnown(0), b.IsKnown(1), b.IsKnown(2))
		}
	}
	b.SetKnown(1, 2)
	b.Fail(failure)
	for i, want := range []error{failure, nil, failure} {
		if d := b.Decisions[i]; !errors.Is(d.Err, want) || d.Allowed != (want == nil) {
			t.Errorf("decision %d: got %+v, want the error %v", i, d, want)
		}
	}
}
