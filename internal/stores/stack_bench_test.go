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

// Both Stores answer after Submit has returned, as servers do.
func BenchmarkDivided(b *testing.B) {
	var held []*backend.Batch
	first := submitFunc(func(b *backend.Batch) { held = append(held, b) })
	second := submitFunc(func(b *backend.Batch) { held = append(held, b) })
	undos := stores.NewUndos(time.Second)
	defer undos.Close()
	s := stores.Divided(first, second, odd, undos)
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second})
	if err != nil {
		b.Fatal(err)
	}
	const requests = 16
	batch := backend.Batch{Decisions: make([]backend.Decision, 2*requests), Known: make([]atomic.Bool, 2*requests), Done: func(*backend.Batch) {}}
	for i := range requests {
		for _, store := range []byte{0, 1} {
			batch.Charges = append(batch.Charges, backend.Charge{Key: []byte{byte(i), store}, Limit: &limit, Terms: algorithms.Charge{Cost: 1}, Group: i})
		}
	}
	for b.Loop() {
		held = held[:0]
		clear(batch.Known)
		clear(batch.Decisions)
		s.Submit(&batch)
		for _, b := range held {
			for i := range b.Decisions {
				b.Decisions[i].Allowed = true
			}
			b.Done(b)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/requests, "ns/request")
}
