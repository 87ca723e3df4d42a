package algorithms

// Leaky bucket: a queue of so many places, drained at rate per period: a token bucket of
// places + 1 whose answer is how long to wait for one's turn,
//
//	wait = ceil((V - value') / p)    before the charge, so 0 when the bucket is empty.
//
// A full queue denies; so does a turn further away than MaxWait, with retry_after = wait - MaxWait.

func (l *Limit) takeTurn(s State, now Micros, a Ask) (State, Decision) {
	value := l.flow(s.Value, l.V, l.P, l.elapsed(s.At, now))
	wait := l.span(now, ceilDiv(l.V-value, l.P))
	next, d := l.takeTokens(s, now, a)
	switch {
	case a.Cost <= 0 || d.Never:
		return next, d
	case a.MaxWait > 0 && wait > a.MaxWait:
		return s, Decision{
			RetryAfter: max(d.RetryAfter, wait-a.MaxWait),
			Value:      value,
			Remaining:  value / l.Q,
			ResetAfter: wait,
		}
	case d.Allowed:
		d.Wait = wait
	}
	return next, d
}
