package algorithms

import (
	"slices"
	"sort"
)

// The sliding window log stores the times of all units admitted in the last period. It is exact: at most rate
// units are admitted in any span of one period. An entry whose age equals the period does not count. With n entries:
//
//	allowed = n + cost <= rate
//	deny:   retry_after = (the (n + cost - rate)-th oldest) + period - now
//
// A refund removes the newest entries. An undo (Charge.ChargedAt) removes those of its charge: if it removed newer ones in
// their place, these would count too short a time.

func (l *Limit) takeLog(s *State, now Micros, a *Charge, d *Decision) {
	period := Micros(l.period)
	s.Log = s.Log[sort.Search(len(s.Log), func(i int) bool { return s.Log[i] > now-period }):]
	n := int64(len(s.Log))
	switch cost := a.Cost; {
	case cost < 0 && a.ChargedAt > 0 && a.ChargedAt <= now-period:
		d.Allowed = true
	case cost < 0:
		from := int(n) // only entries before this one are removed
		if a.ChargedAt > 0 {
			from = sort.Search(from, func(i int) bool { return s.Log[i] > a.ChargedAt })
		}
		kept := from - int(min(int64(from), -max(cost, -maxExact)))
		if newer := s.Log[from:]; len(newer) == 0 {
			s.Log = s.Log[:kept]
		} else {
			s.Log = slices.Concat(s.Log[:kept], newer)
		}
		d.Allowed = true
	case cost > l.Rate:
		d.Never = true
	case n+cost <= l.Rate:
		d.Allowed = true
		if !a.DryRun {
			for range cost {
				s.Log = append(s.Log, now)
			}
		}
		n += cost
	default:
		d.RetryAfter = s.Log[n+cost-l.Rate-1] + period - now
	}
	if a.Cost < 0 {
		n = int64(len(s.Log))
	}
	d.Remaining = max(0, l.Rate-n)
	d.Value = d.Remaining
	if len(s.Log) > 0 {
		s.At = s.Log[len(s.Log)-1]
		d.ResetAfter = s.At + period - now
	}
	if d.Allowed && a.Cost > 0 {
		d.ResetAfter = period
	}
}
