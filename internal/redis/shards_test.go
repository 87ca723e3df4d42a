package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// windowSpec returns a window that does not end during a test.
func windowSpec(n int64) algorithms.Spec {
	start := algorithms.Micros(time.Now().Add(-time.Hour).UnixMicro())
	return algorithms.Spec{Kind: algorithms.FixedWindow, Rate: n, Period: 30 * algorithms.Day, Start: &start}
}

func sharded(tb testing.TB, spec algorithms.Spec, n int, key string) backend.Charge {
	tb.Helper()
	whole := compiled(tb, spec)
	shards, err := algorithms.Split(spec, n)
	if err != nil {
		tb.Fatal(err)
	}
	return backend.Charge{Key: []byte(key), Limit: whole, Shards: shards, Terms: algorithms.Charge{Cost: 1}, Owner: "test"}
}

func takeOne(tb testing.TB, s backend.Store, c backend.Charge, terms algorithms.Charge) backend.Decision {
	tb.Helper()
	c.Terms = terms
	var d [1]backend.Decision
	backend.Take(context.Background(), s, []backend.Charge{c}, d[:])
	if d[0].Err != nil {
		tb.Fatalf("got %v; want no error", d[0].Err)
	}
	return d[0]
}

// values returns the units in each shard, in the unit of State.Value. s has the shards of c.
func values(tb testing.TB, s backend.Store, c backend.Charge) (all []int64) {
	tb.Helper()
	for i := range c.Shards {
		all = append(all, takeOne(tb, s, shardOf(&c, i), algorithms.Charge{DryRun: true}).Value)
	}
	return all
}

func sum(all []int64) (n int64) {
	for _, v := range all {
		n += v
	}
	return n
}

// shardsInMemory returns a Store of sharded buckets, and the Store that has the shards.
func shardsInMemory(t *testing.T) (s, shards backend.Store, clock *storetest.Clock) {
	t.Helper()
	clock, undos := storetest.NewClock(), stores.NewUndos(nil, time.Minute)
	t.Cleanup(undos.Close)
	shards = perSlot{memory.New(memory.Config{Clock: clock.Time})}
	return newShardStore(inSlots(shards, undos), clock.Now), shards, clock
}

// The master of a shard is down. An undo refunds the units to the other shards. A refund that can be repeated refunds all
// units or none.
func TestAnUndoNeedsNotEachShard(t *testing.T) {
	s, shards, clock := shardsInMemory(t)
	spec := windowSpec(30)
	spec.Initial = new(int64)
	c := sharded(t, spec, 3, "down")
	takeOne(t, s, c, algorithms.Charge{Cost: -18}) // now each shard holds 6 units
	down, up := stores.Route{Store: refusing{backend.ErrNotTaken}}, stores.Route{Store: shards}
	s.(*shardStore).next = stores.NewRouter(func(group []backend.Charge) *stores.Route {
		if group[0].Slot == shardOf(&c, 1).Slot {
			return &down
		}
		return &up
	}, nil)
	for _, test := range []struct {
		terms algorithms.Charge
		err   error
		left  int64
	}{
		{algorithms.Charge{Cost: -5}, backend.ErrNotTaken, 18},
		{algorithms.Charge{Cost: -5, Settle: true, ChargedAt: clock.Now()}, backend.ErrNotTaken, 18},
		{algorithms.Charge{Cost: -6, ChargedAt: clock.Now()}, nil, 24},
		{algorithms.Charge{Cost: -6, ChargedAt: clock.Now()}, nil, 26},
	} {
		c.Terms = test.terms
		d := takeAll(s, []backend.Charge{c})[0]
		if got := sum(values(t, shards, c)); got != test.left || !errors.Is(d.Err, test.err) || d.Err == nil && d.At != clock.Now() {
			t.Errorf("%+v: got %+v, left %d; want %v, %d", test.terms, d, got, test.err, test.left)
		}
	}
}

// Another sidecar charges a shard between the dry runs and the charges of all shards. The charge of the other shard is
// refunded. A refund that arrives in the next window refunds nothing.
func TestShardsThatLoseARace(t *testing.T) {
	const s = algorithms.Second
	window := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 20, Period: 100 * s, Start: new(algorithms.Micros)}
	for name, test := range map[string]struct {
		spec            algorithms.Spec
		tries           int
		other           int64
		late            bool
		retry           algorithms.Micros
		remaining, left int64
	}{
		"token bucket":       {algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 20, Period: 20 * s}, 2, 8, false, 6 * s, 12, 12}, // 3 of 15 are missing, and one of two shards is full
		"the same window":    {window, 2, 8, false, 100 * s, 12, 12},
		"the next window":    {window, 2, 8, true, 100 * s, 12, 14},
		"enough are left":    {window, 2, 4, false, 1, 5, 16},
		"the second attempt": {window, 1, 4, false, 0, 1, 1},
	} {
		store, h, undos := simulated(rand.New(rand.NewPCG(1, 1)))
		c := sharded(t, test.spec, 2, "race")
		c.Terms.Cost = 15
		charge := func(i int, cost int64) {
			part := shardOf(&c, i)
			part.Terms.Cost = cost
			if d := h.decide([]backend.Charge{part})[0]; !d.Allowed {
				t.Fatalf("%s, shard %d: got %+v; want allowed", name, i, d)
			}
		}
		b := &backend.Batch{Charges: []backend.Charge{c}, Decisions: make([]backend.Decision, 1), Done: func(*backend.Batch) {}}
		m := &combine{steps: (&draws{shardStore: store, outer: b}).steps(0), tries: test.tries}
		m.pending.Store(1)
		m.steps.next = m.plan
		m.begin(m.peekAll())
		h.next(0, nil) // the dry runs
		charge(0, test.other)
		h.next(0, nil)
		if test.late {
			h.now += 100 * s
			charge(0, 3)
			charge(1, 3)
		}
		for len(h.waiting) > 0 {
			h.next(0, nil)
		}
		undos.Close()
		if d, n := b.Decisions[0], h.left(c); d.Allowed != (test.retry == 0) || d.Err != nil || d.RetryAfter != test.retry || d.Remaining != test.remaining || n != test.left {
			t.Errorf("%s: got %+v, %d left of 20; want %+v", name, d, n, test)
		}
	}
}

// The shards are spread over the masters, and nearly each request charges one of them.
func TestShardsSpreadAHotKey(t *testing.T) {
	const masters, requests = 3, 3000
	for _, n := range []int{3, 6, 10} {
		_, shards, clock := shardsInMemory(t)
		charges := [masters]float64{}
		s := newShardStore(submitFunc(func(b *backend.Batch) {
			for _, c := range b.Charges {
				charges[slotOf(strconv.FormatUint(c.Slot, 36))*masters/slots] += 1.0 / requests
			}
			shards.Submit(b)
		}), clock.Now)
		c := sharded(t, windowSpec(1_000_000), n, "hot")
		for range requests {
			takeOne(t, s, c, algorithms.Charge{Cost: 1})
		}
		// With 10 shards, one of three masters has 4.
		even := math.Ceil(float64(n)/masters) / float64(n)
		if total := charges[0] + charges[1] + charges[2]; slices.Max(charges[:]) > even+0.05 || total > 1.02 {
			t.Errorf("%d shards: charges of each master for each request %.3f, in all %.2f; want at most %.3f for one master, and 1.02 in all", n, charges, total, even+0.05)
		}
	}
}

// The result of a dry run must not depend on which shards were charged.
func TestShardsArePeekedAsOne(t *testing.T) {
	s, _, clock := shardsInMemory(t)
	whole := memory.New(memory.Config{Clock: clock.Time})
	number := func(n int64) *int64 { return &n }
	for name, spec := range map[string]algorithms.Spec{
		"token bucket":             {Kind: algorithms.TokenBucket, Rate: 100, Period: algorithms.Second},
		"a rate that has divisors": {Kind: algorithms.TokenBucket, Rate: 6, Period: algorithms.Second, Capacity: number(100)},
		"with a debt":              {Kind: algorithms.TokenBucket, Rate: 7, Period: algorithms.Second, Capacity: number(100), MaxReserved: number(50)},
		"a year":                   {Kind: algorithms.TokenBucket, Rate: 200_003, Period: 365 * algorithms.Day},
		"starts half full":         {Kind: algorithms.TokenBucket, Rate: 100, Period: 60 * algorithms.Second, Initial: number(50)},
		"window":                   windowSpec(100),
	} {
		for _, shards := range []int{2, 4, 7} {
			t.Run(fmt.Sprintf("%s in %d", name, shards), func(t *testing.T) {
				c := sharded(t, spec, shards, fmt.Sprintf("look %s %d", name, shards))
				peek := func() {
					t.Helper()
					got, want := takeOne(t, s, c, algorithms.Charge{DryRun: true}), takeOne(t, whole, c, algorithms.Charge{DryRun: true})
					if got.Value != want.Value || got.Remaining != want.Remaining {
						t.Errorf("value %d, %d remaining; want those of one bucket, %d and %d", got.Value, got.Remaining, want.Value, want.Remaining)
					}
				}
				peek()
				for _, cost := range []int64{1, 3, 20, -2, 1} {
					takeOne(t, s, c, algorithms.Charge{Cost: cost})
					takeOne(t, whole, c, algorithms.Charge{Cost: cost})
					peek()
				}
				if spec.MaxReserved != nil {
					terms := algorithms.Charge{Cost: 100, Reserve: true}
					takeOne(t, s, c, terms)
					takeOne(t, whole, c, terms)
					peek()
				}
			})
		}
	}
}
