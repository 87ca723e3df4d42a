package algorithms

import "math"

// Bucket is one bucket of a decision over several: what is asked of it, what is remembered of it,
// and, afterwards, the answer.
type Bucket struct {
	Limit    *Limit
	Ask      Ask
	State    State // before: what is remembered; after: what to remember
	Decision Decision
}

// TakeAll charges all buckets at time now or none of them, and reports which. Each Decision is
// that bucket's own: where one denied, the others say what they would have answered, with what is
// there. A cost that can never fit is an error of the whole: nothing is remembered then. Buckets
// must be different ones; limits that charge what they deny do so whatever the others say.
func TakeAll(now Micros, buckets []Bucket) bool {
	if len(buckets) == 1 {
		b := &buckets[0]
		b.Limit.TakeAt(&b.State, now, &b.Ask, &b.Decision)
		return b.Decision.Allowed
	}
	all, never := true, false
	for i := range buckets {
		b := &buckets[i]
		state, look := b.State, b.Ask
		look.Look = true
		b.Limit.TakeAt(&state, now, &look, &b.Decision)
		all = all && b.Decision.Allowed
		never = never || b.Decision.Never && !b.Limit.TakesDenied
	}
	for i := range buckets {
		b := &buckets[i]
		switch {
		case all || b.Limit.ChargesDenied(), !never && b.Limit.counts(&b.Decision, b.Ask):
			b.Limit.TakeAt(&b.State, now, &b.Ask, &b.Decision)
		case !never:
			b.State = b.Limit.Keep(b.State, now, b.Ask)
		}
		if !all && b.Decision.Allowed && !b.Limit.ChargesDenied() {
			b.Decision = b.Limit.there(b.State, now, b.Ask, b.Decision)
		}
	}
	return all
}

// there corrects the answer to an Ask that would have been allowed, but was not charged because
// another bucket of its group denied: remaining and reset_after are those of what is there.
func (l *Limit) there(s State, now Micros, a Ask, d Decision) Decision {
	_, is := l.Take(s, now, Ask{Hash: a.Hash, Look: true})
	d.Value, d.Remaining, d.ResetAfter, d.Wait = is.Value, is.Remaining, is.ResetAfter, 0
	return d
}

// Plus makes one ask of a and b, which are of one bucket: their costs are added up, cut to what fits,
// and it reserves only if each does.
func (a Ask) Plus(b Ask) Ask {
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
