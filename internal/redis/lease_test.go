package redis

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func leasing(t *testing.T, c Config) *stores.CacheStore {
	t.Helper()
	s := stores.Cache(open(t, c), stores.CacheConfig{})
	t.Cleanup(s.Close)
	return s
}

func TestLeasesAreBounded(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"server", "sentinel", "cluster"} {
		t.Run(form, func(t *testing.T) {
			storetest.Bounded(t, 20, func(t *testing.T, now func() algorithms.Micros) backend.Store {
				t.Helper()
				c := on(t, form)
				c.Clock = now
				return leasing(t, c)
			})
		})
	}
}

func TestSidecarsThatLeaseShareALimit(t *testing.T) {
	t.Parallel()
	const sidecars, workers, span = 4, 4, 3 * time.Second
	config := on(t, "server")
	for name, spec := range map[string]algorithms.Spec{
		"fixed window": {Kind: algorithms.FixedWindow, Rate: 2000, Period: algorithms.Second / 2},
		"token bucket": {Kind: algorithms.TokenBucket, Rate: 4000, Period: algorithms.Second},
	} {
		t.Run(name, func(t *testing.T) {
			limit, err := algorithms.Compile(spec)
			if err != nil {
				t.Fatal(err)
			}
			lease := &algorithms.Lease{Most: limit.Capacity / 20, For: 250_000}
			c := backend.Charge{Key: []byte(name), Limit: &limit, Terms: algorithms.Charge{Cost: 1, Hash: 123_456_789}, Owner: "test", Lease: lease}
			var mu sync.Mutex
			admitted := map[algorithms.Micros]int64{} // maps a window to the units admitted in it; a token bucket has only the key 0
			first, last := algorithms.MaxTime, algorithms.Micros(0)
			window := func(at algorithms.Micros) algorithms.Micros {
				if limit.Kind != algorithms.FixedWindow {
					return 0
				}
				return (at - algorithms.Micros(phaseOf(&c))) / spec.Period
			}
			var wg sync.WaitGroup
			end := time.Now().Add(span)
			for range sidecars {
				s := leasing(t, config)
				for range workers {
					wg.Go(func() {
						var d [1]backend.Decision
						for time.Now().Before(end) {
							backend.Take(context.Background(), s, []backend.Charge{c}, d[:])
							if d[0].Err != nil {
								t.Errorf("not answered: %v; want no error", d[0].Err)
							}
							if mu.Lock(); d[0].Allowed {
								admitted[window(d[0].At)]++
								first, last = min(first, d[0].At), max(last, d[0].At)
							}
							mu.Unlock()
							time.Sleep(500 * time.Microsecond)
						}
					})
				}
			}
			wg.Wait()
			most := limit.Capacity
			if in := scaled.Of(&limit); limit.Kind == algorithms.TokenBucket {
				most += int64(last-first+lease.For) * in.P / in.Q
			}
			for at, n := range admitted {
				if n > most {
					t.Errorf("admitted %d in window %d, at most %d may be", n, at, most)
				}
			}
			t.Logf("%d windows, %v", len(admitted), admitted)
		})
	}
}
