package algorithms

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// takeEach is the reference implementation of TakeAll. It tries every charge on a copy. Of each row with Then, it tries
// the row with the Own of its alternative, and then the alternative alone. If one of the two is allowed for each row,
// takeEach stores the copies of the buckets that pay.
func takeEach(now Micros, buckets []Bucket) (all bool) {
	all = true
	never := false
	free := slices.ContainsFunc(buckets, func(b Bucket) bool { return b.Charge.Cost < 0 || b.Own != nil && b.Own.Cost < 0 })
	tried, first := make([]State, len(buckets)), make([]Decision, len(buckets))
	pays, skipped := make([]bool, len(buckets)), make([]bool, len(buckets))
	try := func(i int, a Charge) {
		b := &buckets[i]
		dryRun := a
		dryRun.DryRun = true
		_, first[i] = b.Limit.Take(clone(b.State), now, dryRun)
		tried[i], b.Decision = b.Limit.Take(clone(b.State), now, a)
		b.Charge = a
	}
	takesDenied := func(b *Bucket) bool { return b.Limit.TakesDenied && !free && (!b.Charge.Reserve || b.Charge.Settle) }
	for start := 0; start < len(buckets); {
		last := start
		for last+1 < len(buckets) && buckets[last].Then {
			last++
		}
		rowAllowed, rowNever := true, false
		for i := start; i < last; i++ {
			a := buckets[i].Charge
			a.Free = free
			try(i, a)
			rowAllowed = rowAllowed && buckets[i].Decision.Allowed
			rowNever = rowNever || buckets[i].Decision.Never && !takesDenied(&buckets[i])
		}
		b := &buckets[last]
		a := b.Charge
		a.Free = free
		own := a
		if b.Own != nil && start < last {
			own.Cost, own.Reserve, own.DryRun = b.Own.Cost, b.Own.Reserve, true
			_, d := b.Limit.Take(clone(b.State), now, own)
			rowNever = rowNever || d.Never
			own.DryRun = a.DryRun
		}
		for i := start; i < last; i++ {
			pays[i] = rowAllowed
		}
		switch {
		case start < last && rowAllowed && b.Own == nil:
			skipped[last] = true
		case start < last && rowAllowed:
			try(last, own)
		default:
			try(last, a)
		}
		if !skipped[last] {
			all, pays[last] = all && b.Decision.Allowed, true
			never = never || b.Decision.Never && !takesDenied(b) && (rowNever || start == last)
		}
		start = last + 1
	}
	for i := range buckets {
		b := &buckets[i]
		if skipped[i] {
			b.Decision = Decision{}
			continue
		}
		takes := (b.Limit.Overdraw || b.Limit.TakesDenied) && !free && (!b.Charge.Reserve || b.Charge.Settle)
		zero := Charge{Hash: b.Charge.Hash, DryRun: b.Charge.DryRun || free}
		kept, is := b.Limit.Take(clone(b.State), now, zero)
		switch {
		case b.Decision.Never && !takesDenied(b) && !never: // this charge can never be allowed, but an alternative can pay
			b.State = kept
		case all && pays[i], takes, !never && !b.Decision.Allowed:
			b.State = tried[i]
			if b.Decision.Allowed && !(all && pays[i]) && !b.Charge.DryRun { // charged, although the group is denied
				again := b.Charge
				again.DryRun, again.Free = true, true
				_, d := b.Limit.Take(clone(b.State), now, again)
				b.Decision.RetryAfter = d.RetryAfter
			}
			continue
		case never:
			b.Decision = first[i] // the group can never be allowed, so no denial is counted
		default:
			b.State = kept
		}
		if b.Decision.Allowed {
			b.Decision.Remaining, b.Decision.ResetAfter, b.Decision.Wait = is.Remaining, is.ResetAfter, 0
			b.Decision.Value = is.Value
		}
	}
	tellBoth(now, buckets)
	return all
}

// tellBoth sets the retry time of each alternative with Own that denied, and whose row denied too: the earlier of the
// times at which the row and Own are allowed, and at which the alternative is.
func tellBoth(now Micros, buckets []Bucket) {
	for last := 1; last < len(buckets); last++ {
		b := &buckets[last]
		if b.Then && last < len(buckets)-1 || !buckets[last-1].Then || b.Own == nil || b.Decision.Allowed {
			continue
		}
		row, denied := Retry{}, false
		for i := last - 1; i >= 0 && buckets[i].Then; i-- {
			row, denied = row.Both(buckets[i].Decision.Retry()), denied || !buckets[i].Decision.Allowed
		}
		if !denied {
			continue
		}
		own := b.Charge
		own.Cost, own.Reserve, own.DryRun = b.Own.Cost, b.Own.Reserve, true
		_, d := b.Limit.Take(clone(b.State), now, own)
		told := row.Both(d.Retry()).Either(b.Decision.Retry())
		b.Decision.RetryAfter, b.Decision.Never = told.After, told.Never
	}
}

func TestTakeAllAgreesWithReferenceImplementation(t *testing.T) {
	groups, allowed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		one := make([]Bucket, 1+roll(4))
		for i := range one {
			s, l := roll.limit(kinds[roll(int64(len(kinds)))].kind)
			if roll.once(2) { // limits of mostly similar size; otherwise one of them would always deny
				s.Rate, s.Period = roll.between(3, 20), sec
				s.Capacity, s.Initial, s.MaxReserved = nil, nil, nil
				if c, err := Compile(s); err == nil {
					l = &c
				}
			}
			one[i].Limit = l
		}
		two := make([]Bucket, len(one))
		now, hash := t0, uint64(roll(1<<40))
		for range length(t, 5000) {
			for i := range one {
				one[i].Charge = roll.charge(one[i].Limit, now, hash)
				if !roll.once(8) {
					one[i].Charge = Charge{Hash: hash, Cost: roll.of(0, 1, 1, 2), DryRun: roll.once(10)}
				}
				one[i].Then, one[i].Own = roll.once(3), nil
				if i > 0 && one[i-1].Then && roll.once(2) {
					one[i].Then = false
					one[i].Own = &Own{roll.of(-2, -1, 0, 1, 1, 3), one[i].Charge.Reserve && roll.once(2)}
					one[i].Charge.Cost = min(maxExact, max(one[i].Own.Cost, -1)+roll.of(1, 2))
				}
				two[i] = one[i]
				two[i].State = clone(one[i].State)
			}
			before := slices.Clone(two)
			got, want := TakeAll(now, one), takeEach(now, two)
			groups++
			if got {
				allowed++
			}
			for i := range one {
				if got != want || one[i].Decision != two[i].Decision || !same(one[i].State, two[i].State) {
					t.Fatalf("at %d, bucket %d of %d, limit %+v, %+v of %+v:\n got %t %+v left %+v\nwant %t %+v left %+v", now, i, len(one), *one[i].Limit,
						one[i].Charge, before[i].State, got, one[i].Decision, one[i].State, want, two[i].Decision, two[i].State)
				}
			}
			i := roll(int64(len(one)))
			now = min(MaxTime, roll.next(one[i].Limit, now, one[i].Decision))
		}
	})
	t.Logf("%d groups, %d %% allowed", groups, 100*allowed/groups)
}

func TestEmptyGroupIsAllowed(t *testing.T) {
	if !TakeAll(t0, nil) {
		t.Error("an empty group was denied")
	}
}
