//go:build !race

// Under the race detector pools forget, so that all allocates.

package backend_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// TestRoutingAllocatesNothing: neither passing a batch on, nor dividing it.
func TestRoutingAllocatesNothing(t *testing.T) {
	well := submitFunc(func(b *backend.Batch) { b.Done(b) })
	routes := [2]backend.Route{{Store: well}, {Store: well}}
	router := backend.NewRouter(func(group []backend.Charge) *backend.Route { return &routes[group[0].Key[0]%2] }, func(*backend.Batch) {})
	for _, keys := range []string{"aaaa", "abab"} {
		var charges []backend.Charge
		for i := range keys {
			charges = append(charges, of(nil, keys[i:i+1], 1))
			charges[i].Group = i
		}
		b := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, len(charges)), Done: func(*backend.Batch) {}}
		if n := testing.AllocsPerRun(1000, func() { router.Submit(b) }); n > 0 {
			t.Errorf("%s: %v allocations", keys, n)
		}
	}
}
