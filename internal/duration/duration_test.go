package duration

import (
	"math"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestSpan(t *testing.T) {
	for span, want := range map[algorithms.Micros]string{
		0: "0s", 1: "1µs", 1500: "1ms500µs", algorithms.Second: "1s", 60 * algorithms.Second: "1m", 90 * algorithms.Second: "1m30s",
		3600 * algorithms.Second: "1h", 3660 * algorithms.Second: "1h1m", 3601 * algorithms.Second: "1h0m1s",
		algorithms.Day: "1d", 30 * algorithms.Day: "30d", algorithms.Day + algorithms.Second: "24h0m1s", -6 * algorithms.Second: "-6s",
		1<<62 + 1: "4611686018427s",
	} {
		if got := Format(span); got != want {
			t.Errorf("%d: got %s, want %s", span, got, want)
		}
	}
}

func TestSpansOfDurations(t *testing.T) {
	const us, ms, s = algorithms.Micros(1), algorithms.Micros(1000), algorithms.Second
	for d, want := range map[algorithms.Micros]string{
		0: "0s", us: "1µs", ms: "1ms", s: "1s", 60 * s: "1m", 61 * s: "1m1s", 3600 * s: "1h", 3660 * s: "1h1m", 3601 * s: "1h0m1s", algorithms.Day: "1d", 7 * algorithms.Day: "7d", algorithms.Day + s: "24h0m1s",
		s + 500*ms: "1s500ms", ms + us: "1ms1µs", s + ms: "1s1ms", 1500: "1ms500µs", s + us: "1s1µs", -s: "-1s", -s - 500*ms: "-1s500ms", -60 * s: "-1m",
		algorithms.MaxTime: Format(algorithms.MaxTime-algorithms.MaxTime%s) + Format(algorithms.MaxTime%s), algorithms.MaxTime + 1: "4503599627s",
	} {
		got := Format(d)
		if got != want {
			t.Errorf("%d: %q, want %q", d, got, want)
		}
		if d > 0 && d <= algorithms.MaxTime {
			if again, err := Parse(got); err != nil || again != d {
				t.Errorf("%q is parsed as %d, %v; want %d", got, again, err, d)
			}
		}
	}
	for text, want := range map[string]algorithms.Micros{
		"9223372036854775807us": math.MaxInt64, "9223372036854775808us": 0, "1us9223372036854775806us": math.MaxInt64, "1us9223372036854775807us": 0,
		"106751991d": 106751991 * algorithms.Day, "106751992d": 0, "1h30m": 5400 * s, "": 0, "h": 0, "1": 0, "1h30": 0, "1x": 0, "0s": 0, "0s0ms": 0, "0s1us": 1, "9223372036854775807us1us": 0, "9223372036854775807us9223372036854775807us3us": 0, "-1s": 0, "1.5s": 0, "5 s": 0,
	} {
		if got, err := Parse(text); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
}

// FuzzSpan checks that Parse parses what Format writes up to algorithms.MaxTime, and agrees with package time
// for units that both know.
func FuzzSpan(f *testing.F) {
	for _, text := range []string{"500ms", "1h30m", "2d", "1w", "9223372036854775807us", "1us1us", "", "1", "s", "-1s", "1h0m"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		span, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(Format(span)); span <= algorithms.MaxTime && (err != nil || again != span) {
			t.Errorf("%q is %d us, written %q, read again %d us, %v; want the same number", text, span, Format(span), again, err)
		}
		if d, err := time.ParseDuration(text); err == nil && d/time.Microsecond != time.Duration(span) {
			t.Errorf("Parse(%q) is %d us, want %s as in package time", text, span, d)
		}
	})
}
