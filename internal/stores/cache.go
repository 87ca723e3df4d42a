package stores

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Cache returns a wrapper of another Store (next). It has the last known state of buckets that were denied, and of
// buckets from which units are leased. So requests for a key that is over its limit, and most requests for a hot key,
// cost the wrapped Store almost nothing. Without such buckets, the wrapper only passes batches on.
//
// # Denials
//
// After a denial, the decisions on the buckets of the denied group are remembered. A group is denied from the cache if
// the decisions on all its buckets are remembered for the same costs, and one of them is a denial. For token buckets
// and fixed windows a remembered denial also answers larger costs. If a decision is older than MaxAge, exactly one
// caller revalidates it with the wrapped Store. Until the wrapped Store answers, the other callers still get the
// cached denial.
//
// Remembered decisions never allow a group. If another process refunds units or resets a bucket, the cache may
// continue to deny, for at most MaxAge and the time of one call of the wrapped Store.
//
// A decision is forgotten as soon as this process consumes or refunds units of its bucket. So only other processes can
// make a cached denial differ from the answer of the wrapped Store. For token buckets and fixed windows, Remaining and
// ResetAfter are computed for the current time. A step of the wall clock ends all remembered decisions, because the
// time since them is not exact any more. For other algorithms, for shards and for limits with a penalty,
// Remaining keeps its value and ResetAfter counts down. Of a limit with a penalty only denials during a block are
// remembered, until the block ends: each denial before a block must be counted, so it must reach the wrapped Store.
//
// # Leases
//
// Leases serve only charges with lease terms (Charge.Lease), and only keys with many requests. A lease consists of units
// that the wrapper charges to the wrapped Store in advance, in the background: after a request that no lease could serve, and
// before a lease is used up or expires, so that no request waits for the next one. It serves later requests until it is
// used up or expires. Then unused units are returned. The consequences are:
//
//   - A fixed window never admits more than it holds. Its units are never used after its end, by the clock of the
//     wrapped Store.
//   - A token bucket admits at most capacity + floor((T + Lease.For)*rate/period) in any time T.
//   - For each other process that has a lease, requests are denied up to Lease.Most units too early. The leased units
//     of a process that dies are lost, and so are requested units without an answer. A token bucket gets unused units
//     back less those that have flowed in since the grant (Charge.ChargedAt). A token bucket with shards gets none
//     back.
//
// A lease never denies. Before a denial, the process returns its leased units of the bucket, except units that it is
// requesting at that moment. A decision from a lease is the one that the wrapped Store would make if no other process
// had charged the bucket since the last decision of the wrapped Store.
//
// The wrapped Store decides reservations, refunds, dry runs and groups with idempotency keys, and these cannot use
// leased units. A group uses leased units if the wrapped Store allows its other charges.
//
// A change of the limit's numbers or of the lease terms drops the lease, and its unused units are lost. A Reset drops
// the lease, too. While buckets are cached, a timer returns the unused units of expired leases. Close stops the timer.
func Cache(next backend.Store, c CacheConfig) *CacheStore {
	c.Timeout, c.MaxAge, c.MaxKeys = cmp.Or(c.Timeout, time.Second), cmp.Or(c.MaxAge, time.Second), cmp.Or(c.MaxKeys, 65_536)
	c.Clock = cmp.Or(c.Clock, clock.System)
	if c.Clocks == nil {
		c.Clocks = systemClocks()
	}
	s := &CacheStore{next: next, config: c, elapsed: newElapsed(c.Clocks), background: NewUndos(c.Clock, c.Timeout)}
	for i := range s.shards {
		s.shards[i].store = s
		s.shards[i].maxBuckets = max(1, c.MaxKeys/cacheShards)
		s.shards[i].buckets = map[string]*bucket{}
		s.shards[i].hot = map[*hotKey]struct{}{}
	}
	s.flights.New = func() any {
		t := &flight{store: s}
		t.inner.Done = t.ended
		t.onKnown = t.answerKnown
		return t
	}
	return s
}

// CacheConfig configures Cache. Zero fields mean the defaults.
type CacheConfig struct {
	// Timeout is how long calls in the background, which lease ahead or return units, may wait to be sent
	// (default: 1 s).
	Timeout time.Duration
	MaxAge  time.Duration // the age at which a denial is revalidated (default: 1 s)
	MaxKeys int           // the approximate number of cached buckets (default: 65,536); a quarter of them can have leases
	// Clocks returns what the monotonic clock and the wall clock show; each clock counts from an arbitrary
	// moment. nil means the clocks of the system. A lease expires when it has expired by either clock.
	Clocks func() (monotonic, wall time.Duration)
	// Clock is used for the deadlines of batches and for the timer; nil means the clock of the system.
	Clock clock.Clock
}

// CacheStore is the Store that Cache returns.
type CacheStore struct {
	next    backend.Store
	config  CacheConfig
	elapsed *elapsed
	armed   atomic.Bool // the timer is set, or its function runs
	closed  atomic.Bool // the timer must not be set any more
	// background counts the calls that Close waits for: requests for leases, and returns of units that the timer sends.
	background *Undos
	flights    sync.Pool

	served    atomic.Uint64 // see CacheStats
	cached    atomic.Int64  // the number of cached buckets
	submitted atomic.Uint64 // the number of flights so far, which is also the number of the newest flight
	clearedAt atomic.Uint64 // the number of the newest flight at the time of the last Clear
	// changed has one element for all key hashes with the same remainder. The element is the number of the newest
	// flight at the time when this process last changed a bucket with such a hash. A denial from that flight or an
	// earlier one may be outdated.
	changed [1024]atomic.Uint64

	shards [cacheShards]cacheShard
}

// cacheShards is the number of locks over which the buckets are spread.
const cacheShards = 64

// cacheShard is a part of the cached buckets, with its own lock.
type cacheShard struct {
	store      *CacheStore
	mu         sync.Mutex
	maxBuckets int
	buckets    map[string]*bucket   // guarded by mu, like the following fields
	hot        map[*hotKey]struct{} // those of buckets
	returns    []backend.Charge     // refunds of unused units that wait to be sent
	heat       *[256]heat           // request rates of keys that are not hot, by a part of their hash; nil until the first charge that may lease
	stats      CacheStats
	sweepAt    time.Duration // when denials that have ended are removed
	_          [64]byte
}

// bucket is what is known about a bucket. At least one field is not nil. It is guarded by the lock of its shard.
type bucket struct {
	denial *denial
	hot    *hotKey
}

// hotKey returns b.hot, or nil if b is nil.
func (b *bucket) hotKey() *hotKey {
	if b == nil {
		return nil
	}
	return b.hot
}

func (s *CacheStore) shard(key []byte) (*cacheShard, uint64) {
	hash := xxhash.Sum64(key)
	return &s.shards[hash%cacheShards], hash
}

// insert returns the bucket of key, and adds it if necessary.
func (sh *cacheShard) insert(key []byte) *bucket {
	b := sh.buckets[string(key)]
	if b == nil {
		b = &bucket{}
		sh.buckets[string(key)] = b
		sh.store.cached.Add(1)
	}
	return b
}

// clean removes b, the bucket of key, if nothing is known about it.
func (sh *cacheShard) clean(key []byte, b *bucket) {
	if b.denial == nil && b.hot == nil {
		delete(sh.buckets, string(key))
		sh.store.cached.Add(-1)
	}
}

func (s *CacheStore) now() time.Duration { return s.elapsed.now() }

// decideAtOnce implements immediate: it decides groups from leases and remembered denials.
func (s *CacheStore) decideAtOnce(b *backend.Batch, rest *excerpt) {
	if s.cached.Load() == 0 || refundsOrResets(b.Charges) {
		rest.add(b.Charges, 0)
		return
	}
	now := s.now()
	var few [8]cachePart
	for at := 0; at < len(b.Charges); {
		end := at + backend.GroupLen(b.Charges[at:])
		charges, decisions := b.Charges[at:end], b.Decisions[at:end]
		parts, known := s.consult(charges, few[:0], decisions, now)
		if known != unanswered && !anyOld(parts, now) {
			s.answerKnown(known, charges, parts, decisions, now)
		} else {
			s.putBackAll(charges, parts, decisions, now)
			clear(decisions)
			rest.add(charges, at)
		}
		at = end
	}
	if len(rest.charges) > 0 {
		rest.markOthers(b)
	}
}

// Submit implements Store.
func (s *CacheStore) Submit(b *backend.Batch) {
	if hasReset(b.Charges) {
		s.reset(b)
		return
	}
	t := s.newFlight(b, s.now())
	t.plan(s.cached.Load() > 0 || anyLease(b.Charges))
	t.submit()
}

func hasReset(charges []backend.Charge) bool {
	for i := range charges {
		if charges[i].Reset {
			return true
		}
	}
	return false
}

func refundsOrResets(charges []backend.Charge) bool {
	for i := range charges {
		if charges[i].Refunds() || charges[i].Reset {
			return true
		}
	}
	return false
}

// reset submits b, which resets buckets, to the wrapped Store. It drops the leases of these buckets in this process.
// Other processes may use or return their leases until these expire.
func (s *CacheStore) reset(b *backend.Batch) {
	after := *b
	after.Waits = false
	after.Done = func(*backend.Batch) {
		s.dropReset(b.Charges, nil) // drops leases that were granted after the first drop
		b.Done(b)
	}
	submit := func() {
		t := s.newFlight(&after, s.now())
		t.plan(false)
		t.submit()
	}
	// The reset is sent after the requests for leases in the background have ended. A lease that the wrapped Store
	// charges after the reset would be dropped, and the new bucket would lose its units.
	var waits atomic.Int32 // counts this call and the requests in the background
	waits.Store(1)
	s.dropReset(b.Charges, func(a *ahead) {
		waits.Add(1)
		a.then = append(a.then, func() {
			if waits.Add(-1) == 0 {
				source := after.Source
				submit()
				if source != nil && source.Flush != nil {
					source.Flush()
				}
			}
		})
	})
	if waits.Add(-1) == 0 {
		submit()
	}
}

// dropReset drops the leases of the buckets that charges reset, and their waiting returns. If visit is not nil, dropReset
// calls it with each lease that is being requested, while the lock of the lease's shard is held.
func (s *CacheStore) dropReset(charges []backend.Charge, visit func(*ahead)) {
	for i := range charges {
		if !charges[i].Reset {
			continue
		}
		key := charges[i].Key
		sh, _ := s.shard(key)
		sh.mu.Lock()
		if l := sh.buckets[string(key)].hotKey(); l != nil && l.ahead != nil && visit != nil {
			visit(l.ahead)
		}
		sh.drop(key)
		sh.returns = slices.DeleteFunc(sh.returns, func(back backend.Charge) bool { return bytes.Equal(back.Key, key) })
		sh.mu.Unlock()
	}
}

const returnInterval = 50 * time.Millisecond

// arm sets the timer, unless it is set already. It is called when a bucket is cached, and when units must be returned.
func (s *CacheStore) arm() {
	if !s.closed.Load() && s.armed.CompareAndSwap(false, true) {
		s.config.Clock.AfterFunc(returnInterval, s.tick)
	}
}

// tick is the function of the timer. After Close it does nothing.
func (s *CacheStore) tick() {
	if s.background.Begin() {
		s.ReturnUnits()
		s.background.End()
	}
	s.armed.Store(false)
	if s.cached.Load() > 0 { // a bucket may have been cached before armed was cleared
		s.arm()
	}
}

// ReturnUnits returns the unused units of expired leases to the wrapped Store, and forgets keys that are no longer hot
// and denials that have ended. The timer calls it.
func (s *CacheStore) ReturnUnits() {
	now := s.now()
	var returns []backend.Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		returns = sh.expire(returns, now)
		sh.cool(now)
		if now >= sh.sweepAt {
			sh.sweepAt = now + s.config.MaxAge
			sh.forgetDenials(func(d *denial) bool { return now >= d.until })
		}
		sh.mu.Unlock()
	}
	s.returnUnits(returns)
}

// Close stops the timer and the leasing in the background, and returns all leased units. It waits for the background
// calls in flight, and then for the decisions on the returns. It drops returns that cannot be sent within
// CacheConfig.Timeout.
func (s *CacheStore) Close() {
	s.closed.Store(true)
	s.background.Close()
	s.Clear()
}

// Clear empties the cache, and returns all leased units. Leases in flight are dropped when they arrive, and their units
// are lost. A later denial is remembered only if its batch is submitted after Clear.
func (s *CacheStore) Clear() {
	s.clearedAt.Store(s.submitted.Load())
	now := s.now()
	var returns []backend.Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		returns = append(returns, sh.returns...)
		sh.returns = nil
		for l := range sh.hot {
			returns = sh.returnAll(returns, l, now)
			sh.drop(l.charge.Key)
		}
		sh.forgetDenials(func(*denial) bool { return true })
		sh.mu.Unlock()
	}
	s.returnUnits(returns)
}

// ClearBucket does for one bucket what Clear does for all.
func (s *CacheStore) ClearBucket(key []byte) {
	s.forget(key)
	now := s.now()
	sh, _ := s.shard(key)
	var returns []backend.Charge
	sh.mu.Lock()
	if l := sh.buckets[string(key)].hotKey(); l != nil {
		returns = sh.returnAll(nil, l, now)
		sh.drop(key)
	}
	sh.mu.Unlock()
	s.returnUnits(returns)
}

// returnUnits submits charges, which return units, and waits for the decisions. A return whose outcome is unknown
// is not repeated.
func (s *CacheStore) returnUnits(charges []backend.Charge) {
	slices.SortStableFunc(charges, func(a, b backend.Charge) int { return bytes.Compare(a.Key, b.Key) }) // makes simulations reproducible: the order of a map is random
	until := s.config.Clock.Now().Add(s.config.Timeout)
	for part := range slices.Chunk(charges, maxReturns) {
		for i := range part {
			part[i].Group = i
		}
		s.forgetRefunded(part)
		backend.Wait(s.next, backend.Batch{Charges: part, Decisions: make([]backend.Decision, len(part)), Deadline: until, Detached: true})
		s.forgetRefunded(part)
	}
}
