package stores

import (
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// submitOne answers a Batch of one charge from a lease of its bucket, or submits the Batch to the wrapped Store. If
// units must be returned first, or a new lease is requested with the charge, submitGroups does the work.
func (s *LeaseStore) submitOne(b *backend.Batch) {
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
		s.arm()
	} else if enough, request := s.consume(sh, l, c, now); enough {
		sh.stats.Served++
		b.Decisions[0] = l.answer(now)
		sh.mu.Unlock()
		request.submit()
		b.Done(b)
		return
	} else if l.left() > 0 || len(sh.returns) > 0 || !l.borrowing && l.leaseSize(c.Terms.Cost, now) > 0 {
		sh.mu.Unlock()
		s.submitGroups(b)
		return
	} else {
		l.count(c.Terms.Cost, now)
	}
	was := l.last.At
	sh.mu.Unlock()
	t := s.newBatch(b, now)
	t.direct, t.lastAt = l, was
	t.submit(b.Charges, b.Decisions, b.Waits)
}

// recordDecision records the decision of the wrapped Store on the only charge of t, which requested no lease.
func (s *LeaseStore) recordDecision(t *leaseBatch) {
	c, d, l := &t.outer.Charges[0], &t.outer.Decisions[0], t.direct
	if !d.Allowed && d.Err == nil && d.At == t.lastAt { // a cached denial is not new information
		return
	}
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if d.Err != nil {
		l.last.Remaining = 0
	} else {
		l.record(d, t.began, s.now())
	}
}

// consume charges c to the leases of l. If the leases have too few units or have expired, it consumes nothing
// and enough is false. The lock of sh is held. After releasing it, the caller must call submit on request,
// which may be nil.
func (s *LeaseStore) consume(sh *leaseShard, l *hotKey, c *backend.Charge, now time.Duration) (enough bool, request *ahead) {
	if l.grants[1].left > 0 && (l.grants[0].left == 0 || now >= l.grants[0].until) {
		sh.rotate(l, now)
	}
	first, second := &l.grants[0], &l.grants[1]
	if first.left+second.left < c.Terms.Cost || now >= first.until {
		return false, nil
	}
	n := min(first.left, c.Terms.Cost)
	first.left -= n
	second.left -= c.Terms.Cost - n
	l.count(c.Terms.Cost, now)
	if first.left <= l.low || now >= l.early {
		request = s.leaseAhead(sh, l, c.Terms.Cost, now)
	}
	return true, request
}

type consumedUnits struct {
	grant grant // the state of the grant before the charge
	units int64
}

// rotate removes the first grant, which has expired or is used up, and stores the return of its unused units. The
// second grant becomes the first.
func (sh *leaseShard) rotate(l *hotKey, now time.Duration) {
	sh.queueReturn(sh.returnCharge(&l.charge, l.grants[0].left, &l.grants[0], now))
	l.grants[0], l.grants[1] = l.grants[1], grant{}
	l.arm()
}

// queueReturn leaves c to the timer, which sends the waiting returns. If maxReturns returns already wait, the
// units of c are lost.
func (sh *leaseShard) queueReturn(c backend.Charge) {
	if c.Terms.Cost < 0 && len(sh.returns) < maxReturns {
		sh.returns = append(sh.returns, c)
	}
}

// arm determines when the next lease is requested ahead. That is when a third of the units is used, or when three
// quarters of the duration have passed. So the next lease arrives in time even if the wrapped Store is slow. A grant
// rarely expires before it is used up, because it has the units for half of its duration. If a lease ends with its
// fixed window, the passing of time does not trigger a request, because the next lease would end at the same moment.
func (l *hotKey) arm() {
	l.low, l.early = -1, never
	if first := &l.grants[0]; l.ahead == nil && l.grants[1].left == 0 && first.left > 0 {
		l.low = first.left - first.left/3
		if first.until < l.edge-l.span()/1000-time.Microsecond {
			l.early = first.until - l.span()/4
		}
	}
}

// left includes units of leases that have expired.
func (l *hotKey) left() int64 { return l.grants[0].left + l.grants[1].left }

// answer returns the decision on a charge that the leases have paid. It equals the one that the wrapped Store would
// make if no other process had charged the bucket since the decision l.last.
func (l *hotKey) answer(now time.Duration) backend.Decision {
	return later(&l.charge, l.last, l.left(), micros(now-l.lastAt))
}

// count adds requested units to l.used, which determines the rate. When l.used covers more than the duration of a
// lease, count scales it down to half that duration, so that older units count less and less.
func (l *hotKey) count(units int64, now time.Duration) {
	span := l.span()
	if t := now - l.since; t > span {
		l.used *= float64(span/2) / float64(t)
		l.since = now - span/2
	}
	l.used += float64(units)
	l.lastRequestAt = now
}

func (l *hotKey) span() time.Duration { return time.Duration(l.charge.Lease.For) * time.Microsecond }

func micros(d time.Duration) algorithms.Micros { return algorithms.Micros(d / time.Microsecond) }

// consumePart charges c, which is part of a group, to the leases of its key, and writes the decision to d. If
// there are no leases or too few units in them, it consumes nothing and returns a part with leased false. If
// the group is denied, the caller must undo the charge with putBack.
func (s *LeaseStore) consumePart(c *backend.Charge, d *backend.Decision, now time.Duration) (p leasePart) {
	if !canLease(c) {
		return p
	}
	var request *ahead
	defer func() { request.submit() }() // runs after the lock is released
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.find(c)
	if l == nil {
		return p
	}
	was := l.grants
	if p.leased, request = s.consume(sh, l, c, now); !p.leased {
		return p
	}
	if l.grants[0].serial != was[0].serial { // the second grant has become the first
		was[0], was[1] = was[1], grant{}
	}
	p.hotKey = l
	for i := range was {
		p.from[i] = consumedUnits{was[i], was[i].left - l.grants[i].left}
	}
	*d = l.answer(now)
	return p
}

func (s *LeaseStore) countServed(c *backend.Charge) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	sh.stats.Served++
	sh.mu.Unlock()
}

// putBack undoes the charge of p to leases. It writes the decision without that charge to d. Units of a grant that no
// longer exists are returned to the wrapped Store. If the hot key was removed meanwhile, the units are lost.
func (s *LeaseStore) putBack(c *backend.Charge, p *leasePart, d *backend.Decision, now time.Duration) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := p.hotKey
	for i := range p.from {
		from := &p.from[i]
		is := slices.IndexFunc(l.grants[:], func(is grant) bool { return is.serial == from.grant.serial })
		switch {
		case from.units == 0 || l.removed:
		case is >= 0:
			l.grants[is].left += from.units
		default:
			sh.queueReturn(sh.returnCharge(&l.charge, from.units, &from.grant, now))
			s.arm()
		}
	}
	*d = l.answer(now)
	p.leased = false
}

// borrow determines how many units to request beyond the cost of c. That is 0 unless mayBorrow. borrow appends to
// list the returns that must be sent before the request.
//
// The hot key l is nil if the key is not hot. Otherwise the caller must call receive with the decision on the
// request. ending means that the current leases expire too early for this request.
func (s *LeaseStore) borrow(c *backend.Charge, ending, mayBorrow bool, list []backend.Charge, now time.Duration) (l *hotKey, units int64, _ []backend.Charge) {
	sh, hash := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l = sh.find(c); l == nil {
		if l = sh.warm(c, hash, now); l == nil {
			return nil, 0, list
		}
		s.arm()
	} else {
		l.count(c.Terms.Cost, now)
	}
	// If a lease has arrived since this request found too few units, the lease is kept: each return to a token
	// bucket loses a fraction of a unit.
	if l.borrowing || !ending && l.left() >= c.Terms.Cost && now < l.grants[0].until {
		return l, 0, list
	}
	list = sh.returnAll(list, l, now)
	if mayBorrow {
		units = l.leaseSize(c.Terms.Cost, now)
	}
	l.borrowing = units > 0
	l.requesting += units
	return l, units, list
}
