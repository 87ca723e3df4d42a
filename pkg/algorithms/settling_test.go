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

// This is TestSettledCountsAsIfKnownAtTheStart with three changes: the clock steps back and forth, limits count
// in microseconds or milliseconds, and, if no estimate is too low, buckets are deleted as soon as they may be.
// The bucket with known costs charges every cost, even if it is not available, and reads the same clock at the
// same moments.
func TestSettlementsByAClockThatSteps(t *testing.T) {
	refunded, nothing := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		capacity := roll.between(2, 1000)
		s := Spec{Kind: TokenBucket, Rate: roll.between(1, 300), Period: Micros(roll.of(1e6, 60e6)), Capacity: &capacity, Settles: true}
		if roll.once(4) { // count in milliseconds
			s.Rate, s.Period, capacity = 1000, 365*Day, 200_000_000
		}
		// If estimates are too low, the bucket with known costs is full later than the other one. It would also
		// be deleted later, so no bucket is deleted then.
		low := roll.once(2)
		l := mustCompileRapid(t, s)
		all := s
		all.Settles, all.Overdraw = false, true
		known := mustCompileRapid(t, all)
		var state State
		type moment struct {
			now  Micros
			call *call // the call that began, or nil
			seen bool  // the bucket has been charged at this time
		}
		var moments []moment
		var open []*call
		now, lost := t0, int64(0)
		for range length(t, 200) {
			var d Decision
			m := moment{now: now}
			if len(open) > 0 && roll.once(2) {
				i := roll(int64(len(open)))
				c := open[i]
				open = append(open[:i:i], open[i+1:]...)
				before := state.Value
				state, d = l.Take(state, now, Charge{Cost: c.cost - c.estimate, ChargedAt: c.at, Settle: true})
				m.seen = c.cost != c.estimate && state.By != nil
				if lost += d.Lost; c.cost < c.estimate {
					if refunded++; state.Value <= before {
						nothing++
					}
				}
			} else {
				c := &call{at: now, estimate: roll.between(1, max(1, capacity/roll.of(1, 2, 10)))}
				if c.cost = roll.between(0, c.estimate); low {
					c.cost = roll.between(0, 2*c.estimate)
				}
				if state, d = l.Take(state, now, Charge{Cost: c.estimate}); d.Allowed {
					open, m.call, m.seen = append(open, c), c, true
				}
			}
			moments = append(moments, m)
			switch step := Micros(roll.of(0, 0, 1, int64(d.RetryAfter), int64(d.ResetAfter), roll(int64(Second)))); {
			case roll.once(10):
				now -= Micros(roll.of(1, 1500, int64(Second), int64(59*Second), int64(200*Second), int64(maxOpen)))
			case roll.once(20):
				now += Micros(roll.of(int64(200*Second), int64(2*Day)))
			default:
				now += min(step, 2*Day)
			}
			if !low && state.By != nil && now >= state.FreshAt() {
				state = State{}
			}
		}
		var other State
		for _, c := range open {
			c.cost = c.estimate
		}
		for _, m := range moments {
			if !low && other.By != nil && m.now >= other.FreshAt() {
				other = State{}
			}
			cost := int64(0)
			if m.call != nil {
				cost = m.call.cost
			}
			if m.seen {
				other, _ = known.Take(other, m.now, Charge{Cost: cost + 1})
				cost = -1
			}
			other, _ = known.Take(other, m.now, Charge{Cost: cost})
		}
		is, would := valueAt(l, state, now), valueAt(known, other, now)
		if is > would+lost*l.q {
			t.Fatalf("%s: %d are left, and %d would be if the costs had been known; %d were lost", show(s), is, would, lost*l.q)
		}
	})
	t.Logf("%d refunds, %d of them of nothing", refunded, nothing)
}
