package algorithms

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestAClockThatIsSetBackStandsStillForAMinute(t *testing.T) {
	run(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(10))}, nil, []step{
		{at: 100 * sec, cost: 9, allowed: true, left: 1, reset: 9 * sec},
		{at: 40 * sec, cost: 0, allowed: true, left: 1, reset: 69 * sec},
		{at: 40 * sec, cost: 2, left: 1, retry: 61 * sec, reset: 69 * sec},
		{at: 40 * sec, cost: 11, never: true, left: 1, reset: 69 * sec},
		{at: 40 * sec, cost: 1, allowed: true, left: 0, reset: 70 * sec}, // available tokens can still be consumed
		{at: 99 * sec, cost: 1, left: 0, retry: 2 * sec, reset: 11 * sec},
		{at: 101*sec - us, cost: 1, left: 0, retry: us, reset: 9*sec + us},
		{at: 101 * sec, cost: 1, allowed: true, left: 0},
	})
}

// A request of cost 0 needs no room in the queue. So it is denied only while it would wait too long, also if the queue
// is in the numbers of a limit that held more.
func TestALookAtAChangedQueueWhileTheClockIsBehind(t *testing.T) {
	long := mustCompile(t, Spec{Kind: LeakyBucket, Rate: 1, Period: sec, Capacity: new(int64(9))})
	short := mustCompile(t, Spec{Kind: LeakyBucket, Rate: 1, Period: sec, Capacity: new(int64(1))})
	s := runSteps(t, long, State{}, []step{{at: 100 * sec, cost: 4, allowed: true, left: 6}})
	runSteps(t, short, s, []step{
		{at: 70 * sec, cost: 0, maxWait: 5 * sec, left: -2, retry: 29 * sec}, // in 29 s the wait is 4 s, and 1 s more until the clock has caught up
		{at: 99*sec - us, cost: 0, maxWait: 5 * sec, left: -2, retry: us},
		{at: 99 * sec, cost: 0, maxWait: 5 * sec, allowed: true, left: -2, wait: 5 * sec},
		{at: 70 * sec, cost: 1, maxWait: 5 * sec, left: -2, retry: 33 * sec}, // there is room when the clock shows 103 s
	})
	// A request that finds the queue empty does not wait.
	s = runSteps(t, long, State{}, []step{{at: 100 * sec, cost: 1, allowed: true, left: 9}, {at: 100 * sec, cost: -1, allowed: true, left: 10}})
	for _, l := range []*Limit{long, short} {
		runSteps(t, l, s, []step{{at: 70 * sec, cost: 0, maxWait: 5 * sec, allowed: true, left: l.Capacity}})
	}
}

// Tokens flow in only for forward steps of the clock. RetryAfter is at most a minute longer than the time that
// fills an empty bucket.
func TestClockStepsNeitherRefillNorStarve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		spec, l := roll.limit(TokenBucket)
		if l.Overdraw || spec.Penalty != nil {
			return
		}
		var s State
		now, forwardTicks, taken := t0, int64(0), whole(0)
		for range length(t, 1000) {
			a := Charge{Cost: roll.of(0, 1, 1, roll.between(1, l.Capacity+1))}
			var d Decision
			if s, d = l.Take(s, now, a); d.Allowed {
				taken.Add(taken, whole(a.Cost))
			}
			flow := times(whole(forwardTicks), big.NewRat(spec.Rate, l.period))
			if most := plus(whole(l.Capacity), flow); less(most, taken) {
				t.Fatalf("%s: took %v, at most %v", show(spec), taken, most)
			}
			if longest := l.span(now, ceilDiv(l.v, l.p)) + minute; d.RetryAfter > longest {
				t.Fatalf("%s: retry_after %d, at most %d", show(spec), d.RetryAfter, longest)
			}
			to := roll.next(l, now, d)
			if to > now {
				forwardTicks += int64(to/l.tick - now/l.tick)
			}
			if now = to; now > MaxTime {
				return
			}
		}
	})
}

// A bucket that does not start full is created by its first charge, even if that is denied or a dry run. A cost that
// can never be allowed does not create it.
func TestTheFirstChargeStartsTheClock(t *testing.T) {
	spec := Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(5)), Initial: new(int64(0))}
	for name, first := range map[string]step{
		"denied":    {cost: 2, left: 0, retry: 2 * sec},
		"of cost 0": {cost: 0, allowed: true, left: 0, reset: 5 * sec},
		"a dry run": {cost: 2, dryRun: true, left: 0, retry: 2 * sec},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, spec, nil, []step{first, {at: 2 * sec, cost: 2, allowed: true, left: 0}})
		})
	}
	run(t, spec, nil, []step{
		{at: 0, cost: 6, never: true, left: 0},
		{at: 2 * sec, cost: 2, left: 0, retry: 2 * sec}, // the charge that can never be allowed created no bucket
	})
}

func TestABucketThatWasFullForADayStartsAtInitial(t *testing.T) {
	bucket := Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(5)), Initial: new(int64(1))}
	window := Spec{Kind: FixedWindow, Rate: 1, Period: sec, Capacity: new(int64(5)), Initial: new(int64(1)), Start: new(t0)}
	for _, s := range []Spec{bucket, window} {
		run(t, s, nil, []step{
			{cost: 1, allowed: true, left: 0, reset: 5 * sec},
			{at: 5*sec + Day - us, cost: 0, allowed: true, left: 5},
			{at: 5*sec + Day, cost: 2, left: 1, retry: sec},
			{at: 6*sec + Day, cost: 2, allowed: true, left: 0},
		})
	}
}

// The corrected state is stored at once, even by a denial.
func TestClockIsCorrectedAfterAMinute(t *testing.T) {
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(100))})
	s := runSteps(t, l, State{}, []step{
		{at: hour, cost: 99, allowed: true, left: 1},
		{at: hour - minute - us, cost: 2, left: 1, retry: sec},
	})
	if want := t0 + hour - minute - us; s.At != want || s.Value != l.q {
		t.Fatalf("the clock was not corrected: %+v; want At %v and value %v", s, want, l.q)
	}
	runSteps(t, l, s, []step{
		{at: hour - minute - us + sec, cost: 2, allowed: true, left: 0},
		{at: hour, cost: 60, left: 59, retry: sec - us}, // tokens flow in from the corrected time on, so the minute of the step back counts twice
	})
}
