package backend_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
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

// Either all charges with Then are consumed, with the Own of the last one, or only the last one, or none.
func TestPaid(t *testing.T) {
	for _, test := range []struct {
		own       bool
		decisions []backend.Decision
		from, to  int
		units     int64 // of the last charge
	}{
		{false, decided(true), 0, 1, 7},
		{false, decided(false), 0, 0, 7},
		{false, decided(true, false), 0, 1, 7},
		{false, decided(false, true), 1, 2, 7},
		{false, decided(true, true, false), 0, 2, 7},
		{false, decided(true, false, true), 2, 3, 7},
		{false, decided(true, false, false), 0, 0, 7},
		{true, decided(true, true, true), 0, 3, 2},
		{true, decided(true, true, false), 0, 0, 2},
		{true, decided(true, false, true), 2, 3, 7},
		{true, decided(false, false), 0, 0, 7},
	} {
		one := make([]backend.Charge, len(test.decisions))
		last := len(one) - 1
		one[last].Terms.Cost = 7
		if test.own {
			one[last].Own = &algorithms.Own{Cost: 2}
		}
		from, to := backend.Paid(one, test.decisions)
		if units := backend.Cost(one, test.decisions, last); from != test.from || to != test.to || units != test.units {
			t.Errorf("%+v: charges %d to %d were consumed, of the last one %d, want %d to %d, and %d", test.decisions, from, to, units, test.from, test.to, test.units)
		}
	}
}

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
		"allowed":                        {[]backend.Charge{charge(usual, 1, false)}, decided(true), true},
		"denied":                         {[]backend.Charge{charge(usual, 1, false)}, decided(false), false},
		"the alternative was not needed": {[]backend.Charge{{Limit: usual, Then: true}, charge(usual, 1, false)}, decided(true, false), true},
		"a dry run":                      {[]backend.Charge{charge(usual, 1, true)}, decided(true), false},
		"one of two denies":              {[]backend.Charge{charge(usual, 1, false), charge(usual, 1, false)}, decided(true, false), false},
		"denied and charged":             {[]backend.Charge{charge(usual, 1, false), charge(overdraw, 1, false)}, decided(true, false), true},
		"a dry run of a limit that charges denials": {[]backend.Charge{charge(overdraw, 1, true)}, decided(false), false},
		"a denied refund":        {[]backend.Charge{charge(usual, 1, false), charge(overdraw, -1, false)}, decided(false, true), false},
		"denied beside a refund": {[]backend.Charge{charge(usual, -1, false), charge(overdraw, 1, false)}, decided(true, false), false},
		"denied beside a refund of the last of a row": {
			[]backend.Charge{{Limit: usual, Then: true}, {Limit: usual, Own: &algorithms.Own{Cost: -1}}, charge(overdraw, 1, false)}, decided(true, true, false), false,
		},
		"a denied reservation":              {[]backend.Charge{{Limit: overdraw, Terms: algorithms.Charge{Cost: 1, Reserve: true}}}, decided(false), false},
		"a denied settlement":               {[]backend.Charge{{Limit: overdraw, Terms: algorithms.Charge{Cost: 1, Reserve: true, Settle: true}}}, decided(false), true},
		"the own cost of the last of a row": {[]backend.Charge{{Limit: usual, Then: true}, {Limit: usual, Own: &algorithms.Own{Cost: 1}}}, decided(true, false), false},
		"a failure":                         {[]backend.Charge{charge(overdraw, 1, false)}, []backend.Decision{{Err: errors.New("test")}}, false},
	} {
		if got := backend.ConsumedAny(test.charges, test.decisions); got != test.want {
			t.Errorf("%s: consumed %v, want %v", name, got, test.want)
		}
	}
}

func TestKnownDecisionsAreFinal(t *testing.T) {
	failure, done := errors.New("test"), 0
	b := &backend.Batch{Charges: make([]backend.Charge, 3), Decisions: decided(true, true, true), Done: func(*backend.Batch) { done++ }}
	if b.SetKnown(1, 2); b.IsKnown(1) {
		t.Error("a decision is known without Known")
	}
	b.Known = make([]atomic.Bool, 3)
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
	if b.Known = nil; done != 1 {
		t.Errorf("Done was called %d times, want once", done)
	}
	if b.Fail(backend.ErrFull); !errors.Is(b.Decisions[1].Err, backend.ErrFull) {
		t.Errorf("without Known: got %+v, want ErrFull", b.Decisions[1])
	}
}

// Done may reuse the Batch, so Finish must read Source before it calls Done.
func TestFinishCallsDoneAndThenFlush(t *testing.T) {
	var calls []string
	b := &backend.Batch{Source: &backend.Source{Flush: func() { calls = append(calls, "flush") }}}
	b.Done = func(b *backend.Batch) {
		calls = append(calls, "done")
		b.Source = nil
	}
	b.Finish()
	if want := []string{"done", "flush"}; !slices.Equal(calls, want) {
		t.Errorf("got %v, want %v", calls, want)
	}
	for _, source := range []*backend.Source{nil, {}} {
		(&backend.Batch{Source: source, Done: func(*backend.Batch) {}}).Finish()
	}
}

type lastBatch struct{ backend.Batch }

func (l *lastBatch) Submit(b *backend.Batch) {
	l.Batch = *b
	l.Charges = slices.Clone(b.Charges)
	b.Done(b)
}

func TestTakePassesTheDeadlineOn(t *testing.T) {
	store, end := &lastBatch{}, time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(t.Context(), end)
	take := func(ctx context.Context) time.Time {
		backend.Take(ctx, store, make([]backend.Charge, 1), make([]backend.Decision, 1))
		return store.Deadline
	}
	if got := take(ctx); !got.Equal(end) {
		t.Errorf("got %v, want %v", got, end)
	}
	if got := take(t.Context()); !got.IsZero() {
		t.Errorf("without a deadline: got %v, want none", got)
	}
	cancel()
	if got := take(ctx); got.IsZero() || !got.Before(end) {
		t.Errorf("after the context has ended: got %v, want the current time", got)
	}
	if !store.Waits {
		t.Error("Waits is not set, although the goroutine does nothing until Done")
	}
}

func TestAResetHasNoIdempotencyKey(t *testing.T) {
	store := &lastBatch{}
	if err := backend.ResetBucket(t.Context(), store, backend.Charge{IdempotencyKey: &backend.IdempotencyKey{}}); err != nil {
		t.Fatal(err)
	}
	if c := store.Charges[0]; !c.Reset || c.IdempotencyKey != nil {
		t.Errorf("got %+v, want a reset without an idempotency key", c)
	}
}

func TestWhatNeverFits(t *testing.T) {
	compiled := func(spec algorithms.Spec) *algorithms.Limit {
		l := limittest.Compile(t, spec)
		return l
	}
	ahead := int64(5)
	usual := compiled(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second, MaxReserved: &ahead})
	overdraw := compiled(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second, Overdraw: true})
	settles := compiled(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second, MaxReserved: new(int64), Settles: true})
	for _, test := range []struct {
		name            string
		limit           *algorithms.Limit
		cost            int64
		reserve, settle bool
		want            bool
	}{
		{"as much as capacity", usual, 10, false, false, false},
		{"more than capacity", usual, 11, false, false, true},
		{"as much as can be reserved", usual, 15, true, false, false},
		{"more than can be reserved", usual, 16, true, false, true},
		{"overdraw", overdraw, 11, false, false, false},
		{"a settlement", usual, 16, true, true, true},
		{"a request to a limit with settle", settles, 11, true, false, true},
		{"a settlement of a limit with settle", settles, 11, true, true, false},
	} {
		c := backend.Charge{Limit: test.limit, Terms: algorithms.Charge{Cost: test.cost, Reserve: test.reserve, Settle: test.settle}}
		if got := c.NeverFits(); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// The numbers of groups need not rise. The last charge of a group may have Then.
func TestGroupsAndAlternatives(t *testing.T) {
	charges := []backend.Charge{{Group: 3}, {Group: 3, Then: true}, {Group: 2}}
	if n, alternatives := backend.GroupLen(charges), backend.Alternatives(charges[1:2]); n != 2 || alternatives != 1 {
		t.Errorf("a group of %d, and a row of %d; want 2 and 1", n, alternatives)
	}
}

type storeFunc func(b *backend.Batch)

func (f storeFunc) Submit(b *backend.Batch) { f(b) }

func TestErrorsOfTheStoreAreReturned(t *testing.T) {
	late := storeFunc(func(b *backend.Batch) { go b.Fail(backend.ErrNotTaken) })
	if err := backend.ResetBucket(t.Context(), late, backend.Charge{}); !errors.Is(err, backend.ErrUnavailable) || !errors.Is(err, backend.ErrNotTaken) {
		t.Errorf("got %v, want ErrNotTaken, which wraps ErrUnavailable", err)
	}
	if errors.Is(backend.ErrUnavailable, backend.ErrNotTaken) {
		t.Error("ErrUnavailable is ErrNotTaken; want that it is not, because units may have been consumed")
	}
}
