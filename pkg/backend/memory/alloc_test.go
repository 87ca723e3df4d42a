//go:build !race

package memory

import (
	"context"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// This test does not run with the race detector, which makes a sync.Pool drop its content.
func TestTakeAllocatesNothing(t *testing.T) {
	_, s := at(1000)
	l := tokens(t, 1_000_000)
	charges := []backend.Charge{
		{Key: []byte("one"), Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}},
		{Key: []byte("two"), Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}},
	}
	d := make([]backend.Decision, 2)
	for n := range 2 {
		take := func() { backend.Take(context.Background(), s, charges[:n+1], d[:n+1]) }
		take()
		if allocs := testing.AllocsPerRun(1000, take); allocs != 0 {
			t.Errorf("%d charges: %v allocations; want allocs 0", n+1, allocs)
		}
	}
	spec := l.Spec()
	spec.Settles = true
	charges[0].Limit, charges[0].Key = limit(t, spec), []byte("three")
	if allocs := testing.AllocsPerRun(1000, func() { backend.Take(context.Background(), s, charges[:1], d[:1]) }); allocs > 1 {
		t.Errorf("a charge of a limit that settles: %v allocations, want at most that of its peaks", allocs)
	}
}
