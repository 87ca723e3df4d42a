// Package topk counts the most frequent of many things in bounded memory, by the space-saving
// method of Metwally, Agrawal and El Abbadi (2005): a thing not counted yet takes the place, and the
// count, of the one counted least. So a count is too high by at most the count it took over (Over),
// and whatever makes up more than one in as many as are counted is there.
package topk

import (
	"cmp"
	"container/heap"
	"slices"
)

// Counter counts things by their keys. What is known of each is a V. It is not safe for concurrent
// use.
type Counter[V any] struct {
	max   int
	byKey map[string]*Counted[V]
	least order[V]
}

// Counted is a thing: there were at most Count of it, and at least Count - Over.
type Counted[V any] struct {
	Value       V
	Count, Over int64

	key   string
	index int // in the heap
}

// Least is how many there were for certain.
func (c *Counted[V]) Least() int64 { return c.Count - c.Over }

// Key is what it is counted by.
func (c *Counted[V]) Key() string { return c.key }

// New makes a Counter of max things, at least 1.
func New[V any](max int) *Counter[V] {
	return &Counter[V]{max: max, byKey: make(map[string]*Counted[V], max)}
}

// Add counts key once. A thing that is added is new, and its Value to be described; it is what
// another one left.
func (h *Counter[V]) Add(key []byte) (c *Counted[V], added bool) {
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
	c.Count++
	heap.Fix(&h.least, c.index)
	return c, added
}

// Most is how many there were at the most of what is counted by key, whether it is there or not.
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

// Top returns the n things of which there were most for certain, the most first.
func (h *Counter[V]) Top(n int) []*Counted[V] {
	all := slices.Clone([]*Counted[V](h.least))
	slices.SortFunc(all, func(a, b *Counted[V]) int {
		return cmp.Or(cmp.Compare(b.Least(), a.Least()), cmp.Compare(a.key, b.key))
	})
	return all[:min(n, len(all))]
}

// order is a heap, for package heap: the thing counted least is first.
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
