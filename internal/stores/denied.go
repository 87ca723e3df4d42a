package stores

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Denied returns a wrapper that adds a denial cache to another Store (next). So requests for a key that is over its
// limit cost the wrapped Store almost nothing.
//
// After a denial, the same group with the same costs is denied from the cache until a retry could succeed. So are
// larger costs of a token bucket or fixed window that denied. If the denial is older than MaxAge, exactly one caller
// revalidates it with the wrapped Store. Until the wrapped Store answers, the other callers still get the cached
// denial.
//
// The cache never allows a group. If another process refunds units or resets a bucket, the cache may continue to
// deny, for at most MaxAge and the time of one call of the wrapped Store.
//
// A denial is removed as soon as this process consumes or refunds units of one of its buckets. So only other
// processes can make a cached denial differ from the answer of the wrapped Store. For token buckets and fixed
// windows, Remaining and ResetAfter are computed for the current time. For other algorithms, for shards and for
// limits with a penalty, Remaining keeps its value and ResetAfter counts down.
//
// For a group that contains a limit with a penalty, only denials during a block are cached, until the block ends.
// Each denial before a block must be counted, so it must reach the wrapped Store.
//
// Clear and ClearBucket remove denials at once.
func Denied(next backend.Store, c DeniedConfig) *DeniedStore {
	if c.MaxAge <= 0 {
		c.MaxAge = time.Second
	}
	if c.MaxGroups <= 0 {
		c.MaxGroups = 65_536
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	s := &DeniedStore{next: next, config: c, denials: newDenials(c.MaxGroups)}
	s.batches.New = func() any {
		t := &deniedBatch{store: s}
		t.inner.Done = t.ended
		t.onKnown = func(from, to int) { t.rest.pass(t.outer, from, to) }
		return t
	}
	return s
}

// DeniedConfig configures Denied. Zero fields mean the defaults.
type DeniedConfig struct {
	MaxAge    time.Duration    // the age at which a denial is revalidated (default: 1 s)
	MaxGroups int              // the largest number of cached groups (default: 65,536); when there would be more, the cache is emptied
	Clock     func() time.Time // returns the current time (default: time.Now)
}

// DeniedStore is the Store that Denied returns.
type DeniedStore struct {
	next    backend.Store
	config  DeniedConfig
	batches sync.Pool

	cachedGroups atomic.Int64
	submitted    atomic.Uint64 // the number of batches so far, which is also the number of the newest batch
	clearedAt    atomic.Uint64 // the number of the newest batch at the time of the last Clear
	// changed has one element for all key hashes with the same remainder. The element is the number of the newest
	// batch at the time when this process last changed a bucket with such a hash. A denial from that batch or an
	// earlier one may be outdated.
	changed [1024]atomic.Uint64

	mu      sync.RWMutex
	denials denials // guarded by mu
}

// Submit implements Store.
func (s *DeniedStore) Submit(b *backend.Batch) {
	t := s.batches.Get().(*deniedBatch)
	t.outer, t.refundsOrResets = b, refundsOrResets(b.Charges)
	if t.refundsOrResets {
		s.clearChanged(b.Charges)
	}
	t.submittedAt, t.number = s.config.Clock(), s.submitted.Add(1)
	if s.cachedGroups.Load() > 0 {
		t.answerKnown(b)
	} else {
		t.whole = true
	}
	if !t.whole && len(t.places) == 0 {
		t.release()
		b.Done(b)
		return
	}
	in := &t.inner
	in.Deadline, in.Detached, in.Waits, in.Source = b.Deadline, b.Detached, b.Waits, b.Source
	if t.whole {
		in.Charges, in.Decisions, in.Known, in.OnKnown = b.Charges, b.Decisions, b.Known, b.OnKnown
	} else {
		t.gather(b)
	}
	s.next.Submit(in)
}

// deniedBatch is a Batch in flight, with the part of it that is submitted to the wrapped Store. deniedBatches are
// reused.
type deniedBatch struct {
	store           *DeniedStore
	outer           *backend.Batch
	inner           backend.Batch
	whole           bool // inner is the whole outer batch, and shares its slices
	refundsOrResets bool
	submittedAt     time.Time
	number          uint64
	places          []int // the positions in outer of the groups that are submitted to the wrapped Store
	revalidated     []*denial
	rest            excerpt // the groups that are submitted to the wrapped Store, unless whole
	onKnown         func(from, to int)
}

func (t *deniedBatch) answerKnown(b *backend.Batch) {
	known := 0
	for at := 0; at < len(b.Charges); {
		end := at + backend.GroupLen(b.Charges[at:])
		answered, old := t.store.known(b.Charges[at:end], b.Decisions[at:end], t.submittedAt)
		if old != nil {
			t.revalidated = append(t.revalidated, old)
		}
		if answered {
			known++
			b.SetKnown(at, end)
		} else {
			clear(b.Decisions[at:end])
			t.places = append(t.places, at)
		}
		at = end
	}
	t.whole = known == 0
}

func (t *deniedBatch) gather(b *backend.Batch) {
	for _, at := range t.places {
		t.rest.add(b.Charges[at:at+backend.GroupLen(b.Charges[at:])], at)
	}
	t.rest.prepare()
	in := &t.inner
	in.Charges, in.Decisions, in.Known, in.OnKnown = t.rest.charges, t.rest.decisions, t.rest.known, t.onKnown
}

// ended is the Done function of inner.
func (t *deniedBatch) ended(*backend.Batch) {
	b := t.outer
	defer b.Done(b) // so Done is called even if update panics
	defer t.release()
	if !t.whole {
		t.rest.pass(b, 0, len(t.rest.charges))
	}
	for at, n := range t.groups() {
		if !b.Charges[at].Reset {
			t.store.update(b.Charges[at:at+n], b.Decisions[at:at+n], t.submittedAt, t.number)
		}
	}
	if len(t.revalidated) > 0 {
		t.store.removeOld(t.revalidated...)
	}
	if t.refundsOrResets {
		t.store.clearChanged(b.Charges)
	}
}

// groups yields the position in outer and the length of each group that was submitted to the wrapped Store.
func (t *deniedBatch) groups() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		charges := t.outer.Charges
		if !t.whole {
			for _, at := range t.places {
				if !yield(at, backend.GroupLen(charges[at:])) {
					return
				}
			}
			return
		}
		for at := 0; at < len(charges); {
			n := backend.GroupLen(charges[at:])
			if !yield(at, n) {
				return
			}
			at += n
		}
	}
}

func (t *deniedBatch) release() {
	clear(t.revalidated)
	t.places, t.revalidated = t.places[:0], t.revalidated[:0]
	t.rest.reset()
	t.outer, t.whole = nil, false
	t.inner = backend.Batch{Done: t.inner.Done}
	t.store.batches.Put(t)
}

// known answers a group from the cache if possible. If the denial is older than MaxAge, known returns it, as the
// result old, to exactly one caller. That caller must revalidate the denial with the wrapped Store, and then remove
// it.
func (s *DeniedStore) known(charges []backend.Charge, decisions []backend.Decision, now time.Time) (known bool, old *denial) {
	d := s.find(charges, decisions, now)
	if d != nil && !now.Before(d.revalidateAt) && d.revalidating.CompareAndSwap(false, true) {
		return false, d
	}
	return d != nil, nil
}

// decideGroup answers a group from the cache, unless its denial must be revalidated.
func (s *DeniedStore) decideGroup(charges []backend.Charge, decisions []backend.Decision, now time.Time) bool {
	d := s.find(charges, decisions, now)
	if d != nil && (now.Before(d.revalidateAt) || d.revalidating.Load()) {
		return true
	}
	clear(decisions)
	return false
}

// find answers a group from its cached denial, and returns the denial, even if it is older than MaxAge. It returns nil
// if the cache cannot answer the group.
func (s *DeniedStore) find(charges []backend.Charge, decisions []backend.Decision, now time.Time) *denial {
	if charges[0].Reset || charges[0].IdempotencyKey != nil { // the wrapped Store may have stored an allowed decision for the idempotency key
		return nil
	}
	if s.cachedGroups.Load() == 0 { // usually the cache is empty, and no hash needs to be computed
		return nil
	}
	s.mu.RLock()
	d := s.denials.groups[groupHash(charges)]
	s.mu.RUnlock()
	if d == nil || !d.answerGroup(charges, decisions, now) {
		return nil
	}
	return d
}

func (s *DeniedStore) removeOld(old ...*denial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range old {
		s.denials.remove(d)
	}
	s.cachedGroups.Store(int64(len(s.denials.groups)))
}

func (s *DeniedStore) update(charges []backend.Charge, decisions []backend.Decision, submittedAt time.Time, batchNumber uint64) {
	if backend.ConsumedAny(charges, decisions) || allAllowed(charges, decisions) { // ConsumedAny is false for an allowed group that has both a dry run and a charge
		s.clearConsumed(charges)
		return
	}
	if d := denialOf(charges, decisions, submittedAt, s.config.Clock(), s.config.MaxAge); d != nil {
		s.cache(d, batchNumber)
	}
}

func allAllowed(charges []backend.Charge, decisions []backend.Decision) bool {
	for i := range decisions {
		if decisions[i].Err != nil {
			return false
		}
	}
	return backend.Allowed(charges, decisions)
}

func (s *DeniedStore) cache(d *denial, batchNumber uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The count s.cachedGroups is raised before s.outdated reads s.changed. ClearBucket writes s.changed before it reads
	// s.cachedGroups. So either s.outdated returns true, or ClearBucket sees the raised count and removes d.
	s.cachedGroups.Store(int64(len(s.denials.groups)) + 1)
	defer func() { s.cachedGroups.Store(int64(len(s.denials.groups))) }()
	if !s.outdated(d.charges, batchNumber) {
		s.denials.add(d)
	}
}

// outdated reports whether a denial of charges may be outdated, because this process may have changed one of
// the buckets, or emptied the cache, since it submitted the batch.
func (s *DeniedStore) outdated(charges []backend.Charge, batchNumber uint64) bool {
	if s.clearedAt.Load() >= batchNumber {
		return true
	}
	for i := range charges {
		if s.changedBy(xxhash.Sum64(charges[i].Key)).Load() >= batchNumber {
			return true
		}
	}
	return false
}

func (s *DeniedStore) changedBy(bucket uint64) *atomic.Uint64 {
	return &s.changed[bucket%uint64(len(s.changed))]
}

func (s *DeniedStore) clearConsumed(charges []backend.Charge) {
	for i := range charges {
		c := &charges[i]
		if c.Terms.Cost <= 0 && c.Own == nil || c.Terms.DryRun {
			continue
		}
		s.ClearBucket(c.Key)
	}
}

func (s *DeniedStore) clearChanged(charges []backend.Charge) {
	for i := range charges {
		if charges[i].Refunds() || charges[i].Reset {
			s.ClearBucket(charges[i].Key)
		}
	}
}

// ClearBucket removes the denials of one bucket. A later denial is cached only if its batch is submitted after
// ClearBucket.
func (s *DeniedStore) ClearBucket(key []byte) {
	bucket := xxhash.Sum64(key)
	s.changedBy(bucket).Store(s.submitted.Load())
	if s.cachedGroups.Load() == 0 {
		return
	}
	s.mu.RLock()
	listed := len(s.denials.buckets[bucket])
	s.mu.RUnlock()
	if listed == 0 { // a goroutine that caches a denial of the bucket from now on reads the number that was stored above
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denials.removeBucket(bucket)
	s.cachedGroups.Store(int64(len(s.denials.groups)))
}

// Clear removes all denials. A later denial is cached only if its batch is submitted after Clear.
func (s *DeniedStore) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearedAt.Store(s.submitted.Load())
	s.denials.clear()
	s.cachedGroups.Store(0)
}
