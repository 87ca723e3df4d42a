// Package topk counts the most frequent items of a stream in bounded memory, by the space-saving algorithm of
// Metwally, Agrawal and El Abbadi (2005). A new item replaces the item with the lowest count and inherits
// that count. So a count is too high by at most the inherited count (Over). With n counters, the Counter
// contains every item that makes up more than 1/n of the stream.
package topk

import (
	"cmp"
	"slices"
	"time"
)

// Counter counts items by their keys. Each item has a value of type V. A Counter is not safe for concurrent use.
type Counter[V any] struct {
	max   int
	total int64 // the occurrences of all items
	byKey map[string]*Counted[V]
	// least contains all items. Once there are max items, it is a heap ordered by count. Before that, no item
	// is replaced, so the order does not matter. container/heap is not used, because its two method calls for
	// each comparison took four fifths of the time.
	least []place[V]
}

// place is an item in the heap. It has a copy of the item's Count, so that a comparison reads only the heap.
type place[V any] struct {
	count int64
	item  *Counted[V]
}

// Counted is one item. It occurred at most Count times, and at least Count - Over times.
type Counted[V any] struct {
	Value       V
	Count, Over int64

	key       string
	heapIndex int
	spans     spans // of the items of Windows
}

// Least returns the lower bound of the number of occurrences.
func (c *Counted[V]) Least() int64 { return c.Count - c.Over }

func (c *Counted[V]) Key() string { return c.key }

// New returns a Counter for max items. max is at least 1.
func New[V any](max int) *Counter[V] {
	return &Counter[V]{max: max, byKey: make(map[string]*Counted[V], max)}
}

// Add counts n occurrences of key; n is at least 1. If added is true, the item is new, and the caller must set its Value.
// Until then Value may be the value of the replaced item. A later call may replace the item: use c only until then.
func (h *Counter[V]) Add(key []byte, n int64) (c *Counted[V], added bool) {
	c = h.byKey[string(key)]
	if c == nil {
		if len(h.least) < h.max {
			c = &Counted[V]{heapIndex: len(h.least)}
			h.least = append(h.least, place[V]{item: c})
		} else {
			c = h.least[0].item
			delete(h.byKey, c.key)
			c.Over = c.Count
		}
		c.key, added = string(key), true
		h.byKey[c.key] = c
	}
	c.Count += n
	h.total += n
	h.least[c.heapIndex].count = c.Count
	switch {
	case len(h.least) < h.max:
	case added && c.Over == 0: // a new item, and the last one for which there is room
		for i := len(h.least) / 2; i >= 0; i-- {
			h.sink(i)
		}
	default:
		h.sink(c.heapIndex)
	}
	return c, added
}

// sink restores the heap after the count of its item i has grown. The items below i must be in order.
func (h *Counter[V]) sink(i int) {
	grown := h.least[i]
	for {
		next := 2*i + 1
		if next >= len(h.least) {
			break
		}
		if other := next + 1; other < len(h.least) && h.least[other].count < h.least[next].count {
			next = other
		}
		if grown.count <= h.least[next].count {
			break
		}
		h.least[i] = h.least[next]
		h.least[i].item.heapIndex = i
		i = next
	}
	h.least[i] = grown
	grown.item.heapIndex = i
}

// Most returns an upper bound of the number of occurrences of key, even if the Counter does not contain key.
func (h *Counter[V]) Most(key string) int64 {
	switch c := h.byKey[key]; {
	case c != nil:
		return c.Count
	case len(h.least) < h.max:
		return 0
	default:
		return h.least[0].count
	}
}

// Top returns the items with the highest lower bounds, the highest first. There are n of them, or all if there are
// fewer.
func (h *Counter[V]) Top(n int) []*Counted[V] {
	all := make([]*Counted[V], len(h.least))
	for i := range h.least {
		all[i] = h.least[i].item
	}
	slices.SortFunc(all, func(a, b *Counted[V]) int {
		return cmp.Or(cmp.Compare(b.Least(), a.Least()), cmp.Compare(a.key, b.key))
	})
	return all[:min(n, len(all))]
}

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
