// Package topk counts the most frequent items of a stream in bounded memory, by the space-saving algorithm of
// Metwally, Agrawal and El Abbadi (2005). A new item replaces the item with the lowest count and inherits
// that count. So a count is too high by at most the inherited count (Over). With n counters, the Counter
// contains every item that makes up more than 1/n of the stream.
package topk

import (
	"cmp"
	"slices"
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
