package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// growing returns limits whose buckets need different amounts of room.
func growing(tb testing.TB) []*algorithms.Limit {
	tb.Helper()
	var all []*algorithms.Limit
	for _, spec := range []algorithms.Spec{
		{Kind: algorithms.TokenBucket},
		{Kind: algorithms.SlidingLog},
		{Kind: algorithms.TokenBucket, Settles: true},
		{Kind: algorithms.TokenBucket, Overdraw: true, Initial: new(int64(1))},
		{Kind: algorithms.TokenBucket, Penalty: &algorithms.Penalty{After: 3, For: algorithms.Second, Max: algorithms.Second}},
	} {
		spec.Rate, spec.Period = 4, 10*algorithms.Second
		all = append(all, limit(tb, spec))
	}
	return all
}

func TestTheRoomInUseIsThatOfTheContent(t *testing.T) {
	limits := growing(t)
	owners := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		clock, s := at(rapid.IntRange(1, 60).Draw(t, "bound"))
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch action := rapid.IntRange(0, 19).Draw(t, "action"); action {
			case 0:
				s.SetOwners(owners[:rapid.IntRange(0, len(owners)).Draw(t, "listed")])
			case 1, 2:
				clock.Set(s.clock() + algorithms.Micros(rapid.IntRange(1, 30).Draw(t, "seconds"))*algorithms.Second)
			case 3:
				s.Sweep()
			case 4, 5:
				charge := backend.Charge{Key: fmt.Append(nil, rapid.IntRange(0, 20).Draw(t, "key"))}
				if err := backend.ResetBucket(context.Background(), s, charge); err != nil {
					t.Fatal(err)
				}
			default:
				var charges []backend.Charge
				for _, key := range rapid.SliceOfNDistinct(rapid.IntRange(0, 20), 1, 3, rapid.ID[int]).Draw(t, "keys") {
					owner := fmt.Sprint("of one request ", step)
					if of := rapid.IntRange(0, len(owners)).Draw(t, "owner"); of < len(owners) {
						owner = owners[of]
					}
					charges = append(charges, backend.Charge{
						Key: fmt.Append(nil, key), Owner: owner, Limit: rapid.SampledFrom(limits).Draw(t, "limit"),
						Terms: algorithms.Charge{Cost: int64(rapid.IntRange(-1, 4).Draw(t, "cost")), DryRun: rapid.IntRange(0, 4).Draw(t, "dry run") == 0},
					})
				}
				if id := rapid.IntRange(0, 9).Draw(t, "id"); id < 4 {
					for i := range charges {
						charges[i].IdempotencyKey = &backend.IdempotencyKey{ID: [16]byte{byte(id)}, Lifetime: 20 * algorithms.Second}
					}
				}
				backend.Take(context.Background(), s, charges, make([]backend.Decision, len(charges)))
			}
			if err := consistent(s); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
		clock.Set(s.clock() + 2*algorithms.Day)
		s.Sweep()
		if err := consistent(s); err != nil || s.Stats().Keys != 0 {
			t.Fatalf("two days later: %v, holds %d; want nothing", err, s.Stats().Keys)
		}
	})
}

// consistent returns an error if the room in use is not that of the buckets and records of s.
func consistent(s *Store) error {
	r := &s.room
	held := make([]int, len(r.held))
	for i := range s.stripes {
		table, stored := &s.stripes[i].table, 0
		for n := range table.everUsed {
			e := table.entry(n)
			if e.by == nil {
				if e.key.Load() != nil || e.more != nil {
					return errors.New("an unused entry has a key or a state")
				}
				continue
			}
			stored++
			held[e.owner] += 1 + e.extra()
		}
		if stored != table.count || stored+len(table.free) != table.everUsed {
			return fmt.Errorf("%d of %d entries are stored, %d counted, %d free; want all that are stored counted, and the others free", stored, table.everUsed, table.count, len(table.free))
		}
	}
	for i := range s.records {
		stored := 0
		for _, place := range s.records[i].index {
			if place != 0 {
				stored++
				held[recordsOwner] += int(s.records[i].at(recordRef(place)).n)
			}
		}
		if stored != s.records[i].count {
			return fmt.Errorf("%d records are counted, want %d, those that are stored", s.records[i].count, stored)
		}
	}
	total, pool, parts := 0, 0, 0
	for owner, n := range held {
		total, pool = total+n, pool+n
		if r.listed[owner] {
			pool -= min(n, r.reserve)
			parts += r.reserve
		}
		if named := r.name[owner] != ""; named != (owner != recordsOwner && !slices.Contains(r.free, uint32(owner))) ||
			named && r.names[r.name[owner]] != uint32(owner) || !named && r.listed[owner] {
			return fmt.Errorf("owner %d is %q, of %v; free are %v", owner, r.name[owner], r.names, r.free)
		}
	}
	if !slices.Equal(held, r.held) || total != r.total || pool != r.pool {
		return fmt.Errorf("the content needs %v, of which %d are beyond the parts; counted are %v, %d and %d in all", held, pool, r.held, r.pool, r.total)
	}
	if parts > r.most/2 || parts+r.poolMax != r.most || total > r.most+r.most/2 {
		return fmt.Errorf("holds %d; the parts are %d and the pool %d; want at most half of %d for the parts, the rest for the pool, and at most half more in all", total, parts, r.poolMax, r.most)
	}
	for name, owner := range r.names {
		if r.held[owner] == 0 && !(r.divided && r.listed[owner]) {
			return fmt.Errorf("%q has no bucket and is not configured; want it deleted from %v", name, slices.Sorted(maps.Keys(r.names)))
		}
		if !r.divided && !r.listed[owner] {
			return fmt.Errorf("%q has no part; want one for each limit before the first SetOwners", name)
		}
	}
	return nil
}

func TestTheLargestBound(t *testing.T) {
	if got := New(Config{MaxKeys: math.MaxInt}).Stats().MaxKeys; got != stripeCount*maxEntries/2 {
		t.Errorf("got %d, want %d", got, stripeCount*maxEntries/2)
	}
}

func TestALimitHasItsPartAfterAReload(t *testing.T) {
	_, s := at(100)
	l := tokens(t, 1)
	fill := func(owner string) (n int) {
		for s.Stats().Keys < 1000 && consume(s, owner, fmt.Sprint(n), l, 1).Allowed {
			n++
		}
		return n
	}
	s.SetOwners([]string{"flooded"})
	if n := fill("flooded"); n != 100 {
		t.Fatalf("the only limit got room for %d buckets, want 100", n)
	}
	for range 2 {
		s.SetOwners([]string{"flooded", "new"})
	}
	if n := fill("new"); n != 25 {
		t.Errorf("the new limit got room for %d buckets, want a quarter of the bound", n)
	}
	if consume(s, "flooded", "one more", l, 1).Allowed {
		t.Error("the flooded limit got room although it uses more than its part and the pool; want ErrFull")
	}
}

func TestReloadsExceedTheBoundByHalfAtMost(t *testing.T) {
	for _, configured := range []bool{true, false} {
		_, s := at(100)
		l := tokens(t, 1)
		for reload := range 20 {
			owner := fmt.Sprint("limit ", reload)
			if configured {
				s.SetOwners([]string{owner})
			}
			for i := range 110 {
				consume(s, owner, fmt.Sprint(i), l, 1)
			}
			if n := s.Stats().Keys; n > 150 || reload == 19 && n < 140 {
				t.Fatalf("configured %v, limit %d: holds %d, want up to 150", configured, reload, n)
			}
		}
	}
}

// Run visits each bucket of a nearly full store within a second, and each bucket of any other store within 10 s.
func TestRunSweepsANearlyFullStoreEverySecond(t *testing.T) {
	for _, test := range []struct {
		name   string
		owners []string
		live   int
		fast   bool
	}{
		{"one limit uses more than nine tenths of the bound", []string{"a"}, 905, true},
		{"more than nine tenths of the pool are used", []string{"a", "b", "c", "d"}, 580, true},
		{"neither", []string{"a", "b"}, 600, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			const expired = 30
			s := New(Config{MaxKeys: 1000})
			s.SetOwners(test.owners)
			for i := range test.live {
				consume(s, "a", fmt.Sprint(i), limit(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Day}), 1)
			}
			for i := range expired {
				consume(s, "a", fmt.Sprint("expired ", i), tokens(t, 1), 1)
			}
			time.Sleep(time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { s.Run(ctx); close(done) }()
			time.Sleep(1050 * time.Millisecond)
			synctest.Wait()
			if n := s.Stats().Swept; test.fast != (n == expired) {
				t.Errorf("%s: swept %d of %d in a second; want all of them %v", test.name, n, expired, test.fast)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := s.Stats().Swept; n != expired {
				t.Errorf("%s: swept %d of %d in 11 seconds", test.name, n, expired)
			}
			cancel()
			<-done
		})
	}
}

// Without room for its state, a decision that would change units is an error. Other decisions are made.
func TestDecisionsWithoutRoom(t *testing.T) {
	limits := growing(t)
	plain, overdraw, penalty := limits[0], limits[3], limits[4]
	slow := limit(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 4, Period: algorithms.Day})
	starts := limit(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: algorithms.Second, Initial: new(int64(1))})
	for _, test := range []struct {
		name    string
		charges []backend.Charge
		full    bool
	}{
		{"a denial that is charged", []backend.Charge{{Key: []byte("new"), Limit: overdraw, Terms: algorithms.Charge{Cost: 2}}}, true},
		{"a denial that is charged, in a group", []backend.Charge{
			{Key: []byte("stored"), Limit: slow, Terms: algorithms.Charge{Cost: 1}},
			{Key: []byte("new"), Limit: overdraw, Terms: algorithms.Charge{Cost: 2}},
		}, true},
		{"a dry run of a limit that charges denials", []backend.Charge{{Key: []byte("new"), Limit: overdraw, Terms: algorithms.Charge{Cost: 2, DryRun: true}}}, false},
		{"a dry run of a limit that charges denials, in a group", []backend.Charge{
			{Key: []byte("stored"), Limit: slow, Terms: algorithms.Charge{Cost: 1, DryRun: true}},
			{Key: []byte("new"), Limit: overdraw, Terms: algorithms.Charge{Cost: 2, DryRun: true}},
		}, false},
		{"a denial that is counted", []backend.Charge{{Key: []byte("penalty"), Limit: penalty, Terms: algorithms.Charge{Cost: 4}}}, false},
		{"a denial that is counted, in a group", []backend.Charge{
			{Key: []byte("stored"), Limit: slow, Terms: algorithms.Charge{Cost: 1}},
			{Key: []byte("penalty"), Limit: penalty, Terms: algorithms.Charge{Cost: 4}},
		}, false},
		{"a new bucket", []backend.Charge{{Key: []byte("new"), Limit: plain, Terms: algorithms.Charge{Cost: 1}}}, true},
		{"a new bucket, in a group", []backend.Charge{
			{Key: []byte("stored"), Limit: slow, Terms: algorithms.Charge{Cost: 1}},
			{Key: []byte("new"), Limit: plain, Terms: algorithms.Charge{Cost: 1}},
		}, true},
		{"no units", []backend.Charge{{Key: []byte("new"), Limit: starts}}, false},
		{"a dry run that starts a clock", []backend.Charge{{Key: []byte("new"), Limit: starts, Terms: algorithms.Charge{Cost: 1, DryRun: true}}}, false},
		{"a denial that starts a clock", []backend.Charge{{Key: []byte("new"), Limit: starts, Terms: algorithms.Charge{Cost: 2}}}, false},
		{"a clock that starts beside a denial", []backend.Charge{
			{Key: []byte("stored"), Limit: slow, Terms: algorithms.Charge{Cost: 4}},
			{Key: []byte("new"), Limit: starts, Terms: algorithms.Charge{Cost: 1}},
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, s := at(4)
			d := make([]backend.Decision, 2)
			for _, key := range []string{"stored", "1", "2"} {
				backend.Take(t.Context(), s, []backend.Charge{{Key: []byte(key), Limit: slow, Owner: "a", Terms: algorithms.Charge{Cost: 1}}}, d[:1])
			}
			backend.Take(t.Context(), s, []backend.Charge{{Key: []byte("penalty"), Limit: penalty, Owner: "a", Terms: algorithms.Charge{Cost: 1}}}, d[:1])
			if st := s.Stats(); st.Keys != st.MaxKeys {
				t.Fatalf("%+v: the store is not full", st)
			}
			got := d[:len(test.charges)]
			clear(got)
			for i := range got {
				test.charges[i].Owner = "a"
			}
			backend.Take(t.Context(), s, test.charges, got)
			for i := range got {
				if full := errors.Is(got[i].Err, backend.ErrFull); full != test.full || !full && got[i].Err != nil {
					t.Errorf("charge %d: %+v; want ErrFull %v", i, got[i], test.full)
				}
			}
			if n := s.Stats().Full; n > 1 || (n == 1) != test.full {
				t.Errorf("%d refusals are counted; want one for a group without room", n)
			}
			for key, l := range map[string]*algorithms.Limit{"stored": slow, "penalty": penalty} {
				var left [1]backend.Decision
				backend.Take(t.Context(), s, []backend.Charge{{Key: []byte(key), Limit: l, Terms: algorithms.Charge{DryRun: true}}}, left[:])
				if left[0].Remaining != 3 {
					t.Errorf("%s has %d left, want 3: it was charged once, and neither a denial nor an error changes that", key, left[0].Remaining)
				}
			}
			if err := consistent(s); err != nil {
				t.Error(err)
			}
		})
	}
}

// An attacker must not know which keys collide, unless the Store is for replays.
func TestOnlyRepeatableStoresHashKeysEqually(t *testing.T) {
	hashes := func(repeatable bool) (different, collisions int) {
		a, b := New(Config{Repeatable: repeatable}), New(Config{Repeatable: repeatable})
		seen := map[uint64]bool{}
		for i := range 100 {
			key := fmt.Append(nil, i)
			if a.hash(key) != b.hash(key) {
				different++
			}
			if seen[a.hash(key)] {
				collisions++
			}
			seen[a.hash(key)] = true
		}
		return different, collisions
	}
	if different, collisions := hashes(true); different != 0 || collisions != 0 {
		t.Errorf("repeatable: %d of 100 hashes differ between two stores, %d collide; want none", different, collisions)
	}
	if different, collisions := hashes(false); different < 99 || collisions != 0 {
		t.Errorf("%d of 100 hashes differ between two stores, %d collide; want at least 99 to differ and none to collide", different, collisions)
	}
}

func TestAGroupAcrossTheBoundOfTouch(t *testing.T) {
	_, s := at(1000)
	l := tokens(t, 5)
	for _, alone := range []int{0, 1, atOnce - 1, atOnce, atOnce + 1, 2*atOnce - 1} {
		var charges []backend.Charge
		for i := range alone + 10 {
			charges = append(charges, backend.Charge{
				Key: fmt.Append(nil, alone, "/", i), Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}, Group: min(i, alone),
			})
		}
		for round := range int64(5) {
			d := make([]backend.Decision, len(charges))
			backend.Take(t.Context(), s, charges, d)
			for i := range d {
				if !d[i].Allowed || d[i].Remaining != 4-round {
					t.Fatalf("%d charges and a group of 10, round %d: charge %d: got %+v; want allowed and %d remaining", alone, round, i, d[i], 4-round)
				}
			}
		}
	}
}

// A slot that had no room is not in its bucket later.
func TestASlotWithoutRoom(t *testing.T) {
	two, slow := int64(2), limit(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 4, Period: algorithms.Day})
	slots := limit(t, algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &two, Period: algorithms.Second})
	for _, others := range []int{0, 1} { // alone, and in a group
		clock, s := at(2)
		left := func(id byte, cost int64, others int) backend.Decision {
			charges := []backend.Charge{{Key: []byte("k"), Limit: slots, Terms: algorithms.Charge{Cost: cost, Slot: &algorithms.Slot{ID: [16]byte{id}}}}}
			for range others {
				charges = append(charges, backend.Charge{Key: []byte("new"), Limit: slow, Terms: algorithms.Charge{Cost: 1}})
			}
			d := make([]backend.Decision, len(charges))
			backend.Take(t.Context(), s, charges, d)
			return d[0]
		}
		if d := left(1, 1, 0); !d.Allowed {
			t.Fatalf("got %+v", d)
		}
		if d := left(2, 1, others); !errors.Is(d.Err, backend.ErrFull) {
			t.Fatalf("got %+v; want ErrFull", d)
		}
		left(0, 0, 0) // a dry run, after which the bucket is stored
		clock.Set(s.clock() + 2*algorithms.Second)
		if d := left(0, 0, 0); d.Remaining != two {
			t.Errorf("after the ttl: %d left, want %d", d.Remaining, two)
		}
	}
}
