package stores_test

import (
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
	if len(a.waiting) != 1 || len(b.waiting) != 0 || &a.waiting[0].Charges[0] != &outer.Charges[0] {
		t.Errorf("%d and %d batches; want 1 and 0, and the first to have the caller's charges themselves", len(a.waiting), len(b.waiting))
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
	undos := stores.NewUndos(nil, time.Minute)
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

func TestUndosAreBounded(t *testing.T) {
	undos := stores.NewUndos(nil, time.Minute)
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
