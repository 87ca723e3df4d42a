package algorithms

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// takeEach is the reference implementation of TakeAll. It tries every charge on a copy. If each row with Then, or
// the alternative behind it, allows its costs, takeEach stores the copies of the buckets that pay.
func takeEach(now Micros, buckets []Bucket) (all bool) {
	all = true
	never := false
	tried, first := make([]State, len(buckets)), make([]Decision, len(buckets))
	pays, skipped := make([]bool, len(buckets)), make([]bool, len(buckets))
	firstOfRow, rowAllowed, rowNever := 0, true, false
	for i := range buckets {
		b := &buckets[i]
		dryRun := b.Charge
		dryRun.DryRun = true
		_, first[i] = b.Limit.Take(clone(b.State), now, dryRun)
		tried[i], b.Decision = b.Limit.Take(clone(b.State), now, b.Charge)
		no := b.Decision.Never && !b.Limit.TakesDenied
		if b.Then && i+1 < len(buckets) {
			rowAllowed, rowNever = rowAllowed && b.Decision.Allowed, rowNever || no
			continue
		}
		for k := firstOfRow; k < i; k++ {
			pays[k] = rowAllowed
		}
		if skipped[i] = i > firstOfRow && rowAllowed; !skipped[i] {
			all, pays[i] = all && b.Decision.Allowed, true
			never = never || no && (rowNever || i == firstOfRow)
		}
		firstOfRow, rowAllowed, rowNever = i+1, true, false
	}
	for i := range buckets {
		b := &buckets[i]
		if skipped[i] {
			b.Decision = Decision{}
			continue
		}
		zero := Charge{Hash: b.Charge.Hash, DryRun: b.Charge.DryRun}
		kept, is := b.Limit.Take(clone(b.State), now, zero)
		switch {
		case b.Decision.Never && !b.Limit.TakesDenied && !never: // this charge can never be allowed, but an alternative can pay
			b.State = kept
		case all && pays[i], b.Limit.Overdraw, b.Limit.TakesDenied, !never && !b.Decision.Allowed:
			b.State = tried[i]
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
	return all
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
				one[i].Then = roll.once(3)
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

func bucket(t *testing.T, s Spec, cost int64) Bucket {
	t.Helper()
	return Bucket{Limit: mustCompile(t, s), Charge: Charge{Cost: cost}}
}

func TestOneDenialDeniesTheGroup(t *testing.T) {
	small := bucket(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec}, 1)
	large := bucket(t, Spec{Kind: TokenBucket, Rate: 10, Period: sec}, 2)
	group := []Bucket{large, small}
	if !TakeAll(t0, group) || group[0].Decision.Remaining != 8 || group[1].Decision.Remaining != 0 {
		t.Fatalf("first: %+v; want allowed, group[0].Decision.Remaining 8 and group[1].Decision.Remaining 0", group)
	}
	before := group[0].State
	if TakeAll(t0, group) {
		t.Fatal("the group was allowed although the small bucket is empty")
	}
	if d := group[0].Decision; !same(group[0].State, before) || d.Remaining != 8 || d.ResetAfter != 200*ms {
		t.Errorf("the large one was charged: %+v, %+v; want its state unchanged, 8 remaining and reset after %v", group[0].State, d, 200*ms)
	}
	if d := group[1].Decision; d.Allowed || d.RetryAfter != sec {
		t.Errorf("the small one: %+v; want denied and retry after %v", d, sec)
	}
	if !TakeAll(t0+sec, group) || group[0].Decision.Remaining != 8 {
		t.Errorf("after retry_after: %+v; want allowed and 8 remaining", group)
	}
}

func TestAGroupThatCanNeverBeAllowedStoresNothing(t *testing.T) {
	slow := Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(5)), Initial: new(int64(0))}
	group := []Bucket{
		bucket(t, slow, 0), // alone, this charge would create the bucket
		bucket(t, Spec{Kind: TokenBucket, Rate: 10, Period: sec}, 1),
		bucket(t, Spec{Kind: TokenBucket, Rate: 10, Period: sec}, 11),
	}
	if TakeAll(t0, group) || !group[2].Decision.Never {
		t.Fatalf("got %+v; want denied and never", group)
	}
	for i, b := range group {
		if b.State.By != nil {
			t.Errorf("bucket %d stored %+v; want By nil", i, b.State)
		}
	}
}

func TestDeniedGroupStartsClocks(t *testing.T) {
	slow := Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: new(int64(5)), Initial: new(int64(0))}
	group := []Bucket{bucket(t, slow, 2), bucket(t, slow, 0), bucket(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec}, 1)}
	if TakeAll(t0, group) || group[0].State.At != t0 || group[1].State.At != t0 || group[2].State.By != nil {
		t.Fatalf("got %+v; want denied, group[0].State.At %v, group[1].State.At %v and group[2].State.By nil", group, t0, t0)
	}
	if !TakeAll(t0+2*sec, group) {
		t.Errorf("after retry_after: %+v; want allowed", group)
	}
}

func TestOverdrawIsChargedIfOthersDeny(t *testing.T) {
	group := []Bucket{
		bucket(t, Spec{Kind: TokenBucket, Rate: 10, Period: sec, Overdraw: true}, 4),
		bucket(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec}, 1),
	}
	for i, want := range []int64{6, 2, 0} {
		if all := TakeAll(t0, group); all != (i == 0) || group[0].Decision.Remaining != want {
			t.Errorf("charge %d: all %t, %+v; want all %t and %d remaining", i, all, group[0].Decision, i == 0, want)
		}
	}
	if left := left(group[0].Limit, group[0].State, t0); left != -2 {
		t.Errorf("left %d, want -2", left)
	}
}

func TestEmptyGroupIsAllowed(t *testing.T) {
	if !TakeAll(t0, nil) {
		t.Error("an empty group was denied")
	}
}
