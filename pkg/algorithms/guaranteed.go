package algorithms

// A guaranteed bucket consists of two token buckets with one clock: the guaranteed part (bucket 1) supplies the
// guaranteed minimum rate, and the bank (bucket 2) supplies bursts. Both count in 1/q token, where q is the
// smallest number for which p1 and p2, the inflows of the two with each tick, are integers. v1 and v2 are the
// values of the two, V1 and V2 their values when full. With c = cost*q, and retry_after in ticks:
//
//	allowed = v1 + v2 >= c;  min(v1, c) comes from the guaranteed part, the rest from the bank
//	retry_after = max(ceil((c-v1-v2)/(p1+p2)), ceil((c-V1-v2)/p2), ceil((c-v1-V2)/p1))
//
// The fields p and v of a Limit are p2 and V2.
//
// Refunds fill the bank first. Reservations are not supported.

func (l *Limit) takeGuaranteed(s *State, now Micros, a *Charge, d *Decision) {
	e := l.ticks(now) - l.ticks(s.At)
	v1, v2 := l.flow(s.Prev, l.v1, l.p1, e), l.flow(s.Value, l.v, l.p, e)
	switch c := int64(0); {
	case a.Cost < 0:
		c = l.refund(s, l.GiveBack(a.Cost)*l.q, 0, now, a)
		bank := min(c, l.v-v2)
		v1, v2 = min(l.v1, v1+c-bank), v2+bank
		d.Allowed = true
	case a.Cost > l.Capacity:
		d.Never = true
	default:
		c = a.Cost * l.q
		if d.Allowed = v1+v2 >= c; d.Allowed {
			paid := max(0, min(v1, c)) // v1 can be negative after a conversion from other numbers
			v1, v2 = v1-paid, v2-(c-paid)
			break
		}
		d.RetryAfter = l.span(now, l.guaranteedRetry(v1, v2, c))
	}
	s.Prev, s.Value, s.At = v1, v2, l.tickOf(now)
	d.Value, d.Remaining = v1+v2, max(0, floorDiv(v1+v2, l.q))
	d.ResetAfter = l.span(now, max(ceilDiv(l.v1-v1, l.p1), ceilDiv(l.v-v2, l.p)))
}

// guaranteedRetry returns the number of ticks until the values of both parts, now v1 and v2, add up to c. Their
// current sum must be less than c.
func (l *Limit) guaranteedRetry(v1, v2, c int64) int64 {
	return max(ceilDiv(c-v1-v2, l.p1+l.p), ceilDiv(c-l.v1-v2, l.p), ceilDiv(c-v1-l.v, l.p1))
}
