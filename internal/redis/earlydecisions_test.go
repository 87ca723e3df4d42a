package redis

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// knownAfter submits charges to s. It returns which decisions are known 5 ms later, and checks that these
// do not change afterwards.
func knownAfter(t *testing.T, s backend.Store, charges []backend.Charge) (known []bool) {
	t.Helper()
	done := make(chan struct{})
	b := &backend.Batch{
		Charges: charges, Decisions: make([]backend.Decision, len(charges)), Known: make([]atomic.Bool, len(charges)),
		Done: func(*backend.Batch) { close(done) },
	}
	s.Submit(b)
	time.Sleep(5 * ms)
	early := make([]backend.Decision, len(charges))
	for i := range charges {
		if known = append(known, b.IsKnown(i)); known[i] {
			early[i] = b.Decisions[i]
		}
	}
	<-done
	for i := range charges {
		if known[i] && b.Decisions[i] != early[i] {
			t.Errorf("charge %d: early %+v, at the end %+v; want no change", i, early[i], b.Decisions[i])
		}
	}
	return known
}

func TestShardsThatHaveAnsweredAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast := memory.New(memory.Config{Clock: time.Now})
		slow := submitFunc(func(b *backend.Batch) { time.AfterFunc(20*ms, func() { fast.Submit(b) }) })
		routes := [2]stores.Route{{Store: fast}, {Store: slow}}
		router := stores.NewRouter(func(group []backend.Charge) *stores.Route {
			if group[0].Key[0] == 's' {
				return &routes[1]
			}
			return &routes[0]
		}, nil)
		undos := stores.NewUndos(nil, time.Second)
		defer undos.Close()
		s := newShardStore(inSlots(perSlot{router}, undos), nil)
		charges := []backend.Charge{
			sharded(t, windowSpec(30), 3, "at once"), sharded(t, windowSpec(30), 3, "slow"),
			sharded(t, windowSpec(30), 3, "larger than a shard"), sharded(t, windowSpec(30), 3, "never"), sharded(t, windowSpec(30), 3, "a dry run"),
			sharded(t, windowSpec(30), 3, "the other shard allows"), sharded(t, windowSpec(30), 3, "all shards together allow"), sharded(t, windowSpec(30), 3, "denied"),
		}
		s.memory.random = func(int) int { return 0 } // draws shards 0 and 1
		for i, used := range [][]int64{{10, 0, 0}, {10, 9, 8}, {10, 10, 9}} {
			for n, units := range used { // other sidecars have used these units
				part := shardOf(&charges[5+i], n)
				part.Terms.Cost = units
				takeAll(perSlot{fast}, []backend.Charge{part})
			}
			charges[5+i].Terms.Cost = 3
		}
		charges[2].Terms.Cost, charges[3].Terms.Cost, charges[4].Terms.DryRun = 20, 31, true
		for i := range charges {
			charges[i].Group = i
		}
		if got, want := knownAfter(t, s, charges), []bool{true, false, true, true, true, true, true, true}; !slices.Equal(got, want) {
			t.Errorf("known %v, want %v", got, want)
		}
		for i, want := range []int64{17, 0, 1} {
			peek := charges[5+i]
			peek.Terms = algorithms.Charge{Hash: peek.Terms.Hash, DryRun: true}
			if d := takeAll(s, []backend.Charge{peek})[0]; d.Remaining != want {
				t.Errorf("%s: %d remain, want %d", peek.Key, d.Remaining, want)
			}
		}
	})
}

// perSlot adds the slot to the key of each shard, because without Redis the shards would share one key.
type perSlot struct{ next backend.Store }

func (p perSlot) Submit(b *backend.Batch) {
	for i := range b.Charges {
		c := &b.Charges[i]
		c.Key = append(slices.Clone(c.Key), byte(c.Slot), byte(c.Slot>>8))
	}
	p.next.Submit(b)
}

func TestAnswersOfEarlierCallsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		l := blocking(time.Minute, func(_ context.Context, c *call) error {
			if calls++; calls > 1 {
				time.Sleep(20 * ms)
			}
			for _, r := range c.runs {
				for i := r.from; i < r.to; i++ {
					r.batch.Decisions[i] = backend.Decision{Decision: algorithms.Decision{Allowed: true, Remaining: int64(calls)}}
				}
			}
			return nil
		})
		l.queue.maxCalls, l.queue.maxBatch = 1, 3
		known := knownAfter(t, l, many(10, 1))
		if n := slices.Index(known, false); n != 3 || slices.Contains(known[n:], true) {
			t.Errorf("known %v; want only the first 3", known)
		}
	})
}

func TestClaimedGroupsThatHaveEndedAreKnown(t *testing.T) {
	c := &Store{spawn: func(func()) {}} // this spawn runs nothing, so claims stay in flight
	c.underway.Store(maxClaims - 1)
	limit := sharded(t, windowSpec(30), 3, "a").Limit
	charges := make([]backend.Charge, 2)
	for i := range charges {
		charges[i] = backend.Charge{Key: []byte{'a' + byte(i)}, Limit: limit, Group: i, Terms: algorithms.Charge{Cost: 1}, IdempotencyKey: &backend.IdempotencyKey{}}
	}
	b := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, 2), Known: make([]atomic.Bool, 2), Done: func(*backend.Batch) { t.Error("it has ended") }}
	c.Claimed(decidedAs(true), c.undos).Submit(b)
	if b.IsKnown(0) || !b.IsKnown(1) || b.Decisions[1].Err == nil {
		t.Errorf("known %v and %v, %+v; want only the second one known, with an error", b.IsKnown(0), b.IsKnown(1), b.Decisions)
	}
}

// The drawn shard denies a charge. Another shard answers after the rest of the batch.
func TestAChargeThatItsShardDeniedIsChargedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast := memory.New(memory.Config{Clock: time.Now})
		a, slow := sharded(t, windowSpec(30), 3, "a"), sharded(t, windowSpec(30), 3, "slow")
		a.Terms.Cost, slow.Group = 3, 1
		full, second := shardOf(&a, 0), shardOf(&a, 1)
		full.Terms.Cost = 10
		takeAll(perSlot{fast}, []backend.Charge{full})
		sent := map[uint64]int{}
		s := newShardStore(stores.NewRouter(func(group []backend.Charge) *stores.Route {
			if !group[0].Terms.DryRun {
				sent[group[0].Slot]++
			}
			answersAfter := time.Duration(0)
			switch {
			case group[0].Slot == second.Slot:
				answersAfter = 40 * ms
			case string(group[0].Key) == "slow":
				answersAfter = 20 * ms
			}
			return &stores.Route{Store: submitFunc(func(b *backend.Batch) { time.AfterFunc(answersAfter, func() { perSlot{fast}.Submit(b) }) })}
		}, nil), nil)
		s.memory.random = func(int) int { return 0 } // draws shards 0 and 1
		start := time.Now()
		b := backend.Batch{Charges: []backend.Charge{a, slow}, Decisions: make([]backend.Decision, 2), Known: make([]atomic.Bool, 2)}
		backend.Wait(s, b)
		if d := b.Decisions; !d[0].Allowed || !d[1].Allowed || d[0].Remaining != 17 || time.Since(start) != 80*ms {
			t.Errorf("after %v: %+v; want both allowed after %v, with 17 remaining in the first", time.Since(start), d, 80*ms)
		}
		if sent[full.Slot] != 1 || sent[second.Slot] != 1 {
			t.Errorf("charges by slot: %v; want one of %d and one of %d", sent, full.Slot, second.Slot)
		}
	})
}
