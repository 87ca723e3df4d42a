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

func TestVectors(t *testing.T) {
	perSecond := Spec{Kind: TokenBucket, Rate: 1, Period: sec}
	tenPerMinute := Spec{Kind: TokenBucket, Rate: 10, Period: minute}
	window := Spec{Kind: FixedWindow, Rate: 10, Period: minute, Start: new(t0)}
	with := func(s Spec, edit func(*Spec)) Spec { edit(&s); return s }

	for name, row := range map[string]struct {
		spec   Spec
		before func(*Limit) State
		steps  []step
	}{
		"1 one is there": {perSecond, nil, []step{
			{cost: 1, allowed: true, left: 0},
		}},
		"2 none is there": {perSecond, holding(0), []step{
			{cost: 1, left: 0, retry: 1000 * ms},
		}},
		"3 one is owed": {perSecond, holding(-1), []step{
			{cost: 1, left: -1, retry: 2000 * ms},
		}},
		"4 capacity": {with(perSecond, func(s *Spec) { s.Capacity = new(int64(3)) }), holding(3), []step{
			{cost: 3, allowed: true, left: 0},
		}},
		"4 more than capacity": {with(perSecond, func(s *Spec) { s.Capacity = new(int64(3)) }), nil, []step{
			{cost: 4, never: true, left: 3},
		}},
		"5 refill": {tenPerMinute, holding(5), []step{
			{at: 6 * sec, cost: 6, allowed: true, left: 0},
			{at: 6 * sec, cost: 10, left: 0, retry: 60 * sec},
		}},
		"6 window": {window, holding(5), []step{
			{at: 72 * sec, cost: 6, allowed: true, left: 4},
			{at: 72 * sec, cost: 10, left: 4, retry: 48 * sec, reset: 48 * sec},
		}},
		"7 reserve": {tenPerMinute, holding(5), []step{
			{at: 6 * sec, cost: 16, reserve: true, allowed: true, left: -10, wait: 60 * sec},
			{at: 36 * sec, cost: 5, reserve: true, allowed: true, left: -10, wait: 60 * sec},
		}},
		"8 reserve in windows": {window, holding(5), []step{
			{at: 60 * sec, cost: 16, reserve: true, allowed: true, left: -6, wait: 60 * sec},
			{at: 90 * sec, cost: 5, reserve: true, allowed: true, left: -11, wait: 90 * sec},
		}},
		"9 max_reserved": {with(perSecond, func(s *Spec) { s.MaxReserved = new(int64(1)) }), holding(1), []step{
			{cost: 2, reserve: true, allowed: true, left: -1, wait: 1000 * ms},
			{cost: 1, reserve: true, left: -1, retry: 1000 * ms},
		}},
		"10 more than max_reserved": {with(perSecond, func(s *Spec) { s.MaxReserved = new(int64(2)) }), nil, []step{
			{cost: 4, reserve: true, never: true, left: 1},
		}},
		"11 capped before the charge": {Spec{Kind: TokenBucket, Rate: 10, Period: sec, Capacity: new(int64(100))}, holding(95), []step{
			{at: 5 * sec, cost: 1, allowed: true, left: 99},
		}},
		"12 sliding window": {
			Spec{Kind: SlidingWindow, Rate: 4, Period: sec},
			func(l *Limit) State { return State{By: l, Value: 2, Prev: 1, At: t0} },
			[]step{{at: 500 * ms, cost: 1, allowed: true, left: 0}}, // 3.5 of 4 in the window: no whole unit is left
		},
		"13 initial": {with(perSecond, func(s *Spec) { s.Capacity, s.Initial = new(int64(5)), new(int64(0)) }), nil, []step{
			{cost: 1, left: 0, retry: 1000 * ms},
			{at: sec, cost: 1, allowed: true, left: 0},
		}},
		"14 named twice": {tenPerMinute, nil, []step{ // the request names the limit twice, for 3 and 4 units
			{cost: 7, allowed: true, left: 3},
		}},
		"14 named twice for too much": {tenPerMinute, nil, []step{ // the request names the limit twice, for 6 units each
			{cost: 12, never: true, left: 10},
		}},
		"15 leaky bucket": {Spec{Kind: LeakyBucket, Rate: 1, Period: sec, Capacity: new(int64(2))}, nil, []step{
			{cost: 1, allowed: true, left: 2, wait: 0},
			{cost: 1, allowed: true, left: 1, wait: 1000 * ms},
			{cost: 1, allowed: true, left: 0, wait: 2000 * ms},
			{cost: 1, left: 0, retry: 1000 * ms},
		}},
		"16 guaranteed": {
			Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(100)), Minimum: &Rate{10, sec}},
			holding(0),
			[]step{{cost: 5, left: 0, retry: 454_546 * us}},
		},
		"17 overdraw": {Spec{Kind: TokenBucket, Rate: 1000, Period: hour, Overdraw: true}, holding(300), []step{
			{cost: 700, left: -400, retry: (700 + 400) * 3600 * ms},
			{cost: 0, left: -400, retry: 400 * 3600 * ms},
		}},
	} {
		t.Run(name, func(t *testing.T) { run(t, row.spec, row.before, row.steps) })
	}
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

func TestCapacityBelowRate(t *testing.T) {
	run(t, Spec{Kind: TokenBucket, Rate: 60, Period: hour, Capacity: new(int64(10))}, nil, []step{
		{cost: 10, allowed: true, left: 0, reset: 10 * minute},
		{cost: 1, left: 0, retry: minute},
		{at: minute, cost: 1, allowed: true, left: 0},
		{at: 10 * hour, cost: 11, never: true, left: 10},
	})
}

func TestCapacityZeroSpacesReservations(t *testing.T) {
	run(t, Spec{Kind: TokenBucket, Rate: 2, Period: sec, Capacity: new(int64(0)), MaxReserved: new(int64(2))}, nil, []step{
		{cost: 1, never: true, left: 0},
		{cost: 1, reserve: true, allowed: true, left: -1, wait: 500 * ms},
		{cost: 1, reserve: true, allowed: true, left: -2, wait: 1000 * ms},
		{cost: 1, reserve: true, left: -2, retry: 500 * ms},
		{at: 500 * ms, cost: 1, reserve: true, allowed: true, left: -2, wait: 1000 * ms},
	})
}

func TestLeakyBucketWaitsNoLongerThanMaxWait(t *testing.T) {
	run(t, Spec{Kind: LeakyBucket, Rate: 1, Period: sec, Capacity: new(int64(5))}, nil, []step{
		{cost: 1, maxWait: 1500 * ms, allowed: true, left: 5},
		{cost: 1, maxWait: 1500 * ms, allowed: true, left: 4, wait: 1000 * ms},
		{cost: 1, maxWait: 1500 * ms, left: 4, retry: 500 * ms}, // the charge would have to wait 2 s
		{at: 500 * ms, cost: 1, maxWait: 1500 * ms, allowed: true, left: 3, wait: 1500 * ms},
	})
}

// The queue counts in microseconds, the limit of the refund in milliseconds. So the refund moves the time of the
// state back to the start of the millisecond, and removes the places that have become free since then. The value is then
// below zero: more places are taken than the queue has.
func TestMoreTurnsThanPlacesLeaveNothing(t *testing.T) {
	fine := mustCompile(t, Spec{Kind: LeakyBucket, Rate: 7000, Period: sec, Capacity: new(int64(1_000_000))})
	coarse := mustCompile(t, Spec{Kind: LeakyBucket, Rate: 999_979, Period: Day, Capacity: new(int64(900_000))})
	if fine.tick != 1 || coarse.tick != 1000 {
		t.Fatalf("the limits count in %d and %d us, want 1 and 1000", fine.tick, coarse.tick)
	}
	s, _ := fine.Take(State{}, t0+999, Charge{Cost: 1_000_001})
	s, _ = coarse.Take(s, t0+999, Charge{Cost: -1})
	if s.By != fine || s.Value != 1000-999*7 {
		t.Fatalf("got %+v; want the value %d in the numbers of the first limit", s, 1000-999*7)
	}
	if _, d := fine.Take(s, t0, Charge{Cost: 1, MaxWait: 1}); d.Allowed || d.Remaining != 0 {
		t.Errorf("got %+v; want denied and 0 remaining", d)
	}
}

func TestLeakyBucketWithoutAQueueDeniesEarlyRequests(t *testing.T) {
	run(t, Spec{Kind: LeakyBucket, Rate: 4, Period: sec}, nil, []step{
		{cost: 1, allowed: true, left: 0},
		{at: 249 * ms, cost: 1, left: 0, retry: ms},
		{at: 250 * ms, cost: 1, allowed: true, left: 0},
	})
}

// Like envoyproxy/ratelimit, the limit counts denials, but only within their window.
func TestTakesDenied(t *testing.T) {
	run(t, Spec{Kind: FixedWindow, Rate: 5, Period: minute, Start: new(t0), TakesDenied: true}, nil, []step{
		{cost: 4, allowed: true, left: 1, reset: minute},
		{cost: 2, left: -1, retry: minute, reset: minute},
		{at: 30 * sec, cost: 1, left: -2, retry: 30 * sec, reset: 30 * sec},
		{at: 30 * sec, cost: 6, never: true, left: -8, reset: 30 * sec},
		{at: 60 * sec, cost: 5, allowed: true, left: 0}, // no debt carries over
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
