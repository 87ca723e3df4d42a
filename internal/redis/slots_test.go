package redis

import (
	"encoding/binary"
	"strconv"
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
	if d := takeOne(s, s.store, c, c.Terms); !d.Allowed {
		s.Fatalf("slot %d, operation %d: got %+v; want allowed", n, op, d)
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
		takeOne(b, store, backend.Charge{Key: []byte("plain"), Limit: plain}, algorithms.Charge{Cost: 1})
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
