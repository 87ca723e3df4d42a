package algorithms

import "math/bits"

// Token bucket: rate tokens per period flow in continuously, up to capacity. All times below are in ticks.
//
//	g = gcd(rate, period), p = rate/g, q = period/g
//	        value is stored in 1/q token, so exactly p flow in with each tick, and nothing is rounded
//	V = capacity*q, the value of a full bucket
//	elapsed = the ticks since the last charge
//	r = max_reserved for a reservation, else 0
//
//	value'  = min(V, value + elapsed*p)
//	allowed = value' - cost*q >= -r*q
//	deny:   retry_after = ceil(((cost - r)*q - value') / p)
//	allow:  value'' = min(V, value' - cost*q);  if it is below zero, wait = ceil(-value''/p)
//	reset_after = ceil((V - value'') / p), with value' after a denial
//
// Most admitted in any span T, without reservations and refunds: capacity + floor(T*rate/period). For limits
// that settle, see Peaks.

func (l *Limit) elapsed(at, now Micros) int64 {
	return l.ticks(now) - l.ticks(at)
}

// flow returns what a bucket holds after elapsed ticks, in each of which p flows in. value is what it held before,
// and full is the most that it can hold. The product of p and elapsed is computed in 128 bits, because it may
// exceed an int64.
func (l *Limit) flow(value, full, p, elapsed int64) int64 {
	if elapsed <= 0 {
		return min(full, value+elapsed*p)
	}
	hi, lo := bits.Mul64(uint64(elapsed), uint64(p))
	if missing := full - value; missing <= 0 || hi > 0 || lo >= uint64(missing) {
		return full
	}
	return value + int64(lo)
}

// raw returns the cost of charge a in 1/q token. A cost above the largest possible consumption is reduced to just
// above it, and a refund as by GiveBack, so that the product cannot overflow.
func (l *Limit) raw(a *Charge) int64 { return l.costIn(l.q, a) }

// costIn returns the cost of charge a in 1/unit token, bounded like the result of raw.
func (l *Limit) costIn(unit int64, a *Charge) int64 {
	most := l.Capacity + l.MaxReserved
	switch {
	case a.Scaled:
		return max(-(l.Capacity+l.reach)*unit, min(a.Cost, most*unit+1))
	case a.Cost > most:
		return most*unit + 1
	case a.Cost < 0:
		return -l.GiveBack(a.Cost) * unit
	default:
		return a.Cost * unit
	}
}

// back returns how much of a refund the bucket gets at time now. refund and the result are in 1/q token.
//
// A refund that undoes a charge must not leave the bucket fuller than it would be without the charge. Without
// the charge the bucket might have been full since, and then the tokens that have flowed in since would have
// been lost. So an undo returns the refund less these tokens, and at least 0. Other refunds are returned in full.
func (l *Limit) back(refund int64, now Micros, a *Charge) int64 {
	if a.ChargedAt <= 0 {
		return refund
	}
	return returned(refund, l.p+l.p1, l.elapsed(a.ChargedAt, now))
}

// returned returns a refund less the inflow of the given number of ticks, and at least 0. p flows in with each tick.
func returned(refund, p, ticks int64) int64 {
	if ticks < 0 { // the clock stepped back by more than a minute, so the inflow since the charge is unknown
		return 0
	}
	if hi, lo := bits.Mul64(uint64(ticks), uint64(p)); hi == 0 && lo < uint64(refund) {
		return refund - int64(lo)
	}
	return 0
}

func (l *Limit) takeTokens(s *State, now Micros, a *Charge, d *Decision) {
	cost, least, most := l.raw(a), int64(0), l.v
	if a.Reserve {
		least, most = -l.MaxReserved*l.q, l.v+l.MaxReserved*l.q
	}
	s.Value = l.flow(s.Value, l.v, l.p, l.elapsed(s.At, now))
	had := s.Value
	switch {
	case cost < 0 && l.Settles && a.ChargedAt > 0:
		s.Value += min(-cost, l.roomSince(s, a.ChargedAt, l.v-s.Value))
		d.Allowed = true
	case cost < 0:
		s.Value = min(l.v, s.Value+l.back(-cost, now, a))
		d.Allowed = true
	case l.beyond(a):
		s.Value, d.Lost = l.charged(s.Value, l.q, a.Cost)
		d.Allowed = true
	case cost <= most && s.Value-cost >= least:
		s.Value -= cost
		d.Allowed = true
		if s.Value < 0 {
			d.Wait = l.span(now, ceilDiv(-s.Value, l.p))
		}
	case l.chargesDenied(a):
		floor := min(s.Value, -l.MaxReserved*l.q)
		s.Value = max(floor, s.Value-cost)
		// A cost above capacity is never available at once. RetryAfter is then the time until the bucket is full.
		d.RetryAfter = l.span(now, ceilDiv(min(cost, most)+least-s.Value, l.p))
	case cost > most:
		d.Never = true
	default:
		d.RetryAfter = l.span(now, ceilDiv(cost+least-s.Value, l.p))
	}
	switch {
	case !l.Settles:
		s.Peaks = nil
	case !a.DryRun:
		s.Peaks = l.peaked(s.Peaks, now, l.v-had, l.v-s.Value, a)
	}
	s.At = l.tickOf(now)
	d.Value, d.Remaining = s.Value, max(0, floorDiv(s.Value, l.q))
	d.ResetAfter = l.span(now, ceilDiv(l.v-s.Value, l.p))
}
