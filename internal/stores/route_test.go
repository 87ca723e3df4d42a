package stores_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// pendingStore is a Store that keeps batches until the test decides them.
type pendingStore struct {
	next    backend.Store
	waiting []*backend.Batch
}

func (h *pendingStore) Submit(b *backend.Batch) { h.waiting = append(h.waiting, b) }

func (h *pendingStore) remove(i int) *backend.Batch {
	b := h.waiting[i]
	h.waiting = slices.Delete(h.waiting, i, i+1)
	return b
}

func (h *pendingStore) decide(i int) { h.next.Submit(h.remove(i)) }

func (h *pendingStore) loseAnswer(i int) {
	b := h.remove(i)
	h.next.Submit(&backend.Batch{Charges: b.Charges, Decisions: make([]backend.Decision, len(b.Charges)), Done: func(*backend.Batch) {}})
	b.Fail(backend.ErrUnavailable)
}

func byFirstByte(below ...backend.Store) *stores.Router {
	routes := make([]stores.Route, len(below))
	for i := range below {
		routes[i].Store = below[i]
	}
	return stores.NewRouter(func(group []backend.Charge) *stores.Route { return &routes[group[0].Key[0]-'a'] }, nil)
}

func routed(next backend.Store) *stores.Router {
	route := stores.Route{Store: next}
	return stores.NewRouter(func([]backend.Charge) *stores.Route { return &route }, nil)
}

func submit(s backend.Store, charges []backend.Charge) (b *backend.Batch, done *int) {
	done = new(int)
	b = &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, len(charges)), Done: func(*backend.Batch) { *done++ }}
	s.Submit(b)
	return b, done
}

func TestABatchOfOneRouteIsNotCopied(t *testing.T) {
	a, b := &pendingStore{}, &pendingStore{}
	charges := []backend.Charge{of(nil, "a1", 1), of(nil, "a2", 1)}
	charges[1].Group = 1
	outer, _ := submit(byFirstByte(a, b), charges)
	if len(a.waiting) != 1 || len(b.waiting) != 0 || a.waiting[0] != outer {
		t.Errorf("%d and %d batches; want 1 and 0, and the first to be the caller's Batch itself", len(a.waiting), len(b.waiting))
	}
}

func TestThePartsOfABatchKeepItsSettings(t *testing.T) {
	a, b := &pendingStore{}, &pendingStore{}
	router := byFirstByte(a, b)
	charges := []backend.Charge{of(nil, "a1", 1), of(nil, "b1", 1)}
	charges[1].Group = 1
	outer := backend.Batch{
		Charges: charges, Decisions: make([]backend.Decision, 2), Deadline: time.Now(), Detached: true, Waits: true,
		Source: &backend.Source{}, Done: func(*backend.Batch) {},
	}
	router.Submit(&outer)
	for _, in := range []*backend.Batch{a.waiting[0], b.waiting[0]} {
		if in.Deadline != outer.Deadline || !in.Detached || in.Source != outer.Source || in.Waits {
			t.Errorf("got %+v; want deadline %v, detached, source %v and not waits", in, outer.Deadline, outer.Source)
		}
	}
}

func TestManyPartsInMemory(t *testing.T) {
	undos := stores.NewUndos(time.Minute)
	defer undos.Close()
	store := memory.New(memory.Config{Clock: storetest.Times(wall)})
	s := stores.Parts(routed(store), func(_ int, c *backend.Charge) int { return int(c.Key[0]) }, undos)
	limit := tokens(t, 10_000, algorithms.Day, 10_000)
	for range 5_000 {
		b, done := submit(s, []backend.Charge{of(limit, "a", 1), of(limit, "b", -1), of(limit, "c", 1)})
		if *done != 1 || !b.Decisions[0].Allowed || !b.Decisions[1].Allowed {
			t.Fatalf("done %d times, %+v; want once, and the first two charges allowed", *done, b.Decisions)
		}
	}
	if n := left(t, store, of(limit, "a", 0)); n != 5_000 {
		t.Errorf("%d left; want 5_000", n)
	}
}

// Random groups are charged in parts over three Stores, whose answers arrive in random order or are lost.
// No bucket admits more than its limit. If no answer is lost, at the end every missing unit belongs to an
// allowed group.
func TestPartsAgreeWithAModel(t *testing.T) {
	for _, lossy := range []bool{false, true} {
		for seed := range uint64(300) {
			t.Run(fmt.Sprintf("lossy %v, seed %d", lossy, seed), func(t *testing.T) {
				partsAgainstAModel(t, rand.New(rand.NewPCG(seed, 1)), lossy)
			})
		}
	}
}

func partsAgainstAModel(t *testing.T, rng *rand.Rand, lossy bool) {
	t.Helper()
	const keys, limited = 6, 20
	undos := stores.NewUndos(time.Minute)
	now := 1000 * algorithms.Second
	store := memory.New(memory.Config{Clock: func() time.Time { return time.UnixMicro(int64(now)) }})
	h := &pendingStore{next: store}
	routes := [3]stores.Route{{Store: h}, {Store: h}, {Store: h}}
	number := func(c *backend.Charge) int { return int(c.Key[0]) % len(routes) }
	router := stores.NewRouter(func(group []backend.Charge) *stores.Route { return &routes[number(&group[0])] }, nil)
	s := stores.Parts(router, func(_ int, c *backend.Charge) int { return number(c) }, undos)
	limit := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: limited, Period: algorithms.Day, Start: new(algorithms.Micros)})
	var batches []*backend.Batch
	var dones []*int
	decide := func() {
		i := rng.IntN(len(h.waiting))
		switch {
		case lossy && rng.IntN(10) == 0:
			h.loseAnswer(i)
		case lossy && rng.IntN(10) == 0:
			h.remove(i).Fail(backend.ErrNotTaken)
		default:
			h.decide(i)
		}
	}
	for range 40 {
		var charges []backend.Charge
		for group := range 1 + rng.IntN(3) {
			for _, k := range rng.Perm(keys)[:1+rng.IntN(4)] {
				c := of(limit, string(rune('a'+k)), 1+rng.Int64N(3))
				c.Group = group
				charges = append(charges, c)
			}
		}
		b, done := submit(s, charges)
		batches, dones = append(batches, b), append(dones, done)
		for len(h.waiting) > 0 && rng.IntN(3) > 0 {
			decide()
		}
	}
	for len(h.waiting) > 0 {
		decide()
	}
	undos.Close()
	var taken [keys]int64
	for i, b := range batches {
		if *dones[i] != 1 {
			t.Fatalf("batch %d is done %d times; want 1", i, *dones[i])
		}
		for at := 0; at < len(b.Charges); {
			end := at + backend.GroupLen(b.Charges[at:])
			allowed := !slices.ContainsFunc(b.Decisions[at:end], func(d backend.Decision) bool { return !d.Allowed })
			for j := at; j < end && allowed; j++ {
				taken[b.Charges[j].Key[0]-'a'] += b.Charges[j].Terms.Cost
			}
			at = end
		}
	}
	for k := range keys {
		n := left(t, store, of(limit, string(rune('a'+k)), 0))
		if taken[k] > limited || n > limited-taken[k] || !lossy && n != limited-taken[k] {
			t.Errorf("bucket %c: allowed groups consumed %d of %d, %d left; want a sum of %d, or less after lost answers", 'a'+k, taken[k], limited, n, limited)
		}
	}
}

func TestUndosAreBounded(t *testing.T) {
	undos := stores.NewUndos(time.Minute)
	h := &pendingStore{next: submitFunc(func(b *backend.Batch) { b.Done(b) })}
	key := []byte("key")
	for range 1100 {
		undos.Submit(h, []backend.Charge{{Key: key}})
	}
	key[0] = 'x' // the caller reuses the memory of its key
	if n := len(h.waiting); n != 1024 || undos.Dropped() != 76 {
		t.Errorf("%d calls, %d dropped; want 1024 and 76", n, undos.Dropped())
	}
	if b := h.waiting[0]; !b.Detached || string(b.Charges[0].Key) != "key" || b.Deadline.IsZero() {
		t.Errorf("got %+v; want a Detached batch with a deadline and the key %q", b, "key")
	}
	closed := make(chan struct{})
	go func() { undos.Close(); close(closed) }()
	for len(h.waiting) > 1 {
		h.decide(0)
	}
	select {
	case <-closed:
		t.Error("Close returned while a call was in flight")
	default:
	}
	h.decide(0)
	<-closed
	if undos.Begin() {
		t.Error("Begin allowed a call after Close")
	}
}
