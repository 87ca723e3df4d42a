package redis

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A sharded bucket is split over the slots of the cluster, and so over its masters. Of two shards
// drawn at random the one that had more left when last heard of is asked; usually that is all. If it
// denies, the other is asked; if that denies too, all are looked at, and what the cost needs is taken
// from those that have it. A denial is given only when the tokens were not there.

// shardMemory remembers what was last seen left in shards, to choose by. It is a hint: being wrong
// costs a trip, never a wrong answer.
type shardMemory struct {
	mu   sync.Mutex
	left map[uint64][]int64 // by the hash of the bucket's key; Value of each shard; guarded by mu
}

// maxSharded bounds the buckets remembered; beyond it they are forgotten all at once.
const maxSharded = 65_536

func (m *shardMemory) of(key []byte, shards []algorithms.Limit, use func(left []int64)) {
	hash := xxhash.Sum64(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.left[hash]
	if len(left) != len(shards) {
		if m.left == nil || len(m.left) >= maxSharded {
			m.left = map[uint64][]int64{}
		}
		left = make([]int64, len(shards))
		for i := range left { // a shard never seen counts as full
			left[i] = full(&shards[i])
		}
		m.left[hash] = left
	}
	use(left)
}

func full(l *algorithms.Limit) int64 {
	if l.Kind == algorithms.FixedWindow {
		return l.Capacity
	}
	return l.V
}

// draw returns two different shards at random, the one with more left first.
func (m *shardMemory) draw(key []byte, shards []algorithms.Limit) (first, second int) {
	n := len(shards)
	first = rand.IntN(n)
	if second = rand.IntN(n - 1); second >= first {
		second++
	}
	m.of(key, shards, func(left []int64) {
		if left[second] > left[first] {
			first, second = second, first
		}
	})
	return first, second
}

// saw remembers what is left in shard i and returns what was last seen in all of them.
func (m *shardMemory) saw(key []byte, shards []algorithms.Limit, i int, value int64) (sum int64) {
	m.of(key, shards, func(left []int64) {
		left[i] = value
		for _, v := range left {
			sum += max(0, v)
		}
	})
	return sum
}

// takeShards takes one charge of a sharded bucket.
func (c *cluster) takeShards(ctx context.Context, charge *backend.Charge, decision *backend.Decision) {
	ask, shards := charge.Ask, charge.Shards
	if ask.Cost > charge.Limit.Most(ask.Reserve) {
		decision.Never = true
		return
	}
	if ask.Cost > 0 && !ask.Reserve && !ask.Look && !charge.Limit.Overdraw {
		first, second := c.shards.draw(charge.Key, shards)
		for _, i := range [...]int{first, second} {
			if ask.Cost > shards[i].Capacity {
				continue
			}
			d := c.takeShard(ctx, charge, i, ask)
			if d.Err != nil || d.Allowed {
				*decision = d
				decision.Remaining = c.shards.saw(charge.Key, shards, i, d.Value) / unit(&shards[i])
				return
			}
			c.shards.saw(charge.Key, shards, i, d.Value)
		}
	}
	for range 3 { // others may take what was seen before we do
		if c.takeAllShards(ctx, charge, decision) {
			return
		}
	}
}

func (c *cluster) takeShard(ctx context.Context, charge *backend.Charge, i int, ask algorithms.Ask) backend.Decision {
	part := *charge
	part.Limit, part.Ask, part.Shards = &charge.Shards[i], ask, nil
	part.Slot = shardSlot(charge.Key, i, len(charge.Shards))
	key, _ := c.keys.of(&part)
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

// takeAllShards looks at all shards, decides, and charges each its part. It reports whether that
// stands: if a part was gone by then, what was charged is given back.
func (c *cluster) takeAllShards(ctx context.Context, charge *backend.Charge, decision *backend.Decision) bool {
	shards, ask := charge.Shards, charge.Ask
	looks := make([]algorithms.Ask, len(shards))
	for i := range looks {
		looks[i] = algorithms.Ask{Hash: ask.Hash, Look: true}
	}
	seen := c.eachShard(ctx, charge, looks)
	buckets := make([]algorithms.Bucket, len(seen))
	now := algorithms.Micros(0)
	for i := range seen {
		if seen[i].Err != nil {
			*decision = seen[i]
			return true
		}
		buckets[i].Limit = &shards[i]
		buckets[i].State = algorithms.State{By: &shards[i], Value: seen[i].Value, At: seen[i].At}
		now = max(now, seen[i].At)
		c.shards.saw(charge.Key, shards, i, seen[i].Value)
	}
	decision.Decision, decision.At = algorithms.TakeShards(now, buckets, ask), now
	if !decision.Allowed || ask.Look || ask.Cost == 0 {
		return true
	}
	asks := make([]algorithms.Ask, len(seen))
	for i, b := range buckets {
		if b.State.Value == seen[i].Value && b.State.At == seen[i].At {
			continue // nothing to take from it
		}
		before := algorithms.State{By: b.Limit, Value: seen[i].Value, At: seen[i].At}
		_, had := b.Limit.Take(before, now, algorithms.Ask{Hash: ask.Hash, Look: true})
		asks[i] = algorithms.Ask{Cost: had.Value - b.State.Value, Raw: true, Hash: ask.Hash, Reserve: ask.Reserve, Of: ask.Of}
	}
	answers := c.eachShard(ctx, charge, asks)
	stands := true
	for i := range answers {
		if answers[i].Err != nil {
			decision.Decision, decision.Err = algorithms.Decision{}, answers[i].Err
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
		c.do(func(ctx context.Context) { c.takeShard(ctx, &copied, i, undo) })
	}
	if decision.Err != nil {
		return true
	}
	decision.Decision = algorithms.Decision{RetryAfter: 1, Remaining: decision.Remaining}
	return false
}

// unit is how many of a Value make one unit.
func unit(l *algorithms.Limit) int64 {
	if l.Kind == algorithms.FixedWindow {
		return 1
	}
	return l.Q
}
