package history

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

var (
	began = time.Unix(1e9, 0)
	login = Key{"d", "login"}
)

func sampleLogin(r *Recorder, at time.Duration, t Totals) {
	r.Sample(began.Add(at), t, func(visit func(Key, Totals)) { visit(login, t) })
}

func TestPointsCountOneStepEach(t *testing.T) {
	r := New(began)
	sampleLogin(r, 0, Totals{5, 0, 0})
	sampleLogin(r, 5*time.Second, Totals{25, 3, 1})
	sampleLogin(r, 10*time.Second, Totals{25, 3, 1})
	sampleLogin(r, 25*time.Second, Totals{26, 10, 1}) // two steps were not sampled
	end, p := r.Points(login, Recent)
	last := len(p) - 1
	want := map[int]Point{last - 5: {5, 0, 0}, last - 4: {20, 3, 1}, last: {1, 7, 0}}
	for i := range p {
		if p[i] != want[i] {
			t.Errorf("step %d is %v, want %v", i-last, p[i], want[i])
		}
	}
	if at := began.Add(30 * time.Second); !end.Equal(at) || Sum(p) != (Totals{26, 10, 1}) {
		t.Errorf("%v until %v; want all until %v", Sum(p), end, at)
	}
	for _, of := range []Range{Recent, Day} {
		if _, all := r.Points(Key{}, of); Sum(all) != (Totals{26, 10, 1}) || len(all) != of.Steps {
			t.Errorf("%v in %d points of all requests; want %v in %d", Sum(all), len(all), Totals{26, 10, 1}, of.Steps)
		}
	}
	want2 := Rate{26. / 60, 10. / 60, 1. / 60}
	r.Rates(1, func(int) Key { return login }, func(_ int, got Rate) {
		if got != want2 || r.all.series == nil {
			t.Errorf("%v a second; want %v", got, want2)
		}
	})
	if got := r.Rate(); got != want2 {
		t.Errorf("all requests: %v a second; want %v", got, want2)
	}
}

func sums(r *Recorder) [2]Totals {
	_, recent := r.Points(login, Recent)
	_, day := r.Points(login, Day)
	return [2]Totals{Sum(recent), Sum(day)}
}

// All requests are in the first step. They leave the recent points after 15 minutes, and those of the day after a day.
func TestCountsAreDroppedInTime(t *testing.T) {
	r := New(began)
	one := Totals{1, 1, 0}
	for at := time.Duration(0); at <= 25*time.Hour; at += Step {
		sampleLogin(r, at, one)
		var want [2]Totals
		if at < 15*time.Minute {
			want[0] = one
		}
		if at < 24*time.Hour {
			want[1] = one
		}
		if got := sums(r); got != want {
			t.Fatalf("after %v: %v; want %v", at, got, want)
		}
	}
	if r.kept != 0 {
		t.Errorf("%d limits have points; want none", r.kept)
	}
	sampleLogin(r, 25*time.Hour+time.Minute, Totals{4, 1, 0})
	if got, want := sums(r), (Totals{3, 0, 0}); got != [2]Totals{want, want} {
		t.Errorf("got %v; want only the new decisions", got)
	}
}

// The rings are used again. A point must not keep the count of an earlier step.
func TestSteadyTrafficIsCounted(t *testing.T) {
	r := New(began)
	for i := range 2 * 24 * 3600 / 5 {
		sampleLogin(r, time.Duration(i)*Step, Totals{Allowed: uint64(i + 1)})
		if got, want := sums(r)[0].Allowed, uint64(min(i+1, Recent.Steps)); got != want {
			t.Fatalf("after step %d: %d requests, want %d", i, got, want)
		}
	}
	if got := sums(r)[1].Allowed; got != 24*3600/5 {
		t.Errorf("%d requests in a day; want one each five seconds", got)
	}
}

func TestClocksAndCountersThatGoBack(t *testing.T) {
	r := New(began)
	sampleLogin(r, time.Minute, Totals{10, 0, 0})
	sampleLogin(r, 0, Totals{12, 0, 0})          // the clock was set back
	sampleLogin(r, time.Minute, Totals{3, 0, 0}) // the limit was removed and added again
	if left := sums(r)[0]; left != (Totals{15, 0, 0}) {
		t.Errorf("got %v; want 15 requests", left)
	}
	sampleLogin(r, 1e5*time.Hour, Totals{1<<32 + 9, 0, 0}) // far in the future, with more requests than a point can hold
	if left := sums(r)[0]; left != (Totals{1<<32 - 1, 0, 0}) {
		t.Errorf("got %v; want the most that a point can hold", left)
	}
}

func TestTheBusiestLimitsHavePoints(t *testing.T) {
	const limits = 20_000
	r := New(began)
	sample := func(step, n, busy int) {
		r.Sample(began.Add(time.Duration(step)*Step), Totals{}, func(visit func(Key, Totals)) {
			for i := range n {
				count := uint64(step)
				if i == busy {
					count *= 10
				}
				visit(Key{"d", fmt.Sprint("limit", i)}, Totals{Allowed: count})
			}
		})
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for step := 1; step <= 24; step++ {
		sample(step, limits, limits-1)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if r.kept != MaxSeries || r.Dropped() != limits-MaxSeries {
		t.Errorf("%d limits have points, %d have none; want %d and %d", r.kept, r.Dropped(), MaxSeries, limits-MaxSeries)
	}
	if _, points := r.Points(Key{"d", fmt.Sprint("limit", limits-1)}, Recent); points == nil {
		t.Error("the busiest limit, which came last, has no points")
	}
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 20<<20 {
		t.Errorf("%d limits use %d KiB; want at most %d KiB", limits, used>>10, 20<<10)
	}
	sample(25, 1, 0)
	if len(r.limits) != 1 || r.kept > 1 {
		t.Errorf("%d limits, and %d with points, are left; want at most 1", len(r.limits), r.kept)
	}
}

func TestMarksAreBounded(t *testing.T) {
	r := New(began)
	for i := range maxMarks + 5 {
		r.Mark(began, fmt.Sprint(i))
	}
	if marks := r.Marks(); len(marks) != maxMarks || marks[0].Text != "5" {
		t.Errorf("%d marks from %q; want the last %d", len(marks), marks[0].Text, maxMarks)
	}
}
