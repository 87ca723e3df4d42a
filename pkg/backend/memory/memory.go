// Package memory keeps buckets in this process.
//
// The size of a Store is bounded. Method Run regularly deletes buckets that equal new ones. If all buckets are
// still in use, the Store refuses a new bucket rather than delete one. So a flood of invented keys neither
// exhausts memory nor resets the buckets of other keys.
package memory

import (
	"context"
	"hash/fnv"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// DefaultMaxKeys is the default of Config.MaxKeys.
const DefaultMaxKeys = 1_000_000

// stripeCount is the number of locks over which the buckets are spread. Charges of two different keys need
// the same lock with a probability of 1/128.
const stripeCount = 128

// Config configures a Store. The zero Config means DefaultMaxKeys and the wall clock.
type Config struct {
	// Clock returns the time; nil means time.Now.
	Clock func() time.Time
	// MaxKeys bounds the memory. Each bucket counts as one, and so do each entry of a sliding log and each
	// decision stored for an idempotency key. The denials that a penalty counts need one each, and one more for
	// their bucket. A bucket of a limit with Settles counts as three, one with open reservations as nine, and each slot of
	// a concurrency limit as one. 0 means DefaultMaxKeys. The largest value is about a billion. Limits that are new in a
	// full Store get their parts nevertheless (SetOwners). So the content may exceed MaxKeys by half at most, until buckets
	// of other limits are deleted.
	MaxKeys int
	// Repeatable is for replays of recorded requests. The Store then deletes the same buckets whenever it gets
	// the same requests. Its hash seed is fixed, so an attacker could construct keys that collide.
	Repeatable bool
}

// Store is a backend.Store in memory. It is safe for concurrent use.
type Store struct {
	clock   func() algorithms.Micros
	seed    *maphash.Seed // nil if Repeatable
	stripes [stripeCount]stripe
	room    room
	records [recordStripes]records
	next    atomic.Uint32 // the stripe in which the next search for room starts
	full    atomic.Uint64
	swept   atomic.Uint64
}

// stripe is a part of the buckets with its own lock. A goroutine that locks several stripes locks them in
// ascending order.
type stripe struct {
	mu        sync.Mutex
	table     table // guarded by mu
	nextSweep int   // where the next sweep starts; guarded by mu
	_         [64]byte
}

// New makes an empty Store.
func New(c Config) *Store {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.MaxKeys <= 0 {
		c.MaxKeys = DefaultMaxKeys
	}
	c.MaxKeys = min(c.MaxKeys, stripeCount*maxEntries/2) // half of the largest size, because stripes are not filled equally
	now := func() algorithms.Micros { return algorithms.Micros(c.Clock().UnixMicro()) }
	s := &Store{clock: now, room: newRoom(c.MaxKeys)}
	if !c.Repeatable {
		s.seed = new(maphash.MakeSeed())
	}
	return s
}

func (s *Store) hash(key []byte) uint64 {
	if s.seed == nil {
		h := fnv.New64a()
		h.Write(key)
		return h.Sum64()
	}
	return maphash.Bytes(*s.seed, key)
}

// Submit implements backend.Store. It decides before it returns.
func (s *Store) Submit(b *backend.Batch) {
	s.take(b.Charges, b.Decisions)
	b.Done(b)
}

func (s *Store) take(charges []backend.Charge, decisions []backend.Decision) {
	now := s.clock()
	if len(charges) == 1 && charges[0].IdempotencyKey == nil && !charges[0].Reset {
		s.takeOne(now, s.hash(charges[0].Key), &charges[0], &decisions[0])
		return
	}
	var hashes [atOnce]uint64
	for at := atOnce; len(charges) > 0; { // at is the index in hashes for charges[0]
		if at >= atOnce {
			s.touch(charges, &hashes)
			at = 0
		}
		n := backend.GroupLen(charges)
		switch {
		case charges[0].Reset:
			s.reset(hashes[at], &charges[0])
			decisions[0].Allowed = true
		case charges[0].IdempotencyKey != nil:
			s.takeOnce(now, hashes[at], charges[:n], decisions[:n])
		case n == 1:
			s.takeOne(now, hashes[at], &charges[0], &decisions[0])
		default:
			s.takeGroup(now, hashes[at:min(at+n, atOnce)], charges[:n], decisions[:n])
		}
		charges, decisions = charges[n:], decisions[n:]
		at += n
	}
}

func (s *Store) takeOne(now algorithms.Micros, hash uint64, c *backend.Charge, d *backend.Decision) {
	st := &s.stripes[hash%stripeCount]
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.table.find(hash, c.Key)
	var state algorithms.State
	if e != nil {
		e.copy(&state)
	}
	c.Limit.TakeAt(&state, now, &c.Terms, &d.Decision)
	switch {
	case e != nil && e.more == nil && state.Log == nil && state.Denials == nil && state.Peaks == nil && state.Slots == nil && state.Open == nil: // the entry does not grow
		e.set(&state)
	case s.makeRoom(st, c, e, &state, now, e):
		s.put(st, hash, c, e, &state)
	case changesUnits(c, &d.Decision):
		state.Slots.Drop()
		s.full.Add(1)
		*d = backend.Decision{Err: backend.ErrFull}
		return
	}
	d.At = now
}

func (s *Store) reset(hash uint64, c *backend.Charge) {
	st := s.stripe(hash)
	st.mu.Lock()
	defer st.mu.Unlock()
	if e := st.table.find(hash, c.Key); e != nil {
		s.room.give(e.owner, 1+e.extra())
		st.table.remove(e)
	}
}

// changesUnits reports whether d, the decision on c, consumed or refunded units if its group was charged. Such a
// decision is valid only if the new state can be stored.
func changesUnits(c *backend.Charge, d *algorithms.Decision) bool {
	return !c.Terms.DryRun && (c.Terms.Cost != 0 || c.Own != nil) && (d.Allowed || c.ChargesDenied())
}

// group has the buffers for a decision on several buckets.
type group struct {
	buckets []algorithms.Bucket
	hashes  []uint64
	entries []*entry // nil if the bucket is not stored yet
	locked  []int    // stripes, ascending
}

var groups = sync.Pool{New: func() any { return &group{} }}

// takeGroup decides charges together. hashes has the hashes of the first keys; lock computes the others.
func (s *Store) takeGroup(now algorithms.Micros, hashes []uint64, cs []backend.Charge, decisions []backend.Decision) {
	g := groups.Get().(*group)
	defer groups.Put(g)
	s.lock(g, hashes, cs)
	defer s.unlock(g)
	for i := range cs {
		g.buckets = append(g.buckets, algorithms.Bucket{})
		b := &g.buckets[i] // filled in place, because it is large
		b.Limit, b.Charge, b.Then, b.Own = cs[i].Limit, cs[i].Terms, cs[i].Then, cs[i].Own
		e := s.stripe(g.hashes[i]).table.find(g.hashes[i], cs[i].Key)
		if e != nil {
			e.copy(&b.State)
		}
		g.entries = append(g.entries, e)
	}
	all := algorithms.TakeAll(now, g.buckets)
	for i := range cs {
		b := &g.buckets[i]
		if s.makeRoom(s.stripe(g.hashes[i]), &cs[i], g.entries[i], &b.State, now, g.entries...) {
			continue
		}
		if changesUnits(&cs[i], &b.Decision) && (all || cs[i].ChargesDenied()) {
			s.releaseAndFail(g, cs[:i], decisions)
			return
		}
		b.State = algorithms.State{} // there is no room to start the clock or to count a denial, so put stores nothing
	}
	for i := range cs {
		s.put(s.stripe(g.hashes[i]), g.hashes[i], &cs[i], g.entries[i], &g.buckets[i].State)
		decisions[i].Decision, decisions[i].At = g.buckets[i].Decision, now
	}
}

func (s *Store) releaseAndFail(g *group, reserved []backend.Charge, decisions []backend.Decision) {
	for i := range reserved {
		if n := growth(g.entries[i], &g.buckets[i].State); n > 0 {
			owner := s.room.owner(reserved[i].Owner)
			if e := g.entries[i]; e != nil {
				owner = e.owner
			}
			s.room.give(owner, n)
		}
	}
	s.full.Add(1)
	for i := range decisions {
		g.buckets[i].State.Slots.Drop()
		decisions[i].Err = backend.ErrFull
	}
}

func (s *Store) stripe(hash uint64) *stripe { return &s.stripes[hash%stripeCount] }

func (s *Store) lock(g *group, hashes []uint64, cs []backend.Charge) {
	g.hashes = append(g.hashes, hashes...)
	for i := len(hashes); i < len(cs); i++ {
		g.hashes = append(g.hashes, s.hash(cs[i].Key))
	}
	for _, hash := range g.hashes {
		g.locked = append(g.locked, int(hash%stripeCount))
	}
	slices.Sort(g.locked)
	g.locked = slices.Compact(g.locked)
	for _, i := range g.locked {
		s.stripes[i].mu.Lock()
	}
}

func (s *Store) unlock(g *group) {
	for _, i := range g.locked {
		s.stripes[i].mu.Unlock()
	}
	clear(g.buckets) // so that limits and logs can be garbage-collected
	g.buckets, g.hashes, g.entries, g.locked = g.buckets[:0], g.hashes[:0], g.entries[:0], g.locked[:0]
}

// growth returns how much more room the state next needs than the entry e, or than nothing if e is nil. It may be
// negative.
func growth(e *entry, next *algorithms.State) int {
	switch {
	case e != nil:
		return extra(next) - e.extra()
	case next.By == nil: // nothing to store
		return 0
	default:
		return 1 + extra(next)
	}
}

// makeRoom reserves the room for storing next, the new state of c's bucket, and reports whether there is room. e is the
// entry of the bucket, or nil. If there is no room, makeRoom first deletes a few entries that equal new buckets, but
// none of those in keep.
func (s *Store) makeRoom(st *stripe, c *backend.Charge, e *entry, next *algorithms.State, now algorithms.Micros, keep ...*entry) bool {
	n := growth(e, next)
	if n <= 0 {
		return true
	}
	take := func() bool {
		if e != nil {
			return s.room.take(e.owner, n)
		}
		return s.room.takeFor(c.Owner, n)
	}
	return take() || s.sweepSome(st, now, keep, take)
}

// put stores the state next in the entry e, or in a new entry if e is nil. It stores nothing if next is the zero State.
// If the bucket grows, the caller has reserved the room (makeRoom).
func (s *Store) put(st *stripe, hash uint64, c *backend.Charge, e *entry, next *algorithms.State) {
	n := growth(e, next)
	switch {
	case e != nil && next.By != nil:
		if n < 0 {
			s.room.give(e.owner, -n)
		}
		e.set(next)
	case e == nil && n > 0:
		e = st.table.insert(hash, string(c.Key))
		e.owner = s.room.owner(c.Owner)
		e.set(next)
	}
}

// sweepSome sweeps some entries of st, whose lock is held, and then some of other stripes in turn, without those that are
// locked. st may be nil. After each stripe in which it deleted an entry it calls take. It returns true once take does. It
// deletes no entry in keep. It visits at most about 128 entries, so that in a flood of new keys no request waits for a
// complete sweep.
func (s *Store) sweepSome(st *stripe, now algorithms.Micros, keep []*entry, take func() bool) bool {
	const few, part = 128, 16
	if st != nil && s.sweep(st, now, part, keep) > 0 && take() {
		return true
	}
	for visited := part; visited < few; visited += part/4 + 1 {
		other := &s.stripes[s.next.Add(1)%stripeCount]
		if !other.mu.TryLock() { // waiting for the lock could deadlock, because locks are acquired in ascending order
			continue
		}
		swept := s.sweep(other, now, part, keep)
		visited += min(part, other.table.size())
		other.mu.Unlock()
		if swept > 0 && take() {
			return true
		}
	}
	return false
}

// sweep visits up to n entries of st, starting behind the last entry that was visited. It deletes entries
// that equal new buckets, but none of those in keep. st.mu is held.
func (s *Store) sweep(st *stripe, now algorithms.Micros, n int, keep []*entry) (swept int) {
	for range min(n, st.table.size()) {
		if st.nextSweep >= st.table.size() {
			st.nextSweep = 0
		}
		e := st.table.entry(st.nextSweep)
		st.nextSweep++
		if e.by == nil || now < e.state().FreshAt() || slices.Contains(keep, e) {
			continue
		}
		s.room.give(e.owner, 1+e.extra())
		st.table.remove(e)
		s.swept.Add(1)
		swept++
	}
	return swept
}

// Sweep deletes every bucket that equals a new one. It also deletes expired results of idempotency keys, at most
// once a minute.
func (s *Store) Sweep() {
	now := s.clock()
	for i := range s.stripes {
		s.sweepStripe(&s.stripes[i], now)
	}
	s.sweepRecords(now)
}

// sweepStripe sweeps all of st, and releases its lock between parts.
func (s *Store) sweepStripe(st *stripe, now algorithms.Micros) {
	const part = 256
	for done, size := 0, 1; done < size; done += part {
		st.mu.Lock()
		size = st.table.size()
		s.sweep(st, now, part, nil)
		st.mu.Unlock()
	}
}

// Run sweeps all buckets (see Sweep) at least every ten seconds until ctx ends, and every second while the Store is
// nearly full. Without Run, the Store sweeps only when a new bucket needs room, and so may use all the memory
// that MaxKeys allows.
func (s *Store) Run(ctx context.Context) {
	const turn = 100 * time.Millisecond
	tick := time.NewTicker(turn)
	defer tick.Stop()
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stripes := stripeCount/100 + 1
		if s.room.scarce() {
			stripes = stripeCount/10 + 1
		}
		now := s.clock()
		for range stripes {
			s.sweepStripe(&s.stripes[next], now)
			next = (next + 1) % stripeCount
		}
		s.sweepRecords(now)
	}
}

// SetOwners sets the limits that share the room for MaxKeys entries. Half of the room is divided equally
// among these limits, so that a flood of keys of one limit leaves room for new keys of the other limits. The
// other half is shared by all limits, and by the results stored for idempotency keys. A limit that is not
// listed has no part of its own. Before the first call of SetOwners, each limit with buckets has an equal part.
//
// An owner is the value of Charge.Owner. For a limit of package ratelimit it is the domain, a slash and the
// name of the limit, such as "edge/send". Without a domain it is "/send".
func (s *Store) SetOwners(owners []string) { s.room.setOwners(owners) }

// Stats describes the content of a Store.
type Stats struct {
	Keys    int    // how much of MaxKeys is used; Config.MaxKeys describes what counts
	MaxKeys int    // the bound of Keys
	Full    uint64 // groups of charges refused because the Store was full
	Swept   uint64 // buckets deleted because they equalled new ones
}

// Stats returns the current numbers.
func (s *Store) Stats() Stats {
	used, most := s.room.used()
	return Stats{Keys: used, MaxKeys: most, Full: s.full.Load(), Swept: s.swept.Load()}
}
