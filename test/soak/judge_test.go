package soak

import (
	"fmt"
	"slices"
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
		{"series of metrics", func(u usage) float64 { return u.Series }, 20},
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
