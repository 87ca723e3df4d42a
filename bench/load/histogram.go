package load

import (
	"math/bits"
	"time"
)

// histogram counts durations. It divides each power of two into 64 parts, so that a quantile has an error of
// at most 0.8 %. Its size is fixed, and counting does not allocate.
type histogram struct {
	counts [parts * 58]uint64
	total  uint64
	max    time.Duration
}

const (
	partBits = 6
	parts    = 1 << partBits
)

// slot returns the index of the counter for d. Durations below 64 ns have a counter each. For longer
// durations, the highest bit and the 6 bits after it determine the counter.
func slot(d time.Duration) int {
	n := uint64(max(0, d))
	if n < parts {
		return int(n)
	}
	shift := bits.Len64(n) - 1 - partBits
	return shift*parts + int(n>>shift)
}

func middle(slot int) time.Duration {
	if slot < parts {
		return time.Duration(slot)
	}
	shift := slot/parts - 1
	low := uint64(slot-shift*parts) << shift
	return time.Duration(low + (1<<shift)/2)
}

func (h *histogram) add(d time.Duration) {
	h.counts[slot(d)]++
	h.total++
	h.max = max(h.max, d)
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
	h.max = max(h.max, o.max)
}

// quantile returns the duration that a share q (0 to 1) of all durations do not exceed. It returns 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := min(uint64(q*float64(h.total)), h.total-1)
	for i, n := range h.counts {
		if rank < n {
			return min(middle(i), h.max)
		}
		rank -= n
	}
	return h.max
}
