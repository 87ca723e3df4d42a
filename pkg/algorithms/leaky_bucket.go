package algorithms

// Leaky bucket: a queue with a number of places, drained at rate per period. It is a token bucket with a
// capacity of places + 1. It also computes how long a request waits for its turn. With V (the value of a full
// bucket), value' (the value before the charge) and p (the inflow of each tick) as in token_bucket.go, in ticks:
//
//	wait = ceil((V - value') / p)    0 for a request that finds the queue empty
//
// If the queue is full, the request is denied. If MaxWait is set and the turn is further away, the request is
// denied with retry_after = wait - MaxWait, or later if the queue is full until then.

// takeTurn decides charge a at time now. After a clock stepped back, now is the time of the last charge, and lag
// is how far the clock is behind it; otherwise lag is 0.
func (l *Limit) takeTurn(s *State, now Micros, a *Charge, d *Decision, lag Micros) {
	value := l.flow(s.Value, l.v, l.p, l.elapsed(s.At, now))
	wait := l.span(now, ceilDiv(l.v-value, l.p))
	was := *s
	l.takeTokens(s, now, a, d)
	switch {
	case a.Cost < 0 || d.Never:
	case a.tooLate(wait, lag):
		late := Decision{Value: value, Remaining: max(0, value/l.q), RetryAfter: wait - a.MaxWait, ResetAfter: wait}
		if !d.Allowed {
			late.RetryAfter = max(late.RetryAfter, d.RetryAfter)
		}
		*s, *d = was, late
	case d.Allowed:
		d.Wait = wait
	}
}

// tooLate reports whether a turn in wait, while the clock is lag behind, is later than charge a accepts. A request that
// finds the queue empty does not wait, however far the clock is behind.
func (a *Charge) tooLate(wait, lag Micros) bool {
	return a.MaxWait > 0 && wait > 0 && wait+lag > a.MaxWait
}
