package stores

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Lease returns a wrapper of another Store (next). The wrapper decides charges of hot keys locally, from units leased
// from the wrapped Store. So a key with a hundred thousand requests per second causes only a few calls of the wrapped
// Store per second. Leases serve only charges with lease terms (Charge.Lease), and only keys with many requests.
//
// When such a key has no lease, the wrapper charges the wrapped Store more than the cost of the request. The
// additional units are a lease: they serve later requests until they are used up or the lease expires. Then unused
// units are returned. The next lease is requested earlier, in the background, so that no request waits for it. The
// consequences are:
//
//   - A fixed window never admits more than it holds. Its units are never used after its end, by the clock of the
//     wrapped Store.
//   - A token bucket admits at most capacity + floor((T + Lease.For)*rate/period) in any time T.
//   - For each other process that has a lease, requests are denied up to Lease.Most units too early. The leased units
//     of a process that dies are lost, and so are requested units without an answer. A token bucket gets unused units
//     back less those that have flowed in since the grant (Charge.ChargedAt). A token bucket with shards gets none
//     back.
//
// A lease never denies. Every denial comes from the wrapped Store, for the cost alone. Before a denial, the process
// returns its leased units of the bucket, except units that it is requesting at that moment. A decision from a lease
// is the one that the wrapped Store would make if no other process had charged the bucket since the last decision of
// the wrapped Store.
//
// Only plain charges are decided locally. The wrapped Store decides reservations, refunds, dry runs and groups with
// idempotency keys, and these cannot use leased units. A group uses leased units if the wrapped Store allows its
// other charges. A group with a bucket that a denial changes (overdraw, penalty) leases nothing.
//
// A change of the limit's numbers or of the lease terms drops the lease, and its unused units are lost. A Reset drops
// the lease, too. While there are hot keys, a timer returns the unused units of expired leases. Close stops the
// timer.
func Lease(next backend.Store, c LeaseConfig) *LeaseStore {
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	if c.MaxKeys <= 0 {
		c.MaxKeys = 16_384
	}
	if c.Clocks == nil {
		c.Clocks = systemClocks()
	}
	if c.Clock == nil {
		c.Clock = outside.System
	}
	s := &LeaseStore{next: next, config: c, elapsed: newElapsed(c.Clocks), background: NewUndosBy(c.Clock, c.Timeout)}
	for i := range s.shards {
		s.shards[i].maxHotKeys = max(1, c.MaxKeys/leaseShards)
		s.shards[i].hotKeys = map[string]*hotKey{}
	}
	s.batches.New = func() any {
		t := &leaseBatch{store: s}
		t.inner.Done = t.ended
		t.onKnown = t.answerKnown
		return t
	}
	return s
}

// LeaseConfig configures Lease. Zero fields mean the defaults.
type LeaseConfig struct {
	// Timeout is how long calls in the background, which lease ahead or return units, may wait to be sent
	// (default: 1 s).
	Timeout time.Duration
	MaxKeys int // the approximate number of keys that can have leases at a time (default: 16,384)
	// Clocks returns what the monotonic clock and the wall clock show; each clock counts from an arbitrary
	// moment. nil means the clocks of the system. A lease expires when it has expired by either clock.
	Clocks func() (monotonic, wall time.Duration)
	// Clock is used for the deadlines of batches and for the timer; nil means the clock of the system.
	Clock outside.Clock
}

// LeaseStore is the Store that Lease returns.
type LeaseStore struct {
	next    backend.Store
	config  LeaseConfig
	elapsed *elapsed
	armed   atomic.Bool // the timer is set, or its function runs
	closed  atomic.Bool // the timer must not be set any more
	// background counts the calls that Close waits for: leases requested ahead, and returns of units that the
	// timer sends.
	background *Undos
	batches    sync.Pool
	shards     [leaseShards]leaseShard
}

// Submit implements Store.
func (s *LeaseStore) Submit(b *backend.Batch) {
	switch {
	case hasReset(b.Charges):
		s.reset(b)
	case !anyLease(b.Charges):
		s.next.Submit(b)
	case len(b.Charges) == 1:
		s.submitOne(b)
	default:
		s.submitGroups(b)
	}
}

// decideAtOnce implements immediate: it decides groups from leases and from the denial cache.
func (s *LeaseStore) decideAtOnce(b *backend.Batch, rest *excerpt) {
	denied, _ := s.next.(*DeniedStore)
	if denied != nil && denied.cachedGroups.Load() == 0 {
		denied = nil
	}
	leases := anyLease(b.Charges)
	if denied == nil && !leases || refundsOrResets(b.Charges) {
		rest.add(b.Charges, 0)
		return
	}
	var now time.Duration
	var wall time.Time
	if leases {
		now = s.now()
	}
	if denied != nil {
		wall = denied.config.Clock()
	}
	for at := 0; at < len(b.Charges); {
		end := at + backend.GroupLen(b.Charges[at:])
		charges, decisions := b.Charges[at:end], b.Decisions[at:end]
		var known bool
		switch {
		case len(charges) == 1 && canLease(&charges[0]):
			known = s.decideOne(&charges[0], &decisions[0], now)
		case denied != nil && !anyLease(charges):
			known = denied.decideGroup(charges, decisions, wall)
		}
		if known {
			b.SetKnown(at, end)
		} else {
			rest.add(charges, at)
		}
		at = end
	}
}

// decideOne decides c from the leases of its bucket if they suffice.
func (s *LeaseStore) decideOne(c *backend.Charge, d *backend.Decision, now time.Duration) bool {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	l := sh.find(c)
	if l == nil {
		sh.mu.Unlock()
		return false
	}
	enough, request := s.consume(sh, l, c, now)
	if enough {
		sh.stats.Served++
		*d = l.answer(now)
	}
	sh.mu.Unlock()
	request.submit()
	return enough
}

// submitGroups decides the groups of b for which leased units suffice, and submits all other groups to the wrapped
// Store.
func (s *LeaseStore) submitGroups(b *backend.Batch) {
	t := s.newBatch(b, s.now())
	for at := 0; at < len(b.Charges); {
		end := at + backend.GroupLen(b.Charges[at:])
		if s.plan(t, at, end) {
			b.SetKnown(at, end)
		}
		at = end
	}
	if len(t.charges) == 0 {
		t.finishCall()
		return
	}
	t.submitCharges(b.Waits)
}

func (s *LeaseStore) now() time.Duration { return s.elapsed.now() }

func anyLease(charges []backend.Charge) bool {
	for i := range charges {
		if charges[i].Lease != nil {
			return true
		}
	}
	return false
}

func canLease(c *backend.Charge) bool {
	a := &c.Terms
	return c.Lease != nil && c.IdempotencyKey == nil && a.Cost > 0 && !a.DryRun && !a.Reserve && !a.Scaled && c.Limit.CanReserve() && !denialChangesBucket(c)
}

func denialChangesBucket(c *backend.Charge) bool {
	return c.Limit.ChargesDenied() || c.Limit.Penalty.After > 0
}

// denialChangesGroup reports whether a denial changes a bucket of the group. Such a group leases nothing: if
// a grant is denied, the group is submitted a second time, which would record its denial twice.
func denialChangesGroup(group []backend.Charge) bool {
	return slices.ContainsFunc(group, func(c backend.Charge) bool { return denialChangesBucket(&c) })
}

func hasReset(charges []backend.Charge) bool {
	for i := range charges {
		if charges[i].Reset {
			return true
		}
	}
	return false
}

// reset submits b, which resets buckets, to the wrapped Store. It drops the leases of these buckets in this process.
// Other processes may use or return their leases until these expire.
func (s *LeaseStore) reset(b *backend.Batch) {
	after := *b
	after.Waits = false
	after.Done = func(*backend.Batch) {
		s.dropReset(b.Charges, nil) // drops leases that were granted after the first drop
		b.Done(b)
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
				s.next.Submit(&after)
				if source != nil && source.Flush != nil {
					source.Flush()
				}
			}
		})
	})
	if waits.Add(-1) == 0 {
		s.next.Submit(&after)
	}
}

// dropReset drops the leases of the buckets that charges reset. If visit is not nil, dropReset calls it with
// each lease that is being requested in the background, while the lock of the lease's shard is held.
func (s *LeaseStore) dropReset(charges []backend.Charge, visit func(*ahead)) {
	for i := range charges {
		if charges[i].Reset {
			s.drop(charges[i].Key, visit)
		}
	}
}

const returnInterval = 50 * time.Millisecond

// arm sets the timer, unless it is set already. It is called when a key has become hot, and when units must
// be returned.
func (s *LeaseStore) arm() {
	if !s.closed.Load() && s.armed.CompareAndSwap(false, true) {
		s.config.Clock.AfterFunc(returnInterval, s.tick)
	}
}

// tick is the function of the timer. After Close it does nothing.
func (s *LeaseStore) tick() {
	if s.background.Begin() {
		s.ReturnUnits()
		s.background.End()
	}
	s.armed.Store(false)
	if s.Stats().Keys > 0 { // a key may have become hot before armed was cleared
		s.arm()
	}
}

// ReturnUnits returns the unused units of expired leases to the wrapped Store, and forgets keys that are no longer hot.
// The timer calls it.
func (s *LeaseStore) ReturnUnits() {
	now := s.now()
	var returns []backend.Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		returns = sh.expire(returns, now)
		sh.cool(now)
		sh.mu.Unlock()
	}
	s.returnUnits(returns)
}

// Close stops the timer and the leasing in the background, and returns all leased units. It waits for the background
// calls in flight, and then for the decisions on the returns. It drops returns that cannot be sent within
// LeaseConfig.Timeout.
func (s *LeaseStore) Close() {
	s.closed.Store(true)
	s.background.Close()
	s.Clear()
}

// Clear returns all leased units, and makes all keys cold. Leases in flight are dropped when they arrive, and their
// units are lost.
func (s *LeaseStore) Clear() {
	now := s.now()
	var returns []backend.Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		returns = append(returns, sh.returns...)
		sh.returns = nil
		for key, l := range sh.hotKeys {
			returns = sh.returnAll(returns, l, now)
			sh.drop([]byte(key))
		}
		sh.mu.Unlock()
	}
	s.returnUnits(returns)
}

// ClearBucket does for one bucket what Clear does for all.
func (s *LeaseStore) ClearBucket(key []byte) {
	now := s.now()
	sh, _ := s.shard(key)
	var returns []backend.Charge
	sh.mu.Lock()
	if l := sh.hotKeys[string(key)]; l != nil {
		returns = sh.returnAll(nil, l, now)
		sh.drop(key)
	}
	sh.mu.Unlock()
	s.returnUnits(returns)
}

// returnUnits submits charges, which return units, and waits for the decisions. A return whose outcome is unknown
// is not repeated.
func (s *LeaseStore) returnUnits(charges []backend.Charge) {
	slices.SortStableFunc(charges, func(a, b backend.Charge) int { return bytes.Compare(a.Key, b.Key) }) // makes simulations reproducible: the order of a map is random
	until := s.config.Clock.Now().Add(s.config.Timeout)
	for part := range slices.Chunk(charges, maxReturns) {
		for i := range part {
			part[i].Group = i
		}
		backend.Wait(s.next, backend.Batch{Charges: part, Decisions: make([]backend.Decision, len(part)), Deadline: until, Detached: true})
	}
}
