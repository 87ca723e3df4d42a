package algorithms

// Fixed window: rate tokens are granted at each window start. Unused tokens roll over, up to capacity.
//
//	phase = the start of the first window, 0 <= phase < period
//	window = (now - phase) div period, the number of the window that contains now
//	k = the number of window starts since the last charge
//	r = max_reserved for a reservation, else 0
//
//	value'  = min(value + k*rate, capacity)
//	allowed = value' - cost >= -r
//	deny:   retry_after = phase + (window + ceil((cost - r - value')/rate))*period - now
//	allow:  value'' = min(capacity, value' - cost);  if it is below zero, wait is the time until the window start
//	        that makes it zero or more
//	reset_after = phase + (window + max(1, ceil((capacity - value'')/rate)))*period - now, with value' after a denial
//
// Most admitted in one window, without reservations and refunds: capacity.
//
//  - With TakesDenied, denied requests are charged, too. The next window starts at capacity, so no debt carries over.
//  - With PerRequest, the next window starts at capacity as well. Until then, the consumption of earlier requests
//    may be above the limit of the next request.
//  - A limit that settles refunds only within the window of the charge, and charges settlements down to -MaxDebt;
//    see Peaks.
//  - A Calendar replaces these window starts by its own. Its windows have no phase.

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
	phase := l.phaseOf(hash)
	return l.windowStart(l.windowOf(now, phase)+1, phase) - now
}

// roll computes the state of a fixed window at time now. It returns the value after all window starts between
// s.At and now, the number of the window that contains now, and the phase of the key.
func (l *Limit) roll(s *State, now Micros, hash uint64) (value, window, phase int64) {
	phase = l.phaseOf(hash)
	window = l.windowOf(now, phase)
	return l.granted(s.Value, window-l.windowOf(s.At, phase)), window, phase
}

// granted returns what a bucket holds after k more window starts, if it holds value now.
func (l *Limit) granted(value, k int64) int64 {
	switch {
	case k <= 0:
		return value
	case l.clears() || k >= ceilDiv(l.Capacity-value, l.Rate): // compared before multiplying, which could overflow
		return l.Capacity
	default:
		return value + k*l.Rate
	}
}

// clears reports whether each window starts at capacity, whatever the window before it consumed.
func (l *Limit) clears() bool { return l.TakesDenied || l.PerRequest }

func (l *Limit) takeWindow(s *State, now Micros, a *Charge, d *Decision) {
	cost, r := a.Cost, int64(0)
	if a.Reserve {
		r = l.MaxReserved
	}
	value, window, phase := l.roll(s, now, a.Hash)
	had := value
	until := func(n int64) Micros { return l.windowStart(window+n, phase) - now }
	switch {
	case cost < 0 && l.windowOver(a, now):
		d.Allowed = true
	case cost < 0:
		given := l.GiveBack(cost)
		if l.Settles && a.ChargedAt > 0 {
			given = min(given, l.roomSince(s, a.ChargedAt, l.Capacity-value))
		}
		value = min(l.Capacity, value+given)
		d.Allowed = true
	case l.beyond(a):
		value, d.Lost = l.charged(value, 1, cost)
		d.Allowed = true
	case cost <= l.Capacity+r && value-cost >= -r:
		value -= cost
		d.Allowed = true
		if value < 0 {
			d.Wait = until(ceilDiv(-value, l.Rate))
		}
	case l.takesDenied(a):
		value = l.overdrawn(value, cost)
		if d.Never = cost > l.Capacity; !d.Never {
			d.RetryAfter = until(1)
		}
	case l.chargesDenied(a):
		value = l.overdrawn(value, cost)
		d.RetryAfter = until(max(1, ceilDiv(min(cost, l.Capacity+r)-r-value, l.Rate)))
	case cost > l.Capacity+r:
		d.Never = true
	case l.clears():
		d.RetryAfter = until(1)
	default:
		d.RetryAfter = until(ceilDiv(cost-r-value, l.Rate))
	}
	switch {
	case !l.Settles:
		s.Peaks = nil
	case !a.DryRun:
		s.Peaks = l.peaked(s.Peaks, now, l.Capacity-had, l.Capacity-value, a)
	}
	s.Value, s.At = value, l.tickOf(now)
	d.Value, d.Remaining = value, max(0, value)
	d.ResetAfter = until(max(1, l.windowsToFull(value)))
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

func (l *Limit) windowsToFull(value int64) int64 {
	n := ceilDiv(l.Capacity-value, l.Rate)
	if l.clears() {
		n = min(n, 1)
	}
	return n
}

// overdrawn returns the new value of a bucket that is charged a cost although it does not have that many units. The
// charge does not take the value below -MaxReserved.
func (l *Limit) overdrawn(value, cost int64) int64 {
	return max(min(value, -l.MaxReserved), value-min(cost, l.Capacity+l.MaxReserved))
}
