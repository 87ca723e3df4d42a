package redis

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A sharded bucket is split over the slots of the cluster, and so over its masters. For each plain charge, two
// shards are drawn at random. The shard with more units, by its last known state, is charged, and usually
// allows the charge. If it denies, all shards are read, and the cost is consumed from the shards that have
// units (combine.go). A charge is denied only if all shards together have too few units, or if other sidecars have
// changed the shards during three attempts. Reservations, refunds and dry runs always use all shards.

// shardStore is a Store for charges of sharded buckets. Each charge is a group of its own, without an
// idempotency key.
type shardStore struct {
	next   backend.Store // the Store of the shards, and of groups of several shards
	memory shardMemory
	draws  sync.Pool
}

func newShardStore(next backend.Store, now func() algorithms.Micros) *shardStore {
	s := &shardStore{next: next, memory: shardMemory{now: now, clock: time.Now, random: rand.IntN}}
	s.draws.New = func() any {
		d := &draws{shardStore: s}
		d.batch.Done, d.batch.OnKnown = d.answered, d.decided
		return d
	}
	return s
}

func (s *shardStore) Submit(b *backend.Batch) {
	d := s.draws.Get().(*draws)
	d.outer = b
	d.pending.Store(1)
	for i := range b.Charges {
		switch c := &b.Charges[i]; {
		case c.Reset:
			d.resetShards(i)
		case c.Terms.Cost > c.Limit.Most(c.Terms.Reserve):
			b.Decisions[i].Never = true
			b.SetKnown(i, i+1)
		case c.Terms.Cost < 0 && !c.Terms.DryRun:
			d.refund(i)
		case c.Terms.Cost > 0 && !c.Terms.Reserve && !c.Terms.DryRun:
			d.draw(i)
		default:
			d.combine(i)
		}
	}
	d.submit()
}

// draws is a batch in flight. One batch of charges of drawn shards decides most of its charges. The others are
// decided separately, so that none of them waits for a server that it does not need.
type draws struct {
	*shardStore

	outer   *backend.Batch
	pending atomic.Int32 // the number of undecided parts of the outer batch: the charges of drawn are one part, and each charge that is decided separately is another
	drawn   []drawn
	batch   backend.Batch // has one charge for each element of drawn
}

// drawn is a charge of the outer batch, with the shard drawn for it.
type drawn struct{ charge, shard int }

// draw draws a shard for charge i, and adds its charge to the batch, unless it can never hold the cost.
func (d *draws) draw(i int) {
	c := &d.outer.Charges[i]
	shard := d.memory.draw(c.Key, c.Shards, c.Terms.Hash)
	if c.Terms.Cost > c.Shards[shard].Capacity {
		d.combine(i)
		return
	}
	d.drawn = append(d.drawn, drawn{i, shard})
	d.batch.Charges = append(d.batch.Charges, shardOf(c, shard))
	d.batch.Charges[len(d.drawn)-1].Group = len(d.drawn)
}

func (d *draws) submit() {
	n, b := len(d.drawn), d.outer
	if n == 0 {
		d.ended()
		return
	}
	d.batch.Decisions = slices.Grow(d.batch.Decisions[:0], n)[:n]
	clear(d.batch.Decisions)
	d.batch.Known = slices.Grow(d.batch.Known[:0], n)[:n]
	clear(d.batch.Known)
	d.batch.Deadline, d.batch.Detached, d.batch.Source = b.Deadline, b.Detached, b.Source
	d.next.Submit(&d.batch)
}

// answered is the Done function of the batch.
func (d *draws) answered(b *backend.Batch) {
	for i := range d.drawn {
		if !b.IsKnown(i) {
			d.decided(i, i+1)
		}
	}
	d.ended()
}

// decided is the OnKnown function of the batch: it handles the decisions on the charges with the positions
// from <= i < to. A charge that its shard denied is made at all shards. Remaining and Value of the others become the
// sums over all shards.
func (d *draws) decided(from, to int) {
	for i := from; i < to; i++ {
		w := d.drawn[i]
		c := &d.outer.Charges[w.charge]
		is := d.batch.Decisions[i]
		left := d.memory.observe(c.Key, c.Shards, w.shard, &is)
		if is.Err == nil && !is.Allowed {
			d.combine(w.charge)
			continue
		}
		is.Remaining, is.Value = left/c.Shards[w.shard].Unit(), left
		d.conclude(w.charge, is)
	}
}

// conclude stores the decision on charge i. It converts the Value of the decision from the unit of the shards to that of
// the limit.
func (d *draws) conclude(i int, is backend.Decision) {
	is.Value = wholeValue(&d.outer.Charges[i], is.Value)
	d.outer.Decisions[i] = is
	d.outer.SetKnown(i, i+1)
}

// ended records that one part of the batch is decided. After the last part it ends the batch.
func (d *draws) ended() {
	if d.pending.Add(-1) > 0 {
		return
	}
	b := d.outer
	clear(d.batch.Charges)
	d.outer, d.drawn, d.batch.Charges, d.batch.Source = nil, d.drawn[:0], d.batch.Charges[:0], nil
	d.shardStore.draws.Put(d)
	b.Done(b)
}

// wholeValue converts v from the unit of c's shards to the unit of the whole limit.
func wholeValue(c *backend.Charge, v int64) int64 {
	return wholeUnits(v, c.Limit.Unit(), c.Shards[0].Unit())
}

// wholeUnits converts v, a sum over shards, from 1/shard unit to 1/whole unit, and rounds down. It computes
// with 128 bits, because the product may need more than 64. The result needs no more than 64, because it is at most
// the capacity of the whole limit.
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

func shardOf(c *backend.Charge, i int) backend.Charge {
	part := *c
	part.Limit, part.Shards = &c.Shards[i], nil
	part.Slot = shardSlot(c.Key, i, len(c.Shards))
	return part
}

// shardMemory stores the last known states of shards, so that a charge can choose between two shards. An outdated
// state costs an extra call, or makes Remaining inexact. It never makes a limit admit too much.
type shardMemory struct {
	now    func() algorithms.Micros // nil means the clocks of the shards
	clock  func() time.Time
	random func(n int) int // returns a random number below n

	mu    sync.Mutex
	known map[uint64][]shardState // for each shard, by the hash of the bucket's key; guarded by mu
}

// shardState is the last known state of a shard. at is when this process learned it, and failed is when the
// shard last failed, both by this process's clock.
type shardState struct {
	state      algorithms.State // zero if it is unknown; then the shard counts as full
	at, failed time.Time
}

// maxSharded is the largest number of buckets whose shards are stored. When there would be more, all are removed.
const maxSharded = 65_536

// access calls f with the states of a bucket's shards. mu is locked during the call.
func (m *shardMemory) access(key []byte, shards []algorithms.Limit, f func(known []shardState)) {
	hash := xxhash.Sum64(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.known[hash]
	if len(known) != len(shards) {
		if m.known == nil || len(m.known) >= maxSharded {
			m.known = map[uint64][]shardState{}
		}
		known = make([]shardState, len(shards))
		m.known[hash] = known
	}
	f(known)
}

// draw draws two different shards at random, and returns the one with more units. The units that have flowed
// in since the last known state are included. Without them, a shard that was once empty would not be charged
// again, and its inflow would be lost. A shard that has just failed counts as empty.
func (m *shardMemory) draw(key []byte, shards []algorithms.Limit, hash uint64) (shard int) {
	n := len(shards)
	shard, other := m.random(n), m.random(n-1)
	if other >= shard {
		other++
	}
	wall := m.clock()
	left := func(i int, s *shardState) int64 {
		if wall.Sub(s.failed) < reloadPause {
			return math.MinInt64
		}
		now := s.state.At + algorithms.Micros(wall.Sub(s.at)/time.Microsecond)
		if m.now != nil {
			now = m.now()
		}
		_, d := shards[i].Take(s.state, now, algorithms.Charge{Hash: hash, DryRun: true})
		return d.Value
	}
	m.access(key, shards, func(known []shardState) {
		if left(other, &known[other]) > left(shard, &known[shard]) {
			shard = other
		}
	})
	return shard
}

// order returns the numbers from 0 to n-1 in random order.
func (m *shardMemory) order(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	for i := n - 1; i > 0; i-- {
		j := m.random(i + 1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}

// observe stores the decision of shard i as its last known state. It returns the sum of the last known values of
// all shards. A shard whose state is unknown counts as full, and one in debt as empty. If the decision is an error,
// observe stores only the time of the failure, and the result is 0.
func (m *shardMemory) observe(key []byte, shards []algorithms.Limit, i int, d *backend.Decision) (sum int64) {
	wall := m.clock()
	m.access(key, shards, func(known []shardState) {
		if d.Err != nil {
			known[i].failed = wall
			return
		}
		known[i] = shardState{state: algorithms.State{By: &shards[i], Value: d.Value, At: d.At}, at: wall}
		for j := range known {
			if known[j].state.By == nil {
				sum += shards[j].Capacity * shards[j].Unit()
			} else {
				sum += max(0, known[j].state.Value)
			}
		}
	})
	return sum
}

func (m *shardMemory) forget(key []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, xxhash.Sum64(key))
}
