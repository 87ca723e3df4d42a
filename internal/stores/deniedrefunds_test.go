package stores_test

import (
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

// While a refund is in flight, its Store may deny a charge before it makes the refund. Such a denial must not
// outlast the refund.
func TestADenialDuringARefundEndsWithTheRefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buckets := memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(batchFunc(func(b *backend.Batch) {
			if b.Charges[0].Terms.Cost < 0 {
				time.Sleep(10 * ms)
			}
			backend.Take(t.Context(), buckets, b.Charges, b.Decisions)
		}), stores.CacheConfig{})
		limit := tokens(t, 1, algorithms.Second, 3)
		take(t.Context(), s, of(limit, "a", 3))
		refunded := make(chan struct{})
		go func() {
			defer close(refunded)
			take(t.Context(), s, of(limit, "a", -3))
		}()
		time.Sleep(5 * ms)
		if d := take(t.Context(), s, of(limit, "a", 1))[0]; d.Allowed {
			t.Fatalf("before the refund: got %+v, want denied", d)
		}
		<-refunded
		if d := take(t.Context(), s, of(limit, "a", 1))[0]; !d.Allowed {
			t.Errorf("after the refund: got %+v, want allowed", d)
		}
	})
}

// A Store decides before its answer arrives. The remaining units and the end of a cached denial are computed from
// the time of the decision, not from the arrival of the answer.
func TestCachedDenialsKeepTheTimesOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &recorder{next: memory.New(memory.Config{Clock: storetest.Times(wall)})}
		slow := batchFunc(func(b *backend.Batch) {
			backend.Take(t.Context(), calls, b.Charges, b.Decisions)
			time.Sleep(20 * ms)
		})
		s := stores.Cache(slow, stores.CacheConfig{})
		limit := tokens(t, 10, algorithms.Second, 3)
		start := time.Now()
		take(t.Context(), s, of(limit, "a", 3))
		take(t.Context(), s, of(limit, "a", 3)) // denied at 20 ms; the answer arrives at 40 ms
		time.Sleep(110*ms - time.Since(start))
		d := take(t.Context(), s, of(limit, "a", 3))[0]
		if n := calls.count(); n != 2 || d.Allowed || d.Remaining != 1 || d.ResetAfter != 190_000 {
			t.Errorf("after 110 ms: got %+v, next got %d batches; want a denial from the cache, 1 remaining, a reset after 190 ms, and 2 batches", d, n)
		}
		time.Sleep(300*ms - time.Since(start))
		if d := take(t.Context(), s, of(limit, "a", 3))[0]; !d.Allowed {
			t.Errorf("after 300 ms: got %+v; want allowed", d)
		}
	})
}

func TestOneCallerRevalidatesAnOldDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		calls := &recorder{next: after(10*ms, failsWhile(&down, memory.New(memory.Config{Clock: storetest.Times(wall)})))}
		s := stores.Cache(calls, stores.CacheConfig{MaxAge: time.Second})
		limit := tokens(t, 1, 60*algorithms.Second, 1)
		take(t.Context(), s, of(limit, "a", 1))
		take(t.Context(), s, of(limit, "a", 1)) // denied for a minute
		time.Sleep(time.Second)
		go take(t.Context(), s, of(limit, "a", 1))
		time.Sleep(5 * ms)
		start := time.Now()
		d := take(t.Context(), s, of(limit, "a", 1))[0]
		if took := time.Since(start); d.Allowed || took > 0 || calls.count() != 3 {
			t.Errorf("got %+v after %v and %d calls; want the cached denial at once, and one call that revalidates it", d, took, calls.count())
		}
		time.Sleep(time.Second)
		down.Store(true)
		for range 2 {
			if d := take(t.Context(), s, of(limit, "a", 1))[0]; d.Err == nil {
				t.Errorf("revalidation fails: got %+v, want the error", d)
			}
		}
	})
}
