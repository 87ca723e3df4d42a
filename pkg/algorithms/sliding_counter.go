package algorithms

// The sliding window counter stores the count of the current window (cur) and the count of the previous window
// (prev). prev is weighted by the part of its window that the sliding window still covers. All times are in
// ticks. With e = now mod period:
//
//	allowed = (cur + cost)*period + prev*(period - e) <= rate*period
//	deny:   a = rate - cur - cost
//	        a >= 0, prev > 0 and e2 = period - (a*period) div prev < period: retry_after = e2 - e
//	        otherwise in the next window, where prev := cur and cur := 0:
//	        retry_after = period - e + (cur = 0 ? 0 : max(0, period - ((rate - cost)*period) div cur))

func (l *Limit) takeSliding(s *State, now Micros, a *Charge, d *Decision) {
	t := int64(now / l.tick)
	e := t % l.period
	switch t/l.period - int64(s.At/l.tick)/l.period {
	case 0:
	case 1:
		s.Value, s.Prev = 0, s.Value
	default:
		s.Value, s.Prev = 0, 0
	}
	s.At = l.tickOf(now)
	cost, left := a.Cost, l.period-e
	cur, prev := l.windowCounts(s)
	switch {
	case cost < 0 && a.ChargedAt > 0 && int64(a.ChargedAt/l.tick)/l.period != t/l.period:
		d.Allowed = true
	case cost < 0: // a refund reduces the count of the current window first, then the count of the previous one
		back := -max(cost, -maxExact)
		own := min(back, s.Value)
		s.Value, s.Prev = s.Value-own, max(0, s.Prev-(back-own))
		cur, prev = l.windowCounts(s)
		d.Allowed = true
	case cost > l.Rate:
		d.Never = true
	case (cur+cost)*l.period+prev*left <= l.Rate*l.period:
		s.Value += cost
		cur += cost
		d.Allowed = true
	default:
		room, ticks := l.Rate-cur-cost, l.period
		if room >= 0 && prev > 0 {
			ticks -= room * l.period / prev
		}
		if ticks == l.period && cur > 0 { // in the next window, which counts cur as the previous count
			ticks += max(0, l.period-(l.Rate-cost)*l.period/cur)
		}
		d.RetryAfter = l.span(now, ticks-e)
	}
	d.Remaining = max(0, floorDiv((l.Rate-cur)*l.period-prev*left, l.period))
	d.Value = d.Remaining
	switch {
	case cur > 0:
		d.ResetAfter = l.span(now, left+l.period)
	case prev > 0:
		d.ResetAfter = l.span(now, left)
	}
}

// windowCounts returns the counts of the current window and of the previous one. Counts made under another
// Limit may be above the rate of l. They are reduced to a maximum that keeps products in the exact range. The
// stored counts stay as they are.
func (l *Limit) windowCounts(s *State) (cur, prev int64) {
	if s.Value <= l.Rate && s.Prev <= l.Rate { // usual, and needs no division
		return s.Value, s.Prev
	}
	most := maxExact / 3 / l.period
	return min(s.Value, most), min(s.Prev, most)
}
