package algorithms

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// allPeaks is the reference implementation of Peaks. It keeps every peak and searches all of them.
type allPeaks struct {
	list       []Peak
	lastChange Micros
	merged     bool // at some time the bucket had more peaks than it can keep
}

// charge records that a bucket was below full by room just before a charge at time now.
func (p *allPeaks) charge(now Micros, room int64) { p.note(now, now, room) }

// refund records that units charged at time since were refunded at time now. room is how far the bucket is
// below full afterwards.
func (p *allPeaks) refund(now, since Micros, units, room int64) {
	for i := range p.list {
		if p.list[i].Until > since {
			p.list[i].Room -= units
		}
	}
	p.note(now, now+1, room)
}

func (p *allPeaks) note(now, until Micros, room int64) {
	p.lastChange, p.list = now, append(p.list, Peak{until, room})
	count, least := 0, int64(maxExact)
	for i := len(p.list) - 1; i >= 0; i-- {
		if p.list[i].Room < least {
			count, least = count+1, p.list[i].Room
		}
	}
	p.merged = p.merged || count > mostPeaks
}

// room does what Limit.roomSince does, with all peaks.
func (p *allPeaks) room(since Micros, room int64) int64 {
	if since > p.lastChange {
		return 0
	}
	for _, peak := range p.list {
		if peak.Until > since {
			room = min(room, peak.Room)
		}
	}
	return room
}

// A bucket that had to merge peaks may refund less, but never more. All others refund the same amount.
func TestRefundsAgainstAllPeaks(t *testing.T) {
	exact, less, merged := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		capacity := roll.between(10, 1000)
		s := Spec{Kind: TokenBucket, Rate: roll.between(1, 300), Period: Micros(roll.of(1000, 1e6, 60e6)), Capacity: &capacity, Settles: true}
		l := mustCompileRapid(t, s)
		type reserved struct {
			at    Micros
			units int64
		}
		var state State
		var open []reserved
		peaks, now := &allPeaks{}, t0
		for range length(t, 60) {
			had := l.v - valueAt(l, state, now)
			if len(open) > 0 && roll.once(2) {
				i := int(roll(int64(len(open))))
				of, back := open[i].at, roll.between(1, open[i].units)
				open = append(open[:i:i], open[i+1:]...)
				want := min(back*l.q, peaks.room(of, had))
				next, _ := l.Take(state, now, Charge{Cost: -back, ChargedAt: of, Settle: true})
				got := had - (l.v - valueAt(l, next, now))
				what := fmt.Sprintf("%s: %d units charged at %d and refunded at %d: %d are returned, and by all peaks %d", show(s), back, of, now, got, want)
				switch {
				case got > want, got < want && !peaks.merged:
					t.Fatal(what)
				case got < want:
					less++
				case want > 0:
					exact++
				}
				if got < want { // the two buckets differ from now on
					return
				}
				if state = next; got > 0 {
					peaks.refund(now, of, got, had-got)
				}
			} else {
				cost := roll.between(1, max(1, capacity/roll.of(2, 10, 40)))
				next, d := l.Take(state, now, Charge{Cost: cost})
				if d.Allowed {
					state, open = next, append(open, reserved{now, cost})
					peaks.charge(now, had)
				}
			}
			now += Micros(roll.of(0, 0, 1, roll(int64(s.Period)), int64(s.Period)/s.Rate))
		}
		if peaks.merged {
			merged++
		}
	})
	t.Logf("%d exact refunds, %d smaller ones; %d runs with merged peaks", exact, less, merged)
}

// The state is older than the charge, because a server has lost the newer state.
func TestAChargeThatTheBucketLostIsNotRefunded(t *testing.T) {
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 10, Period: 60 * sec, Settles: true})
	s, _ := l.Take(State{}, t0, Charge{Cost: 6})
	_, d := l.Take(s, t0+sec, Charge{Cost: 2})
	if !d.Allowed {
		t.Fatalf("denied: %+v", d)
	}
	s, _ = l.Take(s, t0+2*sec, Charge{Cost: -2, ChargedAt: t0 + sec, Settle: true})
	if got := left(l, s, t0+2*sec); got != 4 {
		t.Errorf("%d are left, want 4: a charge that the bucket does not have is not refunded", got)
	}
	s, _ = l.Take(s, t0+2*sec, Charge{Cost: -6, ChargedAt: t0, Settle: true})
	if got := left(l, s, t0+2*sec); got != 10 {
		t.Errorf("%d are left, want 10: a charge that the bucket has is refunded", got)
	}
}

// The peaks before the clock step are unknown, so earlier charges count as if the bucket had become full after
// them.
func TestChargesFromBeforeAClockStepAreNotRefunded(t *testing.T) {
	capacity := int64(100)
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: &capacity, Settles: true})
	s, _ := l.Take(State{}, t0, Charge{Cost: 40})
	s, _ = l.Take(s, t0+60*sec, Charge{Cost: 100}) // the bucket was full just before
	s, _ = l.Take(s, t0-2*sec, Charge{Cost: 1})    // denied, after the clock stepped back
	s, d := l.Take(s, t0+sec, Charge{Cost: 1})
	if !d.Allowed || d.Remaining != 2 {
		t.Fatalf("got %+v; want allowed and 2 remaining", d)
	}
	if s, _ = l.Take(s, t0+sec, Charge{Cost: -40, ChargedAt: t0, Settle: true}); left(l, s, t0+sec) != 2 {
		t.Errorf("%d are left, want 2: the bucket was full after that charge, so that nothing is refunded", left(l, s, t0+sec))
	}
}

// The clock steps back, and the bucket is full again before the clock reaches the time of the last charge. The bucket
// must be kept until then, because that charge may still be settled.
func TestABucketIsKeptWhileAChargeOfTheFutureMayBeSettled(t *testing.T) {
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 10, Period: 10 * sec, Settles: true})
	s, _ := l.Take(State{}, t0, Charge{Cost: 10})
	s, _ = l.Take(s, t0-100*sec, Charge{Cost: 1}) // denied
	for _, at := range []Micros{-50, -41, -32, -23, -14, -5, 2} {
		now := t0 + at*sec
		if now >= s.FreshAt() {
			s = State{} // as a Store does when it deletes the bucket
		}
		s, _ = l.Take(s, now, Charge{Cost: left(l, s, now)})
	}
	now := t0 + 2*sec
	if s, _ = l.Take(s, now, Charge{Cost: -10, ChargedAt: t0, Settle: true}); left(l, s, now) != 0 {
		t.Errorf("%d are left, want 0: the bucket was full after that charge, so that nothing is refunded", left(l, s, now))
	}
}

func TestPeaksAreRoundedDownWhenNumbersChange(t *testing.T) {
	capacity := int64(10)
	thirds := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: 3, Capacity: &capacity, Settles: true})
	sevenths := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: 7, Capacity: &capacity, Settles: true})
	s, _ := thirds.Take(State{}, t0, Charge{Cost: 4})
	s, _ = thirds.Take(s, t0+1, Charge{Cost: 4}) // just before this charge, the bucket lacks 11/3
	s, _ = sevenths.Take(s, t0+1, Charge{Cost: 1})
	had := valueAt(sevenths, s, t0+1)
	s, _ = sevenths.Take(s, t0+1, Charge{Cost: -4, ChargedAt: t0, Settle: true})
	if got, most := valueAt(sevenths, s, t0+1)-had, int64(25); got != most { // 25/7 < 11/3 < 26/7
		t.Errorf("%d/7 are refunded, want %d/7", got, most)
	}
}

func TestALowerMaxDebtKeepsTheDebt(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow} {
		before := mustCompile(t, Spec{Kind: kind, Rate: 10, Period: 1000 * sec, Settles: true, MaxDebt: new(int64(50))})
		after := mustCompile(t, Spec{Kind: kind, Rate: 10, Period: 1000 * sec, Settles: true, MaxDebt: new(int64(5))})
		s, _ := before.Take(State{}, t0, Charge{Cost: 1})
		s, _ = before.Take(s, t0, Charge{Cost: 39, ChargedAt: t0, Settle: true})
		s, d := after.Take(s, t0, Charge{Cost: 3, ChargedAt: t0, Settle: true})
		if got := left(after, s, t0); got != -30 || !d.Allowed || d.Lost != 3 {
			t.Errorf("%s: %d are left and %d were lost, want -30 and 3", kind, got, d.Lost)
		}
	}
}

// A plain refund has no ChargedAt, so it belongs to no charge.
func TestAPlainRefundIsNotBoundByPeaks(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow} {
		l := mustCompile(t, Spec{Kind: kind, Rate: 10, Period: 1000 * sec, Settles: true, Start: startOf(kind)})
		s, _ := l.Take(State{}, t0, Charge{Cost: 8})
		s, d := l.Take(s, t0, Charge{Cost: -5})
		if got := left(l, s, t0); !d.Allowed || got != 7 {
			t.Errorf("%v: %d are left, want 7", kind, got)
		}
	}
}

func startOf(kind Kind) *Micros {
	if kind == FixedWindow {
		return new(t0)
	}
	return nil
}

func TestABucketThatWasNeverChargedRefundsNothing(t *testing.T) {
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: 1000 * sec, Capacity: new(int64(10)), Initial: new(int64(0)), Settles: true})
	s, _ := l.Take(State{}, t0, Charge{DryRun: true})
	s, d := l.Take(s, t0+sec, Charge{Cost: -5, ChargedAt: t0, Settle: true})
	if got := left(l, s, t0+sec); !d.Allowed || got != 0 {
		t.Errorf("%d are left, want 0", got)
	}
}

// A limit that does not settle stores no peaks. Later charges are refunded in full again.
func TestAChargeWithoutPeaksMakesEarlierChargesFinal(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow} {
		for name, other := range map[string]Spec{
			"the same numbers": {Rate: 10, Capacity: new(int64(10))},
			"lower numbers":    {Rate: 10, Capacity: new(int64(3))},
		} {
			other.Kind, other.Period, other.Start = kind, 1000*sec, startOf(kind)
			settles := mustCompile(t, Spec{Kind: kind, Rate: 10, Period: 1000 * sec, Capacity: new(int64(10)), Settles: true, Start: startOf(kind)})
			s, _ := settles.Take(State{}, t0, Charge{Cost: 5})
			s, d := mustCompile(t, other).Take(s, t0, Charge{Cost: 1, Reserve: true})
			if !d.Allowed || s.Peaks != nil {
				t.Errorf("%v, %s: %+v with the peaks %v; want allowed and no peaks", kind, name, d, s.Peaks.All())
			}
			s, _ = settles.Take(s, t0, Charge{Cost: -4, ChargedAt: t0, Settle: true})
			if got := left(settles, s, t0); got != 4 {
				t.Errorf("%v, %s: %d are left after the settlement of an earlier charge, want 4", kind, name, got)
			}
			s, _ = settles.Take(s, t0+ms, Charge{Cost: 3})
			s, _ = settles.Take(s, t0+2*ms, Charge{Cost: 1})
			s, _ = settles.Take(s, t0+3*ms, Charge{Cost: -1, ChargedAt: t0 + 2*ms, Settle: true})
			if got := left(settles, s, t0+3*ms); got != 1 {
				t.Errorf("%v, %s: %d are left after the settlement of a later charge, want 1", kind, name, got)
			}
		}
	}
}

// Peaks cannot be read in another unit of time.
func TestPeaksEndWithTheUnitOfTime(t *testing.T) {
	fine := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(10)), Settles: true, MaxDebt: new(int64(0))})
	coarse := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(1e11)), Settles: true, MaxDebt: new(int64(0))})
	if fine.tick == coarse.tick {
		t.Fatal("the ticks are equal")
	}
	s, _ := fine.Take(State{}, t0, Charge{Cost: 5})
	s, d := coarse.Take(s, t0, Charge{Cost: -5, ChargedAt: t0, Settle: true})
	if got := left(coarse, s, t0); !d.Allowed || got != 1e11-5 {
		t.Errorf("%d are left, want 5 less than full", got)
	}
}

func TestASettlementUnderALowerLimitIsCharged(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow} {
		limit := func(rate int64) *Limit {
			return mustCompile(t, Spec{Kind: kind, Rate: rate, Period: 1000 * sec, Settles: true, MaxDebt: new(int64(20)), Start: startOf(kind)})
		}
		high, low := limit(10), limit(5)
		s, _ := high.Take(State{}, t0, Charge{Cost: 10})
		for _, c := range []struct{ cost, left, lost int64 }{{3, -8, 0}, {20, -20, 8}} {
			var d Decision
			if s, d = low.Take(s, t0, Charge{Cost: c.cost, ChargedAt: t0, Settle: true}); !d.Allowed || d.Lost != c.lost || d.Value != c.left*low.Unit() {
				t.Errorf("%v: %+v; want %d units left and %d lost", kind, d, c.left, c.lost)
			}
		}
	}
}
