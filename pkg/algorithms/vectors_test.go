package algorithms

import (
	"testing"
	"time"
)

// t0 is a moment at which windows of whole seconds, minutes, hours and days start.
const t0 = 19_676 * Day

const (
	us     = Micros(1)
	ms     = 1000 * us
	sec    = Second
	minute = 60 * sec
	hour   = 60 * minute
)

func mustCompile(tb testing.TB, s Spec) *Limit {
	tb.Helper()
	l, err := Compile(s)
	if err != nil {
		tb.Fatalf("compile %+v: %v", s, err)
	}
	return &l
}

type step struct {
	at      Micros // time after t0
	cost    int64
	reserve bool
	dryRun  bool
	maxWait Micros

	allowed bool
	never   bool
	left    int64 // in whole tokens; negative for a debt
	retry   Micros
	wait    Micros
	reset   Micros // not checked if it is 0
}

func run(t *testing.T, s Spec, before func(*Limit) State, steps []step) {
	t.Helper()
	l := mustCompile(t, s)
	var state State
	if before != nil {
		state = before(l)
	}
	runSteps(t, l, state, steps)
}

func runSteps(t *testing.T, l *Limit, state State, steps []step) State {
	t.Helper()
	for i, is := range steps {
		var got Decision
		now := t0 + is.at
		state, got = l.Take(state, now, Charge{Cost: is.cost, Reserve: is.reserve, DryRun: is.dryRun, MaxWait: is.maxWait})
		want := Decision{Allowed: is.allowed, Never: is.never, Remaining: max(0, is.left), RetryAfter: is.retry, Wait: is.wait}
		want.ResetAfter, want.Value = is.reset, got.Value
		if is.reset == 0 {
			want.ResetAfter = got.ResetAfter
		}
		if got != want {
			t.Errorf("step %d, at %v, cost %d:\n got %+v\nwant %+v", i, time.Duration(is.at)*time.Microsecond, is.cost, got, want)
		}
		if left := left(l, state, now); left != is.left {
			t.Errorf("step %d, at %v, cost %d: left %d, want %d", i, time.Duration(is.at)*time.Microsecond, is.cost, left, is.left)
		}
	}
	return state
}

func left(l *Limit, s State, now Micros) int64 {
	if l.Rate > 0 && (l.Kind == TokenBucket || l.Kind == LeakyBucket || l.Kind == FixedWindow) {
		s, at, _ := l.begin(s, now, 0)
		return floorDiv(l.leftAt(s, at, 0), l.Unit())
	}
	_, d := l.Take(s, now, Charge{DryRun: true})
	return d.Remaining
}

func TestMostReturnsTheLargestCost(t *testing.T) {
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, MaxReserved: new(int64(2))})
	if plain, reserving := l.Most(false), l.Most(true); plain != 1 || reserving != 3 {
		t.Errorf("the most is %d, reserving %d; want 1 and 3", plain, reserving)
	}
}

func TestRateZeroNeverAllows(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow, SlidingWindow, SlidingLog, LeakyBucket} {
		run(t, Spec{Kind: kind, Rate: 0, Period: sec}, nil, []step{
			{cost: 1, never: true},
			{cost: 0, allowed: true},
			{cost: -1, allowed: true},
		})
	}
}
