package algorithms

import (
	"math/bits"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
)

// Token buckets, fixed windows and leaky buckets have one number, a level, to which p is added at the start of each
// step. A step of a token bucket or a leaky bucket is a tick, and a step of a fixed window is a window (see steps.go).
//
//	token bucket, leaky bucket: with g = gcd(rate, period), p = rate/g and q = period/g in ticks. The level counts in
//	        1/q token, so nothing is ever rounded
//	fixed window: q = 1 and p = rate. Unused tokens roll over, up to capacity
//	V = capacity*q, the level of a full bucket
//	k = the number of steps that have started since the last charge
//	r = max_reserved for a reservation, else 0
//
//	value'  = min(V, value + k*p)
//	allowed = value' - cost*q >= -r*q
//	deny:   retry_after = ceil(((cost - r)*q - value') / p) steps
//	allow:  value'' = min(V, value' - cost*q);  if it is below zero, wait = ceil(-value''/p) steps
//	reset_after = ceil((V - value'') / p) steps, with value' after a denial. For a window it is at least one step
//
// Without reservations and refunds, a token bucket admits at most capacity + floor(T*rate/period) in any span T, and a
// fixed window at most capacity in each window. For limits that settle, see Peaks.
//
//  - With TakesDenied, denied requests are charged, too. The next window starts at capacity, so no debt carries over.
//  - With PerRequest, the next window starts at capacity as well. Until then, the consumption of earlier requests
//    may be above the limit of the next request.
//
// A leaky bucket is a queue with a number of places, drained at rate per period: a token bucket with a capacity of
// places + 1, which also computes how long a request waits for its turn:
//
//	wait = ceil((V - value') / p)    0 for a request that finds the queue empty
//
// If the wait for a turn or for reserved units exceeds MaxWait, the request is denied with retry_after = wait - MaxWait,
// or later if the queue is full or no more units can be reserved until then.

// takeLevel decides charge a at time now. After a clock stepped back, now is the time of the last charge, and lag
// is how far the clock is behind it; otherwise lag is 0.
func (l *Limit) takeLevel(s *State, now Micros, a *Charge, d *Decision, lag Micros) {
	c := l.clockAt(now, a.Hash)
	cost, least, first := l.costIn(a), int64(0), int64(0)
	if l.Kind == FixedWindow {
		first = 1 // a window is full, and allows what it has denied, from its next start at the earliest
	}
	if a.Reserve {
		least = -l.MaxReserved * l.q
	}
	had := l.flow(s.Value, l.v, l.p, c.passed(l, s.At))
	value, retry := had, int64(0)
	switch {
	case cost < 0:
		value = min(l.v, had+l.refund(s, -cost, l.v-had, now, a))
		d.Allowed = true
	case l.beyond(a):
		value, d.Lost = l.charged(had, a.Cost)
		d.Allowed = true
	case cost <= l.v-least && had-cost >= least:
		value = had - cost
		d.Allowed = true
	case l.chargesDenied(a):
		value = max(min(had, -l.MaxReserved*l.q), had-cost)
		// A cost above capacity is never available at once. RetryAfter is then the time until the bucket is full.
		if d.Never = l.TakesDenied && cost > l.v; !d.Never {
			retry = max(first, ceilDiv(min(cost+least, l.v)-value, l.p))
		}
	case cost > l.v-least:
		d.Never = true
	default:
		retry = ceilDiv(cost+least-had, l.p)
	}
	if retry > 0 {
		d.RetryAfter = c.until(l, retry)
	}
	if (d.Allowed || a.MaxWait > 0 && !d.Never) && l.mayWait(a) {
		if wait := l.stepsToWait(had, cost); wait > 0 {
			l.await(c, wait, retry, a, d, lag)
		}
		if !d.Allowed {
			value = had
		}
	}
	switch {
	case !l.Settles:
		s.Peaks = nil
	case !a.DryRun:
		s.Peaks = l.peaked(s.Peaks, now, l.v-had, l.v-value, a)
	}
	s.Value, s.At = value, l.tickOf(now)
	d.Value, d.Remaining = value, max(0, floorDiv(value, l.q))
	d.ResetAfter = c.until(l, max(first, ceilDiv(l.v-value, l.p)))
}

// mayWait reports whether l may allow charge a with a wait.
func (l *Limit) mayWait(a *Charge) bool {
	return (a.Reserve || l.Kind == LeakyBucket) && a.Cost >= 0 && !l.beyond(a)
}

// stepsToWait returns the number of steps until the turn in a leaky bucket, or until reserved units are there.
func (l *Limit) stepsToWait(had, cost int64) int64 {
	goal := cost // the level at which the wait ends
	if l.Kind == LeakyBucket {
		goal = l.v
	}
	if goal <= had {
		return 0
	}
	return ceilDiv(goal-had, l.p)
}

// await sets d.Wait, the time of a wait of this many steps. If a does not accept the wait, await denies the charge. retry
// is the number of steps until the level allows the cost, and 0 if it does now.
func (l *Limit) await(c clock, wait, retry int64, a *Charge, d *Decision, lag Micros) {
	if a.MaxWait > 0 {
		early := c.atMost(l, wait) - a.MaxWait // the time until the rest of the wait is short enough
		switch {
		case l.costIn(a)-l.v > l.inflowIn(a.MaxWait): // it is too long even if the bucket is full
			d.Allowed, d.Never, d.RetryAfter = false, true, 0
		case early+lag > 0:
			if retry == 0 || c.atMost(l, retry) < early {
				d.RetryAfter = early
			}
			d.Allowed = false
		}
	}
	if d.Allowed {
		d.Wait = c.until(l, wait)
	}
}

// inflowIn returns the least that flows in during a span of this length. It is at most 2^53.
func (l *Limit) inflowIn(span Micros) int64 {
	longest := l.length
	if l.Calendar != nil {
		longest = l.Calendar.Longest
	}
	return l.flow(0, maxExact, l.p, int64(span/longest))
}

// flow returns the level after a number of steps, at the start of each of which p flows in. value is the level before,
// and full is the highest one. The product of p and steps is computed in 128 bits, because it may exceed an int64.
func (l *Limit) flow(value, full, p, steps int64) int64 {
	if steps <= 0 {
		return min(full, value+steps*p)
	}
	hi, lo := bits.Mul64(uint64(steps), uint64(p))
	if missing := full - value; missing <= 0 || hi > 0 || lo >= uint64(missing) {
		return full
	}
	return value + int64(lo)
}

// costIn returns the cost of charge a in 1/q token. A cost above the largest possible consumption is reduced to just
// above it, and a refund as by GiveBack, so that the product cannot overflow.
func (l *Limit) costIn(a *Charge) int64 {
	most := l.Capacity + l.MaxReserved
	switch {
	case a.Scaled:
		return max(-(l.Capacity+l.reach)*l.q, min(a.Cost, most*l.q+1))
	case a.Cost > most:
		return most*l.q + 1
	case a.Cost < 0:
		return -l.GiveBack(a.Cost) * l.q
	default:
		return a.Cost * l.q
	}
}

// refund returns how much of given, in 1/q token, the refund a adds to a bucket at time now. room is how far the bucket
// is below full.
//
// A refund that undoes a charge must not leave the bucket fuller than it would be without the charge. Without
// the charge the bucket might have been full since, and then the tokens that have flowed in since would have
// been lost. So an undo returns the refund less these tokens, and at least 0. A window has had no inflow until it
// ends, and refunds nothing afterwards. Other refunds are returned in full.
func (l *Limit) refund(s *State, given, room int64, now Micros, a *Charge) int64 {
	switch {
	case a.ChargedAt <= 0:
		return given
	case l.windowOver(a, now):
		return 0
	case l.Settles:
		return min(given, l.roomSince(s, a.ChargedAt, room))
	case l.Kind == FixedWindow:
		return given
	}
	return scaled.Returned(given, l.p+l.p1, l.ticks(now)-l.ticks(a.ChargedAt))
}
