package algorithms

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// work is an allowed charge. cost becomes its final cost when it is settled.
type work struct {
	at     Micros
	cost   int64
	settle bool
}

// Random charges are reserved, settled and canceled, early or late. The final costs of the charges that begin
// in any span never add up to more than the bound of the limit. Charges are allowed only if their units are
// available, and settlements only refund, so the bucket never goes below zero.
func TestChargesNeverExceedTheBoundWithSettlements(t *testing.T) {
	settled, returned := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		capacity := roll.between(1, 30)
		s := Spec{Kind: TokenBucket, Rate: roll.between(1, 30), Period: Micros(roll.of(1000, 1e6, 60e6)), Capacity: &capacity}
		l := mustCompileRapid(t, s)
		var state State
		var all []work
		now := t0
		for range length(t, 200) {
			switch i := int(roll(int64(len(all)) + 1)); {
			case i < len(all) && all[i].settle && roll.once(2):
				w := &all[i]
				to := roll.between(0, w.cost)
				var d Decision
				before := state.Value
				if state, d = l.Take(state, now, Charge{Cost: to - w.cost, ChargedAt: w.at, Reserve: true, Settle: true}); !d.Allowed {
					t.Fatalf("the settlement of %+v for %d was denied: %+v", *w, to, d)
				}
				if settled++; state.Value > before {
					returned++
				}
				w.cost, w.settle = to, false
			default:
				cost := roll.between(1, capacity)
				next, d := l.Take(state, now, Charge{Cost: cost})
				if state = next; d.Allowed {
					all = append(all, work{now, cost, roll.once(2)})
				}
				now += Micros(roll.of(0, 0, 1, int64(d.RetryAfter), roll(int64(s.Period)), int64(s.Period)/s.Rate))
			}
		}
		for i, from := range all {
			sum := int64(0)
			for _, to := range all[i:] {
				if to.settle { // its final cost may be lower
					continue
				}
				sum += to.cost
				most := down(plus(whole(capacity), times(whole(int64(to.at-from.at)), big.NewRat(s.Rate, int64(s.Period)))))
				if big.NewInt(sum).Cmp(most) > 0 {
					t.Fatalf("%s: charges from %d to %d cost %d in the end, want at most %d", show(s), from.at, to.at, sum, most)
				}
			}
		}
	})
	t.Logf("%d settled, %d of them returned something", settled, returned)
	if settled > 1000 && returned < settled/10 {
		t.Errorf("%d of %d settlements returned units; want at least a tenth", returned, settled)
	}
}
