package redis

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A sharded bucket is split over the slots of the cluster, and so over its masters. Of two shards
// drawn at random the one that has more left, by what was last heard of it, is asked; usually that is
// all. If it denies, the other is asked; if that denies too, all are looked at, and what the cost
// needs is taken from those that have it. A denial is given only when the tokens were not there.

// shardMemory remembers what was last seen of shards, to choose by. It is a hint: being wrong costs
// a trip, never a wrong answer.
type shardMemory struct {
	now  func() algorithms.Micros // nil: as the shards' own clocks go
	mu   sync.Mutex
	seen map[uint64][]sight // by the hash of the bucket's key, for each shard; guarded by mu
}

// sight is what was last seen of a shard, at a time by this process's clock, and when it last failed.
type sight struct {
	state      algorithms.State // zero: never seen
	at, failed time.Time
}

// maxSharded bounds the buckets remembered; beyond it they are forgotten all at once.
const maxSharded = 65_536

func (m *shardMemory) of(key []byte, shards []algorithms.Limit, use func(seen []sight)) {
	hash := xxhash.Sum64(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := m.seen[hash]
	if len(seen) != len(shards) {
		if m.seen == nil || len(m.seen) >= maxSharded {
			m.seen = map[uint64][]sight{}
		}
		seen = make([]sight, len(shards))
		m.seen[hash] = seen
	}
	use(seen)
}

// draw returns two different shards at random, the one with more left first. What has flowed in
// since a shard was seen counts: without it a shard that looked empty once is left to overflow. One
// that has just failed comes second.
func (m *shardMemory) draw(key []byte, shards []algorithms.Limit, hash uint64) (first, second int) {
	n := len(shards)
	first = rand.IntN(n)
	if second = rand.IntN(n - 1); second >= first {
		second++
	}
	left := func(i int, s *sight) int64 {
		if time.Since(s.failed) < reloadPause {
			return math.MinInt64
		}
		now := s.state.At + algorithms.Micros(time.Since(s.at)/time.Microsecond)
		if m.now != nil {
			now = m.now()
		}
		_, d := shards[i].Take(s.state, now, algorithms.Ask{Hash: hash, Look: true})
		return d.Value
	}
	m.of(key, shards, func(seen []sight) {
		if left(second, &seen[second]) > left(first, &seen[first]) {
			first, second = second, first
		}
	})
	return first, second
}

// saw remembers the answer of shard i and returns the sum of what was last seen in all of them; a
// shard never seen counts as full.
func (m *shardMemory) saw(key []byte, shards []algorithms.Limit, i int, d *backend.Decision) (sum int64) {
	m.of(key, shards, func(seen []sight) {
		if d.Err != nil {
			seen[i].failed = time.Now()
			return
		}
		seen[i] = sight{state: algorithms.State{By: &shards[i], Value: d.Value, At: d.At}, at: time.Now()}
		for j := range seen {
			if seen[j].state.By == nil {
				sum += shards[j].Capacity * shards[j].Unit()
			} else {
				sum += max(0, seen[j].state.Value)
			}
		}
	})
	return sum
}

// takeShards takes one charge of a sharded bucket. The Decision's Value is in the unit of the whole limit.
func (c *cluster) takeShards(ctx context.Context, charge *backend.Charge, decision *backend.Decision) {
	if charge.Ask.Cost > charge.Limit.Most(charge.Ask.Reserve) {
		decision.Never = true
		return
	}
	c.chargeShards(ctx, charge, decision)
	decision.Value = wholeUnits(decision.Value, charge.Limit.Unit(), charge.Shards[0].Unit())
}

// wholeUnits converts v, a sum over shards, from 1/shard unit to 1/whole unit, rounding down. The product
// may need more than 64 bits; the result is at most the whole limit's capacity.
func wholeUnits(v, whole, shard int64) int64 {
	hi, lo := bits.Mul64(uint64(max(v, -v)), uint64(whole))
	quotient, rest := bits.Div64(hi, lo, uint64(shard))
	switch {
	case v >= 0:
		return int64(quotient)
	case rest == 0:
		return -int64(quotient)
	default:
		return -int64(quotient) - 1
	}
}

// chargeShards is takeShards with a Value in the unit of a shard.
func (c *cluster) chargeShards(ctx context.Context, charge *backend.Charge, decision *backend.Decision) {
	ask, shards := charge.Ask, charge.Shards
	if ask.Cost > 0 && !ask.Reserve && !ask.Look && !charge.Limit.Overdraw {
		first, second := c.shards.draw(charge.Key, shards, ask.Hash)
		for _, i := range [...]int{first, second} {
			if ask.Cost > shards[i].Capacity {
				continue
			}
			d := c.takeShard(ctx, charge, i, ask)
			left := c.shards.saw(charge.Key, shards, i, &d)
			if d.Err != nil || d.Allowed {
				*decision = d
				decision.Value, decision.Remaining = left, left/shards[i].Unit()
				return
			}
		}
	}
	if ask.Cost < 0 && !ask.Look {
		c.giveToShards(ctx, charge, decision)
		return
	}
	for range 3 { // others may take what was seen before we do
		if c.takeAllShards(ctx, charge, decision) {
			return
		}
	}
}

// shard is the charge of shard i, with its key.
func (c *cluster) shard(charge *backend.Charge, i int) (part backend.Charge, key string) {
	part = *charge
	part.Limit, part.Shards = &charge.Shards[i], nil
	part.Slot = shardSlot(charge.Key, i, len(charge.Shards))
	key, _ = c.keys.of(&part)
	return part, key
}

func (c *cluster) takeShard(ctx context.Context, charge *backend.Charge, i int, ask algorithms.Ask) backend.Decision {
	part, key := c.shard(charge, i)
	part.Ask = ask
	var d [1]backend.Decision
	c.laneOf(ctx, key).Take(ctx, []backend.Charge{part}, d[:])
	c.learn(d[:])
	return d[0]
}

// eachShard asks something of every shard, at the same time.
func (c *cluster) eachShard(ctx context.Context, charge *backend.Charge, asks []algorithms.Ask) []backend.Decision {
	answers := make([]backend.Decision, len(asks))
	var wg sync.WaitGroup
	for i := range asks {
		if asks[i].Cost != 0 || asks[i].Look {
			wg.Go(func() { answers[i] = c.takeShard(ctx, charge, i, asks[i]) })
		} else {
			answers[i].Allowed = true
		}
	}
	wg.Wait()
	return answers
}

// lookAtShards tells what is left in all shards, and the latest of their times.
func (c *cluster) lookAtShards(ctx context.Context, charge *backend.Charge) (buckets []algorithms.Bucket, now algorithms.Micros, err error) {
	looks := make([]algorithms.Ask, len(charge.Shards))
	for i := range looks {
		looks[i] = algorithms.Ask{Hash: charge.Ask.Hash, Look: true}
	}
	seen := c.eachShard(ctx, charge, looks)
	buckets = make([]algorithms.Bucket, len(seen))
	for i := range seen {
		c.shards.saw(charge.Key, charge.Shards, i, &seen[i])
		if seen[i].Err != nil {
			return nil, 0, seen[i].Err
		}
		buckets[i].Limit = &charge.Shards[i]
		buckets[i].State = algorithms.State{By: &charge.Shards[i], Value: seen[i].Value, At: seen[i].At}
		now = max(now, seen[i].At)
	}
	return buckets, now, nil
}

// planShards decides ask of shards as they were seen, and returns what to ask of each.
func planShards(now algorithms.Micros, buckets []algorithms.Bucket, ask algorithms.Ask) (algorithms.Decision, []algorithms.Ask) {
	before := slices.Clone(buckets)
	d := algorithms.TakeShards(now, buckets, ask)
	asks := make([]algorithms.Ask, len(buckets))
	for i, b := range buckets {
		if was := before[i].State; b.State.Value != was.Value || b.State.At != was.At {
			_, had := b.Limit.Take(was, now, algorithms.Ask{Hash: ask.Hash, Look: true})
			asks[i] = algorithms.Ask{Cost: had.Value - b.State.Value, Raw: true, Hash: ask.Hash, Reserve: ask.Reserve, Of: partOf(b.Limit, &ask)}
		}
	}
	return d, asks
}

// partOf is Ask.Of for a shard's part of ask. Of a token bucket the plan has left out what has flowed into
// all shards since.
func partOf(l *algorithms.Limit, ask *algorithms.Ask) algorithms.Micros {
	if l.Kind == algorithms.TokenBucket {
		return 0
	}
	return ask.Of
}

// takeAllShards looks at all shards, decides, and charges each its part. It reports whether that
// stands: if a part was gone by then, what was charged is given back, and the answer is a denial until
// there is enough again of what was there instead.
func (c *cluster) takeAllShards(ctx context.Context, charge *backend.Charge, decision *backend.Decision) bool {
	ask := charge.Ask
	buckets, now, err := c.lookAtShards(ctx, charge)
	if err != nil {
		*decision = backend.Decision{Err: err}
		return true
	}
	var asks []algorithms.Ask
	decision.Decision, asks = planShards(now, buckets, ask)
	decision.At = now
	if !decision.Allowed || ask.Look || ask.Cost == 0 {
		return true
	}
	answers := c.eachShard(ctx, charge, asks)
	stands := true
	for i := range answers {
		if decision.Err = backend.Graver(decision.Err, answers[i].Err); decision.Err != nil {
			decision.Decision = algorithms.Decision{}
		}
		stands = stands && answers[i].Allowed && answers[i].Err == nil
	}
	if stands {
		return true
	}
	for i := range answers {
		if answers[i].Err != nil || !answers[i].Allowed || asks[i].Cost <= 0 {
			continue
		}
		undo := algorithms.Ask{Cost: -asks[i].Cost, Raw: true, Hash: ask.Hash, Of: answers[i].At}
		copied := *charge
		copied.Key = append([]byte(nil), charge.Key...)
		c.background.Do(func(ctx context.Context) {
			given, err := c.giveToShard(ctx, &copied, i, undo)
			// Others may have filled it.
			if rest := (-undo.Cost - given) / copied.Shards[i].Unit(); err == nil && rest > 0 {
				copied.Ask = algorithms.Ask{Cost: -rest, Hash: ask.Hash, Of: undo.Of}
				c.giveToShards(ctx, &copied, &backend.Decision{})
			}
		})
	}
	if decision.Err != nil {
		return true
	}
	for i := range answers { // as they are, and will be once that is given back
		if asks[i].Cost != 0 {
			buckets[i].State.Value, buckets[i].State.At = answers[i].Value, answers[i].At
			now = max(now, answers[i].At)
		}
		if answers[i].Allowed {
			buckets[i].State.Value += asks[i].Cost
		}
	}
	if is := algorithms.TakeShards(now, buckets, ask); !is.Allowed {
		decision.Decision, decision.At = is, now
	} else { // it is there again
		decision.Decision = algorithms.Decision{RetryAfter: 1, Remaining: decision.Remaining}
	}
	return false
}

// giveToShards gives back to the emptiest shards first. They are not seen all at one moment, and
// others may fill what was seen to have room: what did not fit is offered to each in turn, twice. (Of
// 1,300 units that 12 at once took and gave back, 32 were lost when each was given once, now none.)
func (c *cluster) giveToShards(ctx context.Context, charge *backend.Charge, decision *backend.Decision) {
	ask := charge.Ask
	ask.Cost = max(ask.Cost, -charge.Limit.Most(true))
	buckets, now, err := c.lookAtShards(ctx, charge)
	if err != nil {
		*decision = backend.Decision{Err: err}
		return
	}
	var asks []algorithms.Ask
	decision.Decision, asks = planShards(now, buckets, ask)
	decision.At = now
	given, errs := make([]int64, len(asks)), make([]error, len(asks))
	var wg sync.WaitGroup
	for i := range asks {
		if asks[i].Cost < 0 {
			wg.Go(func() { given[i], errs[i] = c.giveToShard(ctx, charge, i, asks[i]) })
		}
	}
	wg.Wait()
	rest := algorithms.Undone(charge.Shards, -ask.Cost*charge.Shards[0].Unit(), ask.Of, now)
	for i := range asks {
		rest -= given[i]
		err = backend.Graver(err, errs[i])
	}
	for _, i := range append(rand.Perm(len(asks)), rand.Perm(len(asks))...) {
		if err != nil || rest <= 0 {
			break
		}
		var fitted int64
		fitted, err = c.giveToShard(ctx, charge, i, algorithms.Ask{Cost: -rest, Raw: true, Hash: ask.Hash, Of: partOf(charge.Limit, &ask)})
		rest -= fitted
	}
	if err != nil {
		if errors.Is(err, backend.ErrNotTaken) && rest < -ask.Cost*charge.Shards[0].Unit() {
			err = backend.MaybeTaken(err)
		}
		*decision = backend.Decision{Err: err}
	}
}

// giveToShard gives back to shard i and returns how much fitted, what has flowed in since give.Of included:
// it looks and gives in one step.
func (c *cluster) giveToShard(ctx context.Context, charge *backend.Charge, i int, give algorithms.Ask) (given int64, err error) {
	part, key := c.shard(charge, i)
	look := part
	look.Ask = algorithms.Ask{Hash: give.Hash, Look: true}
	part.Ask, part.Group = give, look.Group+1
	var d [2]backend.Decision
	c.laneOf(ctx, key).Take(ctx, []backend.Charge{look, part}, d[:])
	c.learn(d[1:])
	c.shards.saw(charge.Key, charge.Shards, i, &d[1])
	if d[1].Err != nil {
		return 0, d[1].Err
	}
	flowed := -give.Cost - algorithms.Undone([]algorithms.Limit{*part.Limit}, -give.Cost, give.Of, d[1].At)
	return d[1].Value - d[0].Value + flowed, nil
}
