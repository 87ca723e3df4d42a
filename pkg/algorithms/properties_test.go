package algorithms

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// each passes random walks of every kind to visit. A walk changes between the given number of limits of one
// kind.
func each(t *testing.T, limits, steps int, visit func(*rapid.T, dice, moment)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				roll := newDice(t)
				var numbers []*Limit
				for range limits {
					_, l := roll.limit(k.kind)
					numbers = append(numbers, l)
				}
				roll.walk(length(t, steps), numbers, func(m moment) { visit(t, roll, m) })
			})
		})
	}
}

func (m moment) again(at Micros, s State, a Charge) Decision {
	_, d := m.limit.Take(clone(s), at, a)
	return d
}

func TestRetryAfterIsExact(t *testing.T) {
	each(t, 3, 1000, func(t *rapid.T, _ dice, m moment) {
		if m.got.Allowed || m.got.Never || m.charge.DryRun || m.charge.MaxWait > 0 && m.limit.Calendar != nil {
			return
		}
		if m.limit.Overdraw && (m.charge.Cost > m.limit.Capacity && !m.charge.Scaled || m.charge.Cost > m.limit.v) {
			return // for a cost that the bucket cannot hold, RetryAfter is the time until the bucket is full
		}
		if m.got.RetryAfter <= 0 {
			t.Fatalf("denied with retry_after %d: %+v of %+v, limit %+v; want more than 0", m.got.RetryAfter, m.charge, m.before, *m.limit)
		}
		if at := m.now + m.got.RetryAfter; !m.again(at, m.after, m.charge).Allowed {
			t.Fatalf("denied after retry_after: at %d %+v of %+v, limit %+v, got %+v", m.now, m.charge, m.before, *m.limit, m.got)
		} else if m.after.By != m.limit && !wholeSteps(m.limit, m.charge) {
			return
		} else if m.again(at-1, m.after, m.charge).Allowed {
			t.Fatalf("allowed 1 us before retry_after: at %d %+v of %+v, limit %+v, got %+v", m.now, m.charge, m.before, *m.limit, m.got)
		}
	})
}

// A charge that a bucket would allow at some moment is allowed at every later one, if no other charge comes
// first. So the latest retry time of a group, or of a block and the limit, is exact too.
func TestAnAllowedChargeStaysAllowedLater(t *testing.T) {
	each(t, 3, 1000, func(t *rapid.T, roll dice, m moment) {
		if m.got.Allowed || m.got.Never || m.charge.DryRun || m.limit.Overdraw || !m.limit.startsFilled() {
			return // a bucket that was full for a day starts at initial again
		}
		at := m.now + m.got.RetryAfter
		for range 4 {
			at += Micros(roll.of(0, 1, roll(1000), 999, 1000, roll(3000), roll(m.limit.period*int64(m.limit.tick))))
			if d := m.again(at, m.after, m.charge); !d.Allowed {
				t.Fatalf("allowed after %d, denied %d later: at %d %+v of %+v, limit %+v, got %+v", m.got.RetryAfter,
					at-m.now-m.got.RetryAfter, m.now, m.charge, m.after, *m.limit, d)
			}
		}
	})
}

func TestResetAfterIsExact(t *testing.T) {
	each(t, 3, 1000, func(t *rapid.T, _ dice, m moment) {
		if m.charge.DryRun || m.got.Never || m.got.Remaining == m.limit.Capacity || m.after.Denials != nil {
			return // ResetAfter cannot be checked: a state with new numbers or a corrected clock is not stored, and a full or blocked bucket does not change
		}
		if m.charge.Cost < 0 && m.before.By != nil && m.before.By.tick > m.limit.tick {
			return // ResetAfter counts from the start of the tick, so the bucket may be full already
		}
		full := func(at Micros) bool {
			d := m.again(at, m.after, Charge{Hash: m.charge.Hash, DryRun: true})
			return m.limit.isFull(d) && m.again(at, m.after, Charge{Hash: m.charge.Hash, Cost: m.limit.Capacity, DryRun: true}).Allowed
		}
		at := m.now + m.got.ResetAfter
		if !full(at) {
			t.Fatalf("not full after reset_after: at %d %+v of %+v, limit %+v, got %+v", m.now, m.charge, m.before, *m.limit, m.got)
		}
		if full(at - 1) {
			t.Fatalf("full 1 us before reset_after: at %d %+v of %+v, limit %+v, got %+v", m.now, m.charge, m.before, *m.limit, m.got)
		}
	})
}

func (l *Limit) isFull(d Decision) bool { return d.Remaining == l.Capacity }

// A denial leaves the state unchanged, with these exceptions: a clock that had to be started or corrected,
// limits that charge denied requests, and the count of denials of a penalty. A dry run does not even correct
// the clock.
func TestDenialAndDryRunChangeNothing(t *testing.T) {
	each(t, 1, 3000, func(t *rapid.T, _ dice, m moment) {
		l, s := m.limit, m.before
		charges := l.Overdraw || l.TakesDenied
		if !m.charge.DryRun && m.charge.Cost != 0 && (m.got.Allowed || charges) {
			return
		}
		starts := l.Initial < l.Capacity && !m.got.Never && (s.By == nil || m.now >= s.FreshAt()-Micros(l.period)*l.tick)
		corrects := !m.charge.DryRun && !m.got.Never && m.now < s.At-minute && (l.Kind != SlidingLog || len(s.Log) > 0)
		corrected := clone(s)
		corrected.At = l.tickOf(m.now)
		for i := range corrected.Log {
			corrected.Log[i] = min(corrected.Log[i], m.now)
		}
		counts := l.Penalty.After > 0 && !m.charge.DryRun && m.charge.Cost > 0 && !m.got.Never
		if is := m.after.Denials; !counts && !sameDenials(is, s.Denials) && (s.Denials == nil || !sameDenials(is, l.denialsAt(&s, m.now))) {
			t.Fatalf("at %d %+v changed the denials %+v to %+v, limit %+v", m.now, m.charge, s.Denials, is, *l)
		}
		m.after.Denials = m.before.Denials
		switch {
		case same(m.before, m.after):
			if corrects {
				t.Fatalf("the clock was not corrected: at %d %+v of %+v, limit %+v", m.now, m.charge, m.before, *l)
			}
		case starts && sameButDenials(m.after, l.fresh(m.now)):
		case l.Kind == SlidingLog && len(s.Log) == 0 && len(m.after.Log) == 0:
		case corrects && same(m.after, corrected):
		default:
			t.Fatalf("at %d %+v stored\n%+v in place of\n%+v, limit %+v", m.now, m.charge, m.after, m.before, *l)
		}
	})
}

// Only the block that the charge would begin is missing in the decision of the dry run.
func TestADryRunAnswersAsTheChargeWould(t *testing.T) {
	each(t, 2, 1000, func(t *rapid.T, _ dice, m moment) {
		a := m.charge
		a.DryRun = !a.DryRun
		d := m.again(m.now, m.before, a)
		dryRun, took := d, m.got
		if !a.DryRun {
			dryRun, took = took, dryRun
		}
		if dryRun.Blocked == 0 && took.Blocked > 0 {
			dryRun.Blocked, dryRun.RetryAfter = took.Blocked, max(dryRun.RetryAfter, took.Blocked)
		}
		if dryRun != took {
			t.Fatalf("at %d %+v of %+v: %+v, but with DryRun %t %+v", m.now, m.charge, m.before, m.got, a.DryRun, d)
		}
	})
}

func TestABucketDeletedAtFreshAtDecidesLikeAKeptOne(t *testing.T) {
	each(t, 1, 500, func(t *rapid.T, roll dice, m moment) {
		l := m.limit
		kept, dropped := clone(m.after), State{}
		at := max(m.now, m.after.FreshAt()) + Micros(roll.of(0, 0, 1, roll(1000), l.period*int64(l.tick)))
		for range 4 {
			a := roll.charge(l, at, m.charge.Hash)
			var d1, d2 Decision
			s := kept
			kept, d1 = l.Take(kept, at, a)
			dropped, d2 = l.Take(dropped, at, a)
			if d1 != d2 {
				t.Fatalf("limit %+v, kept %+v, fresh at %d, at %d %+v:\n   kept %+v\ndropped %+v", *l, s, m.after.FreshAt(), at, a, d1, d2)
			}
			at += max(0, roll.next(l, at, d1)-at)
		}
	})
}

// A state in the numbers of another limit is left out, because its fields have another unit.
func TestABucketNeverHoldsMoreThanItsCapacity(t *testing.T) {
	each(t, 3, 3000, func(t *rapid.T, _ dice, m moment) {
		l, s := m.limit, m.after
		if s.By != l {
			return
		}
		over := false
		switch l.Kind {
		case TokenBucket, LeakyBucket, Guaranteed:
			over = s.Value > l.v || s.Prev > l.v1
		case FixedWindow:
			over = s.Value > l.Capacity
		case SlidingWindow:
			over = s.Value < 0 || s.Prev < 0
		case SlidingLog:
		}
		if over || m.got.Remaining > l.Capacity || m.got.Remaining < 0 {
			t.Fatalf("at %d %+v of %+v left %+v, limit %+v, got %+v", m.now, m.charge, m.before, s, *l, m.got)
		}
	})
}

type charge struct {
	at   Micros
	cost int64 // negative for a refund
}

// admitted returns the admitted charges and refunds of a random walk. The walk has no reservations, and its
// clock never steps back.
func (roll dice) admitted(l *Limit, hash uint64, n int) (all []charge) {
	var s State
	now := t0 + Micros(roll(1e12))
	for range n {
		a := Charge{Hash: hash, Cost: roll.of(1, 1, 2, roll.between(1, l.Capacity+1), -1)}
		var d Decision
		if s, d = l.Take(s, now, a); d.Allowed {
			all = append(all, charge{now, a.Cost})
		}
		if now = max(now, roll.next(l, now, d)); now > MaxTime {
			return all
		}
	}
	return all
}

// A limit that counts in milliseconds counts each begun millisecond. So the bound is that of a span which is up
// to 1 ms longer.
func TestNeverAdmitsMoreThanTheBound(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				roll := newDice(t)
				s, l := roll.limit(k.kind)
				if l.Overdraw || l.Kind == SlidingWindow { // no bound applies: Overdraw consumes units that are not available, and a sliding window estimates
					return
				}
				hash := uint64(roll(1 << 40))
				all := roll.admitted(l, hash, length(t, 300))
				for i, from := range all {
					sum := big.NewInt(0)
					for _, to := range all[i:] {
						if !together(s, l, hash, from.at, to.at) {
							break
						}
						if sum.Add(sum, big.NewInt(to.cost)); sum.Cmp(bound(s, l, from.at, to.at)) > 0 {
							t.Fatalf("%s: %d admitted from %d to %d, at most %d may be", show(s), sum, from.at, to.at, bound(s, l, from.at, to.at))
						}
					}
				}
			})
		})
	}
}

// together reports whether l bounds what is admitted in the span between two moments.
func together(s Spec, l *Limit, hash uint64, from, to Micros) bool {
	switch l.Kind {
	case FixedWindow:
		e := edgesOf(s, l.tick, hash)
		return e.start(from) == e.start(to)
	case SlidingLog:
		return to-from < s.Period
	case TokenBucket, LeakyBucket, Guaranteed, SlidingWindow:
	}
	return true
}

func bound(s Spec, l *Limit, from, to Micros) *big.Int {
	ticks := whole(int64(to/l.tick - from/l.tick))
	flow := func(units int64, period Micros) *big.Rat {
		return times(ticks, big.NewRat(units, int64(period/l.tick)))
	}
	switch l.Kind {
	case TokenBucket, LeakyBucket:
		return down(plus(whole(l.Capacity), flow(s.Rate, s.Period)))
	case Guaranteed:
		return down(plus(whole(l.Capacity), plus(flow(s.Rate, s.Period), flow(s.Minimum.Units, s.Minimum.Period))))
	case FixedWindow, SlidingLog, SlidingWindow:
	}
	return big.NewInt(l.Capacity)
}

// An undo must not make a bucket fuller, then or later, whatever was consumed before. Within the window of the charge, a fixed
// window gets all units back.
func TestAnUndoLeavesTheBucketNoFuller(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { undoLeavesNoMore(t, k.kind) })
		})
	}
}

func undoLeavesNoMore(t *rapid.T, kind Kind) {
	roll := newDice(t)
	s, l := roll.limit(kind)
	if l.Overdraw || l.TakesDenied || l.PerRequest || l.Capacity == 0 || !l.startsFilled() {
		return // a bucket that was full for a day starts at initial again, so it may hold less than an emptier one
	}
	hash := uint64(roll(1 << 40))
	var with, without State
	charge := func(now Micros, cost int64) {
		after, d := l.Take(with, now, Charge{Hash: hash, Cost: cost})
		if !d.Allowed {
			return
		}
		with = after
		if without, d = l.Take(without, now, Charge{Hash: hash, Cost: cost}); !d.Allowed {
			t.Fatalf("%s: %d were available with an undo but not without", show(s), cost)
		}
	}
	now := t0
	for range length(t, 30) {
		charge(now, roll.between(1, l.Capacity+1))
		of, k := now, roll.between(1, l.Capacity+1)
		charged, d := l.Take(with, now, Charge{Hash: hash, Cost: k})
		if !d.Allowed {
			now += Micros(roll.of(1, int64(d.RetryAfter), l.period))
			continue
		}
		with = charged
		for range roll(4) {
			now += Micros(roll.of(0, 1, roll(1000), l.period/l.Rate, roll(l.period)))
			charge(now, roll.between(1, l.Capacity+1))
		}
		with, _ = l.Take(with, now, Charge{Hash: hash, Cost: -k, ChargedAt: of})
		for _, at := range []Micros{now, now + Micros(roll.of(1, l.period, roll(2*l.period)))*l.tick} {
			if at > now && kind == Guaranteed {
				continue // an undo may move units from the guaranteed part to the bank
			}
			_, is := l.Take(with, at, Charge{Hash: hash, DryRun: true})
			_, was := l.Take(without, at, Charge{Hash: hash, DryRun: true})
			if is.Value > was.Value {
				t.Fatalf("%s: %d charged at %d and undone at %d leave %d at %d; without the charge there would be %d", show(s), k, of, now, is.Value, at, was.Value)
			}
			if l.Kind == FixedWindow && together(s, l, hash, of, now) && is.Value != was.Value {
				t.Fatalf("%s: %d charged and undone within a window leave %d of %d", show(s), k, is.Value, was.Value)
			}
		}
		with = without
	}
}
