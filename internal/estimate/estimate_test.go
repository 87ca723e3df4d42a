package estimate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const start = 1_767_225_600 * algorithms.Second

func TestAnEstimateIsTheQuantileOfTheCosts(t *testing.T) {
	for _, q := range []float64{0.5, 0.9, 0.99} {
		var e Estimates
		random := rand.New(rand.NewPCG(1, 2))
		var costs []int64
		for i := range 1500 {
			cost := random.Int64N(10_000)
			costs = append(costs, cost)
			e.Learn(1, q, uint64(i), start+algorithms.Micros(i)*algorithms.Second, cost)
		}
		slices.Sort(costs)
		low, high := costs[int(1500*(q-0.02))], costs[min(1499, int(1500*(q+0.02)))]
		if got := e.Estimate(1); got < low || got > high {
			t.Errorf("quantile %g: %d, want %d to %d", q, got, low, high)
		}
	}
}

func TestOneKeyCountsOnceASecond(t *testing.T) {
	var e Estimates
	for second := range algorithms.Micros(30) {
		for range 1000 { // this client tries to lower the estimate for all others to 1 unit
			e.Learn(1, 0.9, 7, start+second*algorithms.Second, 1)
		}
		for key := range uint64(9) {
			e.Learn(1, 0.9, 100+key, start+second*algorithms.Second, 1000)
		}
	}
	if got := e.Estimate(1); got != 1000 {
		t.Errorf("%d, want 1000", got)
	}
}

// learn adds one cost of each key in each of the given seconds.
func learn(e *Estimates, q float64, real int64, seconds int, keys ...uint64) {
	for second := range algorithms.Micros(seconds) {
		for _, key := range keys {
			e.Learn(1, q, key, start+second*algorithms.Second, real)
		}
	}
}

// Four clients, or one with four keys, change nothing, however many calls they make.
func TestAnEstimateNeedsFiveKeys(t *testing.T) {
	var e Estimates
	learn(&e, 0.5, 1, 1000, 1, 2, 3, 4)
	if got := e.Estimate(1); got != 0 {
		t.Errorf("4 keys: the estimate is %d, want none", got)
	}
	for second := range algorithms.Micros(window) { // the estimate is not computed for each cost
		e.Learn(1, 0.5, 5, start+(1000+second)*algorithms.Second, 1)
	}
	if got := e.Estimate(1); got != 1 {
		t.Errorf("5 keys: the estimate is %d, want 1", got)
	}
}

// A tenth of the samples cannot change the estimate from the cost of all others to its own, in any quantile from p11
// to p89.
func TestOneKeyIsATenthOfTheSamplesAtMost(t *testing.T) {
	for _, others := range []int{9, 20, 200} {
		for _, q := range []float64{0.11, 0.5, 0.89} {
			for _, real := range []int64{1, 9000} {
				var e Estimates
				for key := range uint64(others) {
					learn(&e, q, 1000, 3, 100+key)
				}
				learn(&e, q, real, 1000, 7)
				if got := e.Estimate(1); got != 1000 {
					t.Errorf("%d others, quantile %g: one key changes the estimate to %d with costs of %d; want 1000", others, q, got, real)
				}
			}
		}
	}
}

// Of fewer than ten keys, each has the same part.
func TestFewKeysCountTheSame(t *testing.T) {
	for q, want := range map[float64]int64{0.19: 1, 0.21: 1000, 0.9: 1000} {
		var e Estimates
		learn(&e, q, 1000, 5, 1, 2, 3, 4)
		learn(&e, q, 1, 1000, 7)
		if got := e.Estimate(1); got != want {
			t.Errorf("quantile %g: %d, want %d", q, got, want)
		}
	}
}

func TestWeightsOfKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		keysWith, held := [mostOfKey + 1]int{}, []int{}
		samples, rare := 0, random.Float64()
		for range enoughKeys + random.IntN(40) {
			n := 1
			if random.Float64() > rare {
				n += random.IntN(mostOfKey)
			}
			if samples+n > window {
				break
			}
			held, samples = append(held, n), samples+n
			keysWith[n]++
		}
		of := min(len(held), parts)
		most := mostWeight(&keysWith, samples, of)
		total, largest := 0.0, 0.0
		for _, n := range held {
			weight := min(float64(n), most)
			total, largest = total+weight, max(largest, weight)
		}
		const tiny = 1e-9
		if largest > total/float64(of)*(1+tiny) {
			t.Fatalf("keys with %v samples: one has %g of %g, want at most one of %d parts", held, largest, total, of)
		}
		if most < float64(slices.Max(held)) && largest < total/float64(of)*(1-tiny) {
			t.Fatalf("keys with %v samples: the largest weight is %g of %g, want one of %d parts", held, largest, total, of)
		}
	}
}

// Thousands of keys cannot use more memory than a few, and no key has more than its part.
func TestWindowsAreBounded(t *testing.T) {
	var e Estimates
	for i := range uint64(20 * window) {
		key := i
		if i%2 == 0 {
			key = 7
		}
		e.Learn(1, 0.9, key, start+algorithms.Micros(i)*algorithms.Second, 5)
	}
	found, _ := e.cells.Load(uint64(1))
	c := found.(*cell)
	held := map[uint64]int{}
	for _, s := range c.samples {
		held[s.key]++
	}
	if len(c.samples) != window || cap(c.samples) > 2*window || held[7] != mostOfKey {
		t.Errorf("%d samples, room for %d, and %d of one key; want %d, at most twice as many, and %d", len(c.samples), cap(c.samples), held[7], window, mostOfKey)
	}
}

func TestUntilEnoughIsKnownThereIsNoEstimate(t *testing.T) {
	var e Estimates
	for i := range enough - 1 {
		e.Learn(1, 0.9, uint64(i), start, 5)
	}
	if got := e.Estimate(1); got != 0 {
		t.Errorf("%d, want none", got)
	}
	e.Learn(1, 0.9, enough, start, 5)
	if got := e.Estimate(1); got != 5 {
		t.Errorf("%d, want 5", got)
	}
	if got := e.Estimate(2); got != 0 {
		t.Errorf("another cell has the estimate %d; want 0", got)
	}
}

func TestEstimatesFollowChanges(t *testing.T) {
	var e Estimates
	for i := range 2*window + window/refresh {
		cost := int64(1000)
		if i >= window {
			cost = 50
		}
		e.Learn(1, 0.9, uint64(i), start+algorithms.Micros(i)*algorithms.Second, cost)
	}
	if got := e.Estimate(1); got != 50 {
		t.Errorf("%d, want 50", got)
	}
}

// The clock goes back with each sample.
func TestAKeyCountsForEachCellAndSecond(t *testing.T) {
	var e Estimates
	for i := range algorithms.Micros(enough) {
		for cell := range uint64(2) {
			for key := range uint64(enoughKeys) {
				e.Learn(cell, 0.9, 2*key, start-i*algorithms.Second, 5)
			}
		}
	}
	if first, second := e.Estimate(0), e.Estimate(1); first != 5 || second != 5 {
		t.Errorf("%d and %d, want 5 and 5", first, second)
	}
}

// An estimate of 0 would mean that nothing is known.
func TestAnEstimateIsAtLeastOne(t *testing.T) {
	var e Estimates
	for key := range uint64(enough) {
		e.Learn(1, 0.9, key, start, 0)
	}
	if got := e.Estimate(1); got != 1 {
		t.Errorf("%d, want 1", got)
	}
}

func TestCellsAreBounded(t *testing.T) {
	var e Estimates
	for number := range uint64(2 * MaxCells) {
		e.Learn(number, 0.9, number, start+algorithms.Micros(number)*algorithms.Second, 5)
	}
	cells := 0
	e.cells.Range(func(_, _ any) bool { cells++; return true })
	if cells != MaxCells {
		t.Errorf("%d cells, want %d", cells, MaxCells)
	}
}

// A key has one sample for each second of the clock. So a sample at the end of a second and another one at the start of
// the next second both count.
func TestAKeyCountsOnceInASecondOfTheClock(t *testing.T) {
	var e Estimates
	const seconds = enough / enoughKeys
	for i := range algorithms.Micros(seconds) {
		if got := e.Estimate(1); got != 0 {
			t.Errorf("after %d seconds: got %d, want none", i, got)
		}
		for _, within := range []algorithms.Micros{0, 1, algorithms.Second / 2, algorithms.Second - 1} {
			for key := range uint64(enoughKeys) {
				e.Learn(1, 0.9, key, start+i*algorithms.Second+within, 5)
			}
		}
	}
	if got := e.Estimate(1); got != 5 {
		t.Errorf("after %d seconds: got %d, want 5", seconds, got)
	}
}
