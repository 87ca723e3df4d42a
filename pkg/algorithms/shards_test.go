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

func oneASecond(capacity int64) Spec {
	return Spec{Kind: TokenBucket, Rate: 1, Period: sec, Capacity: &capacity}
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
