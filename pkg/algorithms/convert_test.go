package algorithms

import "testing"

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

// With so many ticks, the product of ticks and p exceeds 64 bits.
func TestAnIdleBucketIsFullUnderTheOldNumbers(t *testing.T) {
	k := kept{used: maxExact, p: maxExact}
	for ticks, want := range map[int64]int64{0: maxExact, 1: 0, 1 << 11: 0, 1 << 52: 0} {
		if got := k.after(ticks); got != want {
			t.Errorf("after %d ticks: %d, want %d", ticks, got, want)
		}
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
