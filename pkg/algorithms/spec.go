package algorithms

// Spec returns a Spec that compiles to l.
func (l *Limit) Spec() Spec {
	if l.Kind == Concurrency {
		capacity := l.Capacity
		return Spec{Kind: Concurrency, Capacity: &capacity, Period: l.Period(), Overdraw: l.Overdraw}
	}
	s := Spec{
		Kind: l.Kind, Rate: l.Rate, Period: l.Period(), Calendar: l.Calendar,
		Overdraw: l.Overdraw, TakesDenied: l.TakesDenied, PerRequest: l.PerRequest, Settles: l.Settles, OpenFor: l.OpenFor,
	}
	if l.Settles {
		debt := l.MaxDebt
		s.MaxDebt = &debt
	}
	if l.Penalty.After > 0 {
		penalty := l.Penalty
		s.Penalty = &penalty
	}
	capacity, initial := l.Capacity, l.Initial
	switch l.Kind {
	case Guaranteed:
		s.Kind = TokenBucket
		if l.p1 > 0 {
			s.Minimum = &Rate{Units: l.v1 / l.q, Period: Micros(l.v1/l.p1) * l.tick}
			capacity, initial = capacity-s.Minimum.Units, initial-s.Minimum.Units
		}
		s.Capacity = &capacity
	case TokenBucket:
		s.Capacity = &capacity
	case FixedWindow:
		s.Capacity = &capacity
		if !l.phaseFromKey && l.Calendar == nil {
			start := Micros(l.phase) * max(1, l.tick)
			s.Start = &start
		}
	case LeakyBucket:
		capacity--
		s.Capacity = &capacity
	case SlidingWindow, SlidingLog:
	}
	if initial < capacity {
		s.Initial = &initial
	}
	if l.CanReserve() && l.MaxReserved < l.reach {
		reserved := l.MaxReserved
		s.MaxReserved = &reserved
	}
	return s
}
