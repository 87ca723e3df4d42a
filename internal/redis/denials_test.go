package redis

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// A stored bucket has its denials (of a penalty) and its peaks (of a limit that settles) in the same place.
// After a reload has replaced the penalty by settle, the denials must not be read as peaks. Settlements
// refund nothing, and when the penalty returns, it counts from zero.
func TestDenialsAreNotReadAsPeaks(t *testing.T) {
	t.Parallel()
	const s = algorithms.Second
	zero := algorithms.Micros(0)
	for name, spec := range map[string]algorithms.Spec{
		"token bucket": {Kind: algorithms.TokenBucket, Rate: 5, Period: 100 * s},
		"fixed window": {Kind: algorithms.FixedWindow, Rate: 5, Period: 100 * s, Start: &zero},
	} {
		penalty, settles := spec, spec
		penalty.Penalty = &algorithms.Penalty{After: 4, For: 300 * s, Max: 600 * s}
		settles.Settles = true
		counting, settling := compiled(t, penalty), compiled(t, settles)
		for _, denials := range []int{1, 3} { // the stored forms of denials and peaks have equal lengths only for odd numbers of denials
			for step, a := range map[string]algorithms.Charge{
				"charge":           {Cost: 1},
				"refund":           {Cost: -3, Settle: true, ChargedAt: storetest.Start},
				"more than before": {Cost: 2, Settle: true, ChargedAt: storetest.Start},
			} {
				t.Run(name+" "+step, func(t *testing.T) {
					t.Parallel()
					clock, c := &storetest.Clock{}, on(t, "server")
					c.Clock = clock.Now
					ours := open(t, c)
					want := memory.New(memory.Config{Clock: clock.Time})
					now := storetest.Start
					decide := func(l *algorithms.Limit, a algorithms.Charge) algorithms.Decision {
						t.Helper()
						clock.Set(now)
						charges := []backend.Charge{{Key: []byte("a"), Limit: l, Terms: a}}
						got, exact := make([]backend.Decision, 1), make([]backend.Decision, 1)
						backend.Take(t.Context(), ours, charges, got)
						backend.Take(t.Context(), want, charges, exact)
						if got[0] != exact[0] {
							t.Fatalf("%+v at %d:\n got %+v\nwant %+v", a, now-storetest.Start, got[0], exact[0])
						}
						now += s
						return got[0].Decision
					}
					decide(counting, algorithms.Charge{Cost: 4})
					for range denials {
						if decide(counting, algorithms.Charge{Cost: 3}).Allowed {
							t.Fatal("a charge of 3 units was allowed, although 1 unit is left; want a denial")
						}
					}
					if d := decide(settling, a); !d.Allowed || step == "refund" && d.Remaining != 1 {
						t.Fatalf("the settlement %+v: got %+v; want it allowed, and 1 remaining after a refund", a, d)
					}
					decide(settling, algorithms.Charge{Cost: 1, Settle: true, ChargedAt: storetest.Start})
					for range 3 {
						if d := decide(counting, algorithms.Charge{Cost: 5}); d.Allowed || d.Blocked > 0 {
							t.Fatalf("the penalty is back: got %+v, want a denial without a block", d)
						}
					}
				})
			}
		}
	}
}
