// Package topk counts the most frequent items of a stream in bounded memory, by the space-saving algorithm of
// Metwally, Agrawal and El Abbadi (2005). A new item replaces the item with the lowest count and inherits that
// count. So a count is too high by at most the inherited count (Over). With n counters, every item that makes up
// more than 1/n of the stream is counted.
package topk

import (
	"cmp"
	"container/heap"
	"slices"
)

// Counter counts items by their keys. Each item has a value of type V. A Counter is not safe for concurrent use.
type Counter[V any] struct {
	max   int
	byKey map[string]*Counted[V]
	least order[V]
}

// Counted is one item. It occurred at most Count times, and at least Count - Over times.
type Counted[V any] struct {
	Value       V
	Count, Over int64

	key   string
	index int // in the heap
}

// Least returns the lower bound of the count.
func (c *Counted[V]) Least() int64 { return c.Count - c.Over }

// Key returns the item's key.
func (c *Counted[V]) Key() string { return c.key }

// New makes a Counter for max items, at least 1.
func New[V any](max int) *Counter[V] {
	return &Counter[V]{max: max, byKey: make(map[string]*Counted[V], max)}
}

// Add counts one occurrence of key. If added is true, the item is new, and the caller must set its Value, which may
// still be that of the replaced item.
func (h *Counter[V]) Add(key []byte) (c *Counted[V], added bool) { return h.AddN(key, 1) }

// AddN counts n occurrences of key; n is at least 1.
func (h *Counter[V]) AddN(key []byte, n int64) (c *Counted[V], added bool) {
	c = h.byKey[string(key)]
	if c == nil {
		if len(h.least) < h.max {
			c = &Counted[V]{}
			heap.Push(&h.least, c)
		} else {
			c = h.least[0]
			delete(h.byKey, c.key)
			c.Over = c.Count
		}
		c.key, added = string(key), true
		h.byKey[c.key] = c
	}
	c.Count += n
	heap.Fix(&h.least, c.index)
	return c, added
}

// Most returns an upper bound of the number of occurrences of key, which need not be counted.
func (h *Counter[V]) Most(key string) int64 {
	switch c := h.byKey[key]; {
	case c != nil:
		return c.Count
	case len(h.least) < h.max:
		return 0
	default:
		return h.least[0].Count
	}
}

// Top returns the n items with the highest lower bounds, the highest first.
func (h *Counter[V]) Top(n int) []*Counted[V] {
	all := slices.Clone([]*Counted[V](h.least))
	slices.SortFunc(all, func(a, b *Counted[V]) int {
		return cmp.Or(cmp.Compare(b.Least(), a.Least()), cmp.Compare(a.key, b.key))
	})
	return all[:min(n, len(all))]
}

// order implements heap.Interface, with the lowest count first.
type order[V any] []*Counted[V]

func (o order[V]) Len() int           { return len(o) }
func (o order[V]) Less(i, j int) bool { return o[i].Count < o[j].Count }

func (o order[V]) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].index, o[j].index = i, j
}

func (o *order[V]) Push(x any) {
	c := x.(*Counted[V])
	c.index = len(*o)
	*o = append(*o, c)
}

func (o *order[V]) Pop() any {
	last := (*o)[len(*o)-1]
	*o = (*o)[:len(*o)-1]
	return last
}
