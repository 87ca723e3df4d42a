package algorithms

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

type call struct {
	at       Micros
	estimate int64
	cost     int64
	open     bool
}

// Two buckets get the same requests. In the first, requests consume estimates that are settled later. In the
// second, the costs are known when the requests start. After all settlements, the first bucket holds at most
// as much as the second, plus the units lost. TestRefundsAgainstAllPeaks computes exactly how much each may refund.
func TestSettledCountsAsIfKnownAtTheStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		capacity := roll.between(1, 1000)
		s := Spec{Kind: TokenBucket, Rate: roll.between(1, 300), Period: Micros(roll.of(1000, 1e6, 60e6)), Capacity: &capacity, Settles: true}
		if roll.once(2) {
			s.MaxDebt = new(roll.between(0, capacity))
		}
		l := mustCompileRapid(t, s)
		var state State
		var calls []*call
		now, lost := t0, int64(0)
		someTooLow := roll.once(2)
		for range length(t, 300) {
			var open []*call
			for _, c := range calls {
				if c.open {
					open = append(open, c)
				}
			}
			if len(open) > 0 && roll.once(2) {
				c := open[roll(int64(len(open)))]
				var d Decision
				state, d = l.Take(state, now, Charge{Cost: c.cost - c.estimate, ChargedAt: c.at, Settle: true})
				if !d.Allowed {
					t.Fatalf("the settlement of %+v was denied: %+v", *c, d)
				}
				lost += d.Lost
				c.open = false
				continue
			}
			estimate := roll.between(1, max(1, capacity/roll.of(1, 2, 10, 100)))
			c := &call{at: now, estimate: estimate, cost: roll.between(0, estimate), open: true}
			if someTooLow && roll.once(2) {
				c.cost = roll.between(0, 3*estimate)
			}
			var d Decision
			if state, d = l.Take(state, now, Charge{Cost: estimate}); d.Allowed {
				calls = append(calls, c)
			}
			now += Micros(roll.of(0, 0, 1, int64(d.RetryAfter), roll(int64(s.Period)), int64(s.Period)/s.Rate))
		}
		known, flow := whole(capacity), big.NewRat(s.Rate, int64(s.Period)) // the bucket with known costs
		at := t0
		for _, c := range calls {
			if c.open {
				c.cost = c.estimate
			}
			known = minus(least(whole(capacity), plus(known, times(flow, whole(int64(c.at-at))))), whole(c.cost))
			at = c.at
		}
		known = least(whole(capacity), plus(known, times(flow, whole(int64(now-at)))))
		if is := big.NewRat(valueAt(l, state, now), l.q); is.Cmp(plus(known, whole(lost))) > 0 {
			t.Fatalf("%s: %s are left, and %s would be if the costs had been known; %d were lost", show(s), is, known, lost)
		}
	})
}

func valueAt(l *Limit, s State, now Micros) int64 {
	_, d := l.Take(s, now, Charge{DryRun: true})
	return d.Value
}
