package simulate

import (
	"container/heap"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// queue returns values in the order of their times. Values with the same time are in the order in which they were added.
type queue[T any] struct {
	heap  timeHeap[T]
	added int64
}

type timed[T any] struct {
	at     algorithms.Micros
	number int64
	value  T
}

func (q *queue[T]) len() int { return len(q.heap) }

func (q *queue[T]) add(at algorithms.Micros, value T) {
	q.added++
	heap.Push(&q.heap, timed[T]{at, q.added, value})
}

// due reports whether a value has the time latest or an earlier one.
func (q *queue[T]) due(latest algorithms.Micros) bool {
	return len(q.heap) > 0 && q.heap[0].at <= latest
}

// take removes the first value. There must be one.
func (q *queue[T]) take() (algorithms.Micros, T) {
	first := heap.Pop(&q.heap).(timed[T])
	return first.at, first.value
}

type timeHeap[T any] []timed[T]

func (h timeHeap[T]) Len() int { return len(h) }
func (h timeHeap[T]) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}
func (h timeHeap[T]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timeHeap[T]) Push(x any)   { *h = append(*h, x.(timed[T])) }
func (h *timeHeap[T]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = timed[T]{}
	*h = (*h)[:last]
	return x
}
