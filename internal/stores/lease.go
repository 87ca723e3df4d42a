package stores

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Lease returns a Store that decides charges of hot keys locally, from units leased from next. So a key with a
// hundred thousand requests per second costs next a few charges per second. It leases for charges with lease terms
// (Charge.Lease), and only for keys with many requests.
//
// When such a key has no lease, more than its cost is charged in the same step. The additional units are consumed in
// next, and serve later requests until they are used or the lease expires; unused units are returned. Before that,
// the next lease is requested in the background, so that no request waits for it. So
//
//   - a fixed window never gives out more than it holds, nor later than its end, by the clock of next;
//   - a token bucket admits at most capacity + floor((T + For)*rate/period) in any span T;
//   - requests are denied up to Most units too early for each other process that has a lease. The leased units of a
//     process that dies are lost, and so are units requested without an answer. A token bucket gets unused units back
//     less those that have flowed in since the grant (Charge.ChargedAt).
//
// A lease never denies. A denial comes from next, for the cost alone, after the process has returned its leased
// units of the bucket, except those being requested at that moment. An answer from a lease is the one that next
// would give if no other process had charged the bucket since. Only plain charges are decided locally. Reservations,
// refunds, dry runs and groups with idempotency keys are decided by next, and do not see leased units. In a group,
// leased units are used if next allows the rest of it. A group with a bucket that a denial changes (overdraw,
// penalty) leases nothing.
//
// A change of the numbers and a Reset drop the lease. While there are hot keys, a timer returns the unused units of
// expired leases. Close stops it.
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
	s := &LeaseStore{next: next, config: c, elapsed: newElapsed(c.Clocks), aheads: NewUndosBy(c.Clock, c.Timeout)}
	for i := range s.shards {
		s.shards[i].most = max(1, c.MaxKeys/leaseShards)
		s.shards[i].hotKeys = map[string]*hotKey{}
	}
	s.batches.New = func() any {
		t := &leaseBatch{store: s}
		t.inner.Done = t.ended
		t.onKnown = t.knows
		return t
	}
	return s
}

// LeaseConfig configures Lease. Zero fields mean the defaults.
type LeaseConfig struct {
	Timeout time.Duration // of background calls: returns and leases ahead (1 s)
	MaxKeys int           // the approximate number of keys with a lease at a time (16,384)
	// Clocks returns the readings of the monotonic clock and of the wall clock, each since an arbitrary moment; nil
	// means those of the system. A lease expires when it does so by either clock.
	Clocks func() (monotonic, wall time.Duration)
	// Clock has the deadlines of batches and the timer; nil means that of the system.
	Clock outside.Clock
}

// LeaseStore is the Store that Lease returns.
type LeaseStore struct {
	next    backend.Store
	config  LeaseConfig
	elapsed *elapsed
	armed   atomic.Bool // the timer is set, or its function runs
	closed  atomic.Bool // the timer is not set any more
	aheads  *Undos      // the leases requested in the background
	batches sync.Pool
	shards  [leaseShards]leaseShard
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

// submitGroups answers the groups of b for which leased units suffice, and submits the others to next.
func (s *LeaseStore) submitGroups(b *backend.Batch) {
	t := s.newBatch(b, s.now())
	for at := 0; at < len(b.Charges); {
		end := at + backend.GroupLen(b.Charges[at:])
		if s.plan(t, at, end) {
			b.SetKnown(at, end)
		}
		at = end
	}
	if len(t.asked) == 0 {
		t.end()
		return
	}
	t.ask(b.Waits)
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

// canLease reports whether c may be decided from a lease.
func canLease(c *backend.Charge) bool {
	a := &c.Terms
	return c.Lease != nil && c.IdempotencyKey == nil && a.Cost > 0 && !a.DryRun && !a.Reserve && !a.Scaled && c.Limit.CanReserve() && !recordsDenied(c)
}

// recordsDenied reports whether a denial changes the bucket of c: if its limit charges denied requests, or counts
// denials for a penalty.
func recordsDenied(c *backend.Charge) bool {
	return c.Limit.ChargesDenied() || c.Limit.Penalty.After > 0
}

// recordDenied reports whether a denial changes a bucket of the group. Such a group leases nothing: if a grant is
// refused, the group is sent a second time, which would record its denial twice.
func recordDenied(group []backend.Charge) bool {
	return slices.ContainsFunc(group, func(c backend.Charge) bool { return recordsDenied(&c) })
}

// leaseBatch is the part of one Batch that is submitted to next. It is reused.
type leaseBatch struct {
	store   *LeaseStore
	outer   *backend.Batch
	inner   backend.Batch
	began   time.Duration
	sees    *hotKey // set for a Batch of one charge that next decides
	seenAt  algorithms.Micros
	asked   []backend.Charge
	answers []backend.Decision
	known   []atomic.Bool
	of      []int32 // the positions of the groups that the charges in asked belong to; returned for returns
	onKnown func(from, to int)
	groups  []leaseGroup
	parts   []leasePart      // the charges of all groups, in order
	backs   []backend.Charge // returns, which are sent before the charges
	number  int              // the number of the last group submitted
}

// returned is the position of no group.
const returned = -1

// leaseGroup is one group that is submitted to next.
type leaseGroup struct {
	charges   []backend.Charge
	decisions []backend.Decision
	at        int // the position of its first charge in the outer batch
	parts     int // the position of its first part
	done      bool
}

// leasePart is one charge of a group.
type leasePart struct {
	hotKey *hotKey // nil if the key is not hot
	spent  bool
	from   [2]spent
	borrow int64 // units requested beyond the cost
	asked  int   // its position among the submitted charges
}

func (s *LeaseStore) newBatch(b *backend.Batch, now time.Duration) *leaseBatch {
	t := s.batches.Get().(*leaseBatch)
	t.outer, t.began = b, now
	return t
}

// end ends the Batch of t.
func (t *leaseBatch) end() {
	b := t.outer
	clear(t.asked)
	clear(t.groups)
	clear(t.parts)
	clear(t.backs)
	t.asked, t.of, t.groups, t.parts, t.backs = t.asked[:0], t.of[:0], t.groups[:0], t.parts[:0], t.backs[:0]
	t.outer, t.sees = nil, nil
	t.inner = backend.Batch{Done: t.inner.Done}
	t.store.batches.Put(t)
	b.Done(b)
}

// add adds c to the last group of the call. group is its position in t.groups, or returned.
func (t *leaseBatch) add(c *backend.Charge, group int) int {
	t.asked, t.of = append(t.asked, *c), append(t.of, int32(group))
	t.asked[len(t.asked)-1].Group = t.number
	return len(t.asked) - 1
}

// plan answers a group from leases, or adds it to the call. The group starts and ends at positions of the outer batch.
// It reports whether it answered the group.
func (s *LeaseStore) plan(t *leaseBatch, at, end int) (answered bool) {
	now, charges, decisions := t.began, t.outer.Charges[at:end], t.outer.Decisions[at:end]
	g := leaseGroup{charges: charges, decisions: decisions, at: at, parts: len(t.parts)}
	leases := !slices.ContainsFunc(charges, func(c backend.Charge) bool { return c.Then }) // next decides which of them pay
	whole := true
	for i := range charges {
		var p leasePart
		if leases {
			p = s.spendPart(&charges[i], &decisions[i], now)
		}
		whole = whole && p.spent
		t.parts = append(t.parts, p)
	}
	parts := t.parts[g.parts:]
	if whole {
		t.parts = t.parts[:g.parts]
		for i := range charges {
			s.served(&charges[i])
		}
		return true
	}
	t.groups = append(t.groups, g)
	mayBorrow := !recordDenied(charges)
	for i := range charges {
		p := &parts[i]
		ending := p.spent && !p.outlasts(s.config.Clock, t.outer.Deadline, now)
		if ending {
			s.putBack(&charges[i], p, &decisions[i], now)
		}
		if p.spent || !leases || !canLease(&charges[i]) {
			continue
		}
		p.hotKey, p.borrow, t.backs = s.borrow(&charges[i], ending, mayBorrow, t.backs[:0], now)
		for i := range t.backs {
			t.number++
			t.add(&t.backs[i], returned)
		}
	}
	s.addCharges(t, len(t.groups)-1)
	return false
}

// outlasts reports whether the lease that p was charged to lasts until deadline, by which next answers.
func (p *leasePart) outlasts(clock outside.Clock, deadline time.Time, now time.Duration) bool {
	return !deadline.IsZero() && p.from[0].grant.until >= now+outside.Until(clock, deadline)
}

// addCharges adds the charges of group n that were not charged to leases to the call.
func (s *LeaseStore) addCharges(t *leaseBatch, n int) {
	g := &t.groups[n]
	t.number++
	for i := range g.charges {
		p := &t.parts[g.parts+i]
		if p.spent {
			continue
		}
		p.asked = t.add(&g.charges[i], n)
		t.asked[p.asked].Terms.Cost += p.borrow
	}
}

// ask submits the call to next. waits is Batch.Waits.
func (t *leaseBatch) ask(waits bool) {
	t.answers, t.known = zeroed(t.answers, len(t.asked)), zeroed(t.known, len(t.asked))
	t.inner.Known, t.inner.OnKnown = t.known, t.onKnown
	t.submit(t.asked, t.answers, waits)
}

func (t *leaseBatch) submit(charges []backend.Charge, decisions []backend.Decision, waits bool) {
	in, b := &t.inner, t.outer
	in.Charges, in.Decisions, in.Waits = charges, decisions, waits
	in.Deadline, in.Detached, in.Source = b.Deadline, b.Detached, b.Source
	t.store.next.Submit(in)
}

// ended is the Done function of inner.
func (t *leaseBatch) ended(*backend.Batch) {
	if t.sees != nil {
		t.store.saw(t)
		t.end()
		return
	}
	if t.store.settle(t); len(t.asked) > 0 {
		t.ask(false) // this goroutine serves others
		return
	}
	t.end()
}

// knows answers groups that next has decided before it ends the call.
func (t *leaseBatch) knows(from, to int) {
	now := t.store.now()
	for i := from; i < to; i++ {
		if t.of[i] == returned || i > from && t.of[i] == t.of[i-1] {
			continue
		}
		if g := &t.groups[t.of[i]]; t.store.settleGroup(t, g, now) {
			t.outer.SetKnown(g.at, g.at+len(g.charges))
		}
	}
}

// settle answers the groups of a call. Groups that were denied because of the units requested beyond their cost are in
// the next call.
func (s *LeaseStore) settle(t *leaseBatch) {
	now := s.now()
	clear(t.asked)
	t.asked, t.of = t.asked[:0], t.of[:0]
	for n := range t.groups {
		g := &t.groups[n]
		if g.done || s.settleGroup(t, g, now) {
			continue
		}
		for i := range g.charges {
			if p := &t.parts[g.parts+i]; p.borrow > 0 {
				s.receive(&g.charges[i], p, 0, nil, t.began, now)
			}
		}
		s.addCharges(t, n)
	}
}

// settleGroup answers g by the decisions of next. It reports false if g was denied because of the units requested
// beyond its cost.
func (s *LeaseStore) settleGroup(t *leaseBatch, g *leaseGroup, now time.Duration) (done bool) {
	parts := t.parts[g.parts : g.parts+len(g.charges)]
	var failed error
	all, again := true, false
	for i := range parts {
		if p := &parts[i]; !p.spent {
			d := &t.answers[p.asked]
			failed, all = d.Err, all && d.Allowed
			again = again || d.Err == nil && !d.Allowed && p.borrow > 0
		}
	}
	if again {
		return false
	}
	g.done = true
	for i := range parts {
		p, c, d := &parts[i], &g.charges[i], &g.decisions[i]
		switch {
		case p.spent && !all:
			s.putBack(c, p, d, now)
		case p.spent:
			s.served(c)
		default:
			s.tell(c, p, &t.answers[p.asked], d, all, t.began, now)
		}
		if failed != nil {
			*d = backend.Decision{Err: failed}
		}
	}
	return true
}

// tell computes d, the answer to c, from said, which is the decision of next; all reports whether next allowed the whole
// group.
func (s *LeaseStore) tell(c *backend.Charge, p *leasePart, decided, d *backend.Decision, all bool, asked, now time.Duration) {
	*d = *decided
	switch {
	case p.hotKey == nil:
	case decided.Err != nil:
		s.receive(c, p, 0, nil, asked, now)
	case !all:
		s.receive(c, p, 0, decided, asked, now)
	default:
		*d = later(c, *decided, p.borrow, 0)
		s.receive(c, p, p.borrow, decided, asked, now)
	}
}

// later returns the answer d to c as if the bucket had units more, passed after d.
func later(c *backend.Charge, d backend.Decision, units int64, passed algorithms.Micros) backend.Decision {
	if units == 0 && passed == 0 {
		return d
	}
	if len(c.Shards) > 0 { // d.Value is the last known value of the shards
		d.Remaining = min(c.Limit.Capacity, d.Remaining+units)
		d.ResetAfter = max(0, d.ResetAfter-passed)
		d.At += passed
		return d
	}
	was := d.At
	d.At += passed
	there := seenLater(c, d.Value+units*c.Limit.Unit(), was, d.At)
	d.Value, d.Remaining, d.ResetAfter = there.Value, there.Remaining, there.ResetAfter
	return d
}

func hasReset(charges []backend.Charge) bool {
	for i := range charges {
		if charges[i].Reset {
			return true
		}
	}
	return false
}

// reset submits b, which resets buckets, to next. It drops the leases of these buckets. Other processes may use or
// return their leases until these expire.
func (s *LeaseStore) reset(b *backend.Batch) {
	after := *b
	after.Waits = false
	after.Done = func(*backend.Batch) {
		s.dropReset(b.Charges, nil) // leases granted meanwhile
		b.Done(b)
	}
	var waits atomic.Int32 // for this call, and for leases in flight: they would be charged after the reset, and lost
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

// dropReset drops the leases of buckets that are reset. It calls see, which may be nil, with each lease in flight,
// while the lock of its shard is held.
func (s *LeaseStore) dropReset(charges []backend.Charge, see func(*ahead)) {
	for i := range charges {
		if charges[i].Reset {
			s.drop(charges[i].Key, see)
		}
	}
}

// turn is how often the unused units of expired leases are returned.
const turn = 50 * time.Millisecond

// arm sets the timer, unless it is set. It is called when a key has become hot, and when there is a return to send.
func (s *LeaseStore) arm() {
	if !s.closed.Load() && s.armed.CompareAndSwap(false, true) {
		s.config.Clock.AfterFunc(turn, s.turn)
	}
}

// turn is the function of the timer.
func (s *LeaseStore) turn() {
	s.ReturnUnits()
	s.armed.Store(false)
	if s.Stats().Keys > 0 { // some may have become hot while the timer was set
		s.arm()
	}
}

// ReturnUnits returns the unused units of expired leases to next. Its result is the number of hot keys that remain. The
// timer calls it.
func (s *LeaseStore) ReturnUnits() (keys int) {
	now := s.now()
	var backs []backend.Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		backs = sh.over(backs, now)
		sh.cool(now)
		keys += len(sh.hotKeys)
		sh.mu.Unlock()
	}
	s.returnUnits(backs)
	return keys
}

// Close stops leasing, and returns all leased units.
func (s *LeaseStore) Close() {
	s.closed.Store(true)
	s.aheads.Close()
	s.Forget()
}

// Forget returns all leased units, and forgets which keys are hot. Leases in flight are dropped when they arrive.
func (s *LeaseStore) Forget() {
	now := s.now()
	var backs []backend.Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		backs = append(backs, sh.backs...)
		sh.backs = nil
		for key, l := range sh.hotKeys {
			backs = sh.takeBack(backs, l, now)
			sh.drop([]byte(key))
		}
		sh.mu.Unlock()
	}
	s.returnUnits(backs)
}

// ForgetBucket is Forget for one bucket.
func (s *LeaseStore) ForgetBucket(key []byte) {
	now := s.now()
	sh, _ := s.shard(key)
	var backs []backend.Charge
	sh.mu.Lock()
	if l := sh.hotKeys[string(key)]; l != nil {
		backs = sh.takeBack(nil, l, now)
		sh.drop(key)
	}
	sh.mu.Unlock()
	s.returnUnits(backs)
}

// returnUnits submits the returns in backs, and waits for the decisions. A return whose outcome is unknown is not
// repeated.
func (s *LeaseStore) returnUnits(backs []backend.Charge) {
	slices.SortStableFunc(backs, func(a, b backend.Charge) int { return bytes.Compare(a.Key, b.Key) }) // maps have no order
	until := s.config.Clock.Now().Add(s.config.Timeout)
	for part := range slices.Chunk(backs, maxBacks) {
		for i := range part {
			part[i].Group = i
		}
		backend.Wait(s.next, backend.Batch{Charges: part, Decisions: make([]backend.Decision, len(part)), Deadline: until, Detached: true})
	}
}
