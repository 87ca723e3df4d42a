package algorithms

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func copies(shards []Bucket) []Bucket { return slices.Clone(shards) }

func decideAgain(at Micros, shards []Bucket, a Charge) Decision {
	return TakeShards(at, copies(shards), a)
}

func (roll dice) pair(shards []Bucket) (pair []Bucket, i, j int64) {
	i = roll(int64(len(shards)))
	j = (i + 1 + roll(int64(len(shards))-1)) % int64(len(shards))
	return []Bucket{shards[i], shards[j]}, i, j
}

// chosen charges shards as a Store does: first two random ones and, if these deny, all. A reservation is charged to all
// at once.
func (roll dice) chosen(now Micros, shards []Bucket, a Charge) Decision {
	if pair, i, j := roll.pair(shards); !a.Reserve {
		if d := TakeShards(now, pair, a); d.Allowed {
			shards[i], shards[j] = pair[0], pair[1]
			return d
		}
	}
	return TakeShards(now, shards, a)
}

func TestShardsNeverAdmitMoreThanTheBound(t *testing.T) {
	charges, denied := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		s, l, shards := roll.sharded()
		hash, now := uint64(roll(1<<40)), Micros(int64(t0)+roll(1e12))
		var all []charge
		for range length(t, 300) {
			a := Charge{Hash: hash, Cost: roll.of(1, 1, 2, roll.between(1, l.Capacity), l.Capacity, -1)}
			sum := int64(0)
			for _, b := range shards {
				kept, _, _ := b.Limit.begin(b.State, now, hash)
				sum += b.Limit.leftAt(kept, now, hash)
			}
			d := roll.chosen(now, shards, a)
			charges++
			if available := a.Cost*shards[0].Limit.Unit() <= sum; d.Allowed != available && a.Cost > 0 {
				t.Fatalf("%s: denied %d of %d/%d available, %+v; want a denial only if fewer units are available", show(s), a.Cost, sum, shards[0].Limit.Unit(), d)
			}
			if d.Allowed {
				all = append(all, charge{now, a.Cost})
			} else {
				denied++
			}
			if now = max(now, roll.next(l, now, d)); now > MaxTime {
				break
			}
		}
		for i, from := range all {
			taken := big.NewInt(0)
			for _, to := range all[i:] {
				if !together(s, shards[0].Limit, hash, from.at, to.at) {
					break
				}
				most := big.NewInt(l.Capacity)
				if l.Kind == TokenBucket { // in the ticks of the shards
					tick := shards[0].Limit.tick
					ticks := whole(int64(to.at/tick - from.at/tick))
					most = down(plus(whole(l.Capacity), times(ticks, big.NewRat(s.Rate*int64(tick), int64(s.Period)))))
				}
				if taken.Add(taken, big.NewInt(to.cost)); taken.Cmp(most) > 0 {
					t.Fatalf("%s in %d: %d taken from %d to %d, at most %d", show(s), len(shards), taken, from.at, to.at, most)
				}
			}
		}
	})
	t.Logf("%d charges, %d %% denied", charges, 100*denied/max(1, charges))
}

// If TakeShards gets all shards of a bucket, its Decision must be exact: the retry time, the wait, the remaining units,
// and the number of units that it consumes or refunds.
func TestShardsAnswerExactly(t *testing.T) {
	charges, denied := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		s, l, shards := roll.sharded()
		hash, now := uint64(roll(1<<40)), t0
		unit := shards[0].Limit.Unit()
		for range length(t, 5000) {
			a := roll.charge(l, now, hash)
			a.ChargedAt, a.Scaled = 0, false
			before := copies(shards)
			d := TakeShards(now, shards, a)
			fail := func(what string) {
				t.Helper()
				t.Fatalf("%s: at %d %+v of %s: %+v\nbefore %+v\nafter %+v", what, now, a, show(s), d, before, shards)
			}
			had, has := lefts(now, before, hash), lefts(now, shards, hash)
			charges++
			switch {
			case d.Never:
			case !d.Allowed:
				denied++
				restarts := false // a shard that was full for a day starts at initial again
				for _, b := range shards {
					restarts = restarts || l.Initial < l.Capacity && b.State.FreshAt()-s.Period <= now+d.RetryAfter
				}
				if !a.DryRun && !restarts && (!decideAgain(now+d.RetryAfter, shards, a).Allowed || decideAgain(now+d.RetryAfter-1, shards, a).Allowed) {
					fail("retry_after is not exact")
				}
				fallthrough
			case a.DryRun || a.Cost == 0:
				if total(had) != total(has) {
					fail("units were consumed; want none")
				}
			case a.Cost > 0:
				if total(had)-total(has) != a.Cost*unit {
					fail("the consumption differs from the cost")
				}
				if !levelled(had, has, shards, a.Reserve) {
					fail("the charged shards do not end level")
				}
			default:
				if refunded := total(has) - total(had); refunded > 0 && !raised(had, has, shards) {
					fail("the refund did not go to the emptiest shards first")
				} else if full(has, shards) != (refunded != clipped(-a.Cost, unit)) && refunded != clipped(-a.Cost, unit) {
					fail("another amount than the cost was refunded")
				}
			}
			if sum := max(0, floorDiv(total(has), unit)); !a.DryRun && !d.Never && d.Remaining != sum {
				fail("remaining is not the sum")
			}
			if !a.DryRun && !d.Never && d.Wait != longest(now, shards, has, hash, a, d) {
				fail("wait is not the longest")
			}
			if now = roll.next(l, now, d); now > MaxTime {
				return
			}
		}
	})
	t.Logf("%d charges, %d %% denied", charges, 100*denied/max(1, charges))
}

func lefts(now Micros, shards []Bucket, hash uint64) (all []int64) {
	for _, b := range shards {
		kept, _, _ := b.Limit.begin(b.State, now, hash)
		all = append(all, b.Limit.leftAt(kept, now, hash))
	}
	return all
}

func total(all []int64) (sum int64) {
	for _, n := range all {
		sum += n
	}
	return sum
}

func clipped(n, unit int64) int64 {
	if n < 0 || n > 1<<62/unit { // the negation of math.MinInt64 is negative, too
		return 1 << 62
	}
	return n * unit
}

// levelled reports whether one shard paid alone, or the shards that paid ended level. Level means that they
// differ by at most one unit, except those at their floor, and that no other shard held more.
func levelled(had, has []int64, shards []Bucket, reserve bool) bool {
	paid, low, high := 0, int64(1<<62), int64(-1<<62)
	floor := func(i int) int64 {
		if l := shards[i].Limit; reserve {
			return -l.MaxReserved * l.Unit()
		}
		return 0
	}
	for i := range had {
		switch {
		case has[i] > had[i]:
			return false
		case has[i] < had[i]:
			paid++
			if has[i] > floor(i) {
				low, high = min(low, has[i]), max(high, has[i])
			}
		}
	}
	if paid == 0 || paid == 1 && !reserve {
		return true
	}
	for i := range had {
		if has[i] == had[i] && had[i] > max(low+1, floor(i)) {
			return false
		}
	}
	return high-low <= 1
}

// raised reports whether a refund went only to the emptiest shards, and whether these ended full or level (to
// one unit).
func raised(had, has []int64, shards []Bucket) bool {
	high := int64(-1 << 62)
	for i := range had {
		if has[i] > had[i] {
			high = max(high, has[i])
		}
	}
	for i := range had {
		if has[i] < had[i] || has[i] < high-1 && has[i] < shards[i].Limit.v {
			return false
		}
	}
	return true
}

func full(has []int64, shards []Bucket) bool {
	for i := range has {
		if has[i] < shards[i].Limit.v {
			return false
		}
	}
	return true
}

// longest searches for the first moment without a debt. It is the reference for the wait of a reservation.
func longest(now Micros, shards []Bucket, has []int64, hash uint64, a Charge, d Decision) Micros {
	if !d.Allowed || a.Cost <= 0 || !a.Reserve {
		return 0
	}
	lo, hi := Micros(0), Micros(0)
	for i, b := range shards {
		if has[i] < 0 {
			hi = max(hi, b.Limit.waitAt(b.State, hash)-now+1)
		}
	}
	for lo < hi {
		mid := lo + (hi-lo)/2
		inDebt := false
		for _, n := range lefts(now+mid, shards, hash) {
			inDebt = inDebt || n < 0
		}
		if inDebt {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func TestTwoChoicePicksTheFullerShard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		s, l, shards := roll.sharded()
		now := t0
		for range length(t, 300) {
			pair, i, j := roll.pair(shards)
			had := lefts(now, pair, 0)
			cost := roll.between(1, 1+l.Capacity/3)
			d := TakeShards(now, pair, Charge{Cost: cost})
			has := lefts(now, pair, 0)
			k := 0
			if had[1] > had[0] {
				k = 1
			}
			if paid := cost * pair[0].Limit.Unit(); had[k] >= paid && (has[k] != had[k]-paid || has[1-k] != had[1-k]) {
				t.Fatalf("%s: %d of %v left %v, %+v; want has[k] %v and has[1-k] %v", show(s), cost, had, has, d, had[k]-paid, had[1-k])
			}
			shards[i], shards[j] = pair[0], pair[1]
			now = min(MaxTime, max(now, roll.next(l, now, d)))
		}
	})
}
