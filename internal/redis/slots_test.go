package redis

import (
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// inFlight makes charges of one bucket of a concurrency limit.
type inFlight struct {
	testing.TB
	store backend.Store
	limit *algorithms.Limit
	key   string
}

func (s inFlight) do(n int, op algorithms.SlotOp) {
	s.Helper()
	slot := &algorithms.Slot{Op: op, TTL: s.limit.Period()}
	binary.BigEndian.PutUint64(slot.ID[:], uint64(n))
	c := backend.Charge{Key: []byte(s.key), Limit: s.limit, Terms: algorithms.Charge{Cost: 1, Slot: slot}}
	var d [1]backend.Decision
	if backend.Take(s.Context(), s.store, []backend.Charge{c}, d[:]); d[0].Err != nil || !d[0].Allowed {
		s.Fatalf("slot %d, operation %d: got %+v; want allowed", n, op, d[0])
	}
}

func compiledSlots(t testing.TB, capacity int64, ttl algorithms.Micros) *algorithms.Limit {
	t.Helper()
	l := compiled(t, algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: ttl})
	return l
}

// A bucket lives until its last slot expires, and no longer than until its last slot is returned.
func TestABucketOfSlotsLivesAsLongAsTheyCount(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := open(t, Config{URL: "redis://" + server.Addr, Timeout: 5 * time.Second})
	long := inFlight{t, store, compiledSlots(t, 10_000, 600*algorithms.Second), strings.Repeat("k", 31)}
	short := long
	short.limit = compiledSlots(t, 10_000, 60*algorithms.Second)
	left := func() time.Duration { return livesFor(t, server, long.key) }
	short.do(1, algorithms.TakeSlot)
	if ttl := left(); ttl < 59*time.Second || ttl > 68*time.Second {
		t.Errorf("the key lives for %v, want a minute and at most an eighth more", ttl)
	}
	long.do(2, algorithms.TakeSlot)
	short.do(3, algorithms.TakeSlot)
	if ttl := left(); ttl < 599*time.Second {
		t.Errorf("the key lives for %v, which is shorter than its last slot", ttl)
	}
	for n := 1; n <= 3; n++ {
		if got := server.Do("EXISTS", "rl:{}"+long.key); got != "1" {
			t.Errorf("before return %d: EXISTS %s, want 1", n, got)
		}
		long.do(n, algorithms.ReturnSlot)
	}
	if got := server.Do("EXISTS", "rl:{}"+long.key); got != "0" {
		t.Errorf("after the last return: EXISTS %s, want 0", got)
	}
	for n := range 10_000 {
		long.do(n, algorithms.TakeSlot)
		if n == 0 || n == 20 || n == 9_999 {
			t.Logf("%d slots: MEMORY USAGE %s", n+1, server.Do("MEMORY", "USAGE", "rl:{}"+long.key))
		}
	}
}

// BenchmarkSlots prints the processor time that Redis needs to take and return a slot, beside that of a plain decision.
func BenchmarkSlots(b *testing.B) {
	servers := []*redistest.Server{redistest.Start(b)}
	store := open(b, Config{URL: "redis://" + servers[0].Addr, Timeout: 5 * time.Second})
	plain := compiled(b, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1_000_000, Period: algorithms.Second})
	measure := func(name string, n int, do func(i int)) {
		b.Run(name, func(b *testing.B) {
			before, ops := cpuSeconds(b, servers), 0
			for b.Loop() {
				for i := range n {
					do(i)
				}
				ops += n
			}
			us := (cpuSeconds(b, servers) - before) * 1e6 / float64(ops)
			b.ReportMetric(us, "redis-us/op")
		})
	}
	decide := func(int) {
		var d [1]backend.Decision
		backend.Take(b.Context(), store, []backend.Charge{{Key: []byte("plain"), Limit: plain, Terms: algorithms.Charge{Cost: 1}}}, d[:])
	}
	for i := range 1000 { // the first calls load the script
		decide(i)
	}
	measure("plain", 1000, decide)
	for _, held := range []int{10, 100, 1000, 9_000} {
		s := inFlight{b, store, compiledSlots(b, 10_000, algorithms.Day), "slots" + strconv.Itoa(held)}
		for n := range held {
			s.do(n, algorithms.TakeSlot)
		}
		measure("take and return with "+strconv.Itoa(held), 500, func(i int) {
			s.do(held+i, algorithms.TakeSlot)
			s.do(held+i, algorithms.ReturnSlot)
		})
	}
}
