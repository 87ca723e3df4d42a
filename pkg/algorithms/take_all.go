package algorithms

// Bucket is one of several buckets that are decided together. TakeAll reads the other fields, and writes State and
// Decision. It may change Charge to the charge that it decides.
type Bucket struct {
	Limit    *Limit
	Charge   Charge
	State    State // before TakeAll: the stored state; after it: the state to store
	Decision Decision
	// Then means that this bucket has an alternative. Consecutive buckets with Then form a row. Their alternative
	// is the first bucket without Then behind the row. The row is charged if all its buckets allow their costs.
	// Otherwise the alternative is charged instead.
	Then bool
	// Own is used only for the alternative of a row. It is what the request asks of this bucket itself: if the row is
	// charged, Own is charged too, in place of Charge. So Charge must have the sum of Own and of what this bucket pays
	// for the row. nil means that the request does not name this bucket itself.
	Own *Own
}

// Own has the terms of a Charge that differ if the charge does not include what its bucket pays for others.
type Own struct {
	Cost    int64
	Reserve bool
}

// TakeAll charges all buckets at time now, or none of them. It reports whether it charged them. No bucket may
// occur twice.
//
// Each Decision describes its own bucket. If one bucket denies, each bucket that would have allowed its cost
// still has a Decision with Allowed set. The units and times in that Decision are those without the charge. If one cost
// can never fit, no state changes, and no denial is counted for a Penalty.
//
// A limit that charges denied requests (Limit.ChargesDenied) is an exception: it charges its bucket whatever
// the other buckets decide. If it allowed the cost that it charged although another bucket denied, its Decision has
// both Allowed and the RetryAfter of the same charge. So the longest RetryAfter of all Decisions is that of the group.
// A reservation is never charged if it is denied, because no work follows. If a group contains a refund, a denial
// changes nothing (Charge.Free).
//
// A row of buckets with Then has an alternative: the bucket behind the row. TakeAll charges either the row or
// the alternative. If the row allows its costs, the alternative gets a zero Decision, and its State is not
// read, unless it has an Own. If the row and an alternative with Own deny, the RetryAfter of the alternative is that of
// both: the earliest time at which either the row and Own, or Charge, are allowed.
func TakeAll(now Micros, buckets []Bucket) bool {
	if len(buckets) == 1 {
		b := &buckets[0]
		b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
		return b.Decision.Allowed
	}
	free, all, never := false, true, false
	for i := range buckets {
		free = free || buckets[i].refunds()
	}
	for at, n := 0, 0; at < len(buckets); at += n {
		n = alternatives(buckets[at:])
		for i := range buckets[at : at+n] {
			buckets[at+i].Charge.Free = free || buckets[at+i].Charge.Free
		}
		allowed, isNever := peek(now, buckets[at:at+n])
		all, never = all && allowed, never || isNever
	}
	for at, n := 0, 0; at < len(buckets); at += n {
		n = alternatives(buckets[at:])
		one := buckets[at : at+n]
		row, last := one[:n-1], &one[n-1]
		within := allow(row)
		for i := range row {
			row[i].chargeIf(now, all && within, never)
		}
		if n == 1 || !within || last.Own != nil {
			last.chargeIf(now, all, never)
		}
		if last.Own != nil && !within && !last.Decision.Allowed {
			last.retryWith(now, row)
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
// charged now, and whether neither can ever be charged. A bucket without Then comes alone. If the row can be charged,
// peek sets the Charge of the alternative to its Own.
func peek(now Micros, one []Bucket) (allowed, never bool) {
	row, b := one[:len(one)-1], &one[len(one)-1]
	for i := range row {
		row[i].Decision = row[i].dryRun(now, row[i].Charge)
		never = never || row[i].isNever()
	}
	within := len(row) > 0 && allow(row)
	switch {
	case within && b.Own == nil:
		b.Decision = Decision{}
		return true, false
	case within:
		b.Charge = b.own()
	}
	b.Decision = b.dryRun(now, b.Charge)
	if len(row) > 0 && b.Own != nil && b.Decision.Never {
		never = never || b.dryRun(now, b.own()).Never
	}
	return b.Decision.Allowed, b.isNever() && (never || len(row) == 0)
}

func (b *Bucket) refunds() bool { return b.Charge.Cost < 0 || b.Own != nil && b.Own.Cost < 0 }

func (b *Bucket) own() Charge {
	a := b.Charge
	a.Cost, a.Reserve = b.Own.Cost, b.Own.Reserve
	return a
}

func (b *Bucket) dryRun(now Micros, a Charge) (d Decision) {
	state := b.State
	a.DryRun = true
	b.Limit.TakeAt(&state, now, &a, &d)
	return d
}

// isNever reports whether the Decision on b means that the group can never be charged.
func (b *Bucket) isNever() bool { return b.Decision.Never && !b.Limit.takesDenied(&b.Charge) }

// chargeIf charges b if pays is true, or if its limit charges denied requests. Otherwise it only
// prepares the State (see afterDenial), or counts a denial for a Penalty. never means that the group can never be
// charged: the denial then does not count, and the State stays as it is.
func (b *Bucket) chargeIf(now Micros, pays, never bool) {
	charges := b.Limit.chargesDenied(&b.Charge)
	switch {
	case pays || charges, !never && b.Limit.counts(&b.Decision, b.Charge):
		b.Limit.TakeAt(&b.State, now, &b.Charge, &b.Decision)
	case !never:
		b.State = b.Limit.afterDenial(b.State, now, b.Charge)
	}
	switch {
	case pays || !b.Decision.Allowed:
	case !charges:
		b.Decision = b.Limit.uncharged(b.State, now, b.Charge, b.Decision)
	case !b.Charge.DryRun:
		again := b.Charge
		again.Free = true // the time until it is allowed, not until it is allowed after it was denied and charged again
		b.Decision.RetryAfter = b.dryRun(now, again).RetryAfter
	}
}

// retryWith sets the retry time of b to that of b and of the row before it, which both denied.
func (b *Bucket) retryWith(now Micros, row []Bucket) {
	own := b.dryRun(now, b.own())
	with := own.Retry()
	for i := range row {
		with = with.Both(row[i].Decision.Retry())
	}
	is := b.Decision.Retry().Either(with)
	b.Decision.RetryAfter, b.Decision.Never = is.After, is.Never
}

// uncharged returns d with the amounts and times of the bucket without charge a. d is the decision of a bucket that
// allowed a although another bucket of the group denied its charge. s is the state of the bucket.
func (l *Limit) uncharged(s State, now Micros, a Charge, d Decision) Decision {
	_, is := l.Take(s, now, Charge{Hash: a.Hash, DryRun: true})
	d.Value, d.Remaining, d.ResetAfter, d.Wait, d.Lost = is.Value, is.Remaining, is.ResetAfter, 0, 0
	return d
}
