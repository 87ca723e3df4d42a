package stores_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func newCache(c stores.CacheConfig) (s *stores.CacheStore, calls *recorder) {
	calls = &recorder{next: memory.New(memory.Config{Clock: storetest.Times(wall)})}
	return stores.Cache(calls, c), calls
}

func of(limit *algorithms.Limit, key string, cost int64) backend.Charge {
	return backend.Charge{Key: []byte(key), Limit: limit, Terms: algorithms.Charge{Cost: cost}, Owner: "test"}
}

func tokens(tb testing.TB, rate int64, period algorithms.Micros, capacity int64) *algorithms.Limit {
	tb.Helper()
	return compile(tb, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: period, Capacity: &capacity})
}

func expect(t *testing.T, s backend.Store, calls *recorder, batches int, c backend.Charge, allowed bool, retry time.Duration) {
	t.Helper()
	d := take(t.Context(), s, c)[0]
	if d.Err != nil || d.Allowed != allowed || d.RetryAfter != algorithms.Micros(retry/time.Microsecond) {
		t.Errorf("cost %d of %s: got %+v, want allowed %v, retry after %v", c.Terms.Cost, c.Key, d, allowed, retry)
	}
	if n := calls.count(); n != batches {
		t.Errorf("next got %d batches, want %d", n, batches)
	}
}

func TestAStepOfTheWallClockEndsRememberedDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, step := time.Now(), time.Duration(0)
		s, calls := newCache(stores.CacheConfig{Clocks: func() (monotonic, wall time.Duration) {
			return time.Since(start), time.Hour + time.Since(start) + step
		}})
		limit := tokens(t, 1, algorithms.Second, 3)
		expect(t, s, calls, 1, of(limit, "a", 3), true, 0)
		expect(t, s, calls, 2, of(limit, "a", 1), false, time.Second)
		time.Sleep(ms)
		step = 50 * time.Microsecond // no step, because the clocks are read one after the other
		expect(t, s, calls, 2, of(limit, "a", 1), false, time.Second-ms)
		step = 100 * ms
		expect(t, s, calls, 3, of(limit, "a", 1), false, time.Second-ms) // not 100 ms less
		expect(t, s, calls, 3, of(limit, "a", 1), false, time.Second-ms)
	})
}

func TestMaxAgeBoundsRememberedDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls := newCache(stores.CacheConfig{MaxAge: 300 * ms})
		limit := tokens(t, 1, 60*algorithms.Second, 1)
		expect(t, s, calls, 1, of(limit, "a", 1), true, 0)
		expect(t, s, calls, 2, of(limit, "a", 1), false, time.Minute)
		time.Sleep(299 * ms)
		expect(t, s, calls, 2, of(limit, "a", 1), false, time.Minute-299*ms)
		time.Sleep(ms)
		expect(t, s, calls, 3, of(limit, "a", 1), false, time.Minute-300*ms)
		expect(t, s, calls, 3, of(limit, "a", 1), false, time.Minute-300*ms)
	})
}

func TestClearBucketRemovesTheDenialsOfABucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls := newCache(stores.CacheConfig{})
		limit := tokens(t, 1, 60*algorithms.Second, 1)
		for _, key := range []string{"a", "b"} {
			take(t.Context(), s, of(limit, key, 1))
			take(t.Context(), s, of(limit, key, 1))
		}
		s.ClearBucket([]byte("a"))
		expect(t, s, calls, 5, of(limit, "a", 1), false, time.Minute)
		expect(t, s, calls, 5, of(limit, "b", 1), false, time.Minute)
		s.Clear()
		expect(t, s, calls, 6, of(limit, "a", 1), false, time.Minute)
		expect(t, s, calls, 7, of(limit, "b", 1), false, time.Minute)
	})
}

// A denial that was in flight while this process consumed units of its bucket may be outdated, so it is not cached. Nor is
// one that was in flight during Clear, as by a reload.
func TestADenialFromBeforeAChangeIsNotRemembered(t *testing.T) {
	for name, change := range map[string]func(s *stores.CacheStore, c backend.Charge){
		"a charge": func(s *stores.CacheStore, c backend.Charge) { take(context.Background(), s, c) },
		"Clear":    func(s *stores.CacheStore, _ backend.Charge) { s.Clear() },
	} {
		synctest.Test(t, func(t *testing.T) {
			buckets := memory.New(memory.Config{Clock: storetest.Times(wall)})
			calls := &recorder{next: storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
				backend.Take(ctx, buckets, charges, decisions)
				if charges[0].Terms.Cost == 8 {
					time.Sleep(10 * ms)
				}
			})}
			s := stores.Cache(calls, stores.CacheConfig{})
			limit := tokens(t, 10, 3600*algorithms.Second, 10)
			take(t.Context(), s, of(limit, "a", 5))
			go take(t.Context(), s, of(limit, "a", 8)) // denied, with the answer 10 ms later
			synctest.Wait()
			time.Sleep(ms)
			change(s, of(limit, "a", 5))
			time.Sleep(20 * ms)
			before, used := calls.count(), map[string]int64{"a charge": 10, "Clear": 5}[name]
			want := algorithms.Micros((used-2)*6)*60*algorithms.Second - 21_000
			if d := take(t.Context(), s, of(limit, "a", 8))[0]; d.RetryAfter != want || calls.count() != before+1 {
				t.Errorf("%s: got %+v after %d calls; want retry after %d, by one call", name, d, calls.count()-before, want)
			}
		})
	}
}

func inAnotherGroup(charges []backend.Charge, i int) bool {
	return slices.ContainsFunc(charges, func(c backend.Charge) bool {
		return c.Group != charges[i].Group && bytes.Equal(c.Key, charges[i].Key)
	})
}

func blockedFor(decisions []backend.Decision) (longest algorithms.Micros) {
	for i := range decisions {
		longest = max(longest, decisions[i].Blocked)
	}
	return longest
}

// For random requests, a Cache must allow and deny the same groups as a store without a cache, with the same retry
// times. Remaining and ResetAfter are compared only for token buckets and fixed windows without a penalty. For other
// limits a cached decision does not contain the whole state of the bucket, so they may be outdated.
func TestDenialsFromTheCacheAreThoseOfTheStore(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			s, calls := newCache(stores.CacheConfig{MaxKeys: 200})
			reference := memory.New(memory.Config{Clock: storetest.Times(wall)})
			rng := rand.New(rand.NewPCG(seed, 3))
			specs := slices.DeleteFunc(storetest.Specs(), func(s algorithms.Spec) bool { return s.Kind == algorithms.Concurrency })
			limits := make([]*algorithms.Limit, len(specs))
			for i := range specs {
				limits[i] = compile(t, specs[i])
			}
			total := 0
			for step := range 3000 {
				time.Sleep(time.Duration(rng.IntN(2)) * time.Duration(rng.Int64N(150_000)) * time.Microsecond)
				var charges []backend.Charge
				for group := range 1 + rng.IntN(2) {
					for _, i := range rng.Perm(len(specs))[:1+rng.IntN(2)] {
						c := of(limits[i], fmt.Sprint(i), max(-2, 6-rng.Int64N(9)))
						c.Group, c.Terms.Hash = group, uint64(i)
						c.Terms.DryRun = rng.IntN(10) == 0
						c.Terms.Reserve = limits[i].CanReserve() && rng.IntN(5) == 0
						charges = append(charges, c)
					}
					if n := len(charges); n > 1 && charges[n-2].Group == group {
						charges[n-2].Then = rng.IntN(3) == 0
					}
				}
				got, want := take(t.Context(), s, charges...), take(t.Context(), reference, charges...)
				total++
				for at := 0; at < len(charges); {
					end, retry, most := at, algorithms.Micros(0), algorithms.Micros(0)
					for ; end < len(charges) && charges[end].Group == charges[at].Group; end++ {
						retry, most = max(retry, got[end].RetryAfter), max(most, want[end].RetryAfter)
					}
					is, should := backend.Allowed(charges[at:end], got[at:end]), backend.Allowed(charges[at:end], want[at:end])
					same := is == should && (is || retry == most) && blockedFor(got[at:end]) == blockedFor(want[at:end])
					for i := at; i < end; i++ {
						if inAnotherGroup(charges, i) { // the order of the two groups is not defined
							same = is == should && (is || retry <= most && retry > 0 == (most > 0))
							break
						}
						switch charges[i].Limit.Kind {
						case algorithms.TokenBucket, algorithms.FixedWindow:
							alike := got[i].Remaining == want[i].Remaining && got[i].ResetAfter == want[i].ResetAfter
							same = same && (alike || charges[i].Limit.Penalty.After > 0)
						case algorithms.LeakyBucket, algorithms.SlidingWindow, algorithms.SlidingLog, algorithms.Guaranteed:
						}
					}
					if !same {
						t.Fatalf("seed %d, step %d, %+v:\n got %+v\nwant %+v", seed, step, charges[at:end], got[at:end], want[at:end])
					}
					at = end
				}
			}
			if calls.count() == total {
				t.Errorf("seed %d: no answer came from the cache", seed)
			}
		})
	}
}
