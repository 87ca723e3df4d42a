package algorithms

import "github.com/rlsidecar/rlsidecar/internal/scaled"

// Numbers returns the numbers with which l computes, for the stores of this module. They are not part of the stable API:
// their type is internal.
func (l *Limit) Numbers() scaled.Numbers {
	n := scaled.Numbers{Tick: int64(l.tick), Period: l.period, Phase: l.phase, PhaseFromKey: l.phaseFromKey, P1: l.p1, V1: l.v1}
	if l.Kind != FixedWindow {
		n.P, n.Q, n.V = l.p, l.q, l.v
	}
	return n
}

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
