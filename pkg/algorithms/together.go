package algorithms

// Bucket is one bucket of a decision over several. TakeAll reads Limit, Charge, Then and State, and writes State and
// Decision.
type Bucket struct {
	Limit    *Limit
	Charge   Charge
	State    State // before: the stored state; after: the state to store
	Decision Decision
	// Then means that the following buckets are alternatives: if one of the consecutive buckets with Then does not
	// allow its cost, none of them is charged, and the next bucket without Then is charged instead.
	Then bool
}

// TakeAll charges all buckets at time now or none of them, and reports whether it charged them. The buckets must be
// different ones. Each Decision is that bucket's own: if one bucket denies, the Decisions of the others are those that
// they would have made, with their present remaining units. If one cost can never fit, no state changes. Limits that
// charge denied requests do so whatever the other buckets decide.
//
// Of buckets with Then, and the one behind them, either the former are charged or the latter. The latter has a zero
// Decision, and its State is not read, if the former allow their costs.
func TakeAll(now Micros, buckets []Bucket) bool {
	if len(buckets) == 1 {
		b := &buckets[0]
		b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
		return b.Decision.Allowed
	}
	all, never := true, false
	for at, n := 0, 0; at < len(buckets); at += n {
		n = alternatives(buckets[at:])
		allowed, hopeless := lookAt(now, buckets[at:at+n])
		all, never = all && allowed, never || hopeless
	}
	for at, n := 0, 0; at < len(buckets); at += n {
		n = alternatives(buckets[at:])
		one := buckets[at : at+n]
		last, within := n-1, allow(one[:n-1])
		for i := range one {
			switch {
			case n == 1 || i == last && !within:
				one[i].chargeIf(now, all, never)
			case i < last:
				one[i].chargeIf(now, all && within, never)
			}
		}
	}
	return all
}

// alternatives returns how many of the buckets, from the first on, are alternatives. It is 1 for a bucket without any.
func alternatives(buckets []Bucket) int {
	n := 1
	for n < len(buckets) && buckets[n-1].Then {
		n++
	}
	return n
}

// allow reports whether all buckets allow their costs by themselves.
func allow(buckets []Bucket) bool {
	for i := range buckets {
		if !buckets[i].Decision.Allowed {
			return false
		}
	}
	return true
}

// lookAt decides alternatives as a dry run. It reports whether one can be charged, and whether none ever can.
func lookAt(now Micros, one []Bucket) (allowed, never bool) {
	last := len(one) - 1
	for i := range one {
		b := &one[i]
		if i == last && last > 0 && allow(one[:last]) {
			b.Decision = Decision{}
			return true, false
		}
		state, look := b.State, b.Charge
		look.DryRun = true
		b.Limit.TakeAt(&state, now, &look, &b.Decision)
		hopeless := b.Decision.Never && !b.Limit.TakesDenied
		if i < last {
			never = never || hopeless
			continue
		}
		allowed, never = b.Decision.Allowed, hopeless && (never || last == 0)
	}
	return allowed, never
}

// chargeIf charges b if pays. Otherwise its State may only get a clock, or count a denial, unless the group can never be
// charged.
func (b *Bucket) chargeIf(now Micros, pays, never bool) {
	switch {
	case pays || b.Limit.ChargesDenied(), !never && b.Limit.counts(&b.Decision, b.Charge):
		b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
	case !never:
		b.State = b.Limit.afterDenial(b.State, now, b.Charge)
	}
	if !pays && b.Decision.Allowed && !b.Limit.ChargesDenied() {
		b.Decision = b.Limit.there(b.State, now, b.Charge, b.Decision)
	}
}

// there corrects d, the decision on a Charge that would have been allowed but was not charged, because another bucket
// of the group denied: Remaining and ResetAfter become those of the bucket without the charge.
func (l *Limit) there(s State, now Micros, a Charge, d Decision) Decision {
	_, is := l.Take(s, now, Charge{Hash: a.Hash, DryRun: true})
	d.Value, d.Remaining, d.ResetAfter, d.Wait, d.Lost = is.Value, is.Remaining, is.ResetAfter, 0, 0
	return d
}
