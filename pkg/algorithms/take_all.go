package algorithms

// Bucket is one of several buckets that are decided together. TakeAll reads Limit, Charge, Then and State,
// and writes State and Decision.
type Bucket struct {
	Limit    *Limit
	Charge   Charge
	State    State // before TakeAll: the stored state; after it: the state to store
	Decision Decision
	// Then means that this bucket has an alternative. Consecutive buckets with Then form a row. Their alternative
	// is the first bucket without Then behind the row. The row is charged if all its buckets allow their costs.
	// Otherwise the alternative is charged instead.
	Then bool
}

// TakeAll charges all buckets at time now, or none of them. It reports whether it charged them. No bucket may
// occur twice.
//
// Each Decision describes its own bucket. If one bucket denies, each bucket that would have allowed its cost
// still has a Decision with Allowed set. The units and times in that Decision are those without the charge. If one cost
// can never fit, no state changes, and no denial is counted for a Penalty.
//
// A limit that charges denied requests (Limit.ChargesDenied) is an exception: it charges its bucket whatever
// the other buckets decide.
//
// A row of buckets with Then has an alternative: the bucket behind the row. TakeAll charges either the row or
// the alternative. If the row allows its costs, the alternative gets a zero Decision, and its State is not
// read.
func TakeAll(now Micros, buckets []Bucket) bool {
	if len(buckets) == 1 {
		b := &buckets[0]
		b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
		return b.Decision.Allowed
	}
	all, never := true, false
	for at, n := 0, 0; at < len(buckets); at += n {
		n = alternatives(buckets[at:])
		allowed, isNever := peek(now, buckets[at:at+n])
		all, never = all && allowed, never || isNever
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

// alternatives returns how many buckets, from the first on, belong together: a row with Then and the bucket
// behind it. The result is 1 if the first bucket does not have Then.
func alternatives(buckets []Bucket) int {
	n := 1
	for n < len(buckets) && buckets[n-1].Then {
		n++
	}
	return n
}

func allow(buckets []Bucket) bool {
	for i := range buckets {
		if !buckets[i].Decision.Allowed {
			return false
		}
	}
	return true
}

// peek decides a row with Then and its alternative as a dry run. It reports whether either of them can be
// charged now, and whether neither can ever be charged. A bucket without Then comes alone.
func peek(now Micros, one []Bucket) (allowed, never bool) {
	last := len(one) - 1
	for i := range one {
		b := &one[i]
		if i == last && last > 0 && allow(one[:last]) {
			b.Decision = Decision{}
			return true, false
		}
		state, dryRun := b.State, b.Charge
		dryRun.DryRun = true
		b.Limit.TakeAt(&state, now, &dryRun, &b.Decision)
		isNever := b.Decision.Never && !b.Limit.TakesDenied
		if i < last {
			never = never || isNever
			continue
		}
		allowed, never = b.Decision.Allowed, isNever && (never || last == 0)
	}
	return allowed, never
}

// chargeIf charges b if pays is true, or if its limit charges denied requests. Otherwise it only
// prepares the State (see afterDenial), or counts a denial for a Penalty. never means that the group can never be
// charged: the denial then does not count, and the State stays as it is.
func (b *Bucket) chargeIf(now Micros, pays, never bool) {
	switch {
	case pays || b.Limit.ChargesDenied(), !never && b.Limit.counts(&b.Decision, b.Charge):
		b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
	case !never:
		b.State = b.Limit.afterDenial(b.State, now, b.Charge)
	}
	if !pays && b.Decision.Allowed && !b.Limit.ChargesDenied() {
		b.Decision = b.Limit.uncharged(b.State, now, b.Charge, b.Decision)
	}
}

// uncharged returns d with the amounts and times of the bucket without charge a. d is the decision of a bucket that
// allowed a although another bucket of the group denied its charge. s is the state of the bucket.
func (l *Limit) uncharged(s State, now Micros, a Charge, d Decision) Decision {
	_, is := l.Take(s, now, Charge{Hash: a.Hash, DryRun: true})
	d.Value, d.Remaining, d.ResetAfter, d.Wait, d.Lost = is.Value, is.Remaining, is.ResetAfter, 0, 0
	return d
}
