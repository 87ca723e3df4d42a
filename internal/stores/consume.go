package stores

import (
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// mayLease reports whether charges of a group can use leased units. Of several alternatives only the wrapped Store can
// decide which is charged.
func mayLease(group []backend.Charge) bool {
	return anyLease(group) && !slices.ContainsFunc(group, func(c backend.Charge) bool { return c.Then })
}

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

// verdict is what the cache knows about a group.
type verdict int

const (
	unanswered verdict = iota
	paid               // leases pay for all charges
	denied             // leases or remembered decisions answer all charges, and one of them is denied
)

// query has what answer needs for each charge of a group.
type query struct {
	leases, remembers bool // whether leases and remembered decisions may answer the group
	alone             bool // the group has one charge, so a charge to a lease is never undone
	now               time.Duration
}

// consult answers charges of a group from leases and remembered decisions, as far as it can, and appends a part for each
// charge to parts. If the group is answered, the caller must call answerKnown. Otherwise it must call putBackAll, or
// submit the group without the leased charges.
func (s *CacheStore) consult(charges []backend.Charge, parts []cachePart, decisions []backend.Decision, now time.Duration) ([]cachePart, verdict) {
	q := query{leases: mayLease(charges), remembers: remembers(charges), alone: len(charges) == 1, now: now}
	if !q.leases && !q.remembers {
		return parts, unanswered
	}
	answered, leased, denies := 0, 0, false
	for i := range charges {
		parts = append(parts, cachePart{})
		p := &parts[len(parts)-1]
		s.answer(&charges[i], p, &decisions[i], q)
		switch {
		case p.leased:
			answered, leased = answered+1, leased+1
		case p.denial != nil:
			answered, denies = answered+1, denies || !decisions[i].Allowed
		case !q.leases:
			return parts, unanswered
		}
	}
	switch {
	case leased == len(charges):
		return parts, paid
	case answered == len(charges) && denies:
		return parts, denied
	default:
		return parts, unanswered
	}
}

// answer answers c from its leases or from a remembered decision, if it can.
func (s *CacheStore) answer(c *backend.Charge, p *cachePart, d *backend.Decision, q query) {
	var request *ahead
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	if b := sh.buckets[string(c.Key)]; b != nil {
		remembers := q.remembers
		if q.leases && canLease(c) {
			if l := sh.hotKeyOf(b, c); l != nil {
				p.hotKey = l
				request = s.consume(sh, c, p, d, q)
				remembers = remembers && !p.leased && l.left() == 0 // before a denial, leased units are returned
			}
		}
		if remembers && b.denial != nil && b.denial.steps == s.elapsed.steps() && b.denial.answer(c, d, q.now) {
			p.denial = b.denial
		}
	}
	sh.mu.Unlock()
	request.submit()
}

// answerKnown completes the answer of a group that consult has answered.
func (s *CacheStore) answerKnown(v verdict, charges []backend.Charge, parts []cachePart, decisions []backend.Decision, now time.Duration) {
	if v == paid {
		s.served.Add(uint64(len(charges)))
		return
	}
	s.putBackAll(charges, parts, decisions, now)
}

func (s *CacheStore) putBackAll(charges []backend.Charge, parts []cachePart, decisions []backend.Decision, now time.Duration) {
	for i := range parts {
		if parts[i].leased {
			s.putBack(&charges[i], &parts[i], &decisions[i], now)
		}
	}
}

type consumedUnits struct {
	grant grant // the state of the grant before the charge
	units int64
}

// rotate removes the first grant, which has expired or is used up, and stores the return of its unused units. The
// second grant becomes the first.
func (sh *cacheShard) rotate(l *hotKey, now time.Duration) {
	sh.queueReturn(sh.returnCharge(&l.charge, l.grants[0].left, &l.grants[0], now))
	l.grants[0], l.grants[1] = l.grants[1], grant{}
	l.arm()
}

// queueReturn leaves c to the timer, which sends the waiting returns. If maxReturns returns already wait, the
// units of c are lost.
func (sh *cacheShard) queueReturn(c backend.Charge) {
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
	if first := &l.grants[0]; l.grants[1].left == 0 && first.left > 0 {
		l.low = first.left - first.left/3
		if first.until < l.edge-l.span()/1000-time.Microsecond {
			l.early = first.until - l.span()/4
		}
	}
}

// returnLater leaves c, a return of units of l, to the timer. If l was removed meanwhile, its bucket may be a new one, so
// the units are lost.
func (s *CacheStore) returnLater(l *hotKey, c *backend.Charge) {
	sh, _ := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !l.removed {
		sh.queueReturn(*c)
		s.arm()
	}
}

// left includes units of leases that have expired.
func (l *hotKey) left() int64 { return l.grants[0].left + l.grants[1].left }

// answer writes the decision on a charge that the leases have paid to d. It equals the one that the wrapped Store would
// make if no other process had charged the bucket since the decision l.last.
func (l *hotKey) answer(d *backend.Decision, now time.Duration) {
	*d = l.last
	adapt(&l.charge, d, l.left(), micros(now-l.lastAt))
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

// consume charges c to the leases of p.hotKey, and writes the decision to d. If the leases have too few units or have
// expired, it consumes nothing, and p.leased stays false. If the group is denied, the caller must undo the charge with
// putBack. The lock of sh is held. After releasing it, the caller must call submit on request, which may be nil.
func (s *CacheStore) consume(sh *cacheShard, c *backend.Charge, p *cachePart, d *backend.Decision, q query) (request *ahead) {
	l := p.hotKey
	if l.grants[1].left > 0 && (l.grants[0].left == 0 || q.now >= l.grants[0].until) {
		sh.rotate(l, q.now)
	}
	first, second := &l.grants[0], &l.grants[1]
	if first.left+second.left < c.Terms.Cost || q.now >= first.until {
		return nil
	}
	n := min(first.left, c.Terms.Cost)
	p.leased = true
	if !q.alone {
		p.from = [2]consumedUnits{{*first, n}, {*second, c.Terms.Cost - n}}
	}
	first.left -= n
	second.left -= c.Terms.Cost - n
	l.count(c.Terms.Cost, q.now)
	if first.left <= l.low || q.now >= l.early {
		request = s.leaseAhead(sh, l, c.Terms.Cost, q.now)
	}
	l.answer(d, q.now)
	return request
}

// putBack undoes the charge of p to leases. It writes the decision without that charge to d. Units of a grant that no
// longer exists are returned to the wrapped Store. If the hot key was removed meanwhile, the units are lost.
func (s *CacheStore) putBack(c *backend.Charge, p *cachePart, d *backend.Decision, now time.Duration) {
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
	l.answer(d, now)
	p.leased = false
}

// miss is called before c is submitted to the wrapped Store. It appends to list the returns that must be sent before c. If
// the key is hot, it returns the hot key, and the caller must call receive with the decision on c. ending means that the
// current leases expire too early for c. request is for later charges, so the caller must submit it after c; it may be nil.
func (s *CacheStore) miss(c *backend.Charge, ending bool, list []backend.Charge, now time.Duration) (l *hotKey, _ []backend.Charge, request *ahead) {
	sh, hash := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l = sh.find(c); l != nil {
		l.count(c.Terms.Cost, now)
	} else if l = sh.warm(c, hash/cacheShards, now); l != nil {
		s.arm()
	}
	// If a lease has arrived since this request found too few units, the lease is kept: each return to a token
	// bucket loses a fraction of a unit.
	if l != nil && (ending || l.left() < c.Terms.Cost || now >= l.grants[0].until) {
		list = sh.returnAll(list, l, now)
		request = s.leaseAhead(sh, l, c.Terms.Cost, now)
	}
	return l, list, request
}
