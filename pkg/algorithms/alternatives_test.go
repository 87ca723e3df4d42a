package algorithms

import (
	"testing"

	"pgregory.net/rapid"
)

func planAndCredits(t *testing.T, plan, credits, cost int64) []Bucket {
	t.Helper()
	group := []Bucket{
		bucket(t, Spec{Kind: TokenBucket, Rate: plan, Period: minute}, cost),
		bucket(t, Spec{Kind: TokenBucket, Rate: 1, Period: hour, Capacity: &credits}, cost),
	}
	group[0].Then = true
	return group
}

func TestCreditsPayOnceThePlanIsUsedUp(t *testing.T) {
	group := planAndCredits(t, 10, 20, 6)
	for _, step := range []struct {
		at            Micros
		cost          int64
		allowed       bool
		plan, credits int64 // units left after the request
		retry         retry
	}{
		{at: 0, cost: 6, allowed: true, plan: 4, credits: 20},
		{at: 0, cost: 6, allowed: true, plan: 4, credits: 14}, // the credits pay all 6 units, although the plan has 4 left
		{at: 0, cost: 4, allowed: true, plan: 0, credits: 14},
		{at: 0, cost: 12, allowed: true, plan: 0, credits: 2}, // more than the plan can ever allow
		{at: 0, cost: 5, plan: 0, credits: 2, retry: retry{after: 30 * sec}},
		{at: 0, cost: 3, plan: 0, credits: 2, retry: retry{after: 18 * sec}},
		{at: 0, cost: 11, plan: 0, credits: 2, retry: retry{after: 9 * hour}}, // the plan can never hold 11 units, so only the credits can pay
		{at: 0, cost: 21, plan: 0, credits: 2, retry: retry{never: true}},
		{at: 17_999_999, cost: 3, plan: 2, credits: 2, retry: retry{after: 1}},
		{at: 18 * sec, cost: 3, allowed: true, plan: 0, credits: 2},
	} {
		before := [2]State{group[0].State, group[1].State}
		for i := range group {
			group[i].Charge.Cost = step.cost
		}
		allowed := TakeAll(t0+step.at, group)
		if allowed != step.allowed {
			t.Fatalf("%+v: allowed %t; want allowed %v", step, allowed, step.allowed)
		}
		if got := retryAt(group[0]).or(retryAt(group[1])); !allowed && got != step.retry {
			t.Errorf("%+v: retry %+v; want %v", step, got, step.retry)
		}
		if !allowed && (!same(group[0].State, before[0]) || !same(group[1].State, before[1])) {
			t.Errorf("%+v: a denial changed %+v to %+v", step, before, group)
		}
		for i, want := range [2]int64{step.plan, step.credits} {
			if got := left(group[i].Limit, group[i].State, t0+step.at); got != want {
				t.Errorf("%+v: bucket %d has %d left, want %d", step, i, got, want)
			}
		}
		if paysItself := group[0].Decision.Allowed; paysItself != (group[1].Decision == Decision{}) {
			t.Errorf("%+v: allowed by the plan: %t, decision of the credits %+v; want a zero decision of the credits exactly if the plan allows", step, paysItself, group[1].Decision)
		}
	}
}

func TestSeveralLimitsOfAPlanShareTheCredits(t *testing.T) {
	perDay := bucket(t, Spec{Kind: FixedWindow, Rate: 15, Period: Day, Start: new(Micros)}, 6)
	perDay.Then = true
	group := append([]Bucket{perDay}, planAndCredits(t, 10, 20, 6)...)
	for i, want := range [][3]int64{{9, 4, 20}, {9, 4, 14}, {9, 4, 8}, {9, 4, 2}, {9, 4, 2}} {
		if allowed := TakeAll(t0, group); allowed != (i < 4) {
			t.Fatalf("request %d: allowed %t, %+v; want allowed %v", i, allowed, group, i < 4)
		}
		for k := range group {
			if got := left(group[k].Limit, group[k].State, t0); got != want[k] {
				t.Errorf("request %d: bucket %d has %d left, want %d", i, k, got, want[k])
			}
		}
	}
	if d := group[0].Decision; !d.Allowed || d.Remaining != 9 {
		t.Errorf("the day has 9 units left: %+v; want allowed and 9 remaining", d)
	}
}

func TestCreditsAreKeptIfAnotherLimitDenies(t *testing.T) {
	other := bucket(t, Spec{Kind: TokenBucket, Rate: 1, Period: sec}, 1)
	group := append(planAndCredits(t, 10, 20, 11), other)
	if !TakeAll(t0, group) || left(group[1].Limit, group[1].State, t0) != 9 {
		t.Fatalf("first: %+v; want allowed and 9 credits left", group)
	}
	for i := range group[:2] {
		group[i].Charge.Cost = 5
	}
	group[0].State = State{}
	TakeAll(t0+sec, group)
	before := group[1].State
	if TakeAll(t0+sec, group) {
		t.Fatalf("the last limit has nothing left: %+v; want denied", group)
	}
	if !same(before, group[1].State) || left(group[0].Limit, group[0].State, t0+sec) != 5 {
		t.Errorf("the denied group was charged: %+v; want the credits as before and 5 units left of the plan", group)
	}
}

func TestRetryOfAlternativesIsExact(t *testing.T) {
	denied, byPlan, byCredits := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		group := make([]Bucket, 2+roll(3))
		for i := range group {
			s := Spec{Kind: Kind(roll.of(int64(TokenBucket), int64(FixedWindow), int64(SlidingWindow), int64(SlidingLog))), Rate: roll.between(1, 20)}
			s.Period = Micros(roll.of(1, 3, 7)) * sec / Micros(roll.of(1, 2))
			l, err := Compile(s)
			if err != nil {
				t.Fatal(err)
			}
			group[i] = Bucket{Limit: &l, Then: i < len(group)-1 && (i == 0 || roll.once(2))}
		}
		now := t0
		for range length(t, 400) {
			cost := roll.between(1, 12)
			for i := range group {
				group[i].Charge, group[i].Own = Charge{Cost: cost}, nil
				if i == len(group)-1 && roll.once(2) { // the request also names the alternative
					group[i].Own = &Own{Cost: roll.between(-1, 4)}
					group[i].Charge.Cost += group[i].Own.Cost
				}
			}
			if TakeAll(now, group) {
				if group[0].Decision.Allowed {
					byPlan++
				} else {
					byCredits++
				}
				now += Micros(roll(2)) * Micros(roll(int64(sec/4)))
				continue
			}
			denied++
			retry := retryOf(group)
			if retry.never {
				if TakeAll(now+Day, copyOf(group)) {
					t.Fatalf("denied with Never, but allowed a day later: %+v", group)
				}
				continue
			}
			if retry.after < 1 || TakeAll(now+retry.after-1, copyOf(group)) || !TakeAll(now+retry.after, copyOf(group)) {
				t.Fatalf("%d us is not the exact retry time of %+v; want after at least 1, denied and allowed", retry.after, group)
			}
			if roll.once(2) {
				now += retry.after
			}
		}
	})
	if denied == 0 || byPlan == 0 || byCredits == 0 {
		t.Errorf("%d denied, %d paid by the plan, %d by credits; want denied above 0, by plan above 0 and by credits above 0", denied, byPlan, byCredits)
	}
}

type retry struct {
	after Micros
	never bool
}

func retryAt(b Bucket) retry {
	return retry{b.Decision.RetryAfter, b.Decision.Never}
}

func (r retry) and(o retry) retry {
	if r.never || o.never {
		return retry{never: true}
	}
	return retry{after: max(r.after, o.after)}
}

func (r retry) or(o retry) retry {
	if r.never || !o.never && o.after < r.after {
		return o
	}
	return r
}

func retryOf(group []Bucket) (all retry) {
	for at, n := 0, 0; at < len(group); at += n {
		n = alternatives(group[at:])
		one := group[at : at+n]
		plan, instead := retry{}, retryAt(one[n-1])
		for i := range one[:n-1] {
			plan = plan.and(retryAt(one[i]))
		}
		if n > 1 && one[n-1].Own == nil {
			instead = plan.or(instead)
		}
		all = all.and(instead)
	}
	return all
}

func copyOf(group []Bucket) []Bucket {
	list := make([]Bucket, len(group))
	for i := range group {
		list[i] = group[i]
		list[i].State = clone(group[i].State)
	}
	return list
}
