package algorithms

import (
	"errors"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func mustSplit(tb testing.TB, s Spec, n int) []Bucket {
	tb.Helper()
	limits, err := Split(s, n)
	if err != nil {
		tb.Fatalf("split %s in %d: %v", show(s), n, err)
	}
	return buckets(limits)
}

func buckets(limits []Limit) []Bucket {
	all := make([]Bucket, len(limits))
	for i := range limits {
		all[i].Limit = &limits[i]
	}
	return all
}

func fill(shards []Bucket, tokens ...int64) {
	for i, n := range tokens {
		shards[i].State = holding(n)(shards[i].Limit)
	}
}

func tokens(now Micros, shards []Bucket) (all []int64) {
	for _, b := range shards {
		all = append(all, left(b.Limit, b.State, now))
	}
	return all
}

func oneASecond(capacity int64) Spec {
	return Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: &capacity}
}

func TestShards(t *testing.T) {
	for name, c := range map[string]struct {
		before []int64
		charge Charge
		want   Decision
		after  []int64
	}{
		"the fuller pays":             {[]int64{5, 7}, Charge{Cost: 2}, Decision{Allowed: true, Remaining: 10}, []int64{5, 5}},
		"the fuller pays all it has":  {[]int64{5, 7}, Charge{Cost: 7}, Decision{Allowed: true, Remaining: 5}, []int64{5, 0}},
		"together, left level":        {[]int64{5, 7}, Charge{Cost: 8}, Decision{Allowed: true, Remaining: 4}, []int64{2, 2}},
		"together, all there is":      {[]int64{5, 7}, Charge{Cost: 12}, Decision{Allowed: true}, []int64{0, 0}},
		"of three, level":             {[]int64{9, 2, 7}, Charge{Cost: 10}, Decision{Allowed: true, Remaining: 8}, []int64{3, 2, 3}},
		"not there":                   {[]int64{5, 7}, Charge{Cost: 13}, Decision{Remaining: 12, RetryAfter: sec}, []int64{5, 7}},
		"the whole capacity":          {[]int64{10, 10}, Charge{Cost: 20}, Decision{Allowed: true}, []int64{0, 0}},
		"more than the capacity":      {[]int64{10, 10}, Charge{Cost: 21}, Decision{Never: true}, []int64{10, 10}},
		"a dry run consumes nothing":  {[]int64{5, 7}, Charge{Cost: 8, DryRun: true}, Decision{Allowed: true, Remaining: 4}, []int64{5, 7}},
		"cost 0":                      {[]int64{5, 7}, Charge{}, Decision{Allowed: true, Remaining: 12}, []int64{5, 7}},
		"cost 0 in debt":              {[]int64{-1, -1}, Charge{}, Decision{RetryAfter: 2 * sec}, []int64{-1, -1}},
		"to the emptiest first":       {[]int64{5, 7}, Charge{Cost: -2}, Decision{Allowed: true, Remaining: 14}, []int64{7, 7}},
		"refunded evenly":             {[]int64{5, 7}, Charge{Cost: -4}, Decision{Allowed: true, Remaining: 16}, []int64{8, 8}},
		"refunded until full":         {[]int64{5, 9}, Charge{Cost: -100}, Decision{Allowed: true, Remaining: 20}, []int64{10, 10}},
		"reserved, left level":        {[]int64{5, 7}, Charge{Cost: 22, Reserve: true}, Decision{Allowed: true, Wait: 10 * sec}, []int64{-5, -5}},
		"reserved where there is all": {[]int64{5, 7}, Charge{Cost: 2, Reserve: true}, Decision{Allowed: true, Remaining: 10}, []int64{5, 5}},
		"reserved, cost 0":            {[]int64{5, 7}, Charge{Reserve: true}, Decision{Allowed: true, Remaining: 12}, []int64{5, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			shards := mustSplit(t, oneASecond(int64(10*len(c.before))), len(c.before))
			fill(shards, c.before...)
			got := TakeShards(t0, shards, c.charge)
			got.ResetAfter, got.Value = 0, 0
			after := tokens(t0, shards)
			for i := range after {
				if got != c.want || after[i] != c.after[i] {
					t.Fatalf("%v: %+v leaves %v, want %+v, %v", c.before, got, after, c.want, c.after)
				}
			}
		})
	}
}

// Sums of the values of the largest shards must not overflow.
func TestTheMostThatManyShardsCanReserve(t *testing.T) {
	s := Spec{Kind: TokenBucket, Rate: 1_000_000, Period: sec, Capacity: new(int64(MaxShards))}
	shards := mustSplit(t, s, MaxShards)
	most := int64(0)
	for _, b := range shards {
		most += b.Limit.Most(true)
	}
	if d := TakeShards(t0, shards, Charge{Cost: most, Reserve: true}); !d.Allowed {
		t.Fatalf("the most: %+v; want allowed", d)
	}
	if d := TakeShards(t0, shards, Charge{Cost: most, Reserve: true}); d.Allowed || d.RetryAfter < Day {
		t.Errorf("the most once more: %+v; want denied and retry after at least %v", d, Day)
	}
}

// The capacity of one shard may fit in microseconds while that of the next one does not.
func TestShardsUseTheSameTick(t *testing.T) {
	one := (int64(1)<<53 - 1) / 2 / int64(Day/us) // the largest capacity that half of the limit, 1 a day, can have in microseconds
	shards := mustSplit(t, Spec{Kind: TokenBucket, Rate: 1, Period: Day, Capacity: new(2*one + 1), MaxReserved: new(int64(0))}, 2)
	if d := TakeShards(t0, shards, Charge{Cost: 2 * one}); !d.Allowed || d.Remaining != 1 {
		t.Errorf("all but one: %+v, of %+v and %+v", d, *shards[0].Limit, *shards[1].Limit)
	}
}

func TestSplitRefusesInvalidSplits(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		n    int
	}{
		"more shards than tokens":         {oneASecond(3), 4},
		"more shards than a window gives": {Spec{Kind: FixedWindow, Rate: 3, Period: sec, Capacity: new(int64(9))}, 4},
		"one shard":                       {oneASecond(3), 1},
		"too many":                        {oneASecond(1e6), MaxShards + 1},
		"a counter":                       {Spec{Kind: SlidingWindow, Rate: 10, Period: sec}, 2},
		"a log":                           {Spec{Kind: SlidingLog, Rate: 10, Period: sec}, 2},
		"a queue":                         {Spec{Kind: LeakyBucket, Rate: 10, Period: sec, Capacity: new(int64(9))}, 2},
		"a guaranteed minimum":            {Spec{Kind: TokenBucket, Rate: 10, Period: sec, Minimum: &Rate{1, sec}}, 2},
		"rate 0":                          {Spec{Kind: TokenBucket, Rate: 0, Period: sec, Capacity: new(int64(10))}, 2},
		"overdraw":                        {Spec{Kind: TokenBucket, Rate: 10, Period: sec, Overdraw: true}, 2},
		"a penalty":                       {penalized(1, sec, sec), 2},
		"nonsense":                        {Spec{Kind: TokenBucket, Rate: -10, Period: sec}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var errs SpecErrors
			if _, err := Split(c.spec, c.n); !errors.As(err, &errs) {
				t.Errorf("error %v; want a SpecErrors", err)
			}
		})
	}
}

func (roll dice) sharded() (Spec, *Limit, []Bucket) {
	for {
		s, whole := roll.limit(kinds[roll(2)].kind)
		if s.Overdraw || s.TakesDenied || s.PerRequest {
			continue
		}
		if limits, err := Split(s, 2+int(roll(6))); err == nil {
			return s, whole, buckets(limits)
		}
	}
}

func TestTheShardsAddUpToTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, whole, shards := newDice(t).sharded()
		var capacity, initial, reserved int64
		flow := new(big.Rat)
		for i, b := range shards {
			l := b.Limit
			capacity, initial, reserved = capacity+l.Capacity, initial+l.Initial, reserved+l.MaxReserved
			flow.Add(flow, big.NewRat(l.Rate, l.period*int64(l.tick)))
			if first := shards[0].Limit; first.Capacity-l.Capacity > 1 || l.Capacity > first.Capacity || l.tick != first.tick || l.q != first.q {
				t.Fatalf("%s: shard %d is %+v, the first %+v; want first.Capacity - l.Capacity at most 1, l.Capacity at most %v, l.tick %v and l.q %v", show(s), i, *l, *first, first.Capacity, first.tick, first.q)
			}
		}
		if capacity != whole.Capacity || initial != whole.Initial || flow.Cmp(big.NewRat(s.Rate, int64(s.Period))) != 0 {
			t.Fatalf("%s in %d: capacity %d initial %d flow %v", show(s), len(shards), capacity, initial, flow)
		}
		if s.MaxReserved != nil && reserved != whole.MaxReserved {
			t.Fatalf("%s in %d: max_reserved %d; want reserved %v", show(s), len(shards), reserved, whole.MaxReserved)
		}
	})
}
