package algorithms

import (
	"fmt"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
)

// MaxShards is for Stores. It is the largest number of shards of a limit. With this number, twice the sum of the
// values of all shards still fits an int64.
const MaxShards = 256

// A sharded limit is split into n smaller buckets, called shards, so that the load of one busy key spreads
// over the nodes of a cluster.
//
// For each request the Store draws two shards at random and charges the one with more units left (power of
// two choices). If that does not have enough, the Store reads all shards, and charges several of them together, or
// denies the request.

// Split is for Stores of several nodes. It compiles the n shards of s: smaller limits that together make one. n is
// between 2 and MaxShards.
//
// Capacity, initial, max_reserved and the rate of a window are split so that they add up exactly. A token
// bucket keeps its rate and multiplies its period by n, which divides the rate without a fraction. The
// errors are of type SpecErrors.
func Split(s Spec, n int) ([]Limit, error) {
	whole, err := Compile(s)
	if err != nil {
		return nil, err
	}
	switch {
	case !whole.CanReserve():
		return nil, SpecErrors{{Field: "shards", Problem: "does not belong to " + s.title()}}
	case s.Penalty != nil:
		return nil, SpecErrors{{Field: "shards", Problem: "cannot be combined with penalty: no shard sees the denials of the others"}}
	case whole.Overdraw:
		return nil, SpecErrors{{Field: "shards", Problem: "cannot be combined with overdraw"}}
	case whole.Settles:
		return nil, SpecErrors{{Field: "shards", Problem: "cannot be combined with settle"}}
	case whole.Rate == 0:
		return nil, SpecErrors{{Field: "shards", Problem: "needs a rate of at least 1"}}
	case n < 2 || n > MaxShards:
		return nil, SpecErrors{{Field: "shards", Problem: fmt.Sprintf("must be between 2 and %d, but is %d", MaxShards, n)}}
	case int64(n) > whole.Capacity:
		return nil, SpecErrors{{Field: "shards", Problem: "must not be more than capacity: each shard needs a unit to give"}}
	case whole.Kind == FixedWindow && int64(n) > whole.Rate:
		return nil, SpecErrors{{Field: "shards", Problem: "must not be more than rate: each shard needs a unit in each window"}}
	}
	shards := make([]Limit, n)
	var wrong SpecErrors
	for _, tick := range ticks {
		if wrong = splitAt(s, &whole, shards, tick); wrong == nil {
			return shards, nil
		}
	}
	return nil, wrong
}

func splitAt(s Spec, whole *Limit, shards []Limit, tick Micros) (wrong SpecErrors) {
	n := len(shards)
	for i := range shards {
		part := s
		if whole.Kind == FixedWindow {
			part.Rate = share(whole.Rate, n, i)
		} else {
			part.Period *= Micros(n)
		}
		part.Capacity = split(&whole.Capacity, n, i)
		part.Initial = split(&whole.Initial, n, i)
		part.MaxReserved = split(s.MaxReserved, n, i)
		if shards[i], wrong = compile(part, tick); wrong != nil {
			return wrong
		}
	}
	return nil
}

func share(x int64, n, i int) int64 {
	part := x / int64(n)
	if int64(i) < x%int64(n) {
		part++
	}
	return part
}

func split(x *int64, n, i int) *int64 {
	if x == nil {
		return nil
	}
	part := share(*x, n, i)
	return &part
}

// TakeShards is for Stores of several nodes. It charges a.Cost at time now to the given shards of one bucket. It reads
// only Limit and State of each Bucket, and writes only State.
//
//   - If one shard alone has enough, the shard with the most units left is charged.
//   - Otherwise the shards are charged together and left level.
//   - A refund fills the emptiest shard first.
//   - A reservation is spread over all given shards and leaves them level. It waits for the last of them.
//
// The Decision describes only the given shards. This applies to Never, too.
func TakeShards(now Micros, shards []Bucket, a Charge) Decision {
	var d Decision
	left := make([]int64, len(shards)) // the amounts left, in the unit of State.Value
	begun := make([]State, len(shards))
	seen := make([]bool, len(shards))
	best, sum, least := 0, int64(0), int64(0)
	most, missing := int64(0), int64(0) // the largest cost, and the largest refund
	for i, b := range shards {
		most += b.Limit.Most(a.Reserve)
		missing += b.Limit.Capacity + b.Limit.reach
		begun[i], _, seen[i] = b.Limit.begin(b.State, now, a.Hash)
		left[i] = b.Limit.leftAt(begun[i], now, a.Hash)
		sum += left[i]
		if a.Reserve {
			least -= b.Limit.MaxReserved * b.Limit.Unit()
		}
		if left[i] > left[best] {
			best = i
		}
	}
	if a.Cost > most {
		return Decision{Never: true}
	}
	unit := shards[0].Limit.Unit()
	cost := max(a.Cost, -missing) * unit
	switch {
	case cost < 0:
		d.Allowed = true
		if !shards[0].Limit.windowOver(&a, now) {
			raise(shards, left, undoneOf(shards, -cost, a.ChargedAt, now))
		}
	case sum-cost < least && !(a.Settle && a.Cost == 0):
		d.RetryAfter = shardsRetry(now, shards, begun, a, cost+least)
	case a.Cost == 0:
		d.Allowed = true
	case left[best] >= cost && !a.Reserve:
		d.Allowed = true
		left[best] -= cost
	default:
		d.Allowed = true
		lower(shards, left, cost, a.Reserve)
	}
	for i := range shards {
		b := &shards[i]
		next := State{By: b.Limit, Value: left[i], At: b.Limit.tickOf(max(now, begun[i].At))}
		d.Value += left[i]
		d.ResetAfter = max(d.ResetAfter, b.Limit.fullAt(next, a.Hash)-now)
		if left[i] < 0 && a.Reserve && a.Cost > 0 && d.Allowed {
			d.Wait = max(d.Wait, b.Limit.waitAt(next, a.Hash)-now)
		}
		if d.Allowed && !a.DryRun && left[i] != b.Limit.leftAt(begun[i], now, a.Hash) {
			b.State = next
		} else {
			b.State = b.Limit.keep(b.State, begun[i], seen[i], a.DryRun)
		}
	}
	d.Remaining = max(0, floorDiv(d.Value, unit))
	return d
}

// undoneOf returns how much shards get back at time now if a charge of units, made at the time since, is undone.
// units and the result are in the unit of State.Value. Fixed windows get all units back. If since is 0, the refund is
// not an undo, and all units are returned, too. See Charge.ChargedAt.
func undoneOf(shards []Bucket, units int64, since, now Micros) int64 {
	first, p := shards[0].Limit, int64(0)
	if first.Kind != TokenBucket || since <= 0 {
		return units
	}
	for _, b := range shards {
		p += b.Limit.p
	}
	return scaled.Returned(units, p, first.ticks(now)-first.ticks(since))
}

// leftAt returns the value that a bucket with state s has at time t if nothing is charged until then. It is in the
// numbers of l, whatever the numbers of s: consumption above the capacity of l is a debt.
func (l *Limit) leftAt(s State, t Micros, hash uint64) int64 {
	t = max(t, s.At)
	if s.By != l {
		k := l.consumed(&s, t, hash)
		return l.v - k.units(l)
	}
	c := l.clockAt(t, hash)
	return l.flow(s.Value, l.v, l.p, c.passed(l, s.At))
}

// waitAt returns the moment at which the inflow has repaid the debt in s, whose Value must be negative.
func (l *Limit) waitAt(s State, hash uint64) Micros {
	c := l.clockAt(s.At, hash)
	return s.At + c.until(l, ceilDiv(-s.Value, l.p))
}

// shardsRetry returns the shortest time after which the shards together hold at least want, in the unit of
// State.Value. The sum of their values only grows with time, so bisection finds that time.
func shardsRetry(now Micros, shards []Bucket, begun []State, a Charge, want int64) Micros {
	has := func(t int64) bool {
		sum := int64(0)
		for i, b := range shards {
			sum += b.Limit.leftAt(begun[i], now+Micros(t), a.Hash)
		}
		return sum >= want
	}
	last := Micros(0)
	for i, b := range shards {
		full := b.Limit.fullAt(begun[i], a.Hash)
		if begun[i].By != b.Limit {
			k := b.Limit.consumed(&begun[i], now, a.Hash)
			full = now + k.until(b.Limit, now, 0)
		}
		last = max(last, full-now)
	}
	return Micros(smallest(0, int64(last), has)) // at 0, the cost is not available
}

// lower subtracts cost from the elements of left, the fullest shards first. All shards that it changes end
// with equal amounts, give or take one, except those that end at their floor: 0, or -MaxReserved if reserve
// is true.
func lower(shards []Bucket, left []int64, cost int64, reserve bool) {
	floor := func(i int) int64 {
		if reserve {
			return -shards[i].Limit.MaxReserved * shards[i].Limit.Unit()
		}
		return 0
	}
	freed := func(level int64) (sum int64) {
		for i, v := range left {
			sum += max(0, v-max(level, floor(i)))
		}
		return sum
	}
	// Find the highest level that frees at least cost if all fuller shards are lowered to it. That may free too much:
	// the last loop returns the surplus, one to each of these shards.
	lo := int64(0)
	for i := range left {
		lo = min(lo, floor(i))
	}
	lo = smallest(lo, slices.Max(left), func(level int64) bool { return freed(level) < cost }) - 1
	back := freed(lo) - cost
	for i, v := range left {
		if to := max(lo, floor(i)); to < v {
			if to == lo && back > 0 {
				to, back = to+1, back-1
			}
			left[i] = to
		}
	}
}

// raise adds amount to the elements of left, the emptiest shards first. No shard gets more than it can hold.
func raise(shards []Bucket, left []int64, amount int64) {
	used := func(level int64) (sum int64) {
		for i, v := range left {
			sum += max(0, min(level, shards[i].Limit.v)-v)
		}
		return sum
	}
	above := int64(0) // no shard can be raised as far
	for _, b := range shards {
		above = max(above, b.Limit.v+1)
	}
	// Find the highest level to which amount can raise the shards.
	lo := smallest(slices.Min(left), above, func(level int64) bool { return used(level) > amount }) - 1
	amount -= used(lo)
	for i, v := range left {
		full := shards[i].Limit.v
		if to := min(lo, full); to > v {
			left[i] = to
		}
		if left[i] == lo && lo < full && amount > 0 {
			left[i], amount = left[i]+1, amount-1
		}
	}
}
