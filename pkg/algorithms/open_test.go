package algorithms

import (
	"testing"

	"pgregory.net/rapid"
)

// Reservations of one size that are settled in their window leave a fixed window as if each had been settled by its own
// id: used are the real costs, and the estimates of what is open.
func TestReservationsOfOneSizeSettleByBucketAsByID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		const capacity, period = 10_000, 100 * sec
		estimate := roll.between(1, 900)
		var start Micros
		l := mustCompileRapid(t, Spec{Kind: FixedWindow, Rate: capacity, Period: period, Start: &start, Settles: true, OpenFor: period})
		var s State
		var d Decision
		at, open, used := t0-t0%period, int64(0), int64(0)
		for range 300 {
			at += Micros(roll.between(0, 300_000)) // all together less than a window
			if open > 0 && roll.between(0, 1) == 0 {
				real := roll.between(0, 2*estimate)
				s, d = l.Take(s, at, Charge{Cost: real, Settle: true, Open: true})
				open, used = open-1, used+real-d.Lost
			} else if s, d = l.Take(s, at, Charge{Cost: estimate, Open: true}); d.Allowed {
				open++
			} else if capacity-used-open*estimate >= estimate {
				t.Fatalf("denied, although %d are used, and %d open of %d each", used, open, estimate)
			}
			if want := capacity - used - open*estimate; d.Value != want {
				t.Fatalf("%d left, want %d: %d are used, and %d open of %d each", d.Value, want, used, open, estimate)
			}
		}
	})
}

// Whatever is open, no reservation is allowed that does not fit, and a denied one is allowed exactly after its retry time.
func TestRetryTimesOfReservationsThatExpireAreExact(t *testing.T) {
	denied := 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		capacity := roll.between(20, 200)
		l := mustCompileRapid(t, Spec{
			Kind: TokenBucket, Rate: roll.between(1, 20), Period: Micros(roll.of(1e6, 60e6)), Capacity: &capacity, Settles: true,
			OpenFor: Micros(roll.of(1e6, 7e6, 50e6)),
		})
		var s State
		at := t0
		for range 40 {
			at += Micros(roll.between(0, 3_000_000))
			a := Charge{Cost: roll.between(1, capacity), Open: true, Settle: roll.between(0, 2) == 0}
			var d Decision
			was := s
			if s, d = l.Take(s, at, a); d.Allowed {
				if !a.Settle && d.Value < 0 {
					t.Fatalf("%d left after a reservation of %d", d.Value, a.Cost)
				}
				continue
			}
			denied++
			if _, before := l.Take(was, at+d.RetryAfter-1, a); before.Allowed {
				t.Fatalf("allowed 1 us before its retry time %d", d.RetryAfter)
			}
			if _, then := l.Take(s, at+d.RetryAfter, a); !then.Allowed {
				t.Fatalf("denied after its retry time %d: %+v", d.RetryAfter, then)
			}
		}
	})
	if denied < 100 {
		t.Errorf("only %d denials", denied)
	}
}
