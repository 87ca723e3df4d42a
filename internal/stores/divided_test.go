package stores_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// odd selects the keys of the second store.
func odd(c *backend.Charge) bool { return c.Key[len(c.Key)-1]%2 == 1 }

func dividedStore(t *testing.T, first stores.Claimer, second backend.Store) backend.Store {
	t.Helper()
	undos := stores.NewUndos(nil, time.Second)
	t.Cleanup(undos.Close)
	return stores.Divided(first, second, odd, undos)
}

func TestDividedNeverAdmitsMoreThanTheLimit(t *testing.T) {
	storetest.Bounded(t, 0, func(t *testing.T, now func() algorithms.Micros) backend.Store {
		t.Helper()
		return dividedStore(t, &claims{Store: memory.New(memory.Config{Clock: storetest.Times(now)})}, memory.New(memory.Config{Clock: storetest.Times(now)}))
	})
}

// charges returns charges of a limit of 5 a day. The arguments are pairs of a key and a cost. They form one
// group, unless "|" starts a new one.
func charges(t *testing.T, of ...any) (list []backend.Charge) {
	t.Helper()
	five := limittest.Compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: algorithms.Day})
	group := 0
	for i := 0; i < len(of); i++ {
		if of[i] == "|" {
			group++
			continue
		}
		list = append(list, backend.Charge{Key: []byte(of[i].(string)), Limit: five, Terms: algorithms.Charge{Cost: int64(of[i+1].(int))}, Group: group})
		i++
	}
	return list
}

func TestAGroupOverTwoStoresIsAllOrNone(t *testing.T) {
	var submits atomic.Int64
	counted := func(next backend.Store) backend.Store {
		return submitFunc(func(b *backend.Batch) { submits.Add(1); next.Submit(b) })
	}
	store := dividedStore(t, &claims{Store: counted(memory.New(memory.Config{}))}, counted(memory.New(memory.Config{})))
	take := func(of ...any) []backend.Decision {
		t.Helper()
		list := charges(t, of...)
		decisions := make([]backend.Decision, len(list))
		backend.Take(t.Context(), store, list, decisions)
		return decisions
	}
	left := func(of ...any) int64 { t.Helper(); return take(of...)[0].Remaining }
	eventually := func(what string, want int64, of ...any) {
		t.Helper()
		for until := time.Now().Add(time.Minute); left(of...) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: %d left, want %d", what, left(of...), want)
			}
		}
	}
	// Keys whose last byte is even are in the first store.
	if d := take("k0", 2, "k1", 4); !d[0].Allowed || !d[1].Allowed || d[0].Remaining != 3 || d[1].Remaining != 1 {
		t.Fatalf("got %+v; want both allowed, with 3 and 1 remaining", d)
	}
	if d := take("k0", 2, "k1", 2); !d[0].Allowed || d[1].Allowed || d[0].Remaining != 3 {
		t.Fatalf("got %+v; want allowed, denied and 3 remaining", d)
	}
	eventually("after the refund of a denied group", 3, "k0", 0)

	// Each store gets one batch, however many groups the batch has.
	before := submits.Load()
	if d := take("k2", 1, "|", "k3", 2, "|", "k2", 1, "k4", 1, "|", "k5", 3); d[0].Remaining != 4 || d[1].Remaining != 3 || d[2].Remaining != 3 || d[4].Remaining != 2 {
		t.Errorf("got %+v; want 4, 3 and 3 remaining in the first three, and 2 in the fifth", d)
	}
	if n := submits.Load() - before; n != 2 {
		t.Errorf("%d batches; want 2", n)
	}

	// A refund is made after the other charges of its group. If one of them is denied, the refund is not made.
	if d := take("k0", -1, "k1", 2); d[1].Allowed {
		t.Errorf("got %+v; want denied", d)
	}
	if n := left("k0", 0); n != 3 {
		t.Errorf("%d left; want 3", n)
	}
	if d := take("k0", -1, "k1", 1); !d[0].Allowed || d[0].Remaining != 4 {
		t.Errorf("got %+v; want allowed and 4 remaining", d)
	}

	list := charges(t, "k1", 0)
	if err := backend.ResetBucket(t.Context(), store, list[0]); err != nil || left("k1", 0) != 5 {
		t.Errorf("reset: error %v, %d left; want no error and 5 left", err, left("k1", 0))
	}
}

// claims is a Claimer. It counts the batches of groups with an idempotency key and buckets in both Stores.
type claims struct {
	backend.Store
	claimed atomic.Int64
}

func (c *claims) Claimed(next backend.Store, _ *stores.Undos) backend.Store {
	return submitFunc(func(b *backend.Batch) { c.claimed.Add(1); next.Submit(b) })
}

func TestAnIDOfTwoStoresIsClaimedInTheFirst(t *testing.T) {
	first := &claims{Store: memory.New(memory.Config{})}
	s := dividedStore(t, first, memory.New(memory.Config{}))
	for n, test := range []struct {
		keys    []any
		claimed int64
	}{{[]any{"a1", 1, "a2", 1}, 1}, {[]any{"a1", 1, "a3", 1}, 1}, {[]any{"a2", 1, "a4", 1}, 1}} {
		list := charges(t, test.keys...)
		for i := range list {
			list[i].IdempotencyKey = &backend.IdempotencyKey{ID: [16]byte{byte(n)}, Lifetime: algorithms.Day}
		}
		for i, d := range take(t.Context(), s, list...) {
			if d.Err != nil || !d.Allowed {
				t.Errorf("%v, charge %d: %+v; want allowed", test.keys, i, d)
			}
		}
		if n := first.claimed.Load(); n != test.claimed {
			t.Errorf("%v: %d claims, want %d", test.keys, n, test.claimed)
		}
	}
}
