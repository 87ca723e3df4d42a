package stores

import (
	"bytes"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Denied returns a Store with a denial cache, so that a key under attack costs next almost nothing.
//
// After a denial, the same group with the same or larger costs is denied from the cache until a retry could
// succeed, and for at most MaxAge. The cache never allows. It may deny for up to MaxAge longer than next
// would, if another process refunds units or resets the bucket. When a denial is older than MaxAge and a
// retry could not succeed yet, exactly one caller revalidates it with next, while the others still get the
// cached one.
//
// A denial is removed as soon as this process consumes or refunds units of one of its buckets. So a cached
// answer differs from that of next only by the changes of other processes. For token buckets and fixed
// windows, Remaining and ResetAfter are computed for the present time. For other algorithms, for shards and
// for limits with a penalty they keep the values that they had when the denial was cached.
//
// For a limit with a penalty, only denials by a block are cached, until the block ends, because each denial
// before a block must be counted.
//
// Forget and ForgetBucket remove denials at once.
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
	MaxAge    time.Duration    // the longest time for which a denial is cached (1 s)
	MaxGroups int              // the number of cached groups (65,536); beyond it the cache is emptied
	Clock     func() time.Time // returns the time (time.Now)
}

// DeniedStore is the Store that Denied returns.
type DeniedStore struct {
	next    backend.Store
	config  DeniedConfig
	batches sync.Pool

	remembered atomic.Int64  // the number of cached groups
	takes      atomic.Uint64 // the number of batches submitted to next
	forgotten  atomic.Uint64 // the number of the newest batch when the cache was emptied
	// changed has, for each part of the hashes of keys, the number of the newest batch when this process
	// last changed such a bucket. A denial from that batch or an earlier one may be outdated.
	changed [1024]atomic.Uint64

	mu      sync.RWMutex
	denials denials // guarded by mu
}

// unknown stands for an unknown time.
const unknown algorithms.Micros = -1

// denial is the cached answer to a group.
type denial struct {
	hash      uint64 // the hash of its group
	charges   []backend.Charge
	decisions []backend.Decision
	stays     []algorithms.Micros // how long each Remaining stays unchanged; unknown if the decision does not describe the whole bucket
	at, until time.Time
	retry     time.Time   // the time at which a retry may succeed
	asked     atomic.Bool // a caller is revalidating the denial
}

// Submit implements Store.
func (s *DeniedStore) Submit(b *backend.Batch) {
	t := s.batches.Get().(*deniedBatch)
	t.outer, t.changes = b, givesBack(b.Charges)
	if t.changes {
		s.forgetChanged(b.Charges)
	}
	t.asked, t.take = s.config.Clock(), s.takes.Add(1)
	if s.remembered.Load() > 0 {
		t.look(b)
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

// deniedBatch is a Batch in flight: the part of it that is submitted to next. It is reused.
type deniedBatch struct {
	store   *DeniedStore
	outer   *backend.Batch
	inner   backend.Batch
	whole   bool // inner is the whole outer batch, and shares its slices
	changes bool // see givesBack
	asked   time.Time
	take    uint64
	places  []int     // the positions in outer of the groups that are submitted
	again   []*denial // the denials that are revalidated
	rest    excerpt   // the groups that are submitted, unless whole
	onKnown func(from, to int)
}

// look answers the groups of b whose denials are cached, and records the positions of the others.
func (t *deniedBatch) look(b *backend.Batch) {
	known := 0
	for at := 0; at < len(b.Charges); {
		end := at + backend.GroupLen(b.Charges[at:])
		answered, old := t.store.known(b.Charges[at:end], b.Decisions[at:end], t.asked)
		if old != nil {
			t.again = append(t.again, old)
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

// gather copies the groups at places to inner.
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
	defer b.Done(b) // even if learn panics
	defer t.release()
	if !t.whole {
		t.rest.pass(b, 0, len(t.rest.charges))
	}
	for at, n := range t.groups() {
		if !b.Charges[at].Reset {
			t.store.learn(b.Charges[at:at+n], b.Decisions[at:at+n], t.asked, t.take)
		}
	}
	if len(t.again) > 0 {
		t.store.forgetOld(t.again...)
	}
	if t.changes {
		t.store.forgetChanged(b.Charges)
	}
}

// groups yields the positions in outer of the submitted groups, and their lengths.
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
	clear(t.again)
	t.places, t.again = t.places[:0], t.again[:0]
	t.rest.reset()
	t.outer, t.whole = nil, false
	t.inner = backend.Batch{Done: t.inner.Done}
	t.store.batches.Put(t)
}

// known answers a group from the cache if possible. If the denial is too old, exactly one caller gets it as
// old. That caller must revalidate it with next and then remove it.
func (s *DeniedStore) known(charges []backend.Charge, decisions []backend.Decision, now time.Time) (known bool, old *denial) {
	d := s.find(charges, decisions, now)
	if d != nil && !now.Before(d.until) && d.asked.CompareAndSwap(false, true) {
		return false, d
	}
	return d != nil, nil
}

// find answers a group from the cached denial, however old, and returns the denial. It returns nil if none
// applies.
func (s *DeniedStore) find(charges []backend.Charge, decisions []backend.Decision, now time.Time) *denial {
	if charges[0].Reset || charges[0].IdempotencyKey != nil { // a group with an idempotency key may have been charged before the denial
		return nil
	}
	if s.remembered.Load() == 0 { // usually 0; then the hash need not be computed
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

// forgetOld removes denials that were revalidated, if they are still cached.
func (s *DeniedStore) forgetOld(old ...*denial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range old {
		s.denials.forget(d)
	}
	s.remembered.Store(int64(len(s.denials.groups)))
}

// answerGroup answers a group that may be the denied one, and reports whether the group is still denied.
func (d *denial) answerGroup(charges []backend.Charge, decisions []backend.Decision, now time.Time) (denied bool) {
	if !now.Before(d.retry) || len(charges) != len(d.charges) {
		return false
	}
	passed := algorithms.Micros(now.Sub(d.at) / time.Microsecond)
	for i := range charges {
		if !d.answer(i, &charges[i], passed, &decisions[i]) {
			return false
		}
	}
	return !backend.Allowed(charges, decisions)
}

// answer computes the answer to c from charge i of the denied group. passed is the time since the denial in
// microseconds. It reports whether c is the same charge with at least the same cost.
func (d *denial) answer(i int, c *backend.Charge, passed algorithms.Micros, answer *backend.Decision) bool {
	was := &d.charges[i]
	ask := was.Terms
	ask.Cost = max(ask.Cost, c.Terms.Cost)
	if was.Limit != c.Limit || ask != c.Terms || was.Then != c.Then || !bytes.Equal(was.Key, c.Key) {
		return false
	}
	*answer = d.decisions[i]
	switch more := ask.Cost > was.Terms.Cost; {
	case more && (answer.Allowed || d.stays[i] == unknown):
		return false // a bucket that allowed a cost may not allow a larger one
	case more:
		answer.RetryAfter = retryLater(c, answer, passed)
	case !answer.Allowed:
		answer.RetryAfter -= passed
		answer.Blocked = max(0, answer.Blocked-passed)
	}
	if stays := d.stays[i]; stays == unknown || passed < stays {
		answer.ResetAfter = max(0, answer.ResetAfter-passed)
	} else {
		answer.Remaining, answer.ResetAfter = remainsLater(c, answer, passed)
	}
	return answer.Allowed || answer.RetryAfter > 0
}

// retryLater returns the retry time of c, where passed microseconds have passed since d denied a smaller
// cost. It is for buckets that Value describes completely. It is 0 if the cost can never fit, or would be
// allowed.
func retryLater(c *backend.Charge, d *backend.Decision, passed algorithms.Micros) algorithms.Micros {
	return peekLater(c, d, passed, c.Terms).RetryAfter
}

func peekLater(c *backend.Charge, d *backend.Decision, passed algorithms.Micros, ask algorithms.Charge) algorithms.Decision {
	ask.DryRun = true
	_, later := c.Limit.Take(algorithms.State{By: c.Limit, Value: d.Value, At: d.At}, d.At+passed, ask)
	return later
}

// seenLater returns the decision of a dry run at time now, on the bucket of c if it held value at time at.
func seenLater(c *backend.Charge, value int64, at, now algorithms.Micros) (d algorithms.Decision) {
	state := algorithms.State{By: c.Limit, Value: value, At: at}
	c.Limit.TakeAt(&state, max(now, at), &algorithms.Charge{Hash: c.Terms.Hash, DryRun: true}, &d)
	return d
}

// remainsLater returns Remaining and ResetAfter, passed microseconds after d. It is for buckets that Value
// describes completely.
func remainsLater(c *backend.Charge, d *backend.Decision, passed algorithms.Micros) (int64, algorithms.Micros) {
	later := seenLater(c, d.Value, d.At, d.At+passed)
	return later.Remaining, later.ResetAfter
}

// unchanged returns how long Remaining of d, the answer to c, stays unchanged. It returns unknown if d does
// not describe the bucket completely. That is so if the bucket has parts, if its state is in the numbers of
// another limit, or if the clock stepped back.
func unchanged(c *backend.Charge, d *backend.Decision) algorithms.Micros {
	kind := c.Limit.Kind
	if kind != algorithms.TokenBucket && kind != algorithms.FixedWindow || c.Limit.Rate == 0 || len(c.Shards) > 0 || c.Limit.Penalty.After > 0 {
		return unknown
	}
	remaining, reset := remainsLater(c, d, 0)
	if remaining != d.Remaining || reset != d.ResetAfter || !d.Allowed && retryLater(c, d, 0) != d.RetryAfter {
		return unknown
	}
	return peekLater(c, d, 0, algorithms.Charge{Cost: d.Remaining + 1, Hash: c.Terms.Hash}).RetryAfter
}

// learn caches a denial that lasts, and removes the denials of buckets that were charged. The group was
// submitted at the time asked, in batch number take.
func (s *DeniedStore) learn(charges []backend.Charge, decisions []backend.Decision, asked time.Time, take uint64) {
	if backend.ConsumedAny(charges, decisions) || allAllowed(charges, decisions) { // a group may have dry runs beside charges
		s.consumed(charges)
		return
	}
	if d := denialOf(charges, decisions, asked, s.config.MaxAge); d != nil {
		s.remember(d, take)
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

// denialOf returns the denial of a group that was submitted at the time asked, to be cached for at most maxAge. It
// returns nil if the group was not denied, or if its denial must not be cached.
func denialOf(charges []backend.Charge, decisions []backend.Decision, asked time.Time, maxAge time.Duration) *denial {
	lasts, plan, blocked := algorithms.Micros(0), algorithms.Micros(0), algorithms.Micros(math.MaxInt64)
	for i := range charges {
		d := &decisions[i]
		instead := i > 0 && charges[i-1].Then
		if charges[i].Limit.Penalty.After > 0 {
			blocked = min(blocked, d.Blocked)
		}
		switch {
		case d.Err != nil || charges[i].Limit.ChargesDenied() || charges[i].Terms.Cost < 0:
			return nil
		case d.Never:
			return nil // next can find out that the cost never fits without a call
		case charges[i].Then:
			plan = max(plan, d.RetryAfter)
			continue
		case !d.Allowed && instead && d.RetryAfter == 0:
			return nil // an alternative that was not needed; whether it would allow is unknown
		case !d.Allowed && instead:
			lasts = max(lasts, min(plan, d.RetryAfter))
		case !d.Allowed:
			lasts = max(lasts, d.RetryAfter)
		}
		plan = 0
	}
	if lasts = min(lasts, blocked); lasts == 0 {
		return nil
	}
	d := &denial{hash: groupHash(charges), decisions: slices.Clone(decisions), at: asked}
	d.retry = asked.Add(time.Duration(lasts) * time.Microsecond)
	d.until = asked.Add(min(maxAge, d.retry.Sub(asked)))
	for i := range charges {
		c := charges[i]
		c.Key = bytes.Clone(c.Key)
		d.charges = append(d.charges, c)
		d.stays = append(d.stays, unchanged(&c, &decisions[i]))
	}
	return d
}

// remember caches d, an answer to batch number take, unless it may be outdated.
func (s *DeniedStore) remember(d *denial, take uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The count is raised first, so that goroutines which change a bucket from now on wait for the lock.
	s.remembered.Store(int64(len(s.denials.groups)) + 1)
	defer func() { s.remembered.Store(int64(len(s.denials.groups))) }()
	if !s.outdated(d.charges, take) {
		s.denials.add(d)
	}
}

// outdated reports whether d may be outdated: whether this process may have changed one of the buckets, or
// emptied the cache, since batch number take was submitted.
func (s *DeniedStore) outdated(charges []backend.Charge, take uint64) bool {
	if s.forgotten.Load() >= take {
		return true
	}
	for i := range charges {
		if s.changedBy(xxhash.Sum64(charges[i].Key)).Load() >= take {
			return true
		}
	}
	return false
}

func (s *DeniedStore) changedBy(bucket uint64) *atomic.Uint64 {
	return &s.changed[bucket%uint64(len(s.changed))]
}

// consumed removes the denials of buckets that were charged.
func (s *DeniedStore) consumed(charges []backend.Charge) {
	for i := range charges {
		c := &charges[i]
		if c.Terms.Cost <= 0 || c.Terms.DryRun {
			continue
		}
		s.ForgetBucket(c.Key)
	}
}

// forgetChanged removes the denials of buckets that get a refund or are reset.
func (s *DeniedStore) forgetChanged(charges []backend.Charge) {
	for i := range charges {
		if charges[i].Terms.Cost < 0 || charges[i].Reset {
			s.ForgetBucket(charges[i].Key)
		}
	}
}

// ForgetBucket removes the denials of one bucket.
func (s *DeniedStore) ForgetBucket(key []byte) {
	bucket := xxhash.Sum64(key)
	s.changedBy(bucket).Store(s.takes.Load())
	if s.remembered.Load() == 0 {
		return
	}
	s.mu.RLock()
	listed := len(s.denials.buckets[bucket])
	s.mu.RUnlock()
	if listed == 0 { // a denial that is being cached right now will find that the bucket has changed
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denials.forgetBucket(bucket)
	s.remembered.Store(int64(len(s.denials.groups)))
}

// Forget removes all denials.
func (s *DeniedStore) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten.Store(s.takes.Load())
	s.denials.clear()
	s.remembered.Store(0)
}

// denials is the bounded set of cached denials. It is a state machine without a lock or a clock.
type denials struct {
	most    int
	groups  map[uint64]*denial  // by the hash of all keys of the group
	buckets map[uint64][]uint64 // the hashes of the denied groups of each bucket, by the hash of its key
	listed  int                 // the number of groups listed in buckets, including those removed since
}

func newDenials(most int) denials {
	return denials{most: most, groups: map[uint64]*denial{}, buckets: map[uint64][]uint64{}}
}

// add adds d, and replaces an older denial of its group. If there are too many denials, it removes all
// others.
func (s *denials) add(d *denial) {
	// A group that was removed because of one bucket is still listed under its other buckets.
	if len(s.groups) >= s.most || s.listed >= 8*s.most {
		s.clear()
	}
	if s.groups[d.hash] == nil {
		for i := range d.charges {
			bucket := xxhash.Sum64(d.charges[i].Key)
			s.buckets[bucket] = append(s.buckets[bucket], d.hash)
			s.listed++
		}
	}
	s.groups[d.hash] = d
}

// forget removes d, if it is still there.
func (s *denials) forget(d *denial) {
	if s.groups[d.hash] == d {
		delete(s.groups, d.hash)
	}
}

// forgetBucket removes the denials of one bucket.
func (s *denials) forgetBucket(bucket uint64) {
	for _, group := range s.buckets[bucket] {
		delete(s.groups, group)
	}
	s.listed -= len(s.buckets[bucket])
	delete(s.buckets, bucket)
}

// clear removes all denials.
func (s *denials) clear() {
	clear(s.groups)
	clear(s.buckets)
	s.listed = 0
}

func groupHash(charges []backend.Charge) uint64 {
	if len(charges) == 1 {
		return xxhash.Sum64(charges[0].Key)
	}
	var h uint64
	for i := range charges {
		h = h*0x9E3779B97F4A7C15 + xxhash.Sum64(charges[i].Key)
	}
	return h
}

// givesBack reports whether charges refund units to a bucket, or reset one.
func givesBack(charges []backend.Charge) bool {
	for i := range charges {
		if charges[i].Terms.Cost < 0 || charges[i].Reset {
			return true
		}
	}
	return false
}
