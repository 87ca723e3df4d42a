package redis

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func leasing(t *testing.T, c Config) *stores.LeaseStore {
	t.Helper()
	c.Timeout = 5 * time.Second
	s := stores.Lease(open(t, c), stores.LeaseConfig{})
	t.Cleanup(s.Close)
	return s
}

func TestLeasesAreBounded(t *testing.T) {
	t.Parallel()
	urls := map[string]string{
		"standalone": "redis://" + redistest.Start(t).Addr,
		"sentinel":   redistest.StartSentinels(t).Steady().URL(),
		"cluster":    redistest.StartCluster(t, 3).Steady().URL(),
	}
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			storetest.Bounded(t, 20, func(t *testing.T, now func() algorithms.Micros) backend.Store {
				t.Helper()
				return leasing(t, Config{URL: url, Clock: now})
			})
		})
	}
}

// The next lease is requested while the current one still has units, so a slow Redis delays no request.
func TestSlowRedisDeniesNoLeasedKey(t *testing.T) {
	faulty(t)
	const timeout, late = 40 * ms, 100 * ms
	p := startProxy(t, redistest.Start(t).Addr, 0)
	below := open(t, Config{URL: "redis://" + p.Addr, Timeout: timeout, detachedTimeout: time.Minute}) // long enough for a busy machine
	lease := stores.Lease(below, stores.LeaseConfig{Timeout: time.Minute})
	s := stores.Deadline(lease, timeout, ms, nil)
	const limit = 1_000_000
	c := backend.Charge{Key: []byte("hot"), Limit: limitOf(limit), Terms: algorithms.Charge{Cost: 1}, Owner: "test"}
	c.Lease = &algorithms.Lease{Most: limit / 20, For: 2 * algorithms.Second}
	decide := func(s backend.Store, c backend.Charge) backend.Decision {
		var d [1]backend.Decision
		backend.Take(context.Background(), s, []backend.Charge{c}, d[:])
		return d[0]
	}
	var admitted, unanswered int64
	requestFor := func(length time.Duration) {
		for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(ms) {
			switch d := decide(s, c); {
			case d.Allowed:
				admitted++
			case d.Err != nil:
				unanswered++
			default:
				t.Fatalf("a leased key was denied: %+v", d)
			}
		}
	}
	requestFor(time.Second)
	p.do(faults{share: 1, late: late})
	before, damaged := unanswered, p.damaged.Load()
	requestFor(4 * time.Second)
	t.Logf("%d admitted, %d not answered, %d answers late, %+v", admitted, unanswered-before, p.damaged.Load()-damaged, lease.Stats())
	if unanswered > before {
		t.Errorf("%d requests for a leased key were not answered; want 0", unanswered-before)
	}
	cold := c
	cold.Key = []byte("cold")
	if d := decide(s, cold); d.Err == nil {
		t.Errorf("redis was not late for other keys: %+v; want an error", d)
	}
	p.do(faults{})
	lease.Close()
	c.Terms.Cost = 0
	redistest.Eventually(t, "redis answers", func() bool { return decide(below, c).Err == nil })
	if d := decide(below, c); d.Remaining > limit-admitted || d.Remaining < limit-admitted-unanswered {
		t.Errorf("%d admitted and %d not answered of %d: %d are left; want %d to %d", admitted, unanswered, int64(limit), d.Remaining, limit-admitted-unanswered, limit-admitted)
	}
}

func TestSidecarsThatLeaseShareALimit(t *testing.T) {
	t.Parallel()
	const sidecars, workers, span = 4, 4, 3 * time.Second
	url := "redis://" + redistest.Start(t).Addr
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
				s := leasing(t, Config{URL: url})
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
