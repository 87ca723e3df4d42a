package algorithms

// Spec is a Spec that compiles to l.
func (l *Limit) Spec() Spec {
	s := Spec{
		Kind: l.Kind, Rate: l.Rate, Period: Micros(l.Period) * max(1, l.Tick), Calendar: l.Calendar,
		Overdraw: l.Overdraw, TakesDenied: l.TakesDenied, PerRequest: l.PerRequest, Settles: l.Settles,
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
		if l.P1 > 0 {
			s.Minimum = &Rate{Units: l.V1 / l.Q, Period: Micros(l.V1/l.P1) * l.Tick}
			capacity, initial = capacity-s.Minimum.Units, initial-s.Minimum.Units
		}
		s.Capacity = &capacity
	case TokenBucket:
		s.Capacity = &capacity
	case FixedWindow:
		s.Capacity = &capacity
		if !l.PhaseFromKey && l.Calendar == nil {
			start := Micros(l.Phase) * max(1, l.Tick)
			s.Start = &start
		}
	case LeakyBucket:
		capacity--
		s.Capacity = &capacity
	case SlidingWindow, SlidingLog:
	}
	if initial < capacity && (l.CanReserve() || l.Kind == Guaranteed) {
		s.Initial = &initial
	}
	if l.CanReserve() && l.MaxReserved < l.Reach {
		reserved := l.MaxReserved
		s.MaxReserved = &reserved
	}
	return s
}
