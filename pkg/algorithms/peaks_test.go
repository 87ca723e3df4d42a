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
