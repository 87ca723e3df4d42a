package simulate

import (
	"cmp"
	"container/heap"
	"slices"
)

// heavy counts the most frequent of many things in bounded memory, by the space-saving method of
// Metwally, Agrawal and El Abbadi (2005): a thing not counted yet takes the place, and the count,
// of the one counted least. So a count is too high by at most the count it took over (over), and
// whatever makes up more than 1/maxHeavy of all is there.
type heavy struct {
	byKey map[string]*counted
	heap  []*counted // the one counted least is first
}

const maxHeavy = 1000

type counted struct {
	key         string
	row         *row
	shown       string
	count, over int64
	index       int // in heap
}

func newHeavy() *heavy { return &heavy{byKey: make(map[string]*counted, maxHeavy)} }

// add counts key once. It returns what it now counts as new, for the caller to describe, or nil.
func (h *heavy) add(key []byte) (added *counted) {
	c := h.byKey[string(key)]
	if c == nil {
		if len(h.heap) < maxHeavy {
			c = &counted{}
			heap.Push(h, c)
		} else {
			c = h.heap[0]
			delete(h.byKey, c.key)
			c.over = c.count
		}
		c.key = string(key)
		h.byKey[c.key] = c
		added = c
	}
	c.count++
	heap.Fix(h, c.index)
	return added
}

// top returns the n things counted most for certain, the most first.
func (h *heavy) top(n int) []*counted {
	all := slices.Clone(h.heap)
	slices.SortFunc(all, func(a, b *counted) int {
		return cmp.Or(cmp.Compare(b.count-b.over, a.count-a.over), cmp.Compare(a.key, b.key))
	})
	return all[:min(n, len(all))]
}

// Len, Less, Swap, Push and Pop are for package heap.
func (h *heavy) Len() int           { return len(h.heap) }
func (h *heavy) Less(i, j int) bool { return h.heap[i].count < h.heap[j].count }

func (h *heavy) Swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].index, h.heap[j].index = i, j
}

func (h *heavy) Push(x any) {
	c := x.(*counted)
	c.index = len(h.heap)
	h.heap = append(h.heap, c)
}

func (h *heavy) Pop() any {
	last := h.heap[len(h.heap)-1]
	h.heap = h.heap[:len(h.heap)-1]
	return last
}
