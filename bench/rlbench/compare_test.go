package main

import (
	"math"
	"testing"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

func TestRatiosAreOfNeighbours(t *testing.T) {
	r := row{
		Ceiling: []load.Result{{CPU: 10}, {CPU: 20}, {CPU: 10}, {CPU: 10}},
		Sidecar: []load.Result{{CPU: 11}, {CPU: 22}, {CPU: 12}, {CPU: 30}},
	}
	if got := median(r.ratios()); math.Abs(got-1.15) > 1e-9 { // 1.1 1.1 1.2 3.0
		t.Error(got)
	}
	if got := medianOf(r.Sidecar[:3], cpu); got != 12 {
		t.Error(got)
	}
}
