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
	for i := range renew + enough {
		cost := int64(1000)
		if i >= renew {
			cost = 50
		}
		e.Learn(1, 0.9, uint64(i), start+algorithms.Micros(i)*algorithms.Second, cost)
	}
	if got := e.Estimate(1); got != 50 {
		t.Errorf("%d, want 50", got)
	}
}

func TestTheFormerEstimateStaysUntilTheNextIsKnown(t *testing.T) {
	var e Estimates
	for i := range renew + enough - 1 {
		cost := int64(1000)
		if i >= renew {
			cost = 50
		}
		e.Learn(1, 0.9, uint64(i), start+algorithms.Micros(i)*algorithms.Second, cost)
		if got := e.Estimate(1); i >= renew && got != 1000 {
			t.Fatalf("after %d costs: %d, want 1000", i+1, got)
		}
	}
}

// The clock goes back with each sample.
func TestAKeyCountsForEachCellAndSecond(t *testing.T) {
	var e Estimates
	for i := range algorithms.Micros(enough) {
		for cell := range uint64(2) {
			e.Learn(cell, 0.9, 7, start-i*algorithms.Second, 5)
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

func TestAnEstimateIsAtLeastOneUnit(t *testing.T) {
	var e Estimates
	for i := range 2 * enough {
		e.Learn(1, 0.9, uint64(i), start, 0)
	}
	if got := e.Estimate(1); got != 1 {
		t.Errorf("%d, want 1", got)
	}
}

func TestAnEstimateStaysWhileItIsRenewed(t *testing.T) {
	var e Estimates
	for i := range renew + 2*enough {
		cost := int64(1000)
		if i >= renew {
			cost = 7
		}
		e.Learn(1, 0.9, uint64(i), start+algorithms.Micros(i)*algorithms.Second, cost)
		want := int64(1000)
		switch {
		case i < enough-1:
			want = 0
		case i >= renew+enough-1:
			want = 7
		}
		if got := e.Estimate(1); got != want {
			t.Fatalf("after sample %d: %d, want %d", i+1, got, want)
		}
	}
}

// A key has one sample for each second of the clock. So a sample at the end of a second and another one at the start of
// the next second both count.
func TestAKeyCountsOnceInASecondOfTheClock(t *testing.T) {
	var e Estimates
	for i := range algorithms.Micros(enough - 1) {
		for _, within := range []algorithms.Micros{0, 1, algorithms.Second / 2, algorithms.Second - 1} {
			e.Learn(1, 0.9, 7, start+i*algorithms.Second+within, 5)
		}
	}
	if got := e.Estimate(1); got != 0 {
		t.Errorf("after %d samples: got %d, want none", enough-1, got)
	}
	if e.Learn(1, 0.9, 7, start+enough*algorithms.Second, 5); e.Estimate(1) != 5 {
		t.Errorf("after %d samples: got %d, want 5", enough, e.Estimate(1))
	}
}
