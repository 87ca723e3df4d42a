// Package memory keeps buckets in this process. It is bounded: when it is full of buckets that
// still matter a new one is refused, never an old one forgotten, so that a flood of made-up keys
// neither grows memory nor reopens a gate that is closed. What has become equal to a bucket never
// seen is swept.
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

// DefaultMaxKeys is the bound where Config gives none.
const DefaultMaxKeys = 1_000_000

// stripeCount is how many locks the buckets are spread over. Two takes meet on one with chance
// 1/128, and a whole sweep holds each for a moment only.
const stripeCount = 128

// Config of a Store; the zero Config is a Store of DefaultMaxKeys on the wall clock.
type Config struct {
	// Clock gives the time; nil: the wall clock.
	Clock func() algorithms.Micros
	// MaxKeys bounds the buckets kept, and with them the entries of sliding logs and the denials that
	// penalties count.
	MaxKeys int
	// Repeatable has the Store find the same to forget each time that the same is asked of it. It is for
	// replays: who knows of it can make up keys that are slow to find.
	Repeatable bool
}

// Store is a backend.Store in memory.
type Store struct {
	clock   func() algorithms.Micros
	seed    *maphash.Seed // nil: Repeatable
	stripes [stripeCount]stripe
	room    room
	records records
	next    atomic.Uint32 // the stripe where a take that needs room looks for some
	full    atomic.Uint64
	swept   atomic.Uint64
}

// stripe is a part of the buckets, behind a lock of its own. Of several stripes the lower is
// locked first.
type stripe struct {
	mu    sync.Mutex
	table table // guarded by mu
	hand  int   // where the next search for something to sweep starts; guarded by mu
	_     [64]byte
}

// New makes an empty Store.
func New(c Config) *Store {
	if c.Clock == nil {
		c.Clock = func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) }
	}
	if c.MaxKeys <= 0 {
		c.MaxKeys = DefaultMaxKeys
	}
	c.MaxKeys = min(c.MaxKeys, stripeCount*maxEntries/2) // half: stripes are not filled alike
	s := &Store{clock: c.Clock, room: newRoom(c.MaxKeys), records: newRecords()}
	if !c.Repeatable {
		s.seed = new(maphash.MakeSeed())
	}
	return s
}

// hash says where a key is kept.
func (s *Store) hash(key []byte) uint64 {
	if s.seed == nil {
		h := fnv.New64a()
		h.Write(key)
		return h.Sum64()
	}
	return maphash.Bytes(*s.seed, key)
}

// Submit implements backend.Store: it decides before it returns.
func (s *Store) Submit(b *backend.Batch) {
	s.take(b.Charges, b.Decisions)
	b.Done(b)
}

func (s *Store) take(charges []backend.Charge, decisions []backend.Decision) {
	now := s.clock()
	if len(charges) == 1 && charges[0].Once == nil && !charges[0].Reset {
		s.takeOne(now, s.hash(charges[0].Key), &charges[0], &decisions[0])
		return
	}
	var hashes [atOnce]uint64
	for at := atOnce; len(charges) > 0; { // hashes[at] is that of charges[0], if there is one
		if at >= atOnce {
			s.touch(charges, &hashes)
			at = 0
		}
		n := backend.GroupLen(charges)
		switch {
		case charges[0].Reset:
			s.reset(hashes[at], &charges[0])
			decisions[0].Allowed = true
		case charges[0].Once != nil:
			s.takeOnce(now, charges[:n], decisions[:n])
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
	c.Limit.TakeAt(&state, now, &c.Ask, &d.Decision)
	switch {
	case e != nil && e.more == nil && state.Log == nil && state.Denials == nil: // nothing grows
		e.set(&state)
	case s.makeRoom(st, c, e, &state, now, e):
		s.put(st, hash, c, e, &state)
	case charges(c, &d.Decision):
		s.full.Add(1)
		*d = backend.Decision{Err: backend.ErrFull}
		return
	}
	d.At = now
}

// reset makes the bucket of c one never seen.
func (s *Store) reset(hash uint64, c *backend.Charge) {
	st := s.stripe(hash)
	st.mu.Lock()
	defer st.mu.Unlock()
	if e := st.table.find(hash, c.Key); e != nil {
		s.room.give(e.owner, 1+e.extra())
		st.table.remove(e)
	}
}

// charges tells whether the answer to c took something, so that it must not be given where it
// cannot be remembered.
func charges(c *backend.Charge, d *algorithms.Decision) bool {
	return !c.Ask.Look && c.Ask.Cost != 0 && (d.Allowed || c.Limit.ChargesDenied())
}

// group is what a take of several buckets works on.
type group struct {
	buckets []algorithms.Bucket
	hashes  []uint64
	entries []*entry // nil: not there yet
	locked  []int    // stripes, ascending
}

var groups = sync.Pool{New: func() any { return &group{} }}

// takeGroup takes charges together. hashes are those of the first of them.
func (s *Store) takeGroup(now algorithms.Micros, hashes []uint64, cs []backend.Charge, decisions []backend.Decision) {
	g := groups.Get().(*group)
	defer groups.Put(g)
	s.lock(g, hashes, cs)
	defer s.unlock(g)
	for i := range cs {
		g.buckets = append(g.buckets, algorithms.Bucket{})
		b := &g.buckets[i] // filled in place: it is large
		b.Limit, b.Ask = cs[i].Limit, cs[i].Ask
		e := s.stripe(g.hashes[i]).table.find(g.hashes[i], cs[i].Key)
		if e != nil {
			e.copy(&b.State)
		}
		g.entries = append(g.entries, e)
	}
	algorithms.TakeAll(now, g.buckets)
	for i := range cs {
		b := &g.buckets[i]
		if s.makeRoom(s.stripe(g.hashes[i]), &cs[i], g.entries[i], &b.State, now, g.entries...) {
			continue
		}
		if charges(&cs[i], &b.Decision) && all(g.buckets) || cs[i].Limit.ChargesDenied() {
			s.fail(g, cs[:i], decisions)
			return
		}
		b.State = algorithms.State{} // a clock that cannot be started: the bucket stays unseen
	}
	for i := range cs {
		s.put(s.stripe(g.hashes[i]), g.hashes[i], &cs[i], g.entries[i], &g.buckets[i].State)
		decisions[i].Decision, decisions[i].At = g.buckets[i].Decision, now
	}
}

func all(buckets []algorithms.Bucket) bool {
	for i := range buckets {
		if !buckets[i].Decision.Allowed {
			return false
		}
	}
	return true
}

// fail gives the room made for made back, and answers that there is none.
func (s *Store) fail(g *group, made []backend.Charge, decisions []backend.Decision) {
	for i := range made {
		if n := growth(g.entries[i], &g.buckets[i].State); n > 0 {
			s.room.give(s.room.owner(made[i].Owner), n)
		}
	}
	s.full.Add(1)
	for i := range decisions {
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
	clear(g.buckets) // limits and logs are not kept alive
	g.buckets, g.hashes, g.entries, g.locked = g.buckets[:0], g.hashes[:0], g.entries[:0], g.locked[:0]
}

// growth is how much more room remembering next in e takes; negative: less.
func growth(e *entry, next *algorithms.State) int {
	switch {
	case e != nil:
		return extra(next) - e.extra()
	case next.By == nil: // nothing to remember
		return 0
	default:
		return 1 + extra(next)
	}
}

// makeRoom takes the room that remembering next needs, sweeping a little for it if it must; keep
// lists entries that are not to be swept.
func (s *Store) makeRoom(st *stripe, c *backend.Charge, e *entry, next *algorithms.State, now algorithms.Micros, keep ...*entry) bool {
	n := growth(e, next)
	if n <= 0 {
		return true
	}
	owner := s.room.owner(c.Owner)
	return s.room.take(owner, n) || s.sweepSome(st, now, keep) && s.room.take(owner, n)
}

// put remembers next, for which room has been made.
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

// sweepSome forgets what equals a bucket never seen among the next few entries of st, then of
// other stripes in turn, and tells whether there was any. It looks at about 128 at the most: a flood of
// new keys must not pay for a whole sweep each.
func (s *Store) sweepSome(st *stripe, now algorithms.Micros, keep []*entry) bool {
	const few, part = 128, 16
	if s.sweep(st, now, part, keep) > 0 {
		return true
	}
	for looked := part; looked < few; looked += part/4 + 1 {
		other := &s.stripes[s.next.Add(1)%stripeCount]
		if other == st || !other.mu.TryLock() { // waiting could lock up: locks are taken in order
			continue
		}
		swept := s.sweep(other, now, part, keep)
		looked += min(part, other.table.size())
		other.mu.Unlock()
		if swept > 0 {
			return true
		}
	}
	return false
}

// sweep looks at up to n entries of st, from where the last sweep stopped, and returns how many it
// forgot.
func (s *Store) sweep(st *stripe, now algorithms.Micros, n int, keep []*entry) (swept int) {
	for range min(n, st.table.size()) {
		if st.hand >= st.table.size() {
			st.hand = 0
		}
		e := st.table.entry(st.hand)
		st.hand++
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

// Sweep forgets every bucket that equals one never seen.
func (s *Store) Sweep() {
	now := s.clock()
	for i := range s.stripes {
		s.sweepStripe(&s.stripes[i], now)
	}
	s.sweepRecords(now)
}

// sweepStripe sweeps all of st, letting go of its lock now and then.
func (s *Store) sweepStripe(st *stripe, now algorithms.Micros) {
	const part = 256
	for done, size := 0, 1; done < size; done += part {
		st.mu.Lock()
		size = st.table.size()
		s.sweep(st, now, part, nil)
		st.mu.Unlock()
	}
}

// Run sweeps until ctx ends: everything once in ten seconds, once a second while little room is
// left.
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

// SetOwners says which limits share the bound: half of it is divided among them in equal parts,
// so that a flood of keys on one leaves room for new keys of each other; the other half is for
// whoever comes first, and for what is remembered of groups that are taken once. Limits not named
// here get a part when they first ask.
func (s *Store) SetOwners(owners []string) { s.room.setOwners(owners) }

// Stats of a Store.
type Stats struct {
	Keys    int    // buckets, log entries and what was answered to groups taken once
	MaxKeys int    // their bound
	Full    uint64 // takes refused for want of room
	Swept   uint64 // buckets forgotten because they had become equal to one never seen
}

// Stats returns what is kept now.
func (s *Store) Stats() Stats {
	used, most := s.room.used()
	return Stats{Keys: used, MaxKeys: most, Full: s.full.Load(), Swept: s.swept.Load()}
}
