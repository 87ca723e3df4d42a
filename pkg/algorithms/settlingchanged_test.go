package algorithms

import (
	"testing"

	"pgregory.net/rapid"
)

// The numbers of a fixed window change while reservations are open. The window then has left at most its
// capacity less the real costs of the calls that began in it, plus the units lost.
func TestAWindowThatSettlesCountsAsIfKnownAtTheStart(t *testing.T) {
	refunded, late, changed := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		period, start := Micros(roll.of(1000, int64(Second), int64(Day))), Micros(0)
		numbers := func() *Limit {
			rate := roll.between(1, 1000)
			s := Spec{Kind: FixedWindow, Rate: rate, Period: period, Start: &start, Settles: true}
			if roll.once(2) {
				s.MaxDebt = new(roll.between(0, rate))
			}
			return mustCompileRapid(t, s)
		}
		l := numbers()
		var state State
		var calls, open []*call
		now, lost := t0, int64(0)
		someTooLow := roll.once(2)
		for range length(t, 200) {
			if roll.once(10) {
				l = numbers()
				changed++
			}
			if len(open) > 0 && roll.once(2) {
				i := roll(int64(len(open)))
				c := open[i]
				open = append(open[:i:i], open[i+1:]...)
				c.open = false
				before := valueAt(l, state, now)
				var d Decision
				state, d = l.Take(state, now, Charge{Cost: c.cost - c.estimate, ChargedAt: c.at, Settle: true})
				if !d.Allowed {
					t.Fatalf("the settlement of %+v was denied: %+v", *c, d)
				}
				lost += d.Lost
				switch is := valueAt(l, state, now); {
				case c.cost >= c.estimate:
				case c.at/period < now/period && is > before:
					t.Fatalf("%+v is refunded at %d, in a later window", *c, now)
				case c.at/period < now/period:
					late++
				case is > before:
					refunded++
				}
			} else {
				c := &call{at: now, estimate: roll.between(1, max(1, l.Capacity/roll.of(1, 2, 10))), open: true}
				if c.cost = roll.between(0, c.estimate); someTooLow {
					c.cost = roll.between(0, 3*c.estimate)
				}
				var d Decision
				if state, d = l.Take(state, now, Charge{Cost: c.estimate}); d.Allowed {
					calls, open = append(calls, c), append(open, c)
				}
			}
			now += Micros(roll.of(0, 0, 1, roll(int64(period)), int64(period)/20))
			known := l.Capacity // the units that a window would have left if the costs had been known
			for _, c := range calls {
				switch {
				case c.at/period != now/period:
				case c.open:
					known -= c.estimate
				default:
					known -= c.cost
				}
			}
			if is := valueAt(l, state, now); is > known+lost {
				t.Fatalf("%s at %d: %d are left, and %d would be if the costs had been known; %d were lost", show(l.Spec()), now, is, known, lost)
			}
		}
	})
	t.Logf("%d refunds, %d that came after the window, %d changes of numbers", refunded, late, changed)
	if refunded == 0 || late == 0 || changed == 0 {
		t.Errorf("%d refunds, %d after the window and %d changes; want some of each", refunded, late, changed)
	}
}
