package stores_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// A reset waits for a lease in flight. Its source is flushed after its Done. Otherwise the listener would send the
// answer only together with a later one.
func TestAResetThatHadToWaitIsFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stores.Cache(lateAhead{memory.New(memory.Config{Clock: storetest.Times(wall)})}, stores.CacheConfig{})
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		for range warm(t, s, c) * 30 {
			take(t.Context(), s, c)
		}
		events := make(chan string, 2)
		c.Reset, c.Lease, c.Terms.Cost = true, nil, 0
		s.Submit(&backend.Batch{
			Charges: []backend.Charge{c}, Decisions: make([]backend.Decision, 1),
			Source: &backend.Source{Flush: func() { events <- "flushed" }},
			Done:   func(*backend.Batch) { events <- "done" },
		})
		if len(events) != 0 {
			t.Fatal("no lease was in flight")
		}
		time.Sleep(50 * ms)
		synctest.Wait()
		if n := len(events); n != 2 || <-events != "done" || <-events != "flushed" {
			t.Errorf("%d events; want done, and then flushed", n)
		}
		s.Close()
	})
}

func TestOneRequestAtATimeRequestsALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		calls := &recorder{next: after(10*ms, store)}
		s := stores.Cache(calls, stores.CacheConfig{})
		hot := leased(fixed(t, 1_000_000, algorithms.Day), "hot", 1, 500)
		for range 10 { // makes the key hot
			take(t.Context(), s, hot)
		}
		time.Sleep(300 * ms)
		s.ReturnUnits()
		before := calls.count()
		for range 5 {
			s.Submit(&backend.Batch{Charges: []backend.Charge{hot}, Decisions: make([]backend.Decision, 1), Done: func(*backend.Batch) {}})
		}
		more := 0
		for _, charges := range calls.all()[before:] {
			if charges[0].Terms.Cost > 1 {
				more++
			}
		}
		if n := calls.count() - before; n != 6 || more != 1 {
			t.Errorf("next got %d batches, %d of them for more than the cost; want 6 and 1", n, more)
		}
		time.Sleep(20 * ms)
		s.Close()
	})
}

// A caller may use the memory of its keys for another request once it has its answer.
func TestACachedDenialHasItsOwnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls := newCache(stores.CacheConfig{})
		limit := tokens(t, 1, algorithms.Day, 1)
		buffer := []byte("a")
		c := of(limit, "", 1)
		c.Key = buffer
		take(t.Context(), s, c)
		take(t.Context(), s, c) // denied
		before := calls.count()
		buffer[0] = 'b'
		if d := take(t.Context(), s, c)[0]; !d.Allowed || calls.count() != before+1 {
			t.Errorf("another key: got %+v after %d batches, want it allowed by next", d, calls.count()-before)
		}
		if d := take(t.Context(), s, of(limit, "a", 1))[0]; d.Allowed || calls.count() != before+1 {
			t.Errorf("the denied key: got %+v after %d batches, want a denial from the cache", d, calls.count()-before)
		}
	})
}

// A remembered denial of a bucket and leases of the same bucket know of each other: units that are leased after the
// denial are missing in it, and leased units are returned before a denial.
func TestADenialAndALeaseOfOneBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, below, _ := newLease()
		limit := fixed(t, 1000, algorithms.Day)
		hot := leased(limit, "a", 1, 500)
		warm(t, s, hot)
		rest := left(t, below, hot)
		large := of(limit, "a", rest+1)
		for granted := s.Stats().Granted; s.Stats().Granted == granted; { // until the next lease has been granted
			if d := take(t.Context(), s, large)[0]; d.Allowed || d.Remaining != rest {
				t.Fatalf("without a lease: got %+v; want denied, and %d remaining", d, rest)
			}
			take(t.Context(), s, hot)
			synctest.Wait()
		}
		if rest = left(t, below, hot); rest >= large.Terms.Cost {
			t.Fatalf("%d are left; want fewer, because of the lease", rest)
		}
		for range 2 {
			if d := take(t.Context(), s, large)[0]; d.Allowed || d.Remaining != rest {
				t.Errorf("after another lease: got %+v; want denied, and %d remaining", d, rest)
			}
		}
		if d := take(t.Context(), s, leased(limit, "a", rest+s.Stats().Leased, 500))[0]; !d.Allowed {
			t.Errorf("the rest and all leased units: got %+v; want allowed", d)
		}
		take(t.Context(), below, of(limit, "a", -300))
		warm(t, s, hot)
		take(t.Context(), below, of(limit, "a", left(t, below, hot)))
		take(t.Context(), s, of(limit, "a", 1)) // denied
		if d := take(t.Context(), s, leased(limit, "a", s.Stats().Leased, 500))[0]; !d.Allowed {
			t.Errorf("all units that are left are leased: got %+v; want allowed", d)
		}
		for _, key := range []string{"b", "c"} { // next does not see the remembered decision on a
			take(t.Context(), s, hot, of(limit, key, 1))
		}
	})
}
