package algorithms

import (
	"testing"

	"pgregory.net/rapid"
)

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
			if retry.Never {
				if TakeAll(now+Day, copyOf(group)) {
					t.Fatalf("denied with Never, but allowed a day later: %+v", group)
				}
				continue
			}
			if retry.After < 1 || TakeAll(now+retry.After-1, copyOf(group)) || !TakeAll(now+retry.After, copyOf(group)) {
				t.Fatalf("%d us is not the exact retry time of %+v; want after at least 1, denied and allowed", retry.After, group)
			}
			if roll.once(2) {
				now += retry.After
			}
		}
	})
	if denied == 0 || byPlan == 0 || byCredits == 0 {
		t.Errorf("%d denied, %d paid by the plan, %d by credits; want denied above 0, by plan above 0 and by credits above 0", denied, byPlan, byCredits)
	}
}

func retryOf(group []Bucket) (all Retry) {
	for at, n := 0, 0; at < len(group); at += n {
		n = alternatives(group[at:])
		one := group[at : at+n]
		plan, instead := Retry{}, one[n-1].Decision.Retry()
		for i := range one[:n-1] {
			plan = plan.Both(one[i].Decision.Retry())
		}
		if n > 1 && one[n-1].Own == nil {
			instead = plan.Either(instead)
		}
		all = all.Both(instead)
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
