package redis

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// For every reply of a server to the script, each charge is decided or failed, without a panic.
func FuzzAnswer(f *testing.F) {
	allowed := encode(nil, &backend.Decision{Decision: algorithms.Decision{Allowed: true, Remaining: 3, Value: 3, ResetAfter: 5}})
	denied := encode(nil, &backend.Decision{Decision: algorithms.Decision{RetryAfter: 7, ResetAfter: 9}})
	f.Add(append(append(doubles(nil, 1e15), allowed...), denied...), uint8(2))
	f.Add(append(doubles(nil, 1e15), denied[:20]...), uint8(1))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\xf8\x7f\xff"), uint8(1))
	f.Fuzz(func(t *testing.T, reply []byte, charges uint8) {
		limit := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: algorithms.Second})
		n := 1 + int(charges)%4
		all, decisions := make([]backend.Charge, n), make([]backend.Decision, n)
		tr := &scriptRun{reply: string(reply)}
		for i := range all {
			all[i] = backend.Charge{Key: fmt.Append(nil, i), Limit: limit}
			tr.targets = append(tr.targets, target{charge: &all[i], decision: &decisions[i]})
		}
		failed := tr.answer()
		for i := range decisions {
			if failed != nil && !errors.Is(decisions[i].Err, backend.ErrUnavailable) {
				t.Errorf("the answer is %v, and charge %d has %+v; want the error backend.ErrUnavailable", failed, i, decisions[i])
			}
		}
	})
}

// For every stored value in place of a claim, the group is answered or refused, without a panic.
func FuzzRecall(f *testing.F) {
	once := &backend.IdempotencyKey{Lifetime: algorithms.Second}
	decided := make([]backend.Decision, 2)
	f.Add(string(answerOf(once, decided)))
	f.Add(string(claimed) + string(once.Digest[:]) + "sixteen bytes by.")
	f.Add("a")
	f.Fuzz(func(t *testing.T, was string) {
		decisions := make([]backend.Decision, 2)
		answerFromStored(was, once, decisions)
		for _, d := range decisions {
			if d.Err == nil && !d.Replayed {
				t.Errorf("%q: got %+v; want replayed", was, d)
			}
		}
	})
}

// FuzzScript compares the script in a real server with the memory store, which decides with package
// algorithms. Three bytes of the input make a charge.
func FuzzScript(f *testing.F) {
	server := redistest.Start(f)
	specs := storetest.Specs()
	f.Add([]byte{0, 1, 0, 0, 5, 3, 1, 1, 0, 2, 2, 9, 3, 1, 64, 4, 1, 0, 5, 1, 0})
	f.Add([]byte{0, 129, 0, 1, 1, 0, 0, 1, 0, 7, 200, 255, 7, 1, 128})
	round := 0
	f.Fuzz(func(t *testing.T, script []byte) {
		round++
		clock := &storetest.Clock{}
		now := storetest.Start
		clock.Set(now)
		exact := memory.New(memory.Config{Clock: clock.Time})
		real, err := Open(Config{URL: "redis://" + server.Addr, Clock: clock.Now, Timeout: 10 * time.Second, KeyPrefix: fmt.Sprintf("%d:", round)})
		if err != nil {
			t.Fatal(err)
		}
		defer real.Close()
		limits := make([]*algorithms.Limit, len(specs))
		for i := range specs {
			limits[i] = compiled(t, specs[i])
		}
		for step := 0; len(script) >= 3 && step < 100; step++ {
			var charges []backend.Charge
			for more := true; more && len(script) >= 3 && len(charges) < 4; {
				which, cost, what := int(script[0])%len(specs), int64(int8(script[1])), script[2]
				script = script[3:]
				c := backend.Charge{Key: fmt.Append(nil, which), Limit: limits[which], Group: step, Slot: 1}
				c.Terms = algorithms.Charge{Cost: cost % 8, Hash: uint64(which), DryRun: what&1 != 0, Reserve: what&2 != 0 && limits[which].CanReserve() && !limits[which].ChargesDenied()}
				if more = what&4 != 0; !contains(charges, c.Key) {
					charges = append(charges, c)
				}
				now += algorithms.Micros(what>>3) * 50_000
			}
			clock.Set(now)
			got, want := make([]backend.Decision, len(charges)), make([]backend.Decision, len(charges))
			backend.Take(t.Context(), real, charges, got)
			backend.Take(t.Context(), exact, charges, want)
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("step %d, charge %d of %d (%+v, %+v):\n got %+v\nwant %+v", step, i, len(charges), *charges[i].Limit, charges[i].Terms, got[i], want[i])
				}
			}
		}
	})
}

func contains(charges []backend.Charge, key []byte) bool {
	for i := range charges {
		if string(charges[i].Key) == string(key) {
			return true
		}
	}
	return false
}
