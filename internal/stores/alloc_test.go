//go:build !race

// The race detector makes a sync.Pool drop some of its content, so calls would allocate.

package stores_test

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestRoutingAllocatesNothing(t *testing.T) {
	well := submitFunc(func(b *backend.Batch) { b.Done(b) })
	routes := [2]stores.Route{{Store: well}, {Store: well}}
	router := stores.NewRouter(func(group []backend.Charge) *stores.Route { return &routes[group[0].Key[0]%2] }, func(*backend.Batch) {})
	for _, keys := range []string{"aaaa", "abab"} {
		var charges []backend.Charge
		for i := range keys {
			charges = append(charges, of(nil, keys[i:i+1], 1))
			charges[i].Group = i
		}
		b := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, len(charges)), Done: func(*backend.Batch) {}}
		if n := testing.AllocsPerRun(1000, func() { router.Submit(b) }); n > 0 {
			t.Errorf("%s: %v allocations; want 0", keys, n)
		}
	}
}

func TestDeadlineAllocatesNothing(t *testing.T) {
	s := stores.Deadline(nil, memory.New(memory.Config{}), time.Second, ms, nil)
	charges := []backend.Charge{of(fixed(t, 1_000_000_000, algorithms.Day), "a", 1)}
	var d [1]backend.Decision
	if n := testing.AllocsPerRun(1000, func() { backend.Take(t.Context(), s, charges, d[:]) }); n > 0 {
		t.Errorf("%.1f allocations; want 0", n)
	}
}

func TestTheCacheAllocatesNothing(t *testing.T) {
	s := stores.Deadline(nil, stores.Cache(memory.New(memory.Config{}), stores.CacheConfig{MaxAge: time.Hour}), time.Minute, ms, nil)
	limit, one := fixed(t, 1_000_000_000, algorithms.Day), fixed(t, 1, algorithms.Day)
	var d [2]backend.Decision
	for name, charges := range map[string][]backend.Charge{
		"without terms": {of(limit, "a", 1)}, "leased": {leased(limit, "b", 1, 1_000_000)}, "denied": {of(one, "c", 1)},
		"leased and denied": {leased(limit, "b", 1, 1_000_000), of(one, "d", 1)},
	} {
		if n := testing.AllocsPerRun(1000, func() { backend.Take(t.Context(), s, charges, d[:len(charges)]) }); n > 0 {
			t.Errorf("%s: %.1f allocations; want 0", name, n)
		}
	}
}
