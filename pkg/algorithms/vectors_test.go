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

func holding(tokens int64) func(*Limit) State {
	return func(l *Limit) State { return State{By: l, Value: tokens * l.Unit(), At: t0} }
}

func TestMostReturnsTheLargestCost(t *testing.T) {
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, MaxReserved: new(int64(2))})
	if plain, reserving := l.Most(false), l.Most(true); plain != 1 || reserving != 3 {
		t.Errorf("the most is %d, reserving %d; want 1 and 3", plain, reserving)
	}
}

func TestSlidingLogExample(t *testing.T) {
	run(t, Spec{Kind: SlidingLog, Rate: 2, Period: sec}, nil, []step{
		{at: 0 * ms, cost: 1, allowed: true, left: 1, reset: 1000 * ms},
		{at: 100 * ms, cost: 1, allowed: true, left: 0, reset: 1000 * ms},
		{at: 200 * ms, cost: 1, left: 0, retry: 800 * ms, reset: 900 * ms},
		{at: 1000 * ms, cost: 1, allowed: true, left: 0}, // the first unit has left the window
		{at: 1050 * ms, cost: 1, left: 0, retry: 50 * ms},
		{at: 1100 * ms, cost: 1, allowed: true, left: 0},
	})
}

func TestMaxWaitBoundsReservations(t *testing.T) {
	bucket := Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(2)), MaxReserved: new(int64(20))}
	run(t, bucket, nil, []step{
		{cost: 7, reserve: true, maxWait: 4 * sec, never: true, left: 2}, // 5 s, even if the bucket is full
		{cost: 6, reserve: true, maxWait: 4 * sec, allowed: true, left: -4, wait: 4 * sec},
		{cost: 1, reserve: true, maxWait: 4 * sec, left: -4, retry: sec, reset: 6 * sec},
		{at: sec - us, cost: 1, reserve: true, maxWait: 4 * sec, left: -4, retry: us},
		{at: sec, cost: 1, reserve: true, maxWait: 4 * sec, allowed: true, left: -4, wait: 4 * sec},
		{at: -29 * sec, cost: 1, reserve: true, maxWait: 40 * sec, allowed: true, left: -5, wait: 35 * sec}, // the clock is 30 s behind
		{at: -29 * sec, cost: 1, reserve: true, maxWait: 30 * sec, left: -5, retry: 6 * sec},                // in 6 s it is 24 s behind
	})
	window := Spec{Kind: FixedWindow, Rate: 5, Period: minute, Start: new(t0), MaxReserved: new(int64(20))}
	run(t, window, nil, []step{
		{cost: 5, allowed: true, left: 0},
		{at: 20 * sec, cost: 3, reserve: true, maxWait: 30 * sec, left: 0, retry: 10 * sec, reset: 40 * sec},
		{at: 30 * sec, cost: 3, reserve: true, maxWait: 30 * sec, allowed: true, left: -3, wait: 30 * sec},
		{at: 30 * sec, cost: 3, reserve: true, maxWait: 30 * sec, left: -3, retry: minute}, // two windows ahead
		{at: 30 * sec, cost: 6, reserve: true, maxWait: 30 * sec, never: true, left: -3},   // more than one window holds
	})
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
