package algorithms

import "testing"

func TestConsumedUnitsStayConsumedWhenNumbersChange(t *testing.T) {
	perMinute := func(rate int64) Spec { return Spec{Kind: TokenBucket, Rate: rate, Period: minute} }
	capacity := func(c int64) Spec { return Spec{Kind: TokenBucket, Rate: 1, Period: minute, Capacity: &c} }
	window := func(c int64) Spec {
		return Spec{Kind: FixedWindow, Rate: 1, Period: minute, Capacity: &c, Start: new(t0)}
	}
	leaky := func(c int64) Spec { return Spec{Kind: LeakyBucket, Rate: 1, Period: minute, Capacity: &c} }
	coarse := Spec{Kind: TokenBucket, Rate: 7, Period: 30 * Day, Capacity: new(int64(1_000_000))} // counts in milliseconds
	for name, c := range map[string]struct {
		from, to Spec
		before   int64
		after    int64
	}{
		"capacity up":            {capacity(10), capacity(20), 6, 16},
		"capacity down":          {capacity(10), capacity(5), 7, 2},
		"down to less than used": {capacity(10), capacity(5), 2, -3},
		"a debt stays":           {capacity(10), capacity(5), -3, -8},
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
		"window, a debt stays":   {window(10), window(5), -3, -8},
		"window, to less":        {window(10), window(5), 2, -3},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := mustCompile(t, c.from), mustCompile(t, c.to)
			s := State{By: from, Value: c.before * from.Unit(), At: t0}
			if got := left(to, s, t0); got != c.after {
				t.Errorf("%d left of %s became %d left of %s, want %d", c.before, show(c.from), got, show(c.to), c.after)
			}
		})
	}
}

// A denial does not convert the state, so units flow in at the old rate until a charge is allowed.
func TestANewRateAppliesFromTheFirstAllowedCharge(t *testing.T) {
	fast := mustCompile(t, Spec{Kind: TokenBucket, Rate: 10, Period: sec, Capacity: new(int64(100))})
	slow := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(100))})
	s := runSteps(t, fast, State{}, []step{{cost: 100, allowed: true, left: 0}})
	runSteps(t, slow, s, []step{
		{at: sec, cost: 11, left: 10, retry: 100 * ms},
		{at: 1100 * ms, cost: 11, allowed: true, left: 0},
		{at: 1100 * ms, cost: 1, left: 0, retry: sec},
	})
}

func TestSlidingWindowCountsSurviveChangedNumbers(t *testing.T) {
	old := mustCompile(t, Spec{Kind: SlidingWindow, Rate: 4, Period: sec})
	s := runSteps(t, old, State{}, []step{{cost: 4, allowed: true, left: 0}})
	runSteps(t, mustCompile(t, Spec{Kind: SlidingWindow, Rate: 6, Period: sec}), s, []step{
		{at: 500 * ms, cost: 2, allowed: true, left: 0},
		{at: 500 * ms, cost: 1, left: 0, retry: 666_667 * us}, // all 6 units are used: a sixth of them must leave the window first
	})
	runSteps(t, mustCompile(t, Spec{Kind: SlidingWindow, Rate: 2, Period: sec}), s, []step{
		{at: 500 * ms, cost: 0, left: 0, retry: 1000 * ms}, // 4 units count, which is 2 more than the limit
		{at: 1500 * ms, cost: 0, allowed: true, left: 0},
		{at: 1500 * ms, cost: 1, left: 0, retry: 250 * ms},
	})
	runSteps(t, mustCompile(t, Spec{Kind: SlidingWindow, Rate: 4, Period: minute}), s, []step{
		{at: 30 * sec, cost: 1, left: 0, retry: 45 * sec}, // a quarter of the 4 units must leave the window first
	})
}

func TestLogEntriesSurviveChangedNumbers(t *testing.T) {
	old := mustCompile(t, Spec{Kind: SlidingLog, Rate: 3, Period: minute})
	s := runSteps(t, old, State{}, []step{{cost: 1, allowed: true, left: 2}, {at: sec, cost: 2, allowed: true, left: 0}})
	runSteps(t, mustCompile(t, Spec{Kind: SlidingLog, Rate: 1, Period: minute}), s, []step{
		{at: 2 * sec, cost: 1, left: 0, retry: 59 * sec},
	})
	runSteps(t, mustCompile(t, Spec{Kind: SlidingLog, Rate: 3, Period: 10 * sec}), s, []step{
		{at: 10 * sec, cost: 1, allowed: true, left: 0},
		{at: 10 * sec, cost: 1, left: 0, retry: sec},
	})
}

func TestAnotherAlgorithmStartsWithANewBucket(t *testing.T) {
	old := mustCompile(t, Spec{Kind: TokenBucket, Rate: 5, Period: minute})
	s := runSteps(t, old, State{}, []step{{cost: 5, allowed: true, left: 0}})
	for _, k := range []Kind{FixedWindow, SlidingWindow, SlidingLog} {
		runSteps(t, mustCompile(t, Spec{Kind: k, Rate: 5, Period: minute}), s, []step{{cost: 5, allowed: true, left: 0}})
	}
}

// A debt whose end cannot be computed in the new numbers stays in the old ones, and is paid at the old
// rate.
func TestHugeDebtUnderASlowerLimit(t *testing.T) {
	for _, kind := range []Kind{FixedWindow, TokenBucket} {
		fast := mustCompile(t, Spec{Kind: kind, Rate: 1_000_000, Period: sec})
		slow := mustCompile(t, Spec{Kind: kind, Rate: 1, Period: 30 * Day})
		s, d := fast.Take(State{}, t0, Charge{Cost: 1e11, Reserve: true})
		if !d.Allowed {
			t.Fatalf("%v: could not reserve: %+v; want allowed", kind, d)
		}
		if s, d = slow.Take(s, t0, Charge{Cost: 1}); d.Allowed || d.RetryAfter != 1e5*sec || d.ResetAfter != d.RetryAfter || s.By != fast {
			t.Errorf("%v: %+v of %+v; want denied, retry after %v, reset after %v and By %v", kind, d, s, 1e5*sec, d.RetryAfter, fast)
		}
	}
}

func hourly(n int64, kind Kind) Spec { return Spec{Kind: kind, Rate: n, Period: hour} }

// A denial or a dry run under the lower limit must lose no consumption.
func TestALowerLimitForgetsNothing(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow, LeakyBucket} {
		high, low := hourly(100, kind), hourly(10, kind)
		if kind == LeakyBucket {
			high.Capacity, low.Capacity = new(int64(99)), new(int64(9))
		}
		l1, l2 := mustCompile(t, high), mustCompile(t, low)
		var s State
		admitted := 0
		for i := range 1000 {
			l := []*Limit{l1, l2}[i/7%2]
			for _, dryRun := range []bool{true, false} {
				var d Decision
				if s, d = l.Take(s, t0, Charge{Cost: 1, DryRun: dryRun}); d.Allowed && !dryRun {
					admitted++
				}
			}
		}
		if admitted != 100 {
			t.Errorf("%v: admitted %d, want 100", kind, admitted)
		}
	}
}

func TestChangedNumbersVectors(t *testing.T) {
	high, low := mustCompile(t, hourly(100, TokenBucket)), mustCompile(t, hourly(10, TokenBucket))
	reserving := hourly(10, TokenBucket)
	reserving.MaxReserved = new(int64(5))
	before := holding(5)(high)
	if s := runSteps(t, low, before, []step{{cost: 1, left: -85, retry: 3096 * sec}}); !same(s, before) {
		t.Errorf("a denial stored %+v; want %+v", s, before)
	}
	runSteps(t, high, before, []step{{cost: 5, allowed: true, left: 0}})
	if s := runSteps(t, high, holding(0)(low), []step{{cost: 1, allowed: true, left: 89}}); s.By != high {
		t.Errorf("not converted to the new numbers: %+v; want By %v", s, high)
	}
	runSteps(t, mustCompile(t, reserving), before, []step{
		{cost: 0, allowed: true, left: -85},
		{cost: 3, reserve: true, left: -85, retry: 2988 * sec},
		{at: 2988*sec - us, cost: 3, reserve: true, left: -3, retry: us},
		{at: 2988 * sec, cost: 3, reserve: true, allowed: true, left: -5, wait: 180 * sec},
		{at: 3168 * sec, cost: 0, allowed: true, left: 0},
	})
}

// A limit that counts in milliseconds is replaced by one that counts in microseconds. Until a charge is allowed, units
// flow in at the start of each millisecond.
func TestATickOfTheOldNumbersGainsNothing(t *testing.T) {
	slow := mustCompile(t, Spec{Kind: TokenBucket, Rate: 999_983, Period: Day, Capacity: new(int64(1_000_000))}) // a unit in 86.4 ms
	fast := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1_000_000, Period: sec, Capacity: new(int64(100))})     // a unit in 1 us
	if slow.tick != 1000 || fast.tick != 1 {
		t.Fatalf("the limits count in %d and %d us, want 1000 and 1", slow.tick, fast.tick)
	}
	used := func(n int64) State { return State{By: slow, Value: slow.v - n*slow.q, At: t0} }
	for n, retry := range map[int64]Micros{100: 87 * ms, 101: 173 * ms} { // one unit, or two units, at the old rate
		for _, at := range []Micros{0, 1, 999, 1000, retry - 1} {
			runSteps(t, fast, used(n), []step{{at: at, cost: 1, left: left(fast, used(n), t0+at), retry: retry - at}})
		}
		for _, at := range []Micros{retry, retry + 999, retry + 1000, retry + 5000} {
			runSteps(t, fast, used(n), []step{
				{at: at, cost: 1, allowed: true, left: 0},
				{at: at, cost: 1, left: 0, retry: us}, // the charge has converted the state
				{at: at + us, cost: 1, allowed: true, left: 0},
			})
		}
	}
}

func TestSlidingCountsLiveAsLongAsTheLongerPeriod(t *testing.T) {
	for _, kind := range []Kind{SlidingWindow, SlidingLog} {
		short, long := mustCompile(t, Spec{Kind: kind, Rate: 5, Period: sec}), mustCompile(t, Spec{Kind: kind, Rate: 5, Period: hour})
		s, _ := short.Take(State{}, t0, Charge{Cost: 5})
		for name, charges := range map[string][]*Limit{"longer": {long}, "longer, shorter": {long, short}} {
			is := clone(s)
			for _, l := range charges {
				is, _ = l.Take(is, t0+sec/2, Charge{Cost: 1})
			}
			if at := is.FreshAt(); at < t0+hour {
				t.Errorf("%v, charged by %s: forgotten after %d s; want at least %d s", kind, name, (at-t0)/sec, hour/sec)
			}
		}
	}
}

// Units that flowed in before the change did so at the old rate, even if only the rate changes.
func TestOnlyTheRateOfALimitChanges(t *testing.T) {
	guaranteed := func(every Micros) Spec {
		return Spec{Kind: TokenBucket, Rate: 1, Period: 12 * sec, Capacity: new(int64(5)), Minimum: &Rate{1, every}}
	}
	s := runSteps(t, mustCompile(t, guaranteed(4*sec)), State{}, []step{{cost: 6, allowed: true, left: 0}})
	runSteps(t, mustCompile(t, guaranteed(3*sec)), s, []step{{at: 2900 * ms, cost: 1, left: 0, retry: 100 * ms}})

	window := func(rate int64) Spec {
		return Spec{Kind: FixedWindow, Rate: rate, Period: minute, Capacity: new(int64(10)), Start: new(t0)}
	}
	s = runSteps(t, mustCompile(t, window(1)), State{}, []step{{cost: 10, allowed: true, left: 0}})
	runSteps(t, mustCompile(t, window(5)), s, []step{
		{at: 2 * minute, cost: 3, left: 2, retry: minute},
		{at: 3 * minute, cost: 3, allowed: true, left: 0}, // 3 units were granted at the old rate
		{at: 4 * minute, cost: 5, allowed: true, left: 0},
	})
}

// Units consumed in a window of the old zone count until that window ends.
func TestACalendarOfAnotherZoneIsAnotherCalendar(t *testing.T) {
	utc := mustCompile(t, Spec{Kind: FixedWindow, Rate: 10, Calendar: calendars[0]})
	berlin := mustCompile(t, Spec{Kind: FixedWindow, Rate: 10, Calendar: calendars[2]})
	s, _ := utc.Take(State{}, at(t, "2026-01-10T22:30:00Z"), Charge{Cost: 10})
	for moment, allowed := range map[string]bool{"2026-01-10T23:30:00Z": false, "2026-01-11T00:00:00Z": true} {
		if _, d := berlin.Take(s, at(t, moment), Charge{Cost: 1}); d.Allowed != allowed {
			t.Errorf("at %s: %+v; want allowed %t", moment, d, allowed)
		}
	}
}

// With so many ticks, the product of ticks and p exceeds 64 bits.
func TestAnIdleBucketIsFullUnderTheOldNumbers(t *testing.T) {
	k := kept{used: maxExact, p: maxExact}
	for ticks, want := range map[int64]int64{0: maxExact, 1: 0, 1 << 11: 0, 1 << 52: 0} {
		if got := k.after(ticks); got != want {
			t.Errorf("after %d ticks: %d, want %d", ticks, got, want)
		}
	}
}

// The lower limit cannot hold the consumption, so the bucket stays in the numbers of the old limit, which
// counts in milliseconds.
func TestAnUndoUnderALowerLimit(t *testing.T) {
	coarse := Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(1e11)), MaxReserved: new(int64(0))}
	low := Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(10))}
	old, l := mustCompile(t, coarse), mustCompile(t, low)
	if old.tick != ms || l.tick != us {
		t.Fatalf("ticks of %d and %d; want 1,000 and 1", old.tick, l.tick)
	}
	s, _ := old.Take(State{}, t0, Charge{Cost: 100})
	s, d := l.Take(s, t0+3*sec, Charge{Cost: -50, ChargedAt: t0})
	if !d.Allowed || d.Value != -40*l.q {
		t.Errorf("got %+v; want the value of -40 units: 100 less 3 that have flowed in, less 47 refunded, of 10", d)
	}
}

func credits(capacity int64) Spec {
	return Spec{Kind: TokenBucket, Rate: 1, Period: 365 * Day, Capacity: &capacity, Initial: new(int64(0))}
}

// What a balance lacks was never consumed: no change of its numbers adds units, or makes units unusable.
func TestABalanceKeepsItsUnits(t *testing.T) {
	half := func(rate int64, period Micros) Spec { // 2.5 units flow in within 2.5 s
		return Spec{Kind: TokenBucket, Rate: rate, Period: period, Capacity: new(int64(10)), Initial: new(int64(0))}
	}
	guaranteed := func(bank int64) Spec {
		return Spec{Kind: TokenBucket, Rate: 1, Period: hour, Capacity: &bank, Initial: new(int64(0)), Minimum: &Rate{10, minute}}
	}
	for name, c := range map[string]struct {
		from, to      Spec
		before, after int64
	}{
		"raised":              {credits(100_000), credits(200_000), 500, 500},
		"raised, never paid":  {credits(100_000), credits(200_000), 0, 0},
		"lowered":             {credits(100_000), credits(50_000), 500, 500},
		"lowered below it":    {credits(100_000), credits(50_000), 60_000, 50_000},
		"a debt":              {credits(100_000), credits(200_000), -7, -7},
		"another rate":        {half(1, sec), half(7, 3*sec), 2, 2},
		"a guaranteed bucket": {guaranteed(100), guaranteed(200), 30, 40}, // the guaranteed part has 10
	} {
		t.Run(name, func(t *testing.T) {
			from, to := mustCompile(t, c.from), mustCompile(t, c.to)
			s := State{By: from, Value: c.before * from.Unit(), Prev: from.v1, At: t0}
			charges := []Charge{{DryRun: true}, {}} // a dry run and a denial convert it too
			if c.after < to.Capacity {
				charges = append(charges, Charge{Cost: to.Capacity})
			}
			for _, a := range charges {
				next, d := to.Take(s, t0, a)
				if left := floorDiv(d.Value, to.Unit()); left != c.after || next.By != to {
					t.Errorf("%+v: %d are left, By %+v; want %d, and the new numbers", a, left, *next.By, c.after)
				}
			}
		})
	}
}

// A debt that the new numbers cannot express becomes the largest that they can.
func TestAHugeDebtOfABalance(t *testing.T) {
	fast := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1_000_000, Period: sec, Initial: new(int64(0))})
	slow := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: 30 * Day, Capacity: new(int64(5)), Initial: new(int64(0))})
	s := State{By: fast, Value: -1e11 * fast.q, At: t0}
	if s, d := slow.Take(s, t0, Charge{Cost: 1}); d.Allowed || s.Value != -slow.reach*slow.q || d.RetryAfter < 100*365*Day {
		t.Errorf("%+v of %+v; want denied, and a debt of %d units", d, s, slow.reach)
	}
}

// The bucket of a balance is full when its capacity is raised. Without the earlier charge it would not have been
// fuller, so that charge gets no refund. Later charges get theirs.
func TestSettlementsOfABalanceWithAnotherCapacity(t *testing.T) {
	spec := func(kind Kind, capacity int64) *Limit {
		return mustCompile(t, Spec{Kind: kind, Rate: 1000, Period: minute, Capacity: &capacity, Initial: new(capacity / 2), Settles: true, Start: map[Kind]*Micros{FixedWindow: new(t0)}[kind]})
	}
	low, high := spec(TokenBucket, 100), spec(TokenBucket, 200)
	s, _ := low.Take(State{By: low, Value: low.v, At: t0, Peaks: NewPeaks([]Peak{{t0, 0}})}, t0, Charge{Cost: 50})
	s, _ = high.Take(s, t0+minute, Charge{Cost: 10}) // the bucket was full again
	if s, d := high.Take(s, t0+minute, Charge{Cost: -50, ChargedAt: t0, Settle: true}); d.Remaining != 90 {
		t.Errorf("the early charge: %+v of %+v; want 90 left", d, s)
	}
	if s, d := high.Take(s, t0+minute, Charge{Cost: -10, ChargedAt: t0 + minute, Settle: true}); d.Remaining != 100 {
		t.Errorf("the later charge: %+v of %+v; want 100 left", d, s)
	}
	low, high = spec(FixedWindow, 50), spec(FixedWindow, 100)
	s, _ = high.Take(State{By: high, Value: 100, At: t0, Peaks: NewPeaks([]Peak{{t0, 0}})}, t0, Charge{Cost: 20})
	s, _ = low.Take(s, t0+sec, Charge{}) // cut from 80 to 50
	if _, d := high.Take(s, t0+2*sec, Charge{Cost: -20, ChargedAt: t0, Settle: true}); d.Remaining != 50 {
		t.Errorf("a window: %+v of %+v; want 50 left: the lower capacity has cut more than the refund", d, s)
	}
}
