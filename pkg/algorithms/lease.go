package algorithms

// Lease bounds how many units of one bucket a process may borrow, and for how long. Leased units are charged when they
// are granted. Only token buckets and fixed windows have leases.
type Lease struct {
	// Most is the largest number of units leased to a process at a time; 0 means no lease.
	Most int64
	// For is how long after the grant leased units may be used.
	For Micros
}

// LeaseFor returns how long after at, the time of the grant, leased units may be used: at most most. A lease of a
// fixed window ends with the window, so that a window never gives more than its capacity. A token bucket admits
// at most capacity + floor((T + most)*rate/period) in any span T.
func (l *Limit) LeaseFor(at, most Micros, hash uint64) Micros {
	if l.Kind != FixedWindow {
		return most
	}
	phase := l.PhaseOf(hash)
	return min(most, l.windowStart(l.windowOf(at, phase)+1, phase)-at)
}

// Unit returns how many of State.Value make one unit.
func (l *Limit) Unit() int64 {
	switch l.Kind {
	case TokenBucket, LeakyBucket, Guaranteed:
		return l.Q
	case FixedWindow, SlidingWindow, SlidingLog:
	}
	return 1
}

// Unused returns how many of units, leased and not used, can be refunded when the time after has passed since the
// grant; see Charge.ChargedAt.
func (l *Limit) Unused(units int64, after Micros) int64 {
	if l.Kind != TokenBucket {
		return units
	}
	return returned(units*l.Q, l.P, l.ticks(after)) / l.Q
}

// Seen returns the Value, Remaining and ResetAfter that a dry run at time now would return for a bucket which held value
// at time at, less than a day before. It is cheaper than Take, and supports token buckets and fixed windows only.
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
