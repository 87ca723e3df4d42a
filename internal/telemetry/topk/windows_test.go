package topk

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestWindowsAddUpTheCurrentAndThePreviousWindow counts keys at given times. After each step it checks the items of
// both windows, as key=least/value, the upper bound for key a, and the time at which counting began.
func TestWindowsAddUpTheCurrentAndThePreviousWindow(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 1, 0, 0, time.UTC)
	w := NewWindows[string](2)
	for _, step := range []struct {
		at      string // hh:mm:ss of the same day
		add     string // "" means that the windows are only read
		n       int64
		added   bool
		list    string
		most    int64 // the upper bound for a
		counted string
	}{
		{"03:01:00", "", 0, false, "", 0, "03:01:00"},
		{"03:02:00", "b", 2, true, "b=2/new", 0, "03:01:00"},
		{"03:02:00", "a", 1, true, "a=1/new b=2/new", 1, "03:01:00"},
		{"03:04:59", "a", 4, false, "a=5/new b=2/new", 5, "03:01:00"},
		{"03:05:00", "a", 1, true, "a=6/new b=2/new", 6, "03:01:00"},
		{"03:05:00", "b", 1, true, "a=6/new b=3/new", 6, "03:01:00"},
		{"03:04:00", "b", 1, false, "a=6/new b=4/new", 6, "03:01:00"}, // the clock was set back
		{"03:09:59", "", 0, false, "a=6/new b=4/new", 6, "03:01:00"},
		{"03:10:00", "", 0, false, "a=1/new b=2/new", 1, "03:05:00"},
		{"03:10:00", "c", 1, true, "a=1/new b=2/new c=1/new", 1, "03:05:00"},
		{"03:20:00", "", 0, false, "", 0, "03:15:00"}, // more than one window has passed
		{"03:20:00", "a", 1, true, "a=1/new", 1, "03:15:00"},
	} {
		now, err := time.Parse(time.DateTime, "2026-01-02 "+step.at)
		if err != nil {
			t.Fatal(err)
		}
		if step.add != "" {
			c, added := w.Add(now, []byte(step.add), step.n)
			if added != step.added {
				t.Errorf("%s: %s is new: %t, want %t", step.at, step.add, added, step.added)
			}
			if added {
				c.Value = "new"
			}
		}
		var list []string
		for _, c := range w.Items(now) {
			list = append(list, fmt.Sprintf("%s=%d/%s", c.Newest.Key(), c.Least, c.Oldest.Value))
		}
		slices.Sort(list)
		if got := strings.Join(list, " "); got != step.list {
			t.Errorf("%s: got %q, want %q", step.at, got, step.list)
		}
		if got := w.Most("a"); got != step.most {
			t.Errorf("%s: at most %d of a, want %d", step.at, got, step.most)
		}
		if got := Since(now, began).Format(time.TimeOnly); got != step.counted {
			t.Errorf("%s: counted since %s, want %s", step.at, got, step.counted)
		}
	}
}

// A rate averages over ten seconds, across a change of windows, and does not count the item that was replaced.
func TestRates(t *testing.T) {
	end := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC) // the end of a window
	w := NewWindows[string](1)
	w.Add(end.Add(-9*time.Second), []byte("a"), 70)
	w.Add(end.Add(-4*time.Second), []byte("b"), 30)
	for _, step := range []struct {
		at   time.Duration
		add  int64
		want float64
	}{{-4 * time.Second, 0, 3}, {-1 * time.Second, 10, 4}, {0, 0, 4}, {2500 * time.Millisecond, 20, 3 + 2}, {5 * time.Second, 0, 2 + 2}, {12 * time.Second, 0, 1.6}, {25 * time.Second, 0, 0}} {
		if step.add > 0 {
			w.Add(end.Add(step.at), []byte("b"), step.add)
		}
		rate := 0.
		for _, c := range w.Items(end.Add(step.at)) {
			if c.Newest.Key() == "b" {
				rate += c.Rate
			}
		}
		if math.Abs(rate-step.want) > 1e-9 {
			t.Errorf("%v after the window: %v in a second; want %v", step.at, rate, step.want)
		}
	}
}
