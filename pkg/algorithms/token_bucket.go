package algorithms

// Token bucket: rate tokens per period flow in continuously, up to capacity. With
// g = gcd(rate, period), p = rate/g and q = period/g the value is kept in 1/q token, so that
// exactly p flow in each tick and nothing is rounded. With elapsed = now - ts, r = max_reserved
// when reserving, else 0, and V = capacity*q:
//
//	value'  = min(V, value + elapsed*p)
//	allowed = value' - cost*q >= -r*q
//	deny:   retry_after = ceil(((cost - r)*q - value') / p)
//	allow:  value'' = min(V, value' - cost*q);  wait = ceil(-value''/p) below zero
//	reset_after = ceil((V - value'') / p)
//
// Most admitted in any span T: capacity + floor(T*rate/period).

func (l *Limit) elapsed(at, now Micros) int64 {
	return int64(now/l.Tick) - int64(at/l.Tick)
}

// flow adds what flowed in since. It compares before it multiplies, so that nothing overflows.
func (l *Limit) flow(value, full, p, elapsed int64) int64 {
	if elapsed >= ceilDiv(full-value, p) {
		return full
	}
	return value + elapsed*p
}

func (l *Limit) takeTokens(s State, now Micros, a Ask) (State, Decision) {
	var d Decision
	cost, r := a.Cost, int64(0)
	if a.Reserve {
		r = l.MaxReserved
	}
	s.Value = l.flow(s.Value, l.V, l.P, l.elapsed(s.At, now))
	s.At = now
	switch {
	case cost < 0:
		s.Value = min(l.V, s.Value+l.giveBack(cost)*l.Q)
		d.Allowed = true
	case cost <= l.Capacity+r && s.Value-cost*l.Q >= -r*l.Q:
		s.Value -= cost * l.Q
		d.Allowed = true
		if s.Value < 0 {
			d.Wait = l.span(now, ceilDiv(-s.Value, l.P))
		}
	case l.Overdraw:
		floor := min(s.Value, -l.MaxReserved*l.Q)
		s.Value = max(floor, s.Value-min(cost, l.Capacity+l.MaxReserved)*l.Q)
		// A cost above capacity is never there at once: the wait is until all that can be is.
		d.RetryAfter = l.span(now, ceilDiv((min(cost, l.Capacity+r)-r)*l.Q-s.Value, l.P))
	case cost > l.Capacity+r:
		d.Never = true
	default:
		d.RetryAfter = l.span(now, ceilDiv((cost-r)*l.Q-s.Value, l.P))
	}
	d.Remaining = max(0, floorDiv(s.Value, l.Q))
	d.ResetAfter = l.span(now, ceilDiv(l.V-s.Value, l.P))
	return s, d
}
