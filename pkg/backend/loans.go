package backend

import (
	"bytes"
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
	left   int64  // units
	until  time.Duration
	of     algorithms.Micros // when they were charged, by next's clock
	lentAt time.Duration     // the same by ours, or a little before
	serial int               // counts loans
	asking bool              // somebody is about to borrow
	gone   bool              // it was dropped

	seen   Decision      // the newest answer of next
	seenAt time.Duration // when it was here

	// used units since since: how fast this process asks.
	used  int64
	since time.Duration
	asked time.Duration // last
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
			sum.Lent += l.left
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

// serve answers c from what is on loan of its bucket, if that is enough.
func (s *LeaseStore) serve(c *Charge, d *Decision, now time.Duration) bool {
	if !canLease(c) {
		return false
	}
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.spend(c, d, now)
	if l == nil {
		return false
	}
	sh.stats.Served++
	return true
}

// spend takes c's cost of what is on loan of its bucket, and answers; nil: that is not enough.
func (sh *leaseShard) spend(c *Charge, d *Decision, now time.Duration) *loan {
	l := sh.find(c)
	if l == nil || l.left < c.Ask.Cost || now >= l.until {
		return nil
	}
	l.left -= c.Ask.Cost
	l.count(c.Ask.Cost, now)
	*d = l.answer(now)
	return l
}

// answer is what next would say to a charge that has been served.
func (l *loan) answer(now time.Duration) Decision {
	return l.charge.with(l.seen, l.left, micros(now-l.seenAt))
}

// count counts what is asked. What is longer ago than a loan lasts counts less and less.
func (l *loan) count(units int64, now time.Duration) {
	span := l.span()
	if t := now - l.since; t > span {
		l.used = int64(float64(l.used) * float64(span/2) / float64(t))
		l.since = now - span/2
	}
	l.used += units
	l.asked = now
}

func (l *loan) span() time.Duration { return time.Duration(l.charge.Lease.For) * time.Microsecond }

func micros(d time.Duration) algorithms.Micros { return algorithms.Micros(d / time.Microsecond) }

// spendPart is spend for a part of a group, which may have to be put back.
func (s *LeaseStore) spendPart(c *Charge, d *Decision, now time.Duration) (p leasePart) {
	if !canLease(c) {
		return p
	}
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if p.loan = sh.spend(c, d, now); p.loan != nil {
		p.spent, p.serial, p.of, p.lentAt = true, p.loan.serial, p.loan.of, p.loan.lentAt
	}
	return p
}

// served counts a part of a group that was answered from a loan.
func (s *LeaseStore) served(c *Charge) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	sh.stats.Served++
	sh.mu.Unlock()
}

// lasts tells whether the loan that p was spent of lasts until then.
func (s *LeaseStore) lasts(c *Charge, p *leasePart, until time.Duration) bool {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return p.loan.serial == p.serial && p.loan.until >= until
}

// putBack makes p, which was spent, a part that is not, and answers in d what is there. If that loan
// is over the units are given back to next.
func (s *LeaseStore) putBack(c *Charge, p *leasePart, d *Decision, now time.Duration) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case p.loan.serial == p.serial:
		p.loan.left += c.Ask.Cost
	case p.loan.gone || len(sh.backs) >= maxBacks:
	default:
		if back := sh.back(&p.loan.charge, c.Ask.Cost, p.of, micros(now-p.lentAt)); back.Ask.Cost < 0 {
			sh.backs = append(sh.backs, back)
			s.wakeRun()
		}
	}
	*d = p.loan.answer(now)
	p.spent = false
}

// borrow says how many units to ask for beyond the cost of c, and what to give back before. The loan
// is nil where the key is not a hot one; units are answered by lend.
func (s *LeaseStore) borrow(c *Charge, now time.Duration) (l *loan, units int64, back Charge) {
	sh, hash := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l = sh.find(c); l == nil {
		if l = sh.warm(c, hash, now); l == nil {
			return nil, 0, back
		}
		s.wakeRun()
	} else {
		l.count(c.Ask.Cost, now)
	}
	if l.asking {
		return l, 0, back
	}
	back = sh.takeBack(l, now)
	units = l.want(c, now)
	l.asking = units > 0
	return l, units, back
}

// wakeRun tells Run that there is something to look after.
func (s *LeaseStore) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// want is how many units to borrow: what half a loan's time needs as fast as this process asks,
// in whole costs of c, which so far have been what is asked for.
func (l *loan) want(c *Charge, now time.Duration) int64 {
	span := l.span()
	t := max(now-l.since, span/8) // a few asks at once are no rate
	n := int64(float64(l.used) * float64(span/2) / float64(t))
	n = min(n, c.Lease.Most, l.seen.Remaining/leaseShare, c.Limit.Capacity-c.Ask.Cost)
	return max(0, n-n%c.Ask.Cost)
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
	l := &loan{charge: *c, used: hotAsks * c.Ask.Cost, since: h.since, asked: now}
	l.charge.Key = bytes.Clone(c.Key)
	sh.loans[string(c.Key)] = l
	return l
}

// takeBack takes what is left of l, and returns the charge that gives it back: one of cost 0 where
// there is nothing to give.
func (sh *leaseShard) takeBack(l *loan, now time.Duration) Charge {
	left := l.left
	l.left = 0
	l.serial++
	return sh.back(&l.charge, left, l.of, micros(now-l.lentAt))
}

// back is the charge that gives back units of c's bucket that were lent at of, so long ago.
func (sh *leaseShard) back(c *Charge, units int64, of, after algorithms.Micros) Charge {
	back := *c
	back.Lease, back.Ask = nil, algorithms.Ask{Hash: c.Ask.Hash}
	if units == 0 || len(c.Shards) > 0 && c.Limit.Kind != algorithms.FixedWindow {
		return back // what has flowed in since is not known of each shard
	}
	if n := c.Limit.Unused(units, after); n > 0 {
		sh.stats.Returned += uint64(n)
		back.Ask.Cost, back.Ask.Of, back.Ask.Lent = -units, of, true
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
		l.asking, p.borrow = false, 0
	}
	if d == nil { // next fails, or has less than was thought
		l.seen.Remaining = 0
		return
	}
	l.seen, l.seenAt = *d, now
	l.seen.Allowed, l.seen.Never, l.seen.RetryAfter, l.seen.Wait = true, false, 0, 0
	if units == 0 {
		return
	}
	sh.stats.Borrowed += uint64(units)
	if l.gone {
		return
	}
	// A little less than it may last: clocks do not all go at the same speed.
	lasts := time.Duration(c.Limit.LentFor(d.At, c.Lease.For, c.Ask.Hash)) * time.Microsecond
	l.left, l.of, l.lentAt, l.until = units, d.At, asked, asked+lasts-lasts/1000-time.Microsecond
	l.serial++
}

// over appends to backs what is left of loans whose time is over.
func (sh *leaseShard) over(backs []Charge, now time.Duration) []Charge {
	backs = append(backs, sh.backs...)
	sh.backs = nil
	for _, l := range sh.loans {
		if l.left > 0 && now >= l.until {
			if back := sh.takeBack(l, now); back.Ask.Cost < 0 {
				backs = append(backs, back)
			}
		}
	}
	return backs
}

// cool forgets keys that are not asked any more.
func (sh *leaseShard) cool(now time.Duration) {
	for key, l := range sh.loans {
		if l.left == 0 && !l.asking && now-l.asked > max(time.Second, l.span()) {
			sh.drop([]byte(key))
		}
	}
}

// drop forgets the loan of a bucket, and what is left of it.
func (s *LeaseStore) drop(key []byte) {
	sh, _ := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.drop(key)
}

func (sh *leaseShard) drop(key []byte) {
	if l := sh.loans[string(key)]; l != nil {
		l.gone, l.left = true, 0
		l.serial++
		delete(sh.loans, string(key))
	}
}
