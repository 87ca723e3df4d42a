package topk

import (
	"slices"
	"time"
)

// Window is the length of a window of Windows.
const Window = 5 * time.Minute

// Windows counts the most frequent items of the last five to ten minutes: the current window and the previous
// one. The windows of all Windows begin at the same times. The zero Windows has no room for items; use
// NewWindows. A Windows is not safe for concurrent use.
type Windows[V any] struct {
	max            int
	number         int64 // the number of the current window, whose items are in recent
	recent, before *Counter[V]
}

// NewWindows returns a Windows with room for max items in each window.
func NewWindows[V any](max int) Windows[V] { return Windows[V]{max: max} }

// Add counts n occurrences of key at the time now, like Counter.Add.
func (w *Windows[V]) Add(now time.Time, key []byte, n int64) (c *Counted[V], added bool) {
	w.turn(now)
	c, added = w.recent.Add(key, n)
	if added {
		c.spans = spans{}
	}
	c.spans.add(now, n)
	return c, added
}

// RateSpan is the time over which Rate averages.
const RateSpan = 10 * time.Second

// spans counts the occurrences of an item in the current RateSpan and in the one before.
type spans struct{ number, current, before int64 }

func (s *spans) add(now time.Time, n int64) {
	number := now.Unix() / int64(RateSpan/time.Second)
	if number > s.number {
		if s.before = s.current; number > s.number+1 {
			s.before = 0
		}
		s.number, s.current = number, 0
	}
	s.current += n
}

// rate returns the occurrences of c in a second, averaged over about the last RateSpan. It assumes that those of the span
// before the current one were spread evenly over it.
func (c *Counted[V]) rate(now time.Time) float64 {
	s := c.spans
	s.add(now, 0)
	past := float64(now.UnixNano()%int64(RateSpan)) / float64(RateSpan)
	return (float64(s.current) + float64(s.before)*(1-past)) / RateSpan.Seconds()
}

// Item is what both windows have about a key. It occurred at least Least and at most Most times.
type Item[V any] struct {
	// Newest is that of the current window, and Oldest that of the previous one. They are the same if one window has none.
	Newest, Oldest *Counted[V]
	Least, Most    int64
	// Rate is the number of occurrences in a second, averaged over about the last RateSpan.
	Rate float64
}

// Items returns the items of the two windows that are current at the time now, those of the newer one first.
func (w *Windows[V]) Items(now time.Time) (list []*Item[V]) {
	w.turn(now)
	at := map[string]*Item[V]{}
	for _, counter := range w.counters() {
		for _, c := range counter.Top(w.max) {
			one := at[c.key]
			if one == nil {
				one = &Item[V]{Newest: c, Most: w.Most(c.key)}
				at[c.key], list = one, append(list, one)
			}
			one.Oldest = c
			one.Least, one.Rate = one.Least+c.Least(), one.Rate+c.rate(now)
		}
	}
	return list
}

// Most returns an upper bound of the number of occurrences of key in both windows, like Counter.Most.
func (w *Windows[V]) Most(key string) (n int64) {
	for _, counter := range w.counters() {
		n += counter.Most(key)
	}
	return n
}

// Total returns the number of occurrences of all items in the two windows that are current at the time now.
func (w *Windows[V]) Total(now time.Time) (n int64) {
	w.turn(now)
	for _, counter := range w.counters() {
		n += counter.total
	}
	return n
}

// counters returns those of the two windows that have one, the newer first.
func (w *Windows[V]) counters() []*Counter[V] {
	return slices.DeleteFunc([]*Counter[V]{w.recent, w.before}, func(c *Counter[V]) bool { return c == nil })
}

// turn starts a new counter if there is none yet, or if the window of w.recent has ended by the time now. The old
// counter becomes w.before if its window was the previous one; otherwise w.before becomes nil. If the clock was set
// back, nothing changes.
func (w *Windows[V]) turn(now time.Time) {
	current := windowNumber(now)
	switch {
	case w.recent != nil && current <= w.number:
		return
	case w.recent != nil && current == w.number+1:
		w.before = w.recent
	default:
		w.before = nil
	}
	w.recent, w.number = New[V](w.max), current
}

// Since returns when counting began, for Windows that are read at the time now in a program that started at
// the time began.
func Since(now, began time.Time) time.Time {
	since := time.Unix((windowNumber(now)-1)*int64(Window/time.Second), 0)
	if since.Before(began) {
		return began
	}
	return since
}

func windowNumber(t time.Time) int64 { return t.Unix() / int64(Window/time.Second) }
