package history

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// The range from each power of two to the next has four buckets, so a quantile is at most a quarter too high.
	// Below 4 µs the buckets are 1 µs wide.
	perDoubling = 4
	doublings   = 28 // up to 2^29 µs, which is 9 minutes
	timeBuckets = perDoubling * doublings
)

// Times counts decisions by their durations. Add needs one atomic operation and does not allocate. A caller may
// add a random sample of the decisions, from which Quantiles estimates the quantiles of all decisions.
type Times struct {
	current [timeBuckets]atomic.Uint32

	mu       sync.Mutex
	steps    [minute][timeBuckets]uint32 // the steps of the last minute; guarded by mu
	nextStep int                         // an index into steps; guarded by mu
}

// Add counts a decision that took d.
func (t *Times) Add(d time.Duration) { t.current[bucketOf(d)].Add(1) }

// Turn ends the current Step, and begins the next one.
func (t *Times) Turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.current {
		t.steps[t.nextStep][i] = t.current[i].Swap(0)
	}
	t.nextStep = (t.nextStep + 1) % int(minute)
}

// Quantiles returns, for each share, the duration within which that share of the decisions of about the last
// minute was made; 0 if there were none. count is the number of these decisions that were added.
func (t *Times) Quantiles(shares ...float64) (times []time.Duration, count uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var sums [timeBuckets]uint64
	for i := range sums {
		sums[i] = uint64(t.current[i].Load())
		for step := range t.steps {
			sums[i] += uint64(t.steps[step][i])
		}
		count += sums[i]
	}
	for _, share := range shares {
		times = append(times, quantile(&sums, share*float64(count)))
	}
	return times, count
}

func quantile(sums *[timeBuckets]uint64, rank float64) time.Duration {
	seen := uint64(0)
	for i, n := range sums {
		if seen += n; n > 0 && float64(seen) >= rank {
			return upperEdge(i)
		}
	}
	return 0
}

// bucketOf returns the bucket of d. The position of the highest bit of d in microseconds, and the two bits
// below that bit, determine the bucket.
func bucketOf(d time.Duration) int {
	us := uint64(max(0, d.Microseconds()))
	if us < perDoubling {
		return int(us)
	}
	high := bits.Len64(us) - 1
	return min(perDoubling*(high-1)+int(us>>(high-2))&(perDoubling-1), timeBuckets-1)
}

// upperEdge returns the end of bucket i. The durations in the bucket are shorter, but the last bucket also has all
// longer ones.
func upperEdge(i int) time.Duration {
	if i < perDoubling {
		return time.Duration(i+1) * time.Microsecond
	}
	high := i/perDoubling + 1
	return time.Duration(uint64(i%perDoubling+1+perDoubling)<<(high-2)) * time.Microsecond
}
