package algorithms

import (
	"testing"
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

func left(l *Limit, s State, now Micros) int64 {
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
		l, s := mustCompile(t, Spec{Kind: kind, Rate: 0, Period: sec}), State{}
		for _, cost := range []int64{1, 0, -1} {
			var d Decision
			if s, d = l.Take(s, t0, Charge{Cost: cost}); d.Allowed != (cost <= 0) || d.Never == d.Allowed || d.Remaining != 0 {
				t.Errorf("%s, cost %d: got %+v; want a denial for good of a positive cost only, and 0 remaining", kind, cost, d)
			}
		}
	}
}
