//go:build !race

package grpcapi

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The race detector makes a sync.Pool drop its content, so this test does not run under it.
func TestABatchAllocatesNothing(t *testing.T) {
	p := &limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1e9, Period: second})}
	s, _ := newServer(t, newLimiter(p), Options{})
	run := batchOf(s, 16)
	run()
	if allocs := testing.AllocsPerRun(1000, run); allocs != 0 {
		t.Errorf("%v allocations for a batch; want 0", allocs)
	}
}
