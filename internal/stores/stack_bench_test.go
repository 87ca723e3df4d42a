package stores_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// BenchmarkWrappers measures the cost of the wrappers for batches of several sizes, compared with the Store
// alone.
func BenchmarkWrappers(b *testing.B) {
	limit := fixed(b, 1_000_000_000_000, algorithms.Day)
	for _, size := range []int{1, 16, 256} {
		var charges []backend.Charge
		for i := range size {
			c := of(limit, fmt.Sprintf("edge/limit/user/%06d", i), 1)
			c.Group = i
			charges = append(charges, c)
		}
		store := memory.New(memory.Config{})
		for name, s := range map[string]backend.Store{
			"store": store,
			"wrappers": stores.Deadline(stores.Lease(stores.Denied(store, stores.DeniedConfig{}),
				stores.LeaseConfig{}), time.Second, ms, nil),
		} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				batch := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, size), Known: make([]atomic.Bool, size), Done: func(*backend.Batch) {}}
				b.ReportAllocs()
				for b.Loop() {
					clear(batch.Decisions)
					s.Submit(batch)
				}
			})
		}
	}
}
