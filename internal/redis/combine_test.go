package redis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

type heldShards struct {
	memory  *memory.Store
	now     algorithms.Micros
	waiting []*backend.Batch
}

func (h *heldShards) Submit(b *backend.Batch) { h.waiting = append(h.waiting, b) }

// Without Redis the shards would share one key, so decide adds the slot to it.
func (h *heldShards) decide(charges []backend.Charge) []backend.Decision {
	charges, decisions := slices.Clone(charges), make([]backend.Decision, len(charges))
	for i := range charges {
		charges[i].Key = append(strconv.AppendUint(nil, charges[i].Slot, 10), charges[i].Key...)
	}
	h.memory.Submit(&backend.Batch{Charges: charges, Decisions: decisions, Done: func(*backend.Batch) {}})
	return decisions
}

// next answers batch i. If err is an ErrNotTaken, the charges are not made. Any other error means that they are made and
// their answer is lost.
func (h *heldShards) next(i int, err error) {
	b := h.waiting[i]
	h.waiting = slices.Delete(h.waiting, i, i+1)
	if errors.Is(err, backend.ErrNotTaken) {
		b.Fail(err)
		return
	}
	decisions := h.decide(b.Charges)
	if err != nil {
		b.Fail(err)
		return
	}
	copy(b.Decisions, decisions)
	b.Done(b)
}

// inSlots returns a Store that charges groups over several slots in parts, as that of a cluster does.
func inSlots(s backend.Store, undos *stores.Undos) backend.Store {
	one, several := stores.Route{Store: s}, stores.Route{}
	router := stores.NewRouter(func(group []backend.Charge) *stores.Route {
		for i := range group {
			if group[i].Slot != group[0].Slot {
				return &several
			}
		}
		return &one
	}, nil)
	several.Store = stores.Parts(router, func(_ int, c *backend.Charge) int { return int(c.Slot) }, undos)
	return router
}

func (h *heldShards) left(c backend.Charge) (n int64) {
	for i := range c.Shards {
		part := shardOf(&c, i)
		part.Terms = algorithms.Charge{DryRun: true}
		n += h.decide([]backend.Charge{part})[0].Value
	}
	return n / c.Shards[0].Unit()
}

func simulated(rng *rand.Rand) (s *shardStore, h *heldShards, undos *stores.Undos) {
	h = &heldShards{now: 1000 * algorithms.Second}
	clock := func() algorithms.Micros { return h.now }
	h.memory = memory.New(memory.Config{Clock: storetest.Times(clock)})
	undos = stores.NewUndos(nil, time.Minute)
	s = newShardStore(inSlots(h, undos), clock)
	s.memory.clock = func() time.Time { return time.UnixMicro(int64(h.now)) }
	s.memory.random = rng.IntN
	return s, h, undos
}

// Random costs are charged to a sharded bucket, and some are refunded. The answers of its shards arrive in
// random order or are lost, or charges are not sent. The bucket never admits more than its limit. If no
// answer is lost, at the end every missing unit belongs to an allowed charge, unless a refund has filled the shard
// to which a part of a denied charge returns. A charge that is decided alone is allowed exactly if the units are
// available.
func TestShardsAgreeWithAModel(t *testing.T) {
	for _, mode := range []string{"alone", "at once", "refunds at once", "lossy"} {
		for seed := range uint64(300) {
			t.Run(fmt.Sprintf("%s, seed %d", mode, seed), func(t *testing.T) {
				shardsAgainstAModel(t, rand.New(rand.NewPCG(seed, 2)), mode)
			})
		}
	}
}

func shardsAgainstAModel(t *testing.T, rng *rand.Rand, mode string) {
	t.Helper()
	const limit = 60
	s, h, undos := simulated(rng)
	c := sharded(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: limit, Period: algorithms.Day, Start: new(algorithms.Micros)}, 2+rng.IntN(5), "k")
	var taken int64 // allowed units, less those that were certainly refunded
	next := func() {
		var err error
		if mode == "lossy" {
			err = []error{backend.ErrUnavailable, backend.ErrNotTaken, nil, nil, nil, nil, nil, nil}[rng.IntN(8)]
		}
		h.next(rng.IntN(len(h.waiting)), err)
	}
	pending := 0
	submit := func() {
		batch := make([]backend.Charge, 1+rng.IntN(2))
		if mode == "alone" {
			batch = batch[:1]
		}
		for i := range batch {
			batch[i] = c
			batch[i].Group = i
			if batch[i].Terms.Cost = 1 + rng.Int64N(9); rng.IntN(8) == 0 {
				batch[i].Terms.Cost = 1 + rng.Int64N(limit)
			} else if (mode == "alone" || mode == "refunds at once") && taken > 4 && rng.IntN(4) == 0 {
				batch[i].Terms.Cost = -1 - rng.Int64N(4)
				taken += batch[i].Terms.Cost
			}
		}
		there := h.left(c)
		pending++
		s.Submit(&backend.Batch{Charges: batch, Decisions: make([]backend.Decision, len(batch)), Done: func(b *backend.Batch) {
			pending--
			for i, d := range b.Decisions {
				cost := b.Charges[i].Terms.Cost
				if d.Allowed && cost > 0 {
					taken += cost
				}
				if mode == "alone" && (d.Err != nil || cost > 0 && d.Allowed != (cost <= there) || !d.Allowed && d.Remaining != there) {
					t.Errorf("a cost of %d with %d units left: got %+v; want it allowed exactly if the units suffice, or all that are left", cost, there, d)
				}
			}
		}})
	}
	for range 30 {
		submit()
		for len(h.waiting) > 0 && (mode == "alone" || rng.IntN(3) > 0) {
			next()
		}
	}
	for len(h.waiting) > 0 {
		next()
	}
	undos.Close()
	n := h.left(c)
	if pending != 0 || taken > limit || n > limit-taken || (mode == "alone" || mode == "at once") && n != limit-taken {
		t.Errorf("%d batches pending, %d units allowed, %d left; want none pending, and the limit of %d never exceeded", pending, taken, n, limit)
	}
}

// If one shard was certainly not reset (ErrNotTaken), and another one may have been reset, the answer is not ErrNotTaken.
func TestResetOfShards(t *testing.T) {
	s, h, undos := simulated(rand.New(rand.NewPCG(1, 1)))
	defer undos.Close()
	c := sharded(t, windowSpec(30), 3, "k")
	c.Reset = true
	var d backend.Decision
	reset := func() *backend.Batch {
		b := &backend.Batch{Charges: []backend.Charge{c}, Decisions: make([]backend.Decision, 1)}
		b.Done = func(b *backend.Batch) { d = b.Decisions[0] }
		s.Submit(b)
		return h.waiting[0]
	}
	inner := reset()
	slots := map[uint64]bool{}
	for _, part := range inner.Charges {
		if !part.Reset || len(part.Shards) > 0 {
			t.Errorf("got %+v; want Reset and no Shards", part)
		}
		slots[part.Slot] = true
	}
	if len(slots) != 3 {
		t.Errorf("%d shards; want 3", len(slots))
	}
	h.next(0, nil)
	if d.Err != nil || !d.Allowed {
		t.Errorf("got %+v; want no error and allowed", d)
	}
	inner = reset()
	h.waiting = nil
	inner.Decisions[1].Err = backend.ErrNotTaken
	inner.Decisions[2].Err = backend.ErrUnavailable
	inner.Done(inner)
	if !errors.Is(d.Err, backend.ErrUnavailable) || errors.Is(d.Err, backend.ErrNotTaken) || d.Allowed {
		t.Errorf("got %+v; want an ErrUnavailable that is not an ErrNotTaken", d)
	}
}
