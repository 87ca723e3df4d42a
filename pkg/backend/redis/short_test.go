package redis

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// The short form of the script decides what package algorithms decides: for plain charges of few limits, whose
// numbers change one at a time, with charges in between that are not plain.
func TestShortFormEqualsMemory(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	epoch, late, later := algorithms.Micros(0), algorithms.Micros(123_456), algorithms.Micros(500_001)
	const s = algorithms.Second
	token, window := algorithms.TokenBucket, algorithms.FixedWindow
	// Each limit, and what becomes of it now and then.
	specs := [][]algorithms.Spec{
		{{Kind: token, Rate: 7, Period: s}, {Kind: token, Rate: 7, Period: s, Capacity: n(9)}, {Kind: token, Rate: 11, Period: s, Capacity: n(9)}, {Kind: token, Rate: 14, Period: s, Capacity: n(18)}},
		{{Kind: token, Rate: 5, Period: 3 * s}, {Kind: token, Rate: 5, Period: 4 * s}},
		{{Kind: window, Rate: 5, Period: s, Start: &epoch}, {Kind: window, Rate: 5, Period: 2 * s, Start: &epoch}, {Kind: window, Rate: 5, Period: s, Start: &late}},
		{{Kind: window, Rate: 3, Period: s, Capacity: n(8), Start: &late}, {Kind: window, Rate: 3, Period: s, Capacity: n(8), Start: &later}, {Kind: window, Rate: 2, Period: s, Capacity: n(8), Start: &late}, {Kind: window, Rate: 3, Period: s, Capacity: n(6), Start: &late}},
		{{Kind: window, Rate: 6, Period: s}, {Kind: window, Rate: 6, Period: 1_700_000}},
		{{Kind: window, Rate: 4, Period: s, Start: &epoch, TakesDenied: true}, {Kind: window, Rate: 4, Period: s, Start: &epoch}},
		{{Kind: window, Rate: 4, Period: s, MaxReserved: n(3), TakesDenied: true}, {Kind: window, Rate: 4, Period: s, MaxReserved: n(2), TakesDenied: true}},
		{{Kind: window, Rate: 9, Period: s, Start: &epoch, PerRequest: true}, {Kind: window, Rate: 2, Period: s, Start: &epoch, PerRequest: true}},
	}
	server := redistest.Start(t)
	now, clock := storetest.Start, &storetest.Clock{}
	ours := open(t, Config{URL: "redis://" + server.Addr, Clock: clock.Now, Timeout: 5 * time.Second})
	want := memory.New(memory.Config{Clock: clock.Now, MaxKeys: 10_000})
	rng := rand.New(rand.NewPCG(1, 2))
	limits := make([]*algorithms.Limit, len(specs))
	denied := 0
	for step := range 6000 {
		for i := range specs {
			if limits[i] != nil && rng.IntN(80) > 0 {
				continue
			}
			limit, err := algorithms.Compile(specs[i][rng.IntN(len(specs[i]))])
			if err != nil {
				t.Fatal(err)
			}
			limits[i] = &limit
		}
		if now += algorithms.Micros(rng.Int64N(int64(s / 5))); rng.IntN(50) == 0 {
			now += algorithms.Micros(rng.Int64N(int64(4 * s)))
		} else if rng.IntN(100) == 0 {
			now -= s / 2
		}
		clock.Set(now)
		var charges []backend.Charge
		for group := range 1 + rng.IntN(3) {
			for _, i := range rng.Perm(len(specs))[:1+max(0, rng.IntN(5)-2)] {
				c := backend.Charge{Key: fmt.Appendf(nil, "%d", i), Limit: limits[i], Group: group, Slot: 1}
				c.Ask = algorithms.Ask{Cost: 1 + rng.Int64N(3), Hash: uint64(i) * 0x9E3779B97F4A7C15}
				if rng.IntN(25) == 0 {
					c.Ask.Cost, c.Ask.Reserve = rng.Int64N(14)-4, true
				}
				charges = append(charges, c)
			}
		}
		got, exact := make([]backend.Decision, len(charges)), make([]backend.Decision, len(charges))
		ours.Take(t.Context(), charges, got)
		want.Take(t.Context(), charges, exact)
		for i := range got {
			if got[i] != exact[i] {
				t.Fatalf("step %d, charge %d of %d (%+v, %+v) at %d:\n got %+v\nwant %+v", step, i, len(charges), *charges[i].Limit, charges[i].Ask, now, got[i], exact[i])
			}
			if !got[i].Allowed {
				denied++
			}
		}
	}
	if denied < 1000 {
		t.Errorf("%d were denied: too few to tell", denied)
	}
}
