package stores_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// aheadFails fails requests for leases in the background, after a pause, while down is set.
type aheadFails struct {
	*memory.Store

	down  atomic.Bool
	pause time.Duration
}

func (s *aheadFails) Submit(b *backend.Batch) {
	if !b.Detached || b.Waits || !s.down.Load() {
		s.Store.Submit(b)
		return
	}
	time.AfterFunc(s.pause, func() { b.Fail(backend.ErrUnavailable) })
}

func TestLeasesAreGrantedAgainAfterAnOutage(t *testing.T) {
	for _, every := range []time.Duration{ms, 8 * ms} {
		synctest.Test(t, func(t *testing.T) {
			store := &aheadFails{Store: memory.New(memory.Config{Clock: storetest.Times(wall)}), pause: ms}
			s := stores.Cache(store, stores.CacheConfig{})
			c := leased(fixed(t, 1_000_000, algorithms.Day), "a", 1, 200)
			send := func(n int) (served uint64) {
				before := s.Stats().Served
				for range n {
					take(t.Context(), s, c)
					time.Sleep(every)
				}
				return s.Stats().Served - before
			}
			send(1000)
			store.down.Store(true)
			send(10_000)
			store.down.Store(false)
			send(1000)
			if served := send(1000); served < 900 {
				t.Errorf("a request every %v: after the outage, %d of 1,000 were decided from leases; want at least 900", every, served)
			}
			s.Close()
		})
	}
}

func TestALateLeaseOfAKeyWithoutRequestsIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, store := time.Duration(0), memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			backend.Take(ctx, store, charges, decisions)
			if detached(ctx) && charges[0].Terms.Cost > 0 {
				time.Sleep(late)
			}
		}), stores.CacheConfig{})
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		requests := warm(t, s, c)
		late = 1500 * ms
		for s.Stats().Leased > 0 {
			take(t.Context(), s, c)
			requests++
		}
		if synctest.Wait(); left(t, store, c) == 10_000-requests {
			t.Fatal("no lease is in flight")
		}
		time.Sleep(3 * time.Second)
		if rest := left(t, store, c); rest != 10_000-requests {
			t.Errorf("%d are left after %d requests, want %d", rest, requests, 10_000-requests)
		}
		s.Close()
	})
}

// A request that needs more than the leased units returns them first. If its deadline passes before it is sent, they are
// returned later, unless the bucket was reset meanwhile.
func TestUnitsThatALateRequestReturns(t *testing.T) {
	for _, reset := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const wait = 20 * ms
			store := memory.New(memory.Config{Clock: storetest.Times(wall)})
			s := stores.Cache(batchFunc(func(b *backend.Batch) {
				if len(b.Charges) > 1 { // the returns, and the request
					time.Sleep(wait)
					b.Decisions[0].Err, b.Decisions[1].Err = backend.ErrNotTaken, backend.ErrNotTaken
					return
				}
				backend.Take(t.Context(), store, b.Charges, b.Decisions)
			}), stores.CacheConfig{})
			c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
			want := 10_000 - warm(t, s, c)
			done := make(chan struct{})
			go func() {
				defer close(done)
				much := c
				much.Terms.Cost = s.Stats().Leased + 1
				if d := take(t.Context(), s, much)[0]; !errors.Is(d.Err, backend.ErrNotTaken) {
					t.Errorf("got %+v; want ErrNotTaken", d)
				}
			}()
			if time.Sleep(wait / 2); reset {
				if err := backend.ResetBucket(t.Context(), s, c); err != nil {
					t.Error(err)
				}
				take(t.Context(), store, of(c.Limit, "a", 600))
				want = 9_400
			}
			<-done
			time.Sleep(time.Second)
			if rest := left(t, store, c); rest != want {
				t.Errorf("reset %t: %d are left; want %d", reset, rest, want)
			}
			s.Close()
		})
	}
}

func TestUnitsOfADroppedLeaseAreNotPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			if string(charges[0].Key) == "b" {
				time.Sleep(20 * ms)
			}
			backend.Take(ctx, store, charges, decisions)
		}), stores.CacheConfig{})
		a, b := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500), of(fixed(t, 1, algorithms.Day), "b", 1)
		take(t.Context(), store, b)
		warm(t, s, a)
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(t.Context(), 100*ms) // the lease lasts longer than this deadline
			defer cancel()
			if d := take(ctx, s, a, b); d[1].Allowed {
				t.Errorf("got %+v, want denied", d)
			}
		}()
		time.Sleep(10 * ms)
		if err := backend.ResetBucket(t.Context(), s, a); err != nil {
			t.Fatal(err)
		}
		take(t.Context(), store, of(a.Limit, "a", 100))
		<-done
		s.Close()
		if rest := left(t, store, a); rest != 9_900 {
			t.Errorf("%d are left, want 9,900", rest)
		}
	})
}

// A lease that was granted while a reset was in flight is dropped: its units were charged to the old bucket.
func TestALeaseGrantedDuringAResetIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(batchFunc(func(b *backend.Batch) {
			if b.Charges[0].Reset {
				time.Sleep(50 * ms)
			}
			backend.Take(t.Context(), store, b.Charges, b.Decisions)
		}), stores.CacheConfig{})
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := backend.ResetBucket(t.Context(), s, c); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(ms)
		warm(t, s, c)
		if <-done; s.Stats().Leased != 0 {
			t.Errorf("after the reset: %+v, want no leased units", s.Stats())
		}
		s.Close()
		if rest := left(t, store, c); rest != 10_000 {
			t.Errorf("%d are left, want 10,000", rest)
		}
	})
}

func TestALeaseAheadChargesTheSameBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := 0
		c := leased(fixed(t, 1_000_000, algorithms.Day), "a", 1, 200)
		c.Terms.Hash = 12345
		s := stores.Cache(observed{memory.New(memory.Config{Clock: storetest.Times(wall)}), func(b *backend.Batch) {
			for i := range b.Charges {
				if !b.Detached || b.Charges[i].Terms.Cost <= 0 {
					continue
				}
				ahead++
				if got := &b.Charges[i]; got.Lease != nil || got.Terms.Hash != 12345 || string(got.Key) != string(c.Key) {
					t.Errorf("got %+v; want the key and the hash of the request, and no lease", got)
				}
			}
		}}, stores.CacheConfig{})
		for range 1000 {
			take(t.Context(), s, c)
			time.Sleep(ms)
		}
		s.Close()
		if ahead == 0 {
			t.Error("no lease was requested ahead")
		}
	})
}
