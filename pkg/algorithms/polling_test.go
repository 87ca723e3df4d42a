package algorithms

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// several returns n limits of one kind. Half of the time their buckets start full, else they are balances.
func (roll dice) several(t *rapid.T, kind Kind, n int) (all []*Limit) {
	balance := roll.once(2)
	for range n {
		for {
			s, _ := roll.changeable(kind)
			if s.Overdraw, s.TakesDenied, s.PerRequest = false, false, false; balance && kind != LeakyBucket && kind != SlidingWindow {
				if capacity := valueOr(s.Capacity, s.Rate); capacity > 0 {
					s.Initial = new(roll.of(0, roll(capacity)))
				}
			}
			if l, err := Compile(s); err == nil {
				all = append(all, &l)
				break
			}
		}
	}
	return all
}

// A client repeats a denied request at random moments before its retry time, alone and in a group that another limit
// denies, and looks at the bucket. Each answer has the same retry time as the first one, and at that time the client
// is allowed, as is a client that was silent.
func TestAClientThatPollsIsAllowedAtItsRetryTime(t *testing.T) {
	polled, stayed := 0, 0
	empty := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: 365 * Day})
	for _, k := range kinds {
		if k.kind == SlidingLog { // the polls of one State would share the array of its log
			continue
		}
		rapid.Check(t, func(t *rapid.T) {
			roll := newDice(t)
			limits := roll.several(t, k.kind, 3)
			hash, now := uint64(roll(1<<40)), t0+Micros(roll(1e9))
			var s State
			for range length(t, 40) {
				l := limits[roll(3)]
				a := roll.charge(l, now, hash)
				before := s
				next, d := l.Take(s, now, a)
				s = next
				if now+d.RetryAfter < MaxTime && !a.DryRun && !d.Allowed && !d.Never && (wholeSteps(l, a) || l.Calendar == nil && (before.By == l || before.By == nil)) {
					polled++
					if s.By != l {
						stayed++
					}
					roll.poll(t, l, s, now, a, d, empty)
				}
				now += Micros(roll.of(0, 1, roll(1000), int64(d.RetryAfter), roll(l.period)*int64(l.tick)))
				if now > MaxTime/2 {
					return
				}
			}
		})
	}
	t.Logf("%d denials, %d of them left the state in other numbers", polled, stayed)
	if stayed == 0 {
		t.Error("no denial left a state in other numbers")
	}
}

// poll repeats charge a, which l has denied with d at time now. s is the state after it. empty is a limit for an empty
// bucket, which denies.
func (roll dice) poll(t *rapid.T, l *Limit, s State, now Micros, a Charge, d Decision, empty *Limit) {
	told := now + d.RetryAfter
	polls := []Micros{told - 1}
	for range 5 {
		polls = append(polls, now+Micros(roll(int64(d.RetryAfter))))
	}
	slices.Sort(polls)
	for _, at := range polls {
		var is Decision
		switch roll(4) {
		case 0:
			dryRun := a
			dryRun.DryRun = true
			s, is = l.Take(s, at, dryRun)
		case 1:
			s, _ = l.Take(s, at, Charge{Hash: a.Hash})
			continue
		case 2:
			group := []Bucket{{Limit: l, State: s, Charge: Charge{Hash: a.Hash, Cost: 1}}, {Limit: empty, State: State{By: empty, At: at}, Charge: Charge{Cost: 1}}}
			TakeAll(at, group)
			s = group[0].State
			continue
		default:
			s, is = l.Take(s, at, a)
		}
		if is.Allowed || at+is.RetryAfter != told {
			t.Fatalf("%+v by %+v: denied at %d until %d, and at %d %+v, until %d", a, *l, now, told, at, is, at+is.RetryAfter)
		}
	}
	if _, is := l.Take(s, told, a); !is.Allowed {
		t.Fatalf("%+v by %+v: denied at %d until %d, and denied then: %+v of %+v", a, *l, now, told, is, s)
	}
}

// Whole units are added to a balance and consumed while its numbers change, all at one moment. The balance is then a
// number: nothing is minted, and only what is above a lower capacity is lost.
func TestABalanceIsANumber(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow} {
		rapid.Check(t, func(t *rapid.T) {
			roll := newDice(t)
			var limits []*Limit
			for len(limits) < 3 {
				s, _ := roll.changeable(kind)
				capacity := roll.between(1, 1000)
				s.Capacity, s.Initial, s.MaxReserved = &capacity, new(roll(capacity)), new(roll.between(0, 50))
				s.Overdraw, s.TakesDenied, s.PerRequest = false, false, false
				if l, err := Compile(s); err == nil {
					limits = append(limits, &l)
				}
			}
			var s State
			has, seen := int64(0), false
			for range length(t, 60) {
				l := limits[roll(3)]
				a := Charge{Cost: roll.of(0, roll.between(-200, 200), -l.Capacity, roll.between(1, l.Capacity)), DryRun: roll.once(4), Reserve: roll.once(4)}
				var d Decision
				s, d = l.Take(s, t0, a)
				if d.Never {
					continue
				}
				if !seen {
					has, seen = l.Initial, true
				}
				has = min(has, l.Capacity)
				want := has - a.Cost
				switch {
				case a.Cost < 0:
					want = min(want, l.Capacity)
				case !d.Allowed:
					want = has
				}
				if d.Value != want*l.Unit() {
					t.Fatalf("%+v by %+v: %+v, want %d units left", a, *l, d, want)
				}
				if !a.DryRun {
					has = want
				}
			}
		})
	}
}

// Requests of token buckets and queues whose numbers change consume at most what the largest capacity and the
// largest rate admit, in every span.
func TestChangedNumbersAdmitNoMoreThanTheLargest(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, LeakyBucket} {
		rapid.Check(t, func(t *rapid.T) {
			roll := newDice(t)
			var limits []*Limit
			capacity, flow, tick := int64(0), whole(0), Micros(1)
			for range 3 {
				s, _ := roll.changeable(kind)
				s.Overdraw = false
				l := mustCompileRapid(t, s)
				limits = append(limits, l)
				capacity, tick = max(capacity, l.Capacity), max(tick, l.tick)
				flow = most(flow, big.NewRat(s.Rate, int64(s.Period)))
			}
			var s State
			var all []charge
			now := t0 + Micros(roll(1e9))
			for range length(t, 80) {
				l := limits[roll(3)]
				var d Decision
				a := Charge{Cost: roll.of(1, 1, roll.between(1, l.Capacity+1), l.Capacity), DryRun: roll.once(4)}
				if s, d = l.Take(s, now, a); d.Allowed && !a.DryRun {
					all = append(all, charge{now, a.Cost})
				}
				now += Micros(roll.of(0, 0, 1, roll(1000), int64(d.RetryAfter), roll(l.period)))
				if now > MaxTime/2 {
					return
				}
			}
			for i, from := range all {
				sum := int64(0)
				for _, to := range all[i:] {
					sum += to.cost
					if most := plus(whole(capacity), times(flow, whole(int64(to.at-from.at+tick)))); less(most, whole(sum)) {
						t.Fatalf("%d admitted from %d to %d, at most %s may be", sum, from.at, to.at, most.FloatString(1))
					}
				}
			}
		})
	}
}
