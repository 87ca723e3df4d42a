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

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A sharded bucket is split over the slots of the cluster, and so over its masters. For each charge, two
// shards are drawn at random. The one with more units, by its last known state, is charged, and usually
// allows the charge. If it denies, the other one is charged. If that one denies, too, all shards are read,
// and the cost is consumed from the shards that have units (combine.go). A charge is denied only if all
// shards together have too few units.

// shardStore is a Store for charges of sharded buckets. Each charge is a group of its own, without an
// idempotency key.
type shardStore struct {
	next   backend.Store // the Store of the shards
	memory shardMemory
	undos  *stores.Undos
	draws  sync.Pool
}

func newShardStore(next backend.Store, undos *stores.Undos, now func() algorithms.Micros) *shardStore {
	s := &shardStore{next: next, undos: undos, memory: shardMemory{now: now, clock: time.Now, random: rand.IntN}}
	s.draws.New = func() any {
		d := &draws{shardStore: s}
		d.steps.Bind(next, d.step)
		d.steps.OnKnown(d.knows)
		return d
	}
	return s
}

// Submit implements backend.Store.
func (s *shardStore) Submit(b *backend.Batch) {
	d := s.draws.Get().(*draws)
	d.outer = b
	d.pending.Store(1)
	for i := range b.Charges {
		switch c := &b.Charges[i]; {
		case c.Reset:
			d.runSeparately(i, &resetShards{charge: *c, memory: &s.memory})
		case c.Terms.Cost > c.Limit.Most(c.Terms.Reserve):
			b.Decisions[i].Never = true
			b.SetKnown(i, i+1)
		case c.Terms.Cost < 0 && !c.Terms.DryRun:
			d.runSeparately(i, &refund{charge: *c, memory: &s.memory})
		case c.Terms.Cost > 0 && !c.Terms.Reserve && !c.Terms.DryRun && !c.Limit.Overdraw:
			first, second := s.memory.draw(c.Key, c.Shards, c.Terms.Hash)
			d.drawn = append(d.drawn, drawn{charge: i, shards: [2]int{first, second}})
		default:
			d.runSeparately(i, &combine{charge: *c, memory: &s.memory})
		}
	}
	d.steps.Run(b)
}

// draws is a batch in flight. Each of its steps makes every undecided charge at one of the shards that were
// drawn for it.
type draws struct {
	*shardStore

	outer     *backend.Batch
	pending   atomic.Int32 // the number of undecided parts of the batch: the draws, and each charge that is decided separately
	steps     stores.Steps
	drawn     []drawn
	charges   []backend.Charge
	decisions []backend.Decision
}

// drawn is a charge of the batch, with the two shards drawn for it.
type drawn struct {
	charge   int // in the outer batch
	shards   [2]int
	tried    int // how many of shards are done: charged, or certain to have too little
	separate bool
}

// step handles the answers of the shards that were charged last. Then it returns the charges of the next
// ones.
func (d *draws) step(answers []backend.Decision) ([]backend.Charge, []backend.Decision) {
	d.record(answers)
	clear(d.charges)
	d.charges = d.charges[:0]
	sent := d.drawn[:0]
	for _, w := range d.drawn {
		c := &d.outer.Charges[w.charge]
		for w.tried < len(w.shards) && c.Terms.Cost > c.Shards[w.shards[w.tried]].Capacity {
			w.tried++
		}
		if w.tried == len(w.shards) { // all shards must be read
			d.runSeparately(w.charge, &combine{charge: *c, memory: &d.memory})
			continue
		}
		d.charges = append(d.charges, shardOf(c, w.shards[w.tried]))
		d.charges[len(d.charges)-1].Group = len(d.charges)
		w.tried++
		sent = append(sent, w)
	}
	d.drawn = sent
	if len(d.charges) == 0 {
		d.ended()
		return nil, nil
	}
	d.decisions = slices.Grow(d.decisions[:0], len(d.charges))[:len(d.charges)]
	clear(d.decisions)
	return d.charges, d.decisions
}

// record handles the answers of the shards that were charged last. Only charges that were denied stay in
// drawn.
func (d *draws) record(answers []backend.Decision) {
	if answers == nil {
		return
	}
	denied := d.drawn[:0]
	for i, w := range d.drawn {
		if !w.separate && !d.outer.IsKnown(w.charge) && !d.answer(&w, &answers[i]) {
			denied = append(denied, w)
		}
	}
	d.drawn = denied
}

// knows handles the decisions from to to, which are known before those of the other shards. A charge that was
// denied does not wait for the other decisions: its next steps are run separately.
func (d *draws) knows(from, to int) {
	for i := from; i < to; i++ {
		if w := &d.drawn[i]; !d.answer(w, &d.decisions[i]) {
			w.separate = true
			c := &d.outer.Charges[w.charge]
			d.runSeparately(w.charge, &redraw{combine: combine{charge: *c, memory: &d.memory}, shards: w.shards[w.tried:]})
		}
	}
}

// answer answers the charge of w with the decision of a shard. If the shard denied the charge, answer returns
// false instead.
func (d *draws) answer(w *drawn, answer *backend.Decision) bool {
	c := &d.outer.Charges[w.charge]
	is, ok := d.memory.answer(c, w.shards[w.tried-1], *answer)
	if !ok {
		return false
	}
	is.Value = wholeValue(c, is.Value)
	d.outer.Decisions[w.charge] = is
	d.outer.SetKnown(w.charge, w.charge+1)
	return true
}

// redraw makes a charge at the remaining shard that was drawn for it. If that shard denies, too, redraw
// combines all shards.
type redraw struct {
	combine

	shards  []int // the drawn shards that have not been charged
	sent    int   // the shard that was charged last
	waiting bool  // the decision of sent is outstanding
}

func (m *redraw) step(answers []backend.Decision) (charges []backend.Charge, undo []*refund) {
	if m.waiting {
		m.waiting = false
		var ok bool
		if m.is, ok = m.memory.answer(&m.charge, m.sent, answers[0]); ok {
			return nil, nil
		}
		answers = nil
	}
	for answers == nil && len(m.shards) > 0 {
		m.sent, m.shards = m.shards[0], m.shards[1:]
		if m.charge.Terms.Cost <= m.charge.Shards[m.sent].Capacity {
			m.waiting = true
			return []backend.Charge{shardOf(&m.charge, m.sent)}, nil
		}
	}
	return m.combine.step(answers)
}

// runSeparately runs m, which decides charge i, separately from the other charges.
func (d *draws) runSeparately(i int, m machine) {
	d.pending.Add(1)
	d.run(m, d.outer, func(is backend.Decision) {
		is.Value = wholeValue(&d.outer.Charges[i], is.Value)
		d.outer.Decisions[i] = is
		d.outer.SetKnown(i, i+1)
		d.ended()
	})
}

// ended records that one part of the batch is decided. After the last part it ends the batch.
func (d *draws) ended() {
	if d.pending.Add(-1) > 0 {
		return
	}
	b := d.outer
	clear(d.charges)
	d.outer, d.drawn, d.charges = nil, d.drawn[:0], d.charges[:0]
	d.shardStore.draws.Put(d)
	b.Done(b)
}

// wholeValue converts v from the unit of c's shards to the unit of the whole limit.
func wholeValue(c *backend.Charge, v int64) int64 {
	return wholeUnits(v, c.Limit.Unit(), c.Shards[0].Unit())
}

// wholeUnits converts v, a sum over shards, from 1/shard unit to 1/whole unit, and rounds down. It computes
// with 128 bits, because the product may need more than 64. The result is at most the capacity of the whole
// limit.
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

// shardOf returns c as a charge of its i-th shard.
func shardOf(c *backend.Charge, i int) backend.Charge {
	part := *c
	part.Limit, part.Shards = &c.Shards[i], nil
	part.Slot = shardSlot(c.Key, i, len(c.Shards))
	return part
}

// shardMemory remembers the last known states of shards, so that a charge can choose between two shards. A
// wrong state costs an extra call, but never makes an answer wrong.
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
	state      algorithms.State // zero if the shard was never charged
	at, failed time.Time
}

// maxSharded is the largest number of buckets whose shards are remembered. When there would be more, all are
// forgotten.
const maxSharded = 65_536

func (m *shardMemory) of(key []byte, shards []algorithms.Limit, use func(known []shardState)) {
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
	use(known)
}

// draw returns two different shards at random; first is the one with more units. The units that have flowed
// in since the last known state are included. Without them, a shard that was once empty would not be charged
// again, and its inflow would be lost. A shard that has just failed comes second.
func (m *shardMemory) draw(key []byte, shards []algorithms.Limit, hash uint64) (first, second int) {
	n := len(shards)
	first = m.random(n)
	if second = m.random(n - 1); second >= first {
		second++
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
	m.of(key, shards, func(known []shardState) {
		if left(second, &known[second]) > left(first, &known[first]) {
			first, second = second, first
		}
	})
	return first, second
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
// all shards. A shard whose state is unknown counts as full.
func (m *shardMemory) observe(key []byte, shards []algorithms.Limit, i int, d *backend.Decision) (sum int64) {
	wall := m.clock()
	m.of(key, shards, func(known []shardState) {
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

// answer returns the decision on c, made from the decision d of its shard i. Remaining and Value become the
// sums over all shards. ok is false if the shard denied c: other shards may still allow it.
func (m *shardMemory) answer(c *backend.Charge, i int, d backend.Decision) (_ backend.Decision, ok bool) {
	left := m.observe(c.Key, c.Shards, i, &d)
	if d.Err == nil && !d.Allowed {
		return d, false
	}
	d.Remaining, d.Value = left/c.Shards[i].Unit(), left
	return d, true
}

// forget removes the states of a bucket's shards.
func (m *shardMemory) forget(key []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, xxhash.Sum64(key))
}
