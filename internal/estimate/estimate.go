// Package estimate learns what requests cost, for limits whose requests reserve units before their cost is known. An
// estimate is never part of correctness: a wrong one reserves too much or too little until the request is settled.
//
// Memory is bounded: by MaxCells sketches, which have a bounded size themselves, and a table of a fixed size that
// remembers the last samples.
package estimate

import (
	"sync"
	"sync/atomic"

	"github.com/beorn7/perks/quantile"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// MaxCells bounds the number of cells, each with one sketch. The costs for further cells are not learned. Concurrent
	// calls of Learn may exceed the bound by a few cells.
	MaxCells = 4096
	// enough is the number of samples that a sketch needs before it has an estimate.
	enough = 20
	// renew is the number of samples after which a new sketch replaces the old one, so that estimates follow
	// changes. The estimate of the old sketch stays until the new one has enough samples.
	renew = 2000
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
	estimate atomic.Int64 // 0 means that there are too few samples

	mu     sync.Mutex
	stream *quantile.Stream // guarded by mu
}

// Estimate returns the learned estimate of the cell with this number. 0 means that there are too few samples, or that
// the cell was not created because of MaxCells.
func (e *Estimates) Estimate(number uint64) int64 {
	if c, ok := e.cells.Load(number); ok {
		return c.(*cell).estimate.Load()
	}
	return 0
}

// Learn adds the real cost of a request to the cell with this number. The parameter key is a hash of the request's
// bucket: a bucket counts once a second, so that one client cannot steer the estimate for others. All calls for a cell
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
	found.(*cell).add(q, real)
}

func (c *cell) add(q float64, real int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == nil || c.stream.Count() >= renew {
		const exactness = 0.01 // the largest error of the rank, as a share of all samples
		c.stream = quantile.NewTargeted(map[float64]float64{q: exactness})
	}
	c.stream.Insert(float64(real))
	if c.stream.Count() >= enough {
		c.estimate.Store(max(1, int64(c.stream.Query(q))))
	}
}
