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

type seen struct {
	next backend.Store
	see  func(*backend.Batch)
}

func (s seen) Submit(b *backend.Batch) {
	s.see(b)
	s.next.Submit(b)
}

func TestDeadlinePassesWaitsOn(t *testing.T) {
	var waits []bool
	next := seen{memory.New(memory.Config{}), func(b *backend.Batch) { waits = append(waits, b.Waits) }}
	s := stores.Deadline(next, time.Second, 0, nil)
	take(t.Context(), s, of(tokens(t, 1, algorithms.Second, 3), "a", 1))
	b := backend.Batch{Charges: []backend.Charge{of(tokens(t, 1, algorithms.Second, 3), "b", 1)}, Decisions: make([]backend.Decision, 1), Done: func(*backend.Batch) {}}
	s.Submit(&b)
	if len(waits) != 2 || !waits[0] || waits[1] {
		t.Errorf("got %v, want true and then false", waits)
	}
}

// The Store may be setting the elements of Known while Deadline reads them.
func TestAHalfKnownGroupIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inner *backend.Batch
		s := stores.Deadline(submitFunc(func(b *backend.Batch) {
			inner = b
			b.Decisions[0].Allowed = true
			b.Known[0].Store(true)
		}), time.Second, 0, nil)
		charges := costs(true, 1, 2)
		b := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, 2), Known: make([]atomic.Bool, 2), Done: func(*backend.Batch) {}}
		s.Submit(b)
		if b.IsKnown(0) || b.IsKnown(1) {
			t.Errorf("known: %v, %v; want none", b.IsKnown(0), b.IsKnown(1))
		}
		inner.Decisions[1].Allowed = true
		inner.Done(inner)
		if !b.Decisions[0].Allowed || !b.Decisions[1].Allowed {
			t.Errorf("got %+v, want both allowed", b.Decisions)
		}
	})
}

func TestDeadlineForgetsBatchesThatHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delay, ended := 2*ms, 0
		s := stores.Deadline(submitFunc(func(b *backend.Batch) {
			b.Decisions[0].Allowed = true
			time.AfterFunc(delay, b.Finish)
		}), 5*ms, 0, nil)
		submit := func(done func(*backend.Batch)) *backend.Batch {
			b := &backend.Batch{Charges: costs(true, 1), Decisions: make([]backend.Decision, 1), Done: done}
			s.Submit(b)
			return b
		}
		count := func(*backend.Batch) { ended++ }
		first := submit(count)
		time.Sleep(3 * ms)
		synctest.Wait()
		second := submit(count) // may reuse the memory of the first
		time.Sleep(20 * ms)
		synctest.Wait()
		if ended != 2 || !first.Decisions[0].Allowed || !second.Decisions[0].Allowed {
			t.Errorf("%d ended: %+v and %+v; want both allowed", ended, first.Decisions, second.Decisions)
		}
		delay = 30 * ms
		submit(func(*backend.Batch) { panic("in Done") })
		third := submit(count)
		time.Sleep(60 * ms)
		synctest.Wait()
		if ended != 3 || third.Decisions[0].Err == nil {
			t.Errorf("%d ended: %+v; want an error at the deadline", ended, third.Decisions)
		}
	})
}

func TestALeaseAheadChargesTheSameBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := 0
		c := leased(fixed(t, 1_000_000, algorithms.Day), "a", 1, 200)
		c.Terms.Hash = 12345
		s := stores.Lease(seen{memory.New(memory.Config{Clock: storetest.Times(wall)}), func(b *backend.Batch) {
			for i := range b.Charges {
				if !b.Detached || b.Charges[i].Terms.Cost <= 0 {
					continue
				}
				ahead++
				if got := &b.Charges[i]; got.Lease != nil || got.Terms.Hash != 12345 || string(got.Key) != string(c.Key) {
					t.Errorf("got %+v; want the key and the hash of the request, and no lease", got)
				}
			}
		}}, stores.LeaseConfig{})
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

func TestADeniedLeaseIsNotGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buckets, denied := memory.New(memory.Config{Clock: storetest.Times(wall)}), false
		s := stores.Lease(submitFunc(func(b *backend.Batch) {
			if b.Detached && b.Charges[0].Terms.Cost > 0 && !denied {
				denied = true
				b.Decisions[0].At = algorithms.Micros(time.Now().UnixMicro())
				b.Finish()
				return
			}
			buckets.Submit(b)
		}), stores.LeaseConfig{})
		c := leased(fixed(t, 1_000_000, algorithms.Day), "a", 1, 200)
		for !denied {
			take(t.Context(), s, c)
			time.Sleep(ms)
		}
		if left := s.Stats().Leased; left >= 200 {
			t.Errorf("%d units are leased after a denied request for more; want fewer than one lease", left)
		}
		total := 0
		for range 1000 {
			take(t.Context(), s, c)
			time.Sleep(ms)
			total++
		}
		s.Close()
		probe := c
		probe.Lease, probe.Terms.DryRun = nil, true
		if d := take(t.Context(), buckets, probe)[0]; d.Remaining > 1_000_000-int64(total) {
			t.Errorf("%d units are left after %d requests and more; want no more than %d", d.Remaining, total, 1_000_000-total)
		}
	})
}
