// Package storetest has the tests that every Store must pass. They check that a Store decides exactly as
// package algorithms does, and that it charges the whole of a group or nothing while other goroutines
// charge the same buckets.
//
//	func TestMyStore(t *testing.T) {
//		storetest.Exact(t, func(t *testing.T, now func() algorithms.Micros) backend.Store {
//			return NewMyStore(now) // empty, with this clock
//		})
//	}
package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	_ "time/tzdata" // so that the suite needs no time zone files of the machine

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Clock is a clock for tests. It starts at 1970 and changes only by Set.
type Clock struct{ now atomic.Int64 }

// NewClock returns a clock that stands at Start.
func NewClock() *Clock {
	c := &Clock{}
	c.Set(Start)
	return c
}

// Now returns the time of the clock.
func (c *Clock) Now() algorithms.Micros { return algorithms.Micros(c.now.Load()) }

// Time returns the time of the clock as a time.Time.
func (c *Clock) Time() time.Time { return time.UnixMicro(c.now.Load()) }

// Times converts a clock to the form of Config.Clock of packages memory and redis.
func Times(now func() algorithms.Micros) func() time.Time {
	return func() time.Time { return time.UnixMicro(int64(now())) }
}

// Set sets the time.
func (c *Clock) Set(t algorithms.Micros) { c.now.Store(int64(t)) }

// Start is the time at which the clocks of the tests start.
const Start = 1_767_225_600 * algorithms.Second // 2026-01-01

// Exact checks that Stores decide exactly as package algorithms does. newStore makes an empty Store that gets the time
// from its argument now. The buckets of a group share a Slot, so that a Store of several nodes can charge them in one
// step; Bounded is for groups without a common Slot.
func Exact(t *testing.T, newStore func(t *testing.T, now func() algorithms.Micros) backend.Store) {
	t.Helper()
	start := func(t *testing.T) (*Clock, backend.Store) {
		t.Helper()
		clock := NewClock()
		return clock, newStore(t, clock.Now)
	}
	t.Run("a denial charges nothing", func(t *testing.T) {
		clock, store := start(t)
		bucket := token(10, algorithms.Second, 3)
		expect(t, store, bucket, 2, true, 1, 0)
		expect(t, store, bucket, 2, false, 1, 100_000)
		clock.Set(Start + 99_999)
		expect(t, store, bucket, 2, false, 1, 1)
		clock.Set(Start + 100_000)
		expect(t, store, bucket, 2, true, 0, 0)
	})
	t.Run("keys are bytes", func(t *testing.T) {
		_, store := start(t)
		for _, key := range []string{"", "\x00", "\xff", "a", "a\x00", "a\r\nb", string(make([]byte, 4096))} {
			bucket := token(1, algorithms.Second, 1)
			bucket.Key = []byte("k" + key)
			expect(t, store, bucket, 1, true, 0, 0)
			expect(t, store, bucket, 1, false, 0, algorithms.Second)
		}
	})
	t.Run("a group is charged as a whole or not at all", func(t *testing.T) {
		_, store := start(t)
		a, b := token(5, algorithms.Second, 5), token(3, algorithms.Second, 3)
		a.Key, b.Key = []byte("a"), []byte("b")
		a.Terms.Cost, b.Terms.Cost = 2, 2
		got := take(store, a, b)
		if !got[0].Allowed || !got[1].Allowed || got[0].Remaining != 3 || got[1].Remaining != 1 {
			t.Fatalf("both have enough: got %+v", got)
		}
		if got = take(store, a, b); !got[0].Allowed || got[1].Allowed || got[0].Remaining != 3 {
			t.Fatalf("b has 1 left: got %+v", got)
		}
		expect(t, store, a, 3, true, 0, 0)
	})
	t.Run("nobody could return a slot without a name", func(t *testing.T) {
		_, store := start(t)
		slot, other := charge(algorithms.Spec{Kind: algorithms.Concurrency, Capacity: new(int64(2)), Period: minute}), token(1, minute, 1)
		slot.Key = []byte("slot")
		for _, group := range [][]backend.Charge{{slot}, {slot, other}} {
			if got := take(store, group...); got[0].Err != nil || got[0].Allowed || !got[0].Never {
				t.Errorf("of %d charges: got %+v, want that it is never allowed", len(group), got[0])
			}
		}
	})
	t.Run("repeated denials block for longer each time", func(t *testing.T) {
		clock, store := start(t)
		blocks(t, clock, store)
	})
	t.Run("vectors", func(t *testing.T) { Vectors(t, newStore) })
	t.Run("random traces equal package algorithms", func(t *testing.T) {
		clock, store := start(t)
		blocked := 0
		for seed := range uint64(64) {
			blocked += traces(t, seed, clock, store)
		}
		if blocked < 50 {
			t.Errorf("%d decisions were made by blocked buckets, want at least 50", blocked)
		}
	})
	t.Run("a settlement takes effect once, and not for a lost charge", func(t *testing.T) {
		clock, store := start(t)
		settles(t, clock, store)
	})
	t.Run("a group is charged once", func(t *testing.T) {
		clock, store := start(t)
		takesOnce(t, clock, store)
	})
	t.Run("credits pay what a plan does not allow", func(t *testing.T) {
		clock, store := start(t)
		alternativesPay(t, clock, store)
	})
	t.Run("64 workers on one bucket admit the limit", func(t *testing.T) {
		_, store := start(t)
		bucket := window(1000, algorithms.Day)
		if n := hammer(store, 64, 100, bucket); n != 1000 {
			t.Errorf("admitted %d of 6400, want exactly 1000", n)
		}
	})
	t.Run("overlapping groups neither deadlock nor are charged in part", func(t *testing.T) {
		_, store := start(t)
		a, b := window(500, algorithms.Day), window(700, algorithms.Day)
		a.Key, b.Key = []byte("a"), []byte("b")
		var wg sync.WaitGroup
		var admitted atomic.Int64
		for i := range 16 {
			wg.Go(func() {
				pair := []backend.Charge{a, b}
				if i%2 == 1 {
					pair = []backend.Charge{b, a}
				}
				admitted.Add(hammer(store, 1, 100, pair...))
			})
		}
		wg.Wait()
		if n := admitted.Load(); n != 500 {
			t.Errorf("admitted %d groups, want exactly 500", n)
		}
		expect(t, store, b, 200, true, 0, 0)
	})
}

// Bounded checks Stores that may hold consumed units for a while without using them: those that charge a
// group in several steps, because its buckets have no Slot in common, and those that lease units.
//
// newStore makes an empty Store that gets the time from its argument now. The charges of the test have leases of
// slack units (0 means none).
//
// Bounded checks three things. The Store never exceeds a limit. At most slack units of a bucket are unused
// while requests arrive. Units consumed for denied groups, and leased units that were not used, are
// refunded.
func Bounded(t *testing.T, slack int64, newStore func(t *testing.T, now func() algorithms.Micros) backend.Store) {
	t.Helper()
	clock := NewClock()
	store := newStore(t, clock.Now)
	var lease *algorithms.Lease
	if slack > 0 {
		lease = &algorithms.Lease{Most: slack, For: algorithms.Second / 4}
	}
	const keys = 6
	limits := [keys]int64{100, 150, 200, 250, 300, 350}
	var all []backend.Charge
	for i, n := range limits {
		c := window(n, algorithms.Day)
		c.Key, c.Slot = fmt.Appendf(nil, "bucket %d", i), 0
		c.Lease = lease
		all = append(all, c)
	}
	var taken [keys]atomic.Int64
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 2))
			for range 100 {
				var group []backend.Charge
				chosen := rng.Perm(keys)[:1+rng.IntN(3)]
				for _, i := range chosen {
					group = append(group, all[i])
				}
				if hammer(store, 1, 1, group...) == 1 {
					for _, i := range chosen {
						taken[i].Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	for i, n := range limits {
		if got := taken[i].Load(); got > n {
			t.Errorf("bucket %d admitted %d, limit %d", i, got, n)
		}
		c := all[i]
		c.Terms.Cost, c.Lease = 0, nil
		left := int64(-1)
		for range 500 { // until unused leased units, and units consumed for denied groups, have been refunded
			if left = take(store, c)[0].Remaining; left == n-taken[i].Load() {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if want := n - taken[i].Load(); left != want {
			t.Errorf("bucket %d has %d left, want %d: admitted %d of %d", i, left, want, taken[i].Load(), n)
		}
	}
	const most = 1000
	for _, c := range []backend.Charge{window(most, algorithms.Day), token(1, algorithms.Day, most)} {
		c.Key, c.Lease = []byte("charged until it denies, a "+c.Limit.Kind.String()), lease
		if n := hammer(store, 16, most/8, c); n > most || n < most-slack {
			t.Errorf("%s: admitted %d of %d requests, limit %d, of which %d may be unused", c.Key, n, 2*most, most, slack)
		}
	}
}

// The second denial in a row blocks a bucket for one minute, the next blocks last two minutes and then the
// maximum of three. Three minutes after the end of the last block, a new one lasts one minute again.
func blocks(t *testing.T, clock *Clock, store backend.Store) {
	t.Helper()
	const minute = 60 * algorithms.Second
	penalty := &algorithms.Penalty{After: 2, For: minute, Max: 3 * minute}
	for i, spec := range []algorithms.Spec{
		{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second, Penalty: penalty},
		{Kind: algorithms.SlidingLog, Rate: 1, Period: algorithms.Second, Penalty: penalty},
		{Kind: algorithms.FixedWindow, Rate: 1, Calendar: calendars[0], Penalty: penalty},
	} {
		bucket := charge(spec)
		bucket.Key = fmt.Appendf(nil, "blocked %d", i)
		now := clock.Now()
		want := func(allowed bool, blocked algorithms.Micros) {
			t.Helper()
			d := take(store, bucket)[0]
			if d.Err != nil || d.Allowed != allowed || d.Blocked != blocked || !allowed && d.RetryAfter < max(1, blocked) {
				t.Fatalf("%+v, %d us later: got %+v, want allowed %v, blocked for %d", spec, clock.Now()-now, d, allowed, blocked)
			}
		}
		for _, span := range []algorithms.Micros{minute, 2 * minute, 3 * minute, 3 * minute} {
			if spec.Calendar == nil || span == minute { // in a day only the first request is allowed
				want(true, 0)
			}
			want(false, 0)
			want(false, span)
			clock.Set(clock.Now() + span - 1)
			want(false, 1)
			clock.Set(clock.Now() + 1)
		}
		clock.Set(clock.Now() + 3*minute - 1)
		if spec.Calendar == nil {
			want(true, 0)
		}
		want(false, 0)
		clock.Set(clock.Now() + 1)
		want(false, minute)
		bucket.Terms.Cost = -1
		want(true, 0)
		bucket.Terms.Cost = 0
		want(false, minute)
		if err := backend.ResetBucket(t.Context(), store, bucket); err != nil {
			t.Fatal(err)
		}
		want(true, 0)
	}
}

func token(rate int64, period algorithms.Micros, capacity int64) backend.Charge {
	return charge(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: period, Capacity: &capacity})
}

func window(rate int64, period algorithms.Micros) backend.Charge {
	return charge(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: rate, Period: period, Start: new(algorithms.Micros)})
}

func charge(spec algorithms.Spec) backend.Charge {
	limit, err := algorithms.Compile(spec)
	if err != nil {
		panic(err)
	}
	return backend.Charge{Key: []byte("key"), Limit: &limit, Terms: algorithms.Charge{Cost: 1}, Owner: "test", Slot: 1}
}

func take(store backend.Store, charges ...backend.Charge) []backend.Decision {
	decisions := make([]backend.Decision, len(charges))
	backend.Take(context.Background(), store, charges, decisions)
	return decisions
}

func expect(t *testing.T, store backend.Store, c backend.Charge, cost int64, allowed bool, remaining int64, retry algorithms.Micros) {
	t.Helper()
	c.Terms.Cost = cost
	d := take(store, c)[0]
	if d.Err != nil || d.Allowed != allowed || d.Remaining != remaining || d.RetryAfter != retry {
		t.Fatalf("cost %d: got %+v, want allowed %v, remaining %d, retry after %d us", cost, d, allowed, remaining, retry)
	}
}

func hammer(store backend.Store, workers, n int, charges ...backend.Charge) int64 {
	var wg sync.WaitGroup
	var admitted atomic.Int64
	for range workers {
		wg.Go(func() {
			for range n {
				if backend.Allowed(charges, take(store, charges...)) {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}
