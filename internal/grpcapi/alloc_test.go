//go:build !race

package grpcapi

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The race detector makes pools forget, so this test is not for it.
func TestABatchAllocatesNothing(t *testing.T) {
	p := &descriptors.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1e9, Period: second})}
	s, _ := newServer(t, newLimiter(p), Options{})
	ask := batchOf(s, 16)
	ask()
	if allocs := testing.AllocsPerRun(1000, ask); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
