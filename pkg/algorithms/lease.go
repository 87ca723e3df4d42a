package algorithms

// Lease is how much of one bucket a process may borrow, and for how long: units charged ahead of
// time, which are spent when they are lent. It belongs to token buckets and fixed windows.
type Lease struct {
	// Most units on loan to a process at a time; 0: none.
	Most int64
	// For is how long after they were lent units may be given out.
	For Micros
}

// LentFor is how long after at, when they were charged, units of a bucket may be given out. Of a
// fixed window that is at most to its end, so that it never gives out more than it holds; a token
// bucket admits at most capacity + floor((T + most)*rate/period) in any span T.
func (l *Limit) LentFor(at, most Micros, hash uint64) Micros {
	if l.Kind != FixedWindow {
		return most
	}
	phase := l.PhaseOf(hash)
	return min(most, l.windowStart(l.windowOf(at, phase)+1, phase)-at)
}

// Unit is how many of State.Value make one unit.
func (l *Limit) Unit() int64 {
	switch l.Kind {
	case TokenBucket, LeakyBucket, Guaranteed:
		return l.Q
	case FixedWindow, SlidingWindow, SlidingLog:
	}
	return 1
}

// Unused is how much of units that were lent, and not used, comes back so long after (Ask.Of).
func (l *Limit) Unused(units int64, after Micros) int64 {
	if l.Kind != TokenBucket {
		return units
	}
	return returned(units*l.Q, l.P, l.ticks(after)) / l.Q
}

// Seen is what a Look at time now sees of a bucket that holds value at a time less than a day before,
// for token buckets and fixed windows: what changes by itself of Take's answer (Value, Remaining and
// ResetAfter), at a part of its cost.
func (l *Limit) Seen(value int64, at, now Micros, hash uint64) (d Decision) {
	now = max(now, at)
	if l.Kind == TokenBucket {
		d.Value = l.flow(value, l.V, l.P, l.elapsed(at, now))
		d.Remaining = max(0, floorDiv(d.Value, l.Q))
		d.ResetAfter = l.span(now, ceilDiv(l.V-d.Value, l.P))
		return d
	}
	v, window, phase := l.roll(&State{Value: value, At: at}, now, hash)
	d.Value, d.Remaining = v, max(0, v)
	d.ResetAfter = l.windowStart(window+max(1, l.windowsToFull(v)), phase) - now
	return d
}
