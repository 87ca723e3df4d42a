package algorithms

import "math"

// Bucket is one bucket of a decision over several. TakeAll reads Limit, Charge and State, and writes State and Decision.
type Bucket struct {
	Limit    *Limit
	Charge   Charge
	State    State // before: the stored state; after: the state to store
	Decision Decision
}

// TakeAll charges all buckets at time now or none of them, and reports whether it charged them. The buckets must be
// different ones. Each Decision is that bucket's own: if one bucket denies, the Decisions of the others are those that
// they would have made, with their present remaining units. If one cost can never fit, no state changes. Limits that
// charge denied requests do so whatever the other buckets decide.
func TakeAll(now Micros, buckets []Bucket) bool {
	if len(buckets) == 1 {
		b := &buckets[0]
		b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
		return b.Decision.Allowed
	}
	all, never := true, false
	for i := range buckets {
		b := &buckets[i]
		state, look := b.State, b.Charge
		look.DryRun = true
		b.Limit.TakeAt(&state, now, &look, &b.Decision)
		all = all && b.Decision.Allowed
		never = never || b.Decision.Never && !b.Limit.TakesDenied
	}
	for i := range buckets {
		b := &buckets[i]
		switch {
		case all || b.Limit.ChargesDenied(), !never && b.Limit.counts(&b.Decision, b.Charge):
			b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
		case !never:
			b.State = b.Limit.Keep(b.State, now, b.Charge)
		}
		if !all && b.Decision.Allowed && !b.Limit.ChargesDenied() {
			b.Decision = b.Limit.there(b.State, now, b.Charge, b.Decision)
		}
	}
	return all
}

// there corrects d, the decision on a Charge that would have been allowed but was not charged, because another bucket
// of the group denied: Remaining and ResetAfter become those of the bucket without the charge.
func (l *Limit) there(s State, now Micros, a Charge, d Decision) Decision {
	_, is := l.Take(s, now, Charge{Hash: a.Hash, DryRun: true})
	d.Value, d.Remaining, d.ResetAfter, d.Wait, d.Lost = is.Value, is.Remaining, is.ResetAfter, 0, 0
	return d
}

// Plus combines a and b, which are for the same bucket, into one Charge. It adds their costs, cut to the range of
// int64, and reserves only if both do.
func (a Charge) Plus(b Charge) Charge {
	a.Reserve = a.Reserve && b.Reserve
	switch sum := a.Cost + b.Cost; {
	case a.Cost > 0 && b.Cost > 0 && sum < 0:
		a.Cost = math.MaxInt64
	case a.Cost < 0 && b.Cost < 0 && sum >= 0:
		a.Cost = math.MinInt64
	default:
		a.Cost = sum
	}
	return a
}
