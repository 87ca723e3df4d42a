package memory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func TestExact(t *testing.T) {
	storetest.Exact(t, func(_ *testing.T, now func() algorithms.Micros) backend.Store {
		return New(Config{Clock: storetest.Times(now)})
	})
}

func at(maxKeys int) (*storetest.Clock, *Store) {
	clock := storetest.NewClock()
	return clock, New(Config{Clock: clock.Time, MaxKeys: maxKeys})
}

var limit = limittest.Compile

func tokens(tb testing.TB, rate int64) *algorithms.Limit {
	tb.Helper()
	return limit(tb, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: algorithms.Second})
}

func consume(s *Store, owner, key string, l *algorithms.Limit, cost int64) backend.Decision {
	d := make([]backend.Decision, 1)
	backend.Take(context.Background(), s, []backend.Charge{{
		Key: []byte(owner + "/" + key), Limit: l, Owner: owner, Terms: algorithms.Charge{Cost: cost},
	}}, d)
	return d[0]
}

func TestAFullStoreRefusesNewKeysAndKeepsAllOthers(t *testing.T) {
	clock, s := at(100)
	l := tokens(t, 1)
	s.SetOwners([]string{"a"})
	for i := range 100 {
		if d := consume(s, "a", fmt.Sprint(i), l, 1); !d.Allowed {
			t.Fatalf("key %d: %+v; want allowed", i, d)
		}
	}
	for i := range 1000 {
		if d := consume(s, "a", fmt.Sprint("new", i), l, 1); !errors.Is(d.Err, backend.ErrFull) {
			t.Fatalf("new key %d: %+v, want ErrFull", i, d)
		}
	}
	for i := range 100 {
		if d := consume(s, "a", fmt.Sprint(i), l, 1); d.Allowed || d.Err != nil {
			t.Fatalf("key %d is empty, and was deleted: %+v; want denied and no error", i, d)
		}
	}
	if st := s.Stats(); st.Keys != 100 || st.Full != 1000 {
		t.Errorf("stats %+v; want 100 keys, and 1000 requests without room", st)
	}
	clock.Set(storetest.Start + algorithms.Second) // now all buckets equal new ones, so they can be deleted for others
	s.Sweep()
	if d := consume(s, "a", "new", l, 1); !d.Allowed {
		t.Errorf("after the sweep: %+v; want allowed", d)
	}
	if st := s.Stats(); st.Keys != 1 || st.Swept != 100 {
		t.Errorf("stats after the sweep %+v; want 1 key, and 100 swept", st)
	}
}

func TestNewKeysFindRoomWithoutTheSweeper(t *testing.T) {
	clock, s := at(1000)
	l := tokens(t, 1)
	for round := range 10 {
		clock.Set(storetest.Start + algorithms.Micros(round)*algorithms.Second)
		refused := 0
		for i := range 500 {
			if d := consume(s, "a", fmt.Sprint(round, "/", i), l, 1); d.Err != nil {
				refused++
			}
		}
		if refused > 5 { // makeRoom visits only some of the entries, so it may find none to delete
			t.Errorf("round %d: %d of 500 new keys refused although half the buckets equal new ones; want at most 5", round, refused)
		}
	}
}

// A bucket with peaks needs the room of three. Each deletion makes room for one.
func TestANewBucketFindsTheRoomOfSeveral(t *testing.T) {
	const keys = 10_000
	clock, s := at(keys)
	short, day := tokens(t, 1), algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Day}
	long := limit(t, day)
	for i := range keys {
		l := long
		if i%8 == 0 {
			l = short
		}
		consume(s, "a", fmt.Sprint(i), l, 1)
	}
	clock.Set(storetest.Start + algorithms.Second) // now every eighth bucket equals a new one
	day.Settles = true
	settles, refused := limit(t, day), 0
	for i := range 100 {
		if d := consume(s, "a", fmt.Sprint("new ", i), settles, 1); d.Err != nil {
			refused++
		}
	}
	if refused > 2 { // makeRoom visits only some of the entries
		t.Errorf("%d of 100 new buckets were refused; want at most 2", refused)
	}
}

func TestFloodOnOneLimitLeavesRoomForOthers(t *testing.T) {
	_, s := at(1000)
	l := tokens(t, 1)
	s.SetOwners([]string{"flooded", "calm", "late"})
	for i := range 5000 {
		consume(s, "flooded", fmt.Sprint(i), l, 1)
	}
	for _, owner := range []string{"calm", "late"} {
		for i := range 166 { // three limits share half of the bound
			if d := consume(s, owner, fmt.Sprint(i), l, 1); !d.Allowed {
				t.Fatalf("%s key %d: %+v; want allowed", owner, i, d)
			}
		}
	}
	if st := s.Stats(); st.Keys > st.MaxKeys {
		t.Errorf("holds %d, bound %d", st.Keys, st.MaxKeys)
	}
}

// A bucket of a limit that settles counts as three, because it needs up to 300 bytes beyond its key.
func TestBucketsWithPeaksUseTheRoomOfThree(t *testing.T) {
	const n = 50_000
	clock, s := at(3 * n)
	l := limit(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: 100 * algorithms.Second, Settles: true})
	before := heap()
	for step := range 5 { // more charges than the number of peaks that a bucket keeps
		clock.Set(storetest.Start + algorithms.Micros(step)*algorithms.Second)
		for i := range n {
			if d := consume(s, "a", fmt.Sprintf("%08d", i), l, 2); d.Err != nil || !d.Allowed {
				t.Fatalf("charge %d of bucket %d: %+v; want no error and allowed", step, i, d)
			}
		}
	}
	if got := s.Stats().Keys; got != 3*n {
		t.Errorf("%d buckets hold %d, want %d", n, got, 3*n)
	}
	if per := float64(heap()-before)/n - 16; per > 300 {
		t.Errorf("%.0f bytes a bucket beyond its key, want at most 300", per)
	}
	if d := consume(s, "a", "new", l, 1); !errors.Is(d.Err, backend.ErrFull) {
		t.Errorf("one more bucket: got %+v, want ErrFull", d)
	}
	clock.Set(storetest.Start + 200*algorithms.Second)
	if s.Sweep(); s.Stats().Keys != 0 {
		t.Errorf("holds %d, want 0", s.Stats().Keys)
	}
}

func TestBytesPerBucket(t *testing.T) {
	const n = 200_000
	_, s := at(n)
	l := tokens(t, 1)
	before := heap()
	for i := range n {
		if d := consume(s, "a", fmt.Sprintf("%08d", i), l, 1); !d.Allowed {
			t.Fatalf("got %v; want allowed", d)
		}
	}
	per := float64(heap()-before)/n - 16 // the key has 10 bytes, in a block of 16
	runtime.KeepAlive(s)
	if per > 100 {
		t.Errorf("%.0f bytes a bucket beyond its key, want at most 100", per)
	}
}

// Each bucket had 5,000 slots, or 5,000 times of a log, and has one now, as at first.
func TestABucketReturnsTheMemoryOfWhatItHad(t *testing.T) {
	const buckets, most = 10, 5000
	capacity := int64(most)
	log := limit(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: most, Period: algorithms.Second})
	slots := limit(t, algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: algorithms.Day})
	clock, s := at(10 * buckets * most)
	take := func(bucket int, l *algorithms.Limit, slot *algorithms.Slot) {
		d := make([]backend.Decision, 1)
		charge := backend.Charge{Key: fmt.Append(nil, l.Kind, bucket), Limit: l, Terms: algorithms.Charge{Cost: 1, Slot: slot}}
		if backend.Take(t.Context(), s, []backend.Charge{charge}, d); !d[0].Allowed {
			t.Fatalf("got %+v; want allowed", d)
		}
	}
	var before uint64
	for _, n := range []int{1, most} {
		before = heap()
		for i := range buckets {
			for range n {
				take(i, log, nil)
			}
			for _, op := range []algorithms.SlotOp{algorithms.TakeSlot, algorithms.ReturnSlot} {
				for id := 1; id < n; id++ {
					slot := &algorithms.Slot{Op: op}
					binary.BigEndian.PutUint64(slot.ID[:], uint64(id))
					take(i, slots, slot)
				}
			}
			take(i, slots, &algorithms.Slot{}) // it stays; the second one replaces it
		}
		clock.Set(s.clock() + 2*algorithms.Second)
	}
	for i := range buckets {
		take(i, log, nil)
	}
	if kept := (float64(heap()) - float64(before)) / buckets; kept > 10_000 {
		t.Errorf("%.0f bytes a bucket of each kind are kept, want at most 10,000", kept)
	}
	runtime.KeepAlive(s)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkTake(b *testing.B) {
	for _, keys := range []int{1, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			s := New(Config{})
			l := tokens(b, 1_000_000)
			all := make([]backend.Charge, keys)
			for i := range all {
				all[i] = backend.Charge{Key: fmt.Appendf(nil, "domain/limit/key-%d", i), Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}}
			}
			d := make([]backend.Decision, 1)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i = (i + 7919) % keys
				backend.Take(context.Background(), s, all[i:i+1], d)
			}
		})
	}
}

func BenchmarkTakeMany(b *testing.B) {
	const many = 16
	for _, keys := range []uint64{10_000, 1_000_000} {
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			s := New(Config{})
			l := tokens(b, 1_000_000)
			charges, d := make([]backend.Charge, many), make([]backend.Decision, many)
			for i := range charges {
				charges[i] = backend.Charge{Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}, Group: i}
			}
			take := func(next func() uint64) {
				for i := range charges {
					charges[i].Key = strconv.AppendUint(append(charges[i].Key[:0], "domain/limit/key-"...), next(), 10)
				}
				backend.Take(b.Context(), s, charges, d)
			}
			for i := uint64(0); i < keys; {
				take(func() uint64 { i++; return i - 1 })
			}
			random := rand.New(rand.NewPCG(1, 2))
			b.ReportAllocs()
			for b.Loop() {
				take(func() uint64 { return random.Uint64N(keys) })
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/charge")
		})
	}
}

// To make room for a charge, a full store must not delete the bucket that is charged, even if the bucket equals a
// new one. Otherwise the charge would be lost.
func TestAFullStoreKeepsTheBucketThatIsCharged(t *testing.T) {
	for name, grouped := range map[string]bool{"alone": false, "in a group": true} {
		t.Run(name, func(t *testing.T) {
			clock, s := at(20)
			log := limit(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 3, Period: algorithms.Second})
			slow := limit(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Day})
			consume(s, "a", "log", log, 1)
			clock.Set(storetest.Start + algorithms.Second) // the log now equals a new one
			for i := range 18 {
				consume(s, "a", fmt.Sprint("live ", i), slow, 1)
			}
			if st := s.Stats(); st.Keys != st.MaxKeys {
				t.Fatalf("%+v: the store is not full; want keys %v", st, st.MaxKeys)
			}
			three := func() int {
				charges := []backend.Charge{{Key: []byte("a/log"), Limit: log, Owner: "a", Terms: algorithms.Charge{Cost: 3}}}
				if grouped {
					charges = append(charges, backend.Charge{Key: []byte("a/live 0"), Limit: slow, Owner: "a", Terms: algorithms.Charge{Cost: 1}})
				}
				d := make([]backend.Decision, len(charges))
				if backend.Take(context.Background(), s, charges, d); d[0].Err == nil && d[0].Allowed {
					return 3
				}
				return 0
			}
			admitted := three() // the log of the bucket grows, and no other bucket can be deleted
			for i := 10; i < 18; i++ {
				if err := backend.ResetBucket(t.Context(), s, backend.Charge{Key: fmt.Append(nil, "a/live ", i)}); err != nil {
					t.Fatal(err)
				}
			}
			if admitted += three() + three(); admitted != 3 {
				t.Errorf("%d of 3 were admitted; want 3 admitted", admitted)
			}
		})
	}
}
