package algorithms

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// Rule 7: when the numbers of a live limit change, what was used stays used, and a lower limit
// makes no debt.
func TestUsedStaysUsed(t *testing.T) {
	perMinute := func(rate int64) Spec { return Spec{Kind: TokenBucket, Rate: rate, Period: minute} }
	capacity := func(c int64) Spec { return Spec{Kind: TokenBucket, Rate: 1, Period: minute, Capacity: &c} }
	window := func(c int64) Spec {
		return Spec{Kind: FixedWindow, Rate: 1, Period: minute, Capacity: &c, Start: new(t0)}
	}
	leaky := func(c int64) Spec { return Spec{Kind: LeakyBucket, Rate: 1, Period: minute, Capacity: &c} }
	coarse := Spec{Kind: TokenBucket, Rate: 7, Period: 30 * Day, Capacity: new(int64(1_000_000))} // in ms
	for name, c := range map[string]struct {
		from, to Spec
		left     int64 // before
		want     int64 // after
	}{
		"capacity up":            {capacity(10), capacity(20), 6, 16},
		"capacity down":          {capacity(10), capacity(5), 7, 2},
		"down to less than used": {capacity(10), capacity(5), 2, 0},
		"a debt stays":           {capacity(10), capacity(5), -3, -3},
		"a debt is paid":         {capacity(10), capacity(20), -3, 7},
		"a debt shrinks":         {capacity(10), capacity(12), -3, -1},
		"rate up":                {perMinute(10), perMinute(20), 4, 14},
		"other scale":            {perMinute(10), perMinute(7), 8, 5},
		"us to ms":               {perMinute(10), coarse, 3, 999_993},
		"ms to us":               {coarse, perMinute(10), 999_993, 3},
		"queue up":               {leaky(4), leaky(9), 2, 7},
		"queue down":             {leaky(9), leaky(4), 7, 2},
		"window up":              {window(10), window(20), 6, 16},
		"window down":            {window(10), window(5), 7, 2},
		"window, a debt stays":   {window(10), window(5), -3, -3},
		"window, to less":        {window(10), window(5), 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := mustCompile(t, c.from), mustCompile(t, c.to)
			s := State{By: from, Value: c.left * from.Unit(), At: t0}
			if got := left(to, s, t0); got != c.want {
				t.Errorf("%d left of %s became %d left of %s, want %d", c.left, show(c.from), got, show(c.to), c.want)
			}
		})
	}
}

// Until the change tokens flow by the old numbers, from then on by the new.
func TestNewRateCountsFromTheChange(t *testing.T) {
	fast := mustCompile(t, Spec{Kind: TokenBucket, Rate: 10, Period: sec, Capacity: new(int64(100))})
	slow := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(100))})
	s := play(t, fast, State{}, []step{{cost: 100, allowed: true, left: 0}})
	play(t, slow, s, []step{
		{at: sec, cost: 11, left: 10, retry: sec}, // also a denial stores what came by then
		{at: 2 * sec, cost: 11, allowed: true, left: 0},
	})
}

func TestSlidingCountsStay(t *testing.T) {
	old := mustCompile(t, Spec{Kind: SlidingWindow, Rate: 4, Period: sec})
	s := play(t, old, State{}, []step{{cost: 4, allowed: true, left: 0}})
	play(t, mustCompile(t, Spec{Kind: SlidingWindow, Rate: 6, Period: sec}), s, []step{
		{at: 500 * ms, cost: 2, allowed: true, left: 0},
		{at: 500 * ms, cost: 1, left: 0, retry: 666_667 * us}, // six, until a sixth of them is out
	})
	play(t, mustCompile(t, Spec{Kind: SlidingWindow, Rate: 2, Period: sec}), s, []step{
		{at: 500 * ms, cost: 0, left: 0, retry: 1000 * ms}, // four are two too many
		{at: 1500 * ms, cost: 0, allowed: true, left: 0},
		{at: 1500 * ms, cost: 1, left: 0, retry: 250 * ms},
	})
	play(t, mustCompile(t, Spec{Kind: SlidingWindow, Rate: 4, Period: minute}), s, []step{
		{at: 30 * sec, cost: 1, left: 0, retry: 45 * sec}, // in the window of the last charge
	})
}

func TestLoggedTimesStay(t *testing.T) {
	old := mustCompile(t, Spec{Kind: SlidingLog, Rate: 3, Period: minute})
	s := play(t, old, State{}, []step{{cost: 1, allowed: true, left: 2}, {at: sec, cost: 2, allowed: true, left: 0}})
	play(t, mustCompile(t, Spec{Kind: SlidingLog, Rate: 1, Period: minute}), s, []step{
		{at: 2 * sec, cost: 1, left: 0, retry: 59 * sec},
	})
	play(t, mustCompile(t, Spec{Kind: SlidingLog, Rate: 3, Period: 10 * sec}), s, []step{
		{at: 10 * sec, cost: 1, allowed: true, left: 0},
		{at: 10 * sec, cost: 1, left: 0, retry: sec},
	})
}

func TestOtherAlgorithmStartsAfresh(t *testing.T) {
	old := mustCompile(t, Spec{Kind: TokenBucket, Rate: 5, Period: minute})
	s := play(t, old, State{}, []step{{cost: 5, allowed: true, left: 0}})
	for _, k := range []Kind{FixedWindow, SlidingWindow, SlidingLog} {
		play(t, mustCompile(t, Spec{Kind: k, Rate: 5, Period: minute}), s, []step{{cost: 5, allowed: true, left: 0}})
	}
}

// A debt carried to numbers under which it would take longer than can be computed is cut: it may
// not come out as a time that is wrong.
func TestHugeDebtUnderASlowerLimit(t *testing.T) {
	for _, kind := range []Kind{FixedWindow, TokenBucket} {
		fast := mustCompile(t, Spec{Kind: kind, Rate: 1_000_000, Period: sec})
		slow := mustCompile(t, Spec{Kind: kind, Rate: 1, Period: 30 * Day})
		s, d := fast.Take(State{}, t0, Ask{Cost: 1e11, Reserve: true})
		if !d.Allowed {
			t.Fatalf("%v: could not reserve: %+v", kind, d)
		}
		if s, d = slow.Take(s, t0, Ask{Cost: 1}); d.Allowed || d.RetryAfter < 100*365*Day || d.ResetAfter < d.RetryAfter {
			t.Errorf("%v: %+v of %+v", kind, d, s)
		}
	}
}

// The rule in fractions: value = max(min(0, value'), V2 - used), rounded down to the new scale. A
// debt is cut to what can be computed with.
func TestConvertsAsTheRuleSays(t *testing.T) {
	for _, k := range kinds {
		if k.kind == SlidingWindow || k.kind == SlidingLog {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				roll := throw(t)
				for range length(t, 100) {
					roll.convert(t, k.kind)
				}
			})
		})
	}
}

func (roll dice) convert(t *rapid.T, kind Kind) {
	s1, l1 := roll.limit(kind)
	s2, l2 := roll.limit(kind)
	if l1.clears() || l2.clears() {
		return
	}
	hash, now := uint64(0), Micros(0)
	var s State
	roll.walk(int(roll.between(1, 20)), []*Limit{l1}, func(m moment) {
		s, now, hash = m.after, max(m.now, m.after.At), m.ask.Hash
	})
	if s.By == nil || now >= s.At+Day {
		return // there was nothing yet, or it may start at initial again
	}
	next, _ := l2.Take(s, now, Ask{Hash: hash})
	left1, left2 := l1.leftAt(s, now, hash), l2.leftAt(next, now, hash)
	reach := int64(0) // the largest debt the new numbers can express
	switch kind {     //nolint:exhaustive // the others have none
	case TokenBucket:
		reach = (mostTokens(s2, l2.Tick) - l2.Capacity) * l2.Q
	case FixedWindow:
		reach = mostWindow(s2, l2.Tick) - l2.Capacity
	}
	if want := converted(left1, l1.full(), l1.Unit(), l2.full(), l2.Unit(), reach); want != left2 {
		t.Fatalf("%d of %s became %d of %s, want %d", left1, show(s1), left2, show(s2), want)
	}
	if kind == Guaranteed {
		left1 = l1.flow(s.Prev, l1.V1, l1.P1, l1.elapsed(s.At, now))
		left2 = l2.flow(next.Prev, l2.V1, l2.P1, l2.elapsed(next.At, now))
		if want := converted(left1, l1.V1, l1.Q, l2.V1, l2.Q, reach); want != left2 {
			t.Fatalf("guaranteed: %d of %s became %d of %s, want %d", left1, show(s1), left2, show(s2), want)
		}
	}
}

func converted(left1, full1, q1, full2, q2, reach int64) int64 {
	value, used := big.NewRat(left1, q1), big.NewRat(full1-left1, q1)
	want := most(least(whole(0), value), minus(big.NewRat(full2, q2), used))
	return down(most(times(want, whole(q2)), whole(-reach))).Int64()
}
