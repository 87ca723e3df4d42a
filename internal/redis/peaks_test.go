package redis

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// A bucket with many charges merges their peaks, so that it keeps four. Whichever two peaks it merges, a
// refund of any of the charges equals that of the memory store.
func TestMergedPeaksRefundAsInMemory(t *testing.T) {
	t.Parallel()
	const sequences, charges, limits = 24, 8, 2
	server := redistest.Start(t)
	clock := &storetest.Clock{}
	ours := open(t, Config{URL: "redis://" + server.Addr, Clock: clock.Now, Timeout: 5 * time.Second})
	want := memory.New(memory.Config{Clock: clock.Time, MaxKeys: 10_000})
	compile := func(settles bool) *algorithms.Limit {
		capacity := int64(1_000_000)
		limit := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: algorithms.Second, Capacity: &capacity, Settles: settles})
		return limit
	}
	settling, plain := compile(true), compile(false)
	at := func(step int) algorithms.Micros {
		return storetest.Start + algorithms.Micros(step)*algorithms.Second/10
	}
	// Each sequence is charged to as many buckets as it has charges, and each bucket refunds another charge.
	// In half of the buckets a limit that does not settle makes the first charge, so the peaks before it are
	// unknown.
	rng := rand.New(rand.NewPCG(3, 4))
	var costs [sequences][charges]int64
	for i := range costs {
		for j := range costs[i] {
			costs[i][j] = 100 + rng.Int64N(1<<(4+rng.IntN(12)))
		}
	}
	for step := range charges + 1 {
		clock.Set(at(step))
		var all []backend.Charge
		for i := range costs {
			for bucket := range charges * limits {
				limit, terms := settling, algorithms.Charge{}
				if undone := bucket / limits; step == charges {
					terms = algorithms.Charge{Cost: -costs[i][undone], ChargedAt: at(undone), Settle: true}
				} else if terms.Cost = costs[i][step]; step == 0 && bucket%limits == 1 {
					limit = plain
				}
				all = append(all, backend.Charge{Key: fmt.Appendf(nil, "%d/%d", i, bucket), Limit: limit, Group: len(all), Terms: terms})
			}
		}
		got, exact := make([]backend.Decision, len(all)), make([]backend.Decision, len(all))
		backend.Take(t.Context(), ours, all, got)
		backend.Take(t.Context(), want, all, exact)
		for i := range got {
			if got[i] != exact[i] {
				t.Fatalf("step %d, bucket %s, costs %v:\n got %+v\nwant %+v", step, all[i].Key, costs[i/(charges*limits)], got[i], exact[i])
			}
		}
	}
}
