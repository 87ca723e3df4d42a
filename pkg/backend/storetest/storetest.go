// Package storetest is the conformance suite of every Store: one that answers exactly as package
// algorithms does, all or none within a group, whoever asks at the same time.
//
//	func TestMyStore(t *testing.T) {
//		storetest.Exact(t, func(t *testing.T, now func() algorithms.Micros) backend.Store {
//			return NewMyStore(now) // empty, and on this clock
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
	_ "time/tzdata" // the suite needs no files of the machine's

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

// Clock is a time that a test sets.
type Clock struct{ now atomic.Int64 }

// Now is the time.
func (c *Clock) Now() algorithms.Micros { return algorithms.Micros(c.now.Load()) }

// Time is the same as a time.Time.
func (c *Clock) Time() time.Time { return time.UnixMicro(c.now.Load()) }

// Times converts a clock.
func Times(now func() algorithms.Micros) func() time.Time {
	return func() time.Time { return time.UnixMicro(int64(now())) }
}

// Set sets it.
func (c *Clock) Set(t algorithms.Micros) { c.now.Store(int64(t)) }

// Start is where the suite's clocks start.
const Start = 1_767_225_600 * algorithms.Second // 2026-01-01

// Exact checks that the Stores made by newStore, each empty and on the given clock, answer exactly
// as package algorithms. The buckets of a group share a Slot, as a Store of several nodes needs it;
// Bounded is for those that do not.
func Exact(t *testing.T, newStore func(t *testing.T, now func() algorithms.Micros) backend.Store) {
	t.Helper()
	start := func(t *testing.T) (*Clock, backend.Store) {
		t.Helper()
		clock := &Clock{}
		clock.Set(Start)
		return clock, newStore(t, clock.Now)
	}
	t.Run("a denial charges nothing", func(t *testing.T) {
		clock, store := start(t)
		bucket := token(10, algorithms.Second, 3)
		ask(t, store, bucket, 2, true, 1, 0)
		ask(t, store, bucket, 2, false, 1, 100_000)
		clock.Set(Start + 99_999)
		ask(t, store, bucket, 2, false, 1, 1)
		clock.Set(Start + 100_000)
		ask(t, store, bucket, 2, true, 0, 0)
	})
	t.Run("keys are bytes", func(t *testing.T) {
		_, store := start(t)
		for _, key := range []string{"", "\x00", "\xff", "a", "a\x00", "a\r\nb", string(make([]byte, 4096))} {
			bucket := token(1, algorithms.Second, 1)
			bucket.Key = []byte("k" + key)
			ask(t, store, bucket, 1, true, 0, 0)
			ask(t, store, bucket, 1, false, 0, algorithms.Second)
		}
	})
	t.Run("a group is taken together or not at all", func(t *testing.T) {
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
		ask(t, store, a, 3, true, 0, 0)
	})
	t.Run("denials block, and longer each time", func(t *testing.T) {
		clock, store := start(t)
		blocks(t, clock, store)
	})
	t.Run("vectors", func(t *testing.T) { Vectors(t, newStore) })
	t.Run("random traces equal the core", func(t *testing.T) {
		clock, store := start(t)
		blocked := 0
		for seed := range uint64(24) {
			blocked += traces(t, seed, clock, store)
		}
		if blocked < 100 {
			t.Errorf("%d answers were of blocked buckets: too few to tell", blocked)
		}
	})
	t.Run("a bucket that is reset is as one never seen", func(t *testing.T) {
		_, store := start(t)
		resets(t, store)
	})
	t.Run("a settlement is made once, and of nothing that was forgotten", func(t *testing.T) {
		clock, store := start(t)
		settles(t, clock, store)
	})
	t.Run("a group is taken once", func(t *testing.T) {
		clock, store := start(t)
		takesOnce(t, clock, store)
	})
	t.Run("64 workers on one bucket admit the limit", func(t *testing.T) {
		_, store := start(t)
		bucket := window(1000, algorithms.Day)
		if n := hammer(store, 64, 100, bucket); n != 1000 {
			t.Errorf("admitted %d of 6400, want exactly 1000", n)
		}
	})
	t.Run("crossing groups neither lock up nor tear", func(t *testing.T) {
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
		ask(t, store, b, 200, true, 0, 0)
	})
}

// Bounded checks Stores that may hold units back for a while: because they cannot take a group in one
// step where its buckets have no Slot in common, or because they lend. Charges let slack units of a
// bucket be leased (0: none). Such a Store is never over a limit; while it gets requests it is under by slack
// at most; and what was consumed for denied groups, or leased and not used, is returned.
func Bounded(t *testing.T, slack int64, newStore func(t *testing.T, now func() algorithms.Micros) backend.Store) {
	t.Helper()
	clock := &Clock{}
	clock.Set(Start)
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
				which := rng.Perm(keys)[:1+rng.IntN(3)]
				for _, i := range which {
					group = append(group, all[i])
				}
				if hammer(store, 1, 1, group...) == 1 {
					for _, i := range which {
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
		for range 500 { // until what was taken for denied groups has come back
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
		c.Key, c.Lease = []byte("asked until it denies, a "+c.Limit.Kind.String()), lease
		if n := hammer(store, 16, most/8, c); n > most || n < most-slack {
			t.Errorf("%s: admitted %d of %d asked, limit %d, of which %d may be held back", c.Key, n, 2*most, most, slack)
		}
	}
}

// blocks has buckets of several kinds denied twice in a row, which blocks them for a minute, then for
// two, then for three, the longest; three minutes after the last block that is forgotten.
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
			if spec.Calendar == nil || span == minute { // one a day
				want(true, 0)
			}
			want(false, 0)
			want(false, span)
			clock.Set(clock.Now() + span - 1)
			want(false, 1)
			clock.Set(clock.Now() + 1)
		}
		clock.Set(clock.Now() + 3*minute)
		if spec.Calendar == nil {
			want(true, 0)
		}
		want(false, 0)
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

// resets uses up a bucket of each kind and one beside it, and resets the one.
func resets(t *testing.T, store backend.Store) {
	t.Helper()
	forget := func(c backend.Charge) {
		t.Helper()
		if err := backend.ResetBucket(t.Context(), store, c); err != nil {
			t.Fatal(err)
		}
	}
	for i, spec := range Specs() {
		one := charge(spec)
		one.Key = fmt.Appendf(nil, "reset %d", i)
		other := one
		other.Key = fmt.Appendf(nil, "beside %d", i)
		forget(one) // never seen
		fresh := take(store, one, other)
		used := take(store, other)
		forget(one)
		if got := take(store, one); got[0] != fresh[0] {
			t.Errorf("%+v:\n after a reset %+v\n never seen   %+v", spec, got[0], fresh[0])
		}
		if got := take(store, other); one.Limit.Rate > 0 && got[0].Remaining > used[0].Remaining {
			t.Errorf("%+v: the bucket beside it was %+v, is %+v", spec, used[0], got[0])
		}
	}
}

// token is a charge of a token bucket.
func token(rate int64, period algorithms.Micros, capacity int64) backend.Charge {
	return charge(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: period, Capacity: &capacity})
}

// window is a charge of a clock-aligned fixed window.
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

func ask(t *testing.T, store backend.Store, c backend.Charge, cost int64, allowed bool, remaining int64, retry algorithms.Micros) {
	t.Helper()
	c.Terms.Cost = cost
	d := take(store, c)[0]
	if d.Err != nil || d.Allowed != allowed || d.Remaining != remaining || d.RetryAfter != retry {
		t.Fatalf("asked %d: got %+v, want allowed %v, remaining %d, retry after %d us", cost, d, allowed, remaining, retry)
	}
}

// hammer asks for charges n times from each of so many workers and counts what was admitted.
func hammer(store backend.Store, workers, n int, charges ...backend.Charge) int64 {
	var wg sync.WaitGroup
	var admitted atomic.Int64
	for range workers {
		wg.Go(func() {
			for range n {
				all := true
				for _, d := range take(store, charges...) {
					all = all && d.Err == nil && d.Allowed
				}
				if all {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}

// calendars are days and weeks of places whose clocks are set twice a year; nil: none.
var calendars = func() []*algorithms.Calendar {
	zone := func(name string) *time.Location {
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		return zone
	}
	return []*algorithms.Calendar{
		calendar.Day.In(zone("Europe/Berlin")),
		calendar.Day.In(zone("America/New_York")),
		calendar.Week.In(zone("Europe/Berlin")),
		nil,
	}
}()

// Specs is one limit of each kind and some of their variants.
func Specs() []algorithms.Spec {
	n := func(v int64) *int64 { return &v }
	epoch, late := algorithms.Micros(0), algorithms.Micros(123_456)
	s := algorithms.Second
	return []algorithms.Spec{
		{Kind: algorithms.TokenBucket, Rate: 7, Period: s},
		{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * s, Capacity: n(5), MaxReserved: n(8)},
		{Kind: algorithms.TokenBucket, Rate: 3, Period: s, Capacity: n(9), Initial: n(2)},
		{Kind: algorithms.TokenBucket, Rate: 20, Period: s, Overdraw: true, MaxReserved: n(30)},
		{Kind: algorithms.TokenBucket, Rate: 1000, Period: 365 * algorithms.Day, Capacity: n(200_000_000)},
		{Kind: algorithms.TokenBucket, Rate: 2, Period: s, Capacity: n(6), Minimum: &algorithms.Rate{Units: 3, Period: s}},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch},
		{Kind: algorithms.FixedWindow, Rate: 4, Period: 2 * s, Capacity: n(11), Initial: n(1), Start: &late},
		{Kind: algorithms.FixedWindow, Rate: 6, Period: s, MaxReserved: n(12)},
		{Kind: algorithms.FixedWindow, Rate: 3, Period: s, Capacity: n(7), Start: &late},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch, PerRequest: true},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch, TakesDenied: true},
		{Kind: algorithms.FixedWindow, Rate: 8, Period: s, Start: &epoch, Overdraw: true},
		{Kind: algorithms.SlidingWindow, Rate: 9, Period: s},
		{Kind: algorithms.SlidingLog, Rate: 6, Period: s},
		{Kind: algorithms.LeakyBucket, Rate: 5, Period: s, Capacity: n(4)},
		{Kind: algorithms.FixedWindow, Rate: 0, Period: s, Start: &epoch},
		{Kind: algorithms.TokenBucket, Rate: 4, Period: s, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 4 * s}},
		{Kind: algorithms.FixedWindow, Rate: 3, Period: s, Capacity: n(5), Initial: n(1), Penalty: &algorithms.Penalty{After: 3, For: s / 2, Max: 3 * s}},
		{Kind: algorithms.SlidingLog, Rate: 3, Period: s, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 60 * s}},
		{Kind: algorithms.FixedWindow, Rate: 4, Calendar: calendars[0], Penalty: &algorithms.Penalty{After: 2, For: s, Max: algorithms.Day}},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch, TakesDenied: true, Penalty: &algorithms.Penalty{After: 1, For: s, Max: s}},
		{Kind: algorithms.TokenBucket, Rate: 1000, Period: 365 * algorithms.Day, Capacity: n(200_000_000), Penalty: &algorithms.Penalty{After: 1, For: s, Max: 8 * s}},
		{Kind: algorithms.LeakyBucket, Rate: 5, Period: s, Capacity: n(4), Penalty: &algorithms.Penalty{After: 3, For: s, Max: 2 * s}},
		{Kind: algorithms.SlidingWindow, Rate: 9, Period: s, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 2 * s}},
		{Kind: algorithms.TokenBucket, Rate: 2, Period: s, Capacity: n(6), Minimum: &algorithms.Rate{Units: 3, Period: s}, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 2 * s}},
		{Kind: algorithms.FixedWindow, Rate: 5, Calendar: calendars[0]},
		{Kind: algorithms.FixedWindow, Rate: 4, Capacity: n(11), Initial: n(1), MaxReserved: n(30), Calendar: calendars[0]},
		{Kind: algorithms.TokenBucket, Rate: 7, Period: s, Capacity: n(30), Settles: true},
		{Kind: algorithms.TokenBucket, Rate: 5, Period: 2 * s, Capacity: n(20), Initial: n(6), MaxReserved: n(4), Settles: true, MaxDebt: n(9)},
		{Kind: algorithms.TokenBucket, Rate: 1000, Period: 365 * algorithms.Day, Capacity: n(200_000_000), Settles: true, MaxDebt: n(3)},
		{Kind: algorithms.FixedWindow, Rate: 20, Period: 2 * s, Settles: true, MaxDebt: n(15)},
		{Kind: algorithms.FixedWindow, Rate: 20, Capacity: n(15), Initial: n(10), Calendar: calendars[0], Settles: true},
	}
}

// traces runs one random trace of batches, groups and single charges over a few buckets of every
// kind, time going on by jumps (sometimes back), limits changing now and then, and compares each
// answer with a reference implementation: a map and package algorithms.
// It returns how many answers were those of a bucket that is blocked.
func traces(t *testing.T, seed uint64, clock *Clock, store backend.Store) (blocked int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	specs := Specs()
	limits := make([]*algorithms.Limit, len(specs))
	former := make([]*algorithms.Limit, len(specs)) // some are still asked by when the numbers have changed
	compile := func(i int) {
		limit, err := algorithms.Compile(specs[i])
		if err != nil {
			t.Fatal(err)
		}
		former[i], limits[i] = limits[i], &limit
	}
	for range 2 {
		for i := range specs {
			compile(i)
		}
	}
	reference := reference{states: map[string]algorithms.State{}, records: map[[16]byte][]backend.Decision{}}
	now := Start
	for step := range 300 {
		now += jump(rng)
		clock.Set(now)
		if i := rng.IntN(len(specs)); rng.IntN(5) == 0 && specs[i].Rate > 0 {
			specs[i] = changed(rng, specs[i], Specs()[i])
			compile(i)
		}
		var charges []backend.Charge
		for group := range 1 + rng.IntN(3) {
			var once *backend.IdempotencyKey
			if rng.IntN(10) == 0 {
				once = &backend.IdempotencyKey{ID: [16]byte{byte(seed), byte(rng.IntN(6))}, Lifetime: 1000 * algorithms.Day}
			}
			from := len(charges)
			for _, i := range rng.Perm(len(specs))[:1+rng.IntN(3)] {
				key := fmt.Sprintf("%d/%d/%d", seed, i, rng.IntN(2))
				cost := rng.Int64N(8) - 1
				if rng.IntN(50) == 0 {
					cost = rng.Int64() - rng.Int64()
				}
				limit := limits[i]
				if rng.IntN(3) == 0 {
					limit = former[i]
				}
				if limit.Calendar != nil {
					once = nil // takesOnce asks under an id of one calendar
				}
				settle := rng.IntN(4) == 0
				switch {
				case limit.Overdraw && limit.MaxReserved > 1e6: // the end of a debt of centuries is not exact in doubles
					cost = min(cost, 1e6)
				case !limit.Settles:
				case limit.Tick > 1 && cost > 8:
					cost = 8
				case cost <= 8 && rng.IntN(2) == 0:
					settle, cost = true, rng.Int64N(41)-15
				}
				charges = append(charges, backend.Charge{
					Key: []byte(key), Limit: limit, Owner: fmt.Sprint(i), Group: group, Slot: 1 + seed,
					Terms: algorithms.Charge{
						Cost: cost, Hash: uint64(i) * 0x9E3779B97F4A7C15, DryRun: rng.IntN(10) == 0,
						Scaled:    limit.Kind == algorithms.TokenBucket && rng.IntN(10) == 0,
						Reserve:   limit.CanReserve() && rng.IntN(4) == 0,
						ChargedAt: max(0, now-algorithms.Micros(rng.Int64N(int64(3*algorithms.Second)))) * algorithms.Micros(rng.IntN(2)),
						Settle:    settle,
						MaxWait:   algorithms.Micros(rng.IntN(2)) * 300_000,
					},
				})
			}
			for i := range charges[from:] {
				if once != nil {
					charges[from+i].IdempotencyKey = once
					once.Digest[len(charges)-from]++ // groups of one size are taken for the same
					charges[from+i].Terms.DryRun = false
				}
			}
		}
		want := reference.answer(now, charges)
		for i, got := range take(store, charges...) {
			if got != want[i] {
				t.Fatalf("seed %d, step %d, charge %d (%s, %+v, %+v) at %d:\n got %+v\nwant %+v",
					seed, step, i, charges[i].Key, *charges[i].Limit, charges[i].Terms, now, got, want[i])
			}
			if got.Blocked > 0 {
				blocked++
			}
		}
	}
	return blocked
}

// changed is s with other numbers, original being those it had at first: of a like size mostly, smaller or
// larger, now and then counted in ms, or in other windows.
func changed(rng *rand.Rand, s, original algorithms.Spec) algorithms.Spec {
	const second = algorithms.Second
	n := func(most int64) *int64 { v := rng.Int64N(most); return &v }
	s.Rate, s.Capacity, s.Initial, s.MaxReserved = 1+rng.Int64N(30), nil, nil, nil
	if s.Penalty = original.Penalty; rng.IntN(3) == 0 {
		s.Penalty = nil
	}
	s.Settles, s.MaxDebt = original.Settles && rng.IntN(4) > 0, nil
	tokens := s.Kind == algorithms.TokenBucket || s.Kind == algorithms.FixedWindow
	if tokens && rng.IntN(2) == 0 || s.Kind == algorithms.LeakyBucket {
		s.Capacity = n(40)
	}
	if tokens && s.Minimum == nil && rng.IntN(2) == 0 {
		s.MaxReserved = n(20)
	}
	if s.Settles && rng.IntN(2) == 0 {
		s.MaxDebt = n(20)
	}
	if s.Minimum != nil {
		s.Minimum = &algorithms.Rate{Units: 1 + rng.Int64N(5), Period: second}
	}
	switch {
	case s.Kind == algorithms.FixedWindow && s.TakesDenied:
		s.MaxReserved = nil
	case s.Kind == algorithms.FixedWindow:
		s.Period, s.Calendar = algorithms.Day, calendars[rng.IntN(len(calendars))]
		if rng.IntN(2) == 0 {
			s.Period, s.Calendar = second*algorithms.Micros(1+rng.IntN(5)), nil
		}
		if s.Calendar != nil {
			s.Start = nil
		}
		if s.Settles && s.Capacity != nil {
			*s.Capacity = min(*s.Capacity, s.Rate)
		}
	case s.Kind != algorithms.SlidingLog:
		s.Period = second * [...]algorithms.Micros{1, 1, 2, 7}[rng.IntN(4)]
		if (tokens && !s.Overdraw || s.Kind == algorithms.LeakyBucket) && rng.IntN(4) == 0 { // in ms
			s.Rate, s.Period, s.Capacity, s.MaxReserved = 1000, 365*algorithms.Day, nil, nil
			large := 200_000_000 + rng.Int64N(10)
			s.Capacity = &large
			if tokens && s.Minimum == nil {
				s.MaxReserved = n(20) // times of more than 285 years are not exact in doubles
			}
		}
	}
	return s
}

// reference is the reference implementation of a Store.
type reference struct {
	states  map[string]algorithms.State
	records map[[16]byte][]backend.Decision
}

// answer is the reference implementation's answer to charges.
func (w *reference) answer(now algorithms.Micros, charges []backend.Charge) (all []backend.Decision) {
	for len(charges) > 0 {
		n := backend.GroupLen(charges)
		answers := w.again(charges[:n])
		if answers == nil {
			answers = w.take(now, charges[:n])
			if once := charges[0].IdempotencyKey; once != nil && backend.ConsumedAny(charges[:n], answers) {
				w.records[once.ID] = answers
			}
		}
		all = append(all, answers...)
		charges = charges[n:]
	}
	return all
}

// again is what the reference implementation stores of a group; nil: nothing.
func (w *reference) again(group []backend.Charge) []backend.Decision {
	once := group[0].IdempotencyKey
	if once == nil || w.records[once.ID] == nil {
		return nil
	}
	was := w.records[once.ID]
	answers := make([]backend.Decision, len(group))
	for i := range answers {
		if len(was) != len(group) {
			answers[i].Err = backend.ErrReused
			continue
		}
		answers[i] = was[i]
		answers[i].Replayed = true
	}
	return answers
}

func (w *reference) take(now algorithms.Micros, charges []backend.Charge) (all []backend.Decision) {
	buckets := make([]algorithms.Bucket, len(charges))
	for i, c := range charges {
		buckets[i] = algorithms.Bucket{Limit: c.Limit, Charge: c.Terms, State: w.states[string(c.Key)]}
	}
	algorithms.TakeAll(now, buckets)
	for i, c := range charges {
		w.states[string(c.Key)] = buckets[i].State
		all = append(all, backend.Decision{Decision: buckets[i].Decision, At: now})
	}
	return all
}

func jump(rng *rand.Rand) algorithms.Micros {
	switch rng.IntN(30) {
	case 0:
		return -algorithms.Micros(rng.Int64N(int64(50 * algorithms.Second)))
	case 1:
		return -algorithms.Micros(rng.Int64N(int64(algorithms.Day)))
	case 2:
		return algorithms.Micros(rng.Int64N(int64(3 * algorithms.Day)))
	case 3, 4, 5:
		return 0
	default:
		return algorithms.Micros(rng.Int64N(int64(algorithms.Second)))
	}
}
