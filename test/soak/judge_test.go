package soak

import (
	"fmt"
	"slices"
	"testing"
)

type usage struct{ KiB, Goroutines, Files, Series float64 }

// judge returns a text for each value that grew too much. It compares the smallest value of the last quarter with the
// largest value of the second quarter, because a bounded value has reached its bound by then. A value may grow by
// 10 % plus a constant, which is slack KiB for memory. With fewer than 8 measurements, judge returns one text that says
// so.
func judge(all []usage, slack float64) (wrong []string) {
	for _, c := range []struct {
		what  string
		of    func(usage) float64
		slack float64
	}{
		{"KiB of memory", func(u usage) float64 { return u.KiB }, slack},
		{"goroutines", func(u usage) float64 { return u.Goroutines }, 5},
		{"open files", func(u usage) float64 { return u.Files }, 5},
		{"lines of metrics", func(u usage) float64 { return u.Series }, 20},
	} {
		n := len(all)
		if n < 8 {
			return []string{fmt.Sprintf("only %d measurements", n)}
		}
		var values []float64
		for _, u := range all {
			values = append(values, c.of(u))
		}
		before, after := slices.Max(values[n/4:n/2]), slices.Min(values[n*3/4:])
		if after > before*1.1+c.slack {
			wrong = append(wrong, fmt.Sprintf("%s grew from %.0f to %.0f", c.what, before, after))
		}
	}
	return wrong
}

func TestTheJudgeNoticesALeak(t *testing.T) {
	series := func(of func(i int) usage) (all []usage) {
		for i := range 60 {
			all = append(all, of(i))
		}
		return all
	}
	steady := usage{50_000, 60, 40, 900}
	for name, c := range map[string]struct {
		of   func(i int) usage
		want int
	}{
		"steady": {func(int) usage { return steady }, 0},
		"up and down": {func(i int) usage {
			return usage{50_000 + float64(i%7)*2000, 60 + float64(i%10), 40 + float64(i%9), 900}
		}, 0},
		"a start that takes long": {func(i int) usage {
			return usage{min(50_000, 10_000+float64(i)*4000), min(60, 5*float64(i)), 40, 900}
		}, 0},
		"memory":     {func(i int) usage { return usage{50_000 + float64(i)*1000, 60, 40, 900} }, 1},
		"goroutines": {func(i int) usage { return usage{50_000, 60 + float64(i), 40, 900} }, 1},
		"files":      {func(i int) usage { return usage{50_000, 60, 40 + float64(i), 900} }, 1},
		"series":     {func(i int) usage { return usage{50_000, 60, 40, 900 + 10*float64(i)} }, 1},
	} {
		if wrong := judge(series(c.of), 4<<10); len(wrong) != c.want {
			t.Errorf("%s: the judge reports %q; want %d reports", name, wrong, c.want)
		}
	}
	if len(judge(series(func(int) usage { return steady })[:3], 0)) == 0 {
		t.Error("the judge accepts three measurements, want a report that they are too few")
	}
}
