package algorithms

// A level grows at the start of each step. The steps of a fixed window are its windows: all have the length of the
// period and one starts at the phase, or they are those of a Calendar. The steps of all other limits are ticks.

// clock turns numbers of steps into times. It is a value of three words, so that it stays in registers.
type clock struct {
	now    Micros
	since  Micros // the time from the start of the present step until now
	length Micros // of a step; 0 with a Calendar
}

func (l *Limit) clockAt(now Micros, hash uint64) clock {
	if l.length == 1 { // the usual case, which the compiler inlines
		return clock{now, 0, 1}
	}
	return l.slowClock(now, hash)
}

func (l *Limit) slowClock(now Micros, hash uint64) clock {
	start := l.tickOf(now)
	if l.Kind == FixedWindow {
		phase := l.phaseOf(hash)
		start = l.windowStart(l.windowOf(now, phase), phase)
	}
	return clock{now, now - start, l.length}
}

// passed returns the number of steps of l that have started since the time at.
func (c clock) passed(l *Limit, at Micros) int64 {
	if c.length == 1 {
		return int64(c.now - at)
	}
	return c.windowsPassed(l, at)
}

func (c clock) windowsPassed(l *Limit, at Micros) int64 {
	switch span := c.now - c.since - at; {
	case span <= 0:
		return 0
	case c.length == 0:
		return l.Calendar.Window(c.now) - l.Calendar.Window(at)
	default:
		return int64((span-1)/c.length) + 1
	}
}

// until returns the time until the start of the n-th step of l from now, or 0 if n <= 0.
func (c clock) until(l *Limit, n int64) Micros {
	if n > 0 && c.length > 0 {
		return Micros(n)*c.length - c.since
	}
	return c.untilEdge(l, n)
}

//go:noinline
func (c clock) untilEdge(l *Limit, n int64) Micros { return l.Calendar.After(c.now, n) } // apart, so that until is inlined

// atMost is until, but counts each window of a Calendar after the next two as the longest possible one. The Redis script
// does not know when these windows start.
func (c clock) atMost(l *Limit, n int64) Micros {
	if c.length > 0 || n <= 2 {
		return c.until(l, n)
	}
	return c.until(l, 2) + Micros(n-2)*l.Calendar.Longest
}

// ticks returns the number of the tick that contains t.
func (l *Limit) ticks(t Micros) int64 {
	if l.tick == 1 { // the usual case; saves a slow division
		return int64(t)
	}
	return int64(t / l.tick)
}

// tickOf returns the start of the tick that contains t. Units flow in only at the start of a tick.
func (l *Limit) tickOf(t Micros) Micros {
	if l.tick == 1 {
		return t
	}
	return t - t%l.tick
}

// span returns the time from now to the start of the n-th tick after the one that contains now, or 0 if n <= 0.
func (l *Limit) span(now Micros, n int64) Micros {
	if n <= 0 {
		return 0
	}
	return Micros(l.ticks(now)+n)*l.tick - now
}

func (l *Limit) windowOf(t Micros, phase int64) int64 {
	if l.Calendar != nil {
		return l.Calendar.Window(t)
	}
	return floorDiv(int64(t/l.tick)-phase, l.period)
}

func (l *Limit) windowStart(n, phase int64) Micros {
	if l.Calendar != nil {
		return l.Calendar.Start(n)
	}
	return Micros(phase+n*l.period) * l.tick
}

// WindowEnd is for Stores. It returns the time from now to the next start of a fixed window, for the key with this
// hash (Charge.Hash). It also works for a limit with a Rate of 0.
func (l *Limit) WindowEnd(now Micros, hash uint64) Micros {
	phase := l.phaseOf(hash) // not by a clock, which a Rate of 0 does not have
	return l.windowStart(l.windowOf(now, phase)+1, phase) - now
}

// windowOver reports whether l is a fixed window and charge a is the undo of an earlier one (see Charge.ChargedAt)
// whose window has ended by time now.
func (l *Limit) windowOver(a *Charge, now Micros) bool {
	if a.ChargedAt <= 0 || l.Kind != FixedWindow {
		return false
	}
	phase := l.phaseOf(a.Hash)
	return l.windowOf(a.ChargedAt, phase) != l.windowOf(now, phase)
}

// clears reports whether each window starts at capacity, whatever the window before it consumed.
func (l *Limit) clears() bool { return l.TakesDenied || l.PerRequest }
