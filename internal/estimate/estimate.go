// Package estimate learns what requests cost, for limits whose requests reserve units before their cost is known. An
// estimate is never part of correctness: a wrong one reserves too much or too little until the request is settled.
//
// An estimate must not follow one client, or few. So it needs several keys, and each key counts for a tenth of the
// samples at most.
//
// Memory is bounded, for any number of keys: by MaxCells windows of 500 samples (8 KB) each, and a table of 32 KB that
// remembers the last samples.
package estimate

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// MaxCells bounds the number of cells, each with one window. The costs for further cells are not learned. Concurrent
	// calls of Learn may exceed the bound by a few cells.
	MaxCells = 4096
	// window is the number of samples that a cell keeps. Estimates follow changes within so many samples.
	window = 500
	// A key has at most mostOfKey of these samples. It counts for a tenth of them at most, or for the same part as all
	// others if there are fewer than ten keys.
	parts, mostOfKey = 10, window / parts
	// enough and enoughKeys are the numbers of samples and of keys that a cell needs before it has an estimate.
	enough, enoughKeys = 20, 5
	// A cell computes its estimate again when a fifth of its samples is new. With each sample, it would be too expensive.
	refresh = 5
	// slots is the size of the table that detects several samples of one key for one cell in a second. A sample is also
	// dropped if another key or cell has the same slot and a sample in this second.
	slots = 4096
)

// Estimates has the estimates of all limits of a process. The zero value is ready to use. It is safe for concurrent use.
type Estimates struct {
	cells sync.Map // maps uint64 to *cell
	count atomic.Int64
	last  [slots]atomic.Int64 // for each slot, the second of its last sample; the hash of the key and the number of the cell determine the slot
}

// cell learns the costs of the requests of one limit. With the setting per, a limit has several cells: one for each
// known value of the entries that per names, and one for all other values.
type cell struct {
	estimate atomic.Int64 // 0 means that too little is known

	mu      sync.Mutex
	samples []sample // guarded by mu; the oldest first
	fresh   int      // guarded by mu; the number of samples since the estimate was computed
}

type sample struct {
	key  uint64
	real int64
}

// Estimate returns the learned estimate of the cell with this number. 0 means that there are too few samples or keys,
// or that the cell was not created because of MaxCells.
func (e *Estimates) Estimate(number uint64) int64 {
	if c, ok := e.cells.Load(number); ok {
		return c.(*cell).estimate.Load()
	}
	return 0
}

// Learn adds the real cost of a request to the cell with this number. The parameter key is a hash of the request's
// bucket: a bucket counts once a second, so that one client cannot replace the samples of others. All calls for a cell
// have the same quantile q, in (0, 1).
func (e *Estimates) Learn(number uint64, q float64, key uint64, now algorithms.Micros, real int64) {
	second := int64(now / algorithms.Second)
	if e.last[(key^number)%slots].Swap(second) == second {
		return
	}
	found, ok := e.cells.Load(number)
	if !ok {
		if e.count.Load() >= MaxCells {
			return
		}
		var had bool
		if found, had = e.cells.LoadOrStore(number, &cell{}); !had {
			e.count.Add(1)
		}
	}
	found.(*cell).add(q, sample{key, real})
}

func (c *cell) add(q float64, s sample) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest, held := 0, 0 // the oldest sample of this key, and the number of its samples
	for i := range c.samples {
		if c.samples[i].key == s.key {
			if held++; held == 1 {
				oldest = i
			}
		}
	}
	switch {
	case held == mostOfKey:
		c.samples = slices.Delete(c.samples, oldest, oldest+1)
	case len(c.samples) == window:
		c.samples = slices.Delete(c.samples, 0, 1)
	}
	c.samples = append(c.samples, s)
	if c.fresh++; len(c.samples) >= enough && c.fresh*refresh >= len(c.samples) {
		c.fresh = 0
		c.estimate.Store(learned(c.samples, q))
	}
}

// learned returns the quantile q of the costs, at least 1, or 0 if there are too few keys.
func learned(samples []sample, q float64) int64 {
	var copied [window]sample // on the stack
	sorted := copied[:copy(copied[:], samples)]
	slices.SortFunc(sorted, func(a, b sample) int { return cmp.Compare(a.key, b.key) })
	type cost struct {
		real   int64
		weight float64
	}
	var weighted [window]cost
	costs := weighted[:len(sorted)]
	keys, keysWith := 0, [mostOfKey + 1]int{} // keysWith[n] is the number of keys with n samples
	for start, end := 0, 0; start < len(sorted); start = end {
		for end < len(sorted) && sorted[end].key == sorted[start].key {
			end++
		}
		keys++
		keysWith[end-start]++
		for i := start; i < end; i++ {
			costs[i] = cost{sorted[i].real, float64(end - start)}
		}
	}
	if keys < enoughKeys {
		return 0
	}
	most, total := mostWeight(&keysWith, len(sorted), min(keys, parts)), 0.0
	for i := range costs {
		costs[i].weight = min(1, most/costs[i].weight)
		total += costs[i].weight
	}
	slices.SortFunc(costs, func(a, b cost) int { return cmp.Compare(a.real, b.real) })
	i, sum := 0, costs[0].weight
	for sum < q*total {
		i++
		sum += costs[i].weight
	}
	return max(1, costs[i].real)
}

// mostWeight returns the largest weight that a key may have, so that it has one of n parts of the sum of all weights at
// most. The weight of each other key is the number of its samples.
func mostWeight(keysWith *[mostOfKey + 1]int, samples, n int) float64 {
	for held := mostOfKey; ; held-- { // at n = 1, samples are those of one key or more, so the loop ends
		for range keysWith[held] {
			if samples >= held*n {
				return float64(samples) / float64(n)
			}
			samples, n = samples-held, n-1 // this key has one part, and the keys with fewer samples have the rest
		}
	}
}
