package history

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

var began = time.Unix(1e9, 0)

func sampleLogin(r *Recorder, at time.Duration, t Totals) {
	r.Sample(began.Add(at), t, func(visit func(Key, Totals)) { visit(Key{"d", "login"}, t) })
}

func TestPointsCountOneStepEach(t *testing.T) {
	r := New(began)
	sampleLogin(r, 0, Totals{5, 0})
	sampleLogin(r, 10*time.Second, Totals{25, 3})
	sampleLogin(r, 20*time.Second, Totals{25, 3})
	sampleLogin(r, 50*time.Second, Totals{26, 10}) // two steps were not sampled
	p := r.Limit(Key{"d", "login"})
	want := map[int]Point{Steps - 6: {5, 0}, Steps - 5: {20, 3}, Steps - 1: {1, 7}}
	for i := range p {
		if p[i] != want[i] {
			t.Errorf("step %d is %v, want %v", i-Steps+1, p[i], want[i])
		}
	}
	if sum := p.Sum(); sum != (Totals{26, 10}) || r.All() != p {
		t.Errorf("the sum of all points is %v, the total is %v; want %v and %v", sum, r.All(), Totals{26, 10}, p)
	}
	if allowed, denied := p.Rate(); allowed != 26./60 || denied != 10./60 {
		t.Errorf("%v allowed and %v denied a second; want %v and %v", allowed, denied, 26./60, 10./60)
	}
}

func sum(r *Recorder) Totals {
	p := r.Limit(Key{"d", "login"})
	return p.Sum()
}

func TestCountsAreDroppedAfterFifteenMinutes(t *testing.T) {
	r := New(began)
	for at := time.Duration(0); at <= 20*time.Minute; at += Step {
		sampleLogin(r, at, Totals{1, 1}) // all requests are in the first step
		left := sum(r)
		if want := (Totals{1, 1}); at < 15*time.Minute && left != want {
			t.Fatalf("after %v: %v; want %v", at, left, want)
		}
		if at >= 15*time.Minute && (left != Totals{} || r.seriesCount != 0) {
			t.Fatalf("after %v: %v, %d series; want %v left and 0 kept", at, left, r.seriesCount, Totals{})
		}
	}
	sampleLogin(r, 21*time.Minute, Totals{4, 1})
	if left := sum(r); left != (Totals{3, 0}) {
		t.Errorf("a limit that is added again has %v, want only its new decisions", left)
	}
}

// The ring of points is used again after fifteen minutes. A point must not keep the count of an earlier step.
func TestSteadyTrafficIsCountedForFifteenMinutes(t *testing.T) {
	r := New(began)
	for i := range 3 * Steps {
		sampleLogin(r, time.Duration(i)*Step, Totals{uint64(i + 1), 0})
		if got, want := sum(r).Allowed, uint64(min(i+1, Steps)); got != want {
			t.Fatalf("after step %d: %d requests, want %d", i, got, want)
		}
	}
}

func TestClocksAndCountersThatGoBack(t *testing.T) {
	r := New(began)
	sampleLogin(r, time.Minute, Totals{10, 0})
	sampleLogin(r, 0, Totals{12, 0})          // the clock was set back
	sampleLogin(r, time.Minute, Totals{3, 0}) // the limit was removed and added again
	if left := sum(r); left != (Totals{15, 0}) {
		t.Errorf("got %v; want %v left", left, Totals{15, 0})
	}
	sampleLogin(r, 1e5*time.Hour, Totals{1<<32 + 9, 0}) // far in the future, with more requests than a point can hold
	if left := sum(r); left != (Totals{1<<32 - 1, 0}) {
		t.Errorf("got %v; want %v left", left, Totals{1<<32 - 1, 0})
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const limits = 20_000
	r := New(began)
	sample := func(step, n int) {
		r.Sample(began.Add(time.Duration(step)*Step), Totals{}, func(visit func(Key, Totals)) {
			for i := range n {
				visit(Key{"d", fmt.Sprint("limit", i)}, Totals{Allowed: uint64(step)})
			}
		})
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for step := 1; step <= 5; step++ {
		sample(step, limits)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if r.seriesCount != MaxSeries || r.Dropped() != limits-MaxSeries {
		t.Errorf("%d limits have a series, %d have none; want %d and %d", r.seriesCount, r.Dropped(), MaxSeries, limits-MaxSeries)
	}
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 20<<20 {
		t.Errorf("%d limits use %d KiB; want at most %d KiB", limits, used>>10, 20<<10)
	}
	sample(6, 1)
	if len(r.limits) != 1 || r.seriesCount > 1 {
		t.Errorf("%d limits and %d series are left; want 1 limit and at most 1 series", len(r.limits), r.seriesCount)
	}
}
