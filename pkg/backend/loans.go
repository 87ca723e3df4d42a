package backend

import (
	"bytes"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// leaseShards is how many locks the loans are spread over.
	leaseShards = 64
	// hotAsks within the time of a loan make a key a hot one: fewer, and a loan saves next to nothing.
	hotAsks = 8
	// leaseShare bounds a loan to this part of what is left, so that loans shrink to nothing near
	// exhaustion.
	leaseShare = 8
	// maxBacks bounds, for each lock, what waits to be given back; beyond it is lost.
	maxBacks = 256
	// never is a time that does not come.
	never = time.Duration(math.MaxInt64)
)

// leaseShard is a part of the loans, behind a lock of its own.
type leaseShard struct {
	mu    sync.Mutex
	most  int
	loans map[string]*loan // guarded by mu, and so is what follows
	backs []Charge         // to be given back
	heat  [256]heat        // of keys that are not hot, by a part of their hash
	stats LeaseStats
	_     [64]byte
}

// heat counts how often keys of one hash were asked. Two that share a hash may be taken for hot too
// early, which costs a place among the loans and nothing else.
type heat struct {
	since time.Duration
	asks  int
}

// loan is a hot key, and what is on loan of its bucket. Its shard's lock guards it.
type loan struct {
	charge Charge // which bucket, to give back to
	// lots are what is on loan, that which is over first being first: it is used first. The second
	// is borrowed ahead, in the background, before the first is used up or over.
	lots    [2]lot
	serials int // of lots
	gone    bool

	asking  bool          // somebody is about to borrow
	lending int64         // how many units are being borrowed, by both
	ahead   chan struct{} // units are being borrowed in the background, until it is closed; nil: none are
	failed  int           // how often in a row borrowing ahead failed
	// Ahead is borrowed when no more than low units are left, or from early on.
	low   int64
	early time.Duration

	seen   Decision      // the newest answer of next
	seenAt time.Duration // when it was here
	edge   time.Duration // when the window ends; never: there is none

	// used units since since: how fast this process asks.
	used  float64
	since time.Duration
	asked time.Duration // last
}

// lot is what one charge lent.
type lot struct {
	left   int64 // units
	until  time.Duration
	of     algorithms.Micros // when they were charged, by next's clock
	lentAt time.Duration     // the same by ours, or a little before
	serial int               // from 1
}

// LeaseStats are counts of a LeaseStore, since it was made but for Lent and Keys.
type LeaseStats struct {
	Served   uint64 // charges answered from loans
	Borrowed uint64 // units
	Returned uint64 // units given back, less what flowed in meanwhile
	Lent     int64  // units on loan now
	Keys     int    // hot keys now
}

// Stats returns the counts.
func (s *LeaseStore) Stats() (sum LeaseStats) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sum.Served += sh.stats.Served
		sum.Borrowed += sh.stats.Borrowed
		sum.Returned += sh.stats.Returned
		sum.Keys += len(sh.loans)
		for _, l := range sh.loans {
			sum.Lent += l.left()
		}
		sh.mu.Unlock()
	}
	return sum
}

func (s *LeaseStore) shard(key []byte) (*leaseShard, uint64) {
	hash := xxhash.Sum64(key)
	return &s.shards[hash%leaseShards], hash / leaseShards
}

// find is the loan of c's bucket, nil if it has none. Under other numbers it is dropped.
func (sh *leaseShard) find(c *Charge) *loan {
	l := sh.loans[string(c.Key)]
	if l == nil || l.charge.Limit == c.Limit {
		return l
	}
	if *l.charge.Limit != *c.Limit || *l.charge.Lease != *c.Lease || len(l.charge.Shards) != len(c.Shards) || l.charge.Slot != c.Slot {
		sh.drop(c.Key)
		return nil
	}
	l.charge.Limit, l.charge.Lease, l.charge.Shards = c.Limit, c.Lease, c.Shards
	return l
}

// submitOne answers a Batch of one charge from what is on loan of its bucket, or has next answer it.
func (s *LeaseStore) submitOne(b *Batch) {
	c := &b.Charges[0]
	if !canLease(c) {
		s.next.Submit(b)
		return
	}
	now := s.now()
	sh, hash := s.shard(c.Key)
	sh.mu.Lock()
	l := sh.find(c)
	if l == nil {
		if l = sh.warm(c, hash, now); l == nil {
			sh.mu.Unlock()
			s.next.Submit(b)
			return
		}
		s.wakeRun()
	} else if enough, next := s.spend(sh, l, c, now); enough {
		sh.stats.Served++
		b.Decisions[0] = l.answer(now)
		sh.mu.Unlock()
		next.submit()
		b.Done(b)
		return
	} else if l.left() > 0 || len(sh.backs) > 0 || !l.asking && l.want(c.Ask.Cost, now) > 0 {
		sh.mu.Unlock()
		s.submitGroups(b)
		return
	} else {
		l.count(c.Ask.Cost, now)
	}
	was := l.seen.At
	sh.mu.Unlock()
	t := s.trip(b, now)
	t.sees, t.seenAt = l, was
	t.submit(b.Charges, b.Decisions, b.Waits)
}

// saw keeps what next said of a charge of which nothing is on loan.
func (s *LeaseStore) saw(t *leaseTrip) {
	c, d, l := &t.outer.Charges[0], &t.outer.Decisions[0], t.sees
	if !d.Allowed && d.Err == nil && d.At == t.seenAt { // a denial that is remembered is not news
		return
	}
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if d.Err != nil {
		l.seen.Remaining = 0
	} else {
		l.see(d, t.began, s.now())
	}
}

// spend takes c's cost of what is on loan in l, if that is enough. The lock of its shard, sh, is held; what is to be
// borrowed ahead is to be submitted without it.
func (s *LeaseStore) spend(sh *leaseShard, l *loan, c *Charge, now time.Duration) (enough bool, next *ahead) {
	if l.lots[1].left > 0 && (l.lots[0].left == 0 || now >= l.lots[0].until) {
		sh.turn(l, now)
	}
	first, second := &l.lots[0], &l.lots[1]
	if first.left+second.left < c.Ask.Cost || now >= first.until {
		return false, nil
	}
	n := min(first.left, c.Ask.Cost)
	first.left -= n
	second.left -= c.Ask.Cost - n
	l.count(c.Ask.Cost, now)
	if first.left <= l.low || now >= l.early {
		next = s.borrowAhead(sh, l, c.Ask.Cost, now)
	}
	return true, next
}

// spent is units that were taken of a lot, as it was before.
type spent struct {
	lot   lot
	units int64
}

// turn makes the second lot the first, whose time is over or of which nothing is left.
func (sh *leaseShard) turn(l *loan, now time.Duration) {
	sh.later(sh.back(&l.charge, l.lots[0].left, &l.lots[0], now))
	l.lots[0], l.lots[1] = l.lots[1], lot{}
	l.arm()
}

// later gives back when Run comes to it.
func (sh *leaseShard) later(back Charge) {
	if back.Ask.Cost < 0 && len(sh.backs) < maxBacks {
		sh.backs = append(sh.backs, back)
	}
}

// arm says when to borrow ahead: where a third of what is on loan is used, or three quarters of its time
// are over, so that the next is here in time though next is slow. It is not over before it is used: a
// lot is for half of its time, and the rest of the one before for a third. What ends with its window is
// not worth renewing for its time: so would the next.
func (l *loan) arm() {
	l.low, l.early = -1, never
	if first := &l.lots[0]; l.ahead == nil && l.lots[1].left == 0 && first.left > 0 {
		l.low = first.left - first.left/3
		if first.until < l.edge-l.span()/1000-time.Microsecond {
			l.early = first.until - l.span()/4
		}
	}
}

// left is how many units are on loan.
func (l *loan) left() int64 { return l.lots[0].left + l.lots[1].left }

// answer is what next would say to a charge that has been served.
func (l *loan) answer(now time.Duration) Decision {
	return l.charge.with(l.seen, l.left(), micros(now-l.seenAt))
}

// count counts what is asked. What is longer ago than a loan lasts counts less and less.
func (l *loan) count(units int64, now time.Duration) {
	span := l.span()
	if t := now - l.since; t > span {
		l.used *= float64(span/2) / float64(t)
		l.since = now - span/2
	}
	l.used += float64(units)
	l.asked = now
}

func (l *loan) span() time.Duration { return time.Duration(l.charge.Lease.For) * time.Microsecond }

func micros(d time.Duration) algorithms.Micros { return algorithms.Micros(d / time.Microsecond) }

// spendPart is spend for a part of a group, which may have to be put back.
func (s *LeaseStore) spendPart(c *Charge, d *Decision, now time.Duration) (p leasePart) {
	if !canLease(c) {
		return p
	}
	var next *ahead
	defer func() { next.submit() }() // after the lock is released
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.find(c)
	if l == nil {
		return p
	}
	was := l.lots
	if p.spent, next = s.spend(sh, l, c, now); !p.spent {
		return p
	}
	if l.lots[0].serial != was[0].serial { // the next had its turn
		was[0], was[1] = was[1], lot{}
	}
	p.loan = l
	for i := range was {
		p.from[i] = spent{was[i], was[i].left - l.lots[i].left}
	}
	*d = l.answer(now)
	return p
}

// served counts a part of a group that was answered from a loan.
func (s *LeaseStore) served(c *Charge) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	sh.stats.Served++
	sh.mu.Unlock()
}

// putBack makes p, which was spent, a part that is not, and answers in d what is there. Units of a lot
// that is no more are given back to next.
func (s *LeaseStore) putBack(c *Charge, p *leasePart, d *Decision, now time.Duration) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := p.loan
	for i := range p.from {
		from := &p.from[i]
		is := slices.IndexFunc(l.lots[:], func(is lot) bool { return is.serial == from.lot.serial })
		switch {
		case from.units == 0 || l.gone:
		case is >= 0:
			l.lots[is].left += from.units
		default:
			sh.later(sh.back(&l.charge, from.units, &from.lot, now))
			s.wakeRun()
		}
	}
	*d = l.answer(now)
	p.spent = false
}

// borrow says how many units to ask for beyond the cost of c, and what to give back before, which it
// adds to backs. The loan is nil where the key is not a hot one; units are answered by lend. What is on
// loan and ending is of no use. Without may nothing is borrowed.
func (s *LeaseStore) borrow(c *Charge, ending, may bool, backs []Charge, now time.Duration) (l *loan, units int64, _ []Charge) {
	sh, hash := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l = sh.find(c); l == nil {
		if l = sh.warm(c, hash, now); l == nil {
			return nil, 0, backs
		}
		s.wakeRun()
	} else {
		l.count(c.Ask.Cost, now)
	}
	// What another lent since this one found too little is not brought back at once: of a token bucket that
	// loses a part of a unit each time.
	if l.asking || !ending && l.left() >= c.Ask.Cost && now < l.lots[0].until {
		return l, 0, backs
	}
	backs = sh.takeBack(backs, l, now)
	if may {
		units = l.want(c.Ask.Cost, now)
	}
	l.asking = units > 0
	l.lending += units
	return l, units, backs
}

// ahead is units of a bucket that are being borrowed while there is still something on loan.
type ahead struct {
	store  *LeaseStore
	shard  *leaseShard
	loan   *loan
	units  int64
	asked  time.Duration
	batch  Batch
	charge [1]Charge
	answer [1]Decision
}

// borrowAhead prepares to borrow the next lot of l; the lock of its shard, sh, is held. What it returns is to be
// submitted without that lock; nil: nothing is.
func (s *LeaseStore) borrowAhead(sh *leaseShard, l *loan, cost int64, now time.Duration) *ahead {
	l.low, l.early = -1, never
	units := l.want(cost, now)
	if units == 0 || !s.aheads.Begin() {
		return nil
	}
	l.ahead = make(chan struct{})
	l.lending += units
	a := &ahead{store: s, shard: sh, loan: l, units: units}
	c := &a.charge[0]
	*c = l.charge
	c.Lease, c.Ask = nil, algorithms.Ask{Hash: c.Ask.Hash, Cost: units}
	return a
}

// submit submits a, which may be nil.
func (a *ahead) submit() {
	if a == nil {
		return
	}
	s := a.store
	a.asked = s.now()
	a.batch = Batch{Charges: a.charge[:], Decisions: a.answer[:], Deadline: time.Now().Add(s.config.Timeout), Detached: true}
	a.batch.Done = func(*Batch) {
		s.lentAhead(a.shard, a.loan, a.units, &a.answer[0], a.asked)
		s.aheads.End()
	}
	s.next.Submit(&a.batch)
}

// lentAhead notes that so many units were lent in the background, or not, by the answer d.
func (s *LeaseStore) lentAhead(sh *leaseShard, l *loan, units int64, d *Decision, asked time.Duration) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	close(l.ahead)
	l.ahead = nil
	l.lending -= units
	if d.Err != nil {
		// What was asked for may have been charged: ask for less, so that less is lost if that goes on.
		l.failed++
		l.early = now + l.span()/16
		return
	}
	l.failed = 0
	l.see(d, asked, now)
	if d.Allowed {
		sh.lent(l, units, d, asked, now)
	}
	l.arm()
}

// wakeRun tells Run that there is something to look after.
func (s *LeaseStore) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// want is how many units to borrow: what half a loan's time needs as fast as this process asks, or
// what is left of the window, in whole costs such as are asked for.
func (l *loan) want(cost int64, now time.Duration) int64 {
	have := l.left()
	n := min(l.charge.Lease.Most-have-l.lending, l.seen.Remaining/leaseShare-have, l.charge.Limit.Capacity-cost)
	if n < cost {
		return 0
	}
	span := l.span()
	rate := l.used / float64(max(now-l.since, span/8)) // a few asks at once are no rate
	needs := rate * float64(span/2)
	if rest := l.edge - now; rest > 0 && rest < span {
		needs = min(needs, rate*float64(rest)+1-float64(have))
	}
	n = int64(min(needs, float64(n))) >> min(l.failed, 62)
	return max(0, n-n%cost)
}

// warm notes that the bucket of c, which has no loan, is asked, and makes a loan of it, nothing lent
// yet, if it is asked often. It returns nil if it is not, or if there is no room.
func (sh *leaseShard) warm(c *Charge, hash uint64, now time.Duration) *loan {
	h := &sh.heat[hash%uint64(len(sh.heat))]
	if h.asks == 0 || micros(now-h.since) > c.Lease.For {
		*h = heat{since: now}
	}
	if h.asks++; h.asks < hotAsks {
		return nil
	}
	h.asks = 0
	if len(sh.loans) >= sh.most {
		if sh.cool(now); len(sh.loans) >= sh.most {
			return nil
		}
	}
	l := &loan{charge: *c, used: hotAsks * float64(c.Ask.Cost), since: h.since, asked: now, edge: never}
	l.charge.Key = bytes.Clone(c.Key)
	sh.loans[string(c.Key)] = l
	return l
}

// takeBack takes what is left of l, and adds to backs the charges that give it back.
func (sh *leaseShard) takeBack(backs []Charge, l *loan, now time.Duration) []Charge {
	for i := range l.lots {
		if back := sh.back(&l.charge, l.lots[i].left, &l.lots[i], now); back.Ask.Cost < 0 {
			backs = append(backs, back)
		}
		l.lots[i] = lot{}
	}
	l.arm()
	sh.backs = slices.DeleteFunc(sh.backs, func(back Charge) bool { // of lots before
		if !bytes.Equal(back.Key, l.charge.Key) {
			return false
		}
		backs = append(backs, back)
		return true
	})
	return backs
}

// back is the charge that gives back units of c's bucket that were lent in a lot: one of cost 0 where
// there is nothing to give.
func (sh *leaseShard) back(c *Charge, units int64, of *lot, now time.Duration) Charge {
	back := *c
	back.Lease, back.Ask = nil, algorithms.Ask{Hash: c.Ask.Hash}
	if units == 0 || len(c.Shards) > 0 && c.Limit.Kind != algorithms.FixedWindow {
		return back // what has flowed in since is not known of each shard
	}
	if n := c.Limit.Unused(units, micros(now-of.lentAt)); n > 0 {
		sh.stats.Returned += uint64(n)
		back.Ask.Cost, back.Ask.Of = -units, of.of
	}
	return back
}

// lend notes what came of p's question, which was asked at asked: that units were lent (if any) in
// the answer d; nil: there is none.
func (s *LeaseStore) lend(c *Charge, p *leasePart, units int64, d *Decision, asked, now time.Duration) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := p.loan
	if p.borrow > 0 {
		l.asking = false
		l.lending -= p.borrow
		p.borrow = 0
	}
	if d == nil { // next fails, or has less than was thought
		l.seen.Remaining = 0
		return
	}
	l.see(d, asked, now)
	if units > 0 {
		sh.lent(l, units, d, asked, now)
		l.arm()
	}
}

// see keeps what next said, unless something newer is known.
func (l *loan) see(d *Decision, asked, now time.Duration) {
	if older := l.seen.At - d.At; older > 0 && older < algorithms.Second { // more is a clock that was set back
		return
	}
	l.seen, l.seenAt = *d, now
	l.seen.Allowed, l.seen.Never, l.seen.RetryAfter, l.seen.Wait = true, false, 0, 0
	if hash := l.charge.Ask.Hash; l.charge.Limit.Kind == algorithms.FixedWindow {
		l.edge = asked + time.Duration(l.charge.Limit.LentFor(d.At, algorithms.MaxTime, hash))*time.Microsecond
	}
}

// lent puts units on loan, which were asked for at asked, and lent in the answer d.
func (sh *leaseShard) lent(l *loan, units int64, d *Decision, asked, now time.Duration) {
	sh.stats.Borrowed += uint64(units)
	if l.gone {
		return
	}
	// A little less than it may last: clocks do not all go at the same speed.
	lasts := time.Duration(l.charge.Limit.LentFor(d.At, l.charge.Lease.For, l.charge.Ask.Hash)) * time.Microsecond
	l.serials++
	is := lot{left: units, of: d.At, lentAt: asked, until: asked + lasts - lasts/1000 - time.Microsecond, serial: l.serials}
	if l.lots[0].left > 0 && l.lots[1].left > 0 {
		sh.turn(l, now)
	}
	switch at := &l.lots; {
	case at[0].left == 0:
		at[0] = is
	case is.until < at[0].until:
		at[0], at[1] = is, at[0]
	default:
		at[1] = is
	}
}

// over appends to backs what is left of loans whose time is over.
func (sh *leaseShard) over(backs []Charge, now time.Duration) []Charge {
	for _, l := range sh.loans {
		for i := range l.lots {
			if of := &l.lots[i]; of.left > 0 && now >= of.until {
				sh.later(sh.back(&l.charge, of.left, of, now))
				*of = lot{}
			}
		}
		if l.lots[0].left == 0 && l.lots[1].left > 0 {
			sh.turn(l, now)
		}
	}
	backs = append(backs, sh.backs...)
	sh.backs = nil
	return backs
}

// cool forgets keys that are not asked any more.
func (sh *leaseShard) cool(now time.Duration) {
	for key, l := range sh.loans {
		if l.left() == 0 && !l.asking && l.ahead == nil && now-l.asked > max(time.Second, l.span()) {
			sh.drop([]byte(key))
		}
	}
}

// drop forgets the loan of a bucket, and what is left of it or waits to be given back. What it returns
// is closed once nothing more is being borrowed ahead; nil: nothing is.
func (s *LeaseStore) drop(key []byte) (ahead <-chan struct{}) {
	sh, _ := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l := sh.loans[string(key)]; l != nil {
		ahead = l.ahead
	}
	sh.drop(key)
	sh.backs = slices.DeleteFunc(sh.backs, func(back Charge) bool { return bytes.Equal(back.Key, key) })
	return ahead
}

func (sh *leaseShard) drop(key []byte) {
	if l := sh.loans[string(key)]; l != nil {
		l.gone, l.lots = true, [2]lot{}
		delete(sh.loans, string(key))
	}
}
