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
// as much as the second, plus the units lost. The reference model stores the whole history of the first bucket, and
// computes exactly how much each settlement may refund.
func TestSettledCountsAsIfKnownAtTheStart(t *testing.T) {
	settled, full, less := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		capacity := roll.between(1, 1000)
		s := Spec{Kind: TokenBucket, Rate: roll.between(1, 300), Period: Micros(roll.of(1000, 1e6, 60e6)), Capacity: &capacity, Settles: true}
		if roll.once(2) {
			s.MaxDebt = new(roll.between(0, capacity))
		}
		l := mustCompileRapid(t, s)
		var state State
		model := &settlingModel{flow: big.NewRat(s.Rate, int64(s.Period)), capacity: whole(capacity)}
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
				before := valueAt(l, state, now)
				exact := model.refund(c.at, now, c.estimate-c.cost)
				state, d = l.Take(state, now, Charge{Cost: c.cost - c.estimate, ChargedAt: c.at, Settle: true})
				if !d.Allowed {
					t.Fatalf("the settlement of %+v was denied: %+v", *c, d)
				}
				lost += d.Lost
				if c.cost < c.estimate {
					got := big.NewRat(valueAt(l, state, now)-before, l.q)
					if got.Cmp(exact) > 0 {
						t.Fatalf("%s: %+v settled at %d returned %s, at most %s may be", show(s), *c, now, got, exact)
					}
					settled++
					if got.Cmp(exact) == 0 {
						full++
					}
					less += int(down(minus(exact, got)).Int64())
				}
				model.set(now, big.NewRat(valueAt(l, state, now), l.q))
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
				model.set(now, big.NewRat(valueAt(l, state, now), l.q))
				calls = append(calls, c)
			}
			now += Micros(roll.of(0, 0, 1, int64(d.RetryAfter), roll(int64(s.Period)), int64(s.Period)/s.Rate))
		}
		known := whole(capacity) // the bucket with known costs
		at := t0
		for _, c := range calls {
			if c.open {
				c.cost = c.estimate
			}
			known = minus(least(whole(capacity), plus(known, times(model.flow, whole(int64(c.at-at))))), whole(c.cost))
			at = c.at
		}
		known = least(whole(capacity), plus(known, times(model.flow, whole(int64(now-at)))))
		if is := big.NewRat(valueAt(l, state, now), l.q); is.Cmp(plus(known, whole(lost))) > 0 {
			t.Fatalf("%s: %s are left, and %s would be if the costs had been known; %d were lost", show(s), is, known, lost)
		}
	})
	t.Logf("%d refunds, %d of them exact, %d units refunded less", settled, full, less)
}

func valueAt(l *Limit, s State, now Micros) int64 {
	_, d := l.Take(s, now, Charge{DryRun: true})
	return d.Value
}

type settlingModel struct {
	flow, capacity *big.Rat
	at             []Micros
	after          []*big.Rat
	before         []*big.Rat
}

func (m *settlingModel) set(now Micros, after *big.Rat) {
	before := m.capacity
	if n := len(m.at); n > 0 {
		before = least(m.capacity, plus(m.after[n-1], times(m.flow, whole(int64(now-m.at[n-1])))))
	}
	m.at, m.after, m.before = append(m.at, now), append(m.after, after), append(m.before, before)
}

// refund returns how many of the units consumed at time since can be refunded at time now.
func (m *settlingModel) refund(since, now Micros, units int64) *big.Rat {
	room := whole(max(0, units))
	last := len(m.at) - 1
	for i := last; i >= 0 && m.at[i] >= since; i-- {
		if m.at[i] > since {
			room = least(room, minus(m.capacity, m.before[i]))
		}
	}
	return least(room, minus(m.capacity, least(m.capacity, plus(m.after[last], times(m.flow, whole(int64(now-m.at[last])))))))
}
