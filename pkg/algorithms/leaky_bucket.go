package algorithms

// Leaky bucket: a queue with a number of places, drained at rate per period. It is a token bucket with a
// capacity of places + 1. It also computes how long a request waits for its turn:
//
//	wait = ceil((V - value') / p)    before the charge, so 0 for the first request
//
// If the queue is full, the request is denied. If MaxWait is set and the turn is further away, the request is
// denied with retry_after = wait - MaxWait.

// takeTurn decides a at time now. After a clock stepped back, now is the time of the last charge, and back is
// how far the clock is behind now.
func (l *Limit) takeTurn(s *State, now Micros, a *Charge, d *Decision, back Micros) {
	value := l.flow(s.Value, l.v, l.p, l.elapsed(s.At, now))
	wait := l.span(now, ceilDiv(l.v-value, l.p))
	was := *s
	l.takeTokens(s, now, a, d)
	switch {
	case a.Cost < 0 || d.Never:
	case a.MaxWait > 0 && wait > 0 && wait+back > a.MaxWait:
		late := Decision{Value: value, Remaining: max(0, value/l.q), RetryAfter: wait - a.MaxWait, ResetAfter: wait}
		if !d.Allowed {
			late.RetryAfter = max(late.RetryAfter, d.RetryAfter)
		}
		*s, *d = was, late
	case d.Allowed:
		d.Wait = wait
	}
}
