package stores

import (
	"bytes"
	"math"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	// hotRequests is the number of requests within the duration of a lease that makes a key hot. For fewer
	// requests, a lease saves next to nothing.
	hotRequests = 8
	// leaseShare bounds the size of a lease: at most 1/leaseShare of the remaining units. So leases become
	// smaller and smaller when a bucket is nearly empty.
	leaseShare = 8
	// maxReturns is the largest number of returns that wait in a shard, and of returns in one call. The units of
	// further waiting returns are lost.
	maxReturns = 256
	never      = time.Duration(math.MaxInt64)
)

// heat counts the requests for all cold keys that share an element of cacheShard.heat. So a key may become hot too
// early. The only cost is an unnecessary hot key.
type heat struct {
	since    time.Duration
	requests int
}

// hotKey has the leases of a bucket whose key is hot. It is guarded by the lock of its shard.
type hotKey struct {
	charge backend.Charge // the bucket, its limit and its lease terms; charges that lease ahead or return units are copies of it
	// grants has at most two leases. The first one expires first, and is used first. The second one is
	// requested before the first is used up or expires.
	grants  [2]grant
	serials int
	removed bool

	ahead  *ahead // the lease that is being requested; nil if none is in flight
	failed int    // failures of leasing since the last success; each decision of the wrapped Store subtracts 1
	// The next lease is requested when low or early is reached.
	low   int64         // units left in the first grant; -1 means that only early counts
	early time.Duration // the constant never means that only low counts

	last   backend.Decision // the newest decision of the wrapped Store, changed as if it had allowed
	lastAt time.Duration    // when last arrived
	edge   time.Duration    // when the current fixed window ends; the constant never for a token bucket

	// used/(now-since) is the rate at which this process requests units.
	used          float64
	since         time.Duration
	lastRequestAt time.Duration
}

// grant is one lease.
type grant struct {
	left      int64 // units
	until     time.Duration
	chargedAt algorithms.Micros // when the wrapped Store granted the lease, by its clock
	grantedAt time.Duration     // when the lease was requested, by CacheStore.now
	serial    int               // the number of the grant, from 1
}

// CacheStats describes the leases of a CacheStore. Leased and Keys are current numbers. The other fields count since
// the CacheStore was made.
type CacheStats struct {
	Served   uint64 // charges decided from leases
	Granted  uint64 // units
	Returned uint64 // units returned, less the inflow since their grants
	Leased   int64  // units leased now
	Keys     int    // hot keys now
}

// Stats returns the current statistics.
func (s *CacheStore) Stats() (sum CacheStats) {
	sum.Served = s.served.Load()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sum.Granted += sh.stats.Granted
		sum.Returned += sh.stats.Returned
		sum.Keys += len(sh.hot)
		for l := range sh.hot {
			sum.Leased += l.left()
		}
		sh.mu.Unlock()
	}
	return sum
}

// find returns the hot key of c's bucket, or nil. It drops a hot key whose limit, lease terms, shards or slot have
// changed.
func (sh *cacheShard) find(c *backend.Charge) *hotKey {
	return sh.hotKeyOf(sh.buckets[string(c.Key)], c)
}

// hotKeyOf does what find does, if b is c's bucket. b may be nil.
func (sh *cacheShard) hotKeyOf(b *bucket, c *backend.Charge) *hotKey {
	l := b.hotKey()
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

// leaseSize returns the number of units to lease, 0 for none. That is what this process needs in half the
// duration of a lease, or until the end of the window, within the bounds of the lease terms and leaseShare. The
// number is halved for each failure that l.failed counts, and rounded down to a multiple of cost.
func (l *hotKey) leaseSize(cost int64, now time.Duration) int64 {
	have := l.left()
	n := min(l.charge.Lease.Most-have, l.last.Remaining/leaseShare-have)
	if n < cost {
		return 0
	}
	span := l.span()
	rate := l.used / float64(max(now-l.since, span/8)) // the divisor has a minimum, so that a few simultaneous requests do not look like a high rate
	needs := rate * float64(span/2)
	if rest := l.edge - now; rest > 0 && rest < span {
		needs = min(needs, rate*float64(rest)+1-float64(have))
	}
	n = int64(min(needs, float64(n))) >> l.failed
	return max(0, n-n%cost)
}

// warm counts a request for a key that is not hot. When there have been enough requests, warm makes the key
// hot, without a lease, and returns it. It returns nil if the key stays cold, or if there is no room for it.
func (sh *cacheShard) warm(c *backend.Charge, hash uint64, now time.Duration) *hotKey {
	if sh.heat == nil {
		sh.heat = new([256]heat)
	}
	h := &sh.heat[hash%uint64(len(sh.heat))]
	if h.requests == 0 || micros(now-h.since) > c.Lease.For {
		*h = heat{since: now}
	}
	if h.requests++; h.requests < hotRequests {
		return nil
	}
	h.requests = 0
	if most := max(1, sh.maxBuckets/4); len(sh.hot) >= most {
		if sh.cool(now); len(sh.hot) >= most {
			return nil
		}
	}
	l := &hotKey{charge: *c, used: hotRequests * float64(c.Terms.Cost), since: h.since, lastRequestAt: now, edge: never}
	l.charge.Key, l.charge.Canceled = bytes.Clone(c.Key), nil // the memory of Key and Canceled belongs to the request
	sh.insert(c.Key).hot = l
	sh.hot[l] = struct{}{}
	return l
}

// returnAll removes the leases of l, and the waiting returns of earlier leases of its key. It returns list with the
// charges appended that return the unused units of all of them.
func (sh *cacheShard) returnAll(list []backend.Charge, l *hotKey, now time.Duration) []backend.Charge {
	for i := range l.grants {
		if back := sh.returnCharge(&l.charge, l.grants[i].left, &l.grants[i], now); back.Terms.Cost < 0 {
			list = append(list, back)
		}
		l.grants[i] = grant{}
	}
	l.arm()
	sh.returns = slices.DeleteFunc(sh.returns, func(back backend.Charge) bool {
		if !bytes.Equal(back.Key, l.charge.Key) {
			return false
		}
		list = append(list, back)
		return true
	})
	return list
}

// returnCharge returns the charge that returns unused units of the grant g to c's bucket. The cost of the charge
// is 0 if there is nothing to return. Otherwise returnCharge counts the units in the statistics.
func (sh *cacheShard) returnCharge(c *backend.Charge, units int64, g *grant, now time.Duration) backend.Charge {
	back := *c
	back.Lease, back.Terms = nil, algorithms.Charge{Hash: c.Terms.Hash}
	if len(c.Shards) > 0 && c.Limit.Kind != algorithms.FixedWindow {
		return back // no returns, because the inflow since the grant is not known for each shard
	}
	if amount := unused(c.Limit, units, micros(now-g.grantedAt)); amount > 0 {
		sh.stats.Returned += uint64(amount / c.Limit.Unit())
		back.Terms.Cost, back.Terms.ChargedAt = -units, g.chargedAt
	}
	return back
}

// leaseFor returns how long leased units of c's bucket may be used after the grant, which was made at grantedAt by
// the clock of the wrapped Store. A lease of a fixed window ends with the window, so that a window never admits more
// than its capacity. A token bucket admits at most capacity + floor((T + Lease.For)*rate/period) in any span of the
// length T.
func leaseFor(c *backend.Charge, grantedAt algorithms.Micros) algorithms.Micros {
	if c.Limit.Kind != algorithms.FixedWindow {
		return c.Lease.For
	}
	return min(c.Lease.For, c.Limit.WindowEnd(grantedAt, c.Terms.Hash))
}

// unused returns the amount that is refunded for unused units of a lease, as in State.Value: for a token bucket, the
// units less the inflow in the time sinceGrant. See algorithms.Charge.ChargedAt.
func unused(l *algorithms.Limit, units int64, sinceGrant algorithms.Micros) int64 {
	if l.Kind != algorithms.TokenBucket {
		return units
	}
	n := l.Numbers()
	return scaled.Returned(units*n.Q, n.P, n.Ticks(int64(sinceGrant)))
}

// receive records d, the decision of the wrapped Store on a charge of l, which was requested at requestedAt.
func (s *CacheStore) receive(l *hotKey, d *backend.Decision, requestedAt, now time.Duration) {
	sh, _ := s.shard(l.charge.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l.record(d, requestedAt, now)
}

// record records d, a decision of the wrapped Store, unless a newer one is known.
func (l *hotKey) record(d *backend.Decision, requestedAt, now time.Duration) {
	l.failed = max(0, l.failed-1)                                          // without this, leaseSize could stay 0 after many failures
	if older := l.last.At - d.At; older > 0 && older < algorithms.Second { // a larger difference means that the clock stepped back
		return
	}
	l.last, l.lastAt = *d, now
	l.last.Allowed, l.last.Never, l.last.RetryAfter, l.last.Wait = true, false, 0, 0
	if hash := l.charge.Terms.Hash; l.charge.Limit.Kind == algorithms.FixedWindow {
		l.edge = requestedAt + time.Duration(l.charge.Limit.WindowEnd(d.At, hash))*time.Microsecond
	}
}

// granted adds a lease. Its units were requested at requestedAt, and d is the decision of the wrapped Store that
// granted them. If l was removed meanwhile, the units are lost.
func (sh *cacheShard) granted(l *hotKey, units int64, d *backend.Decision, requestedAt, now time.Duration) {
	sh.stats.Granted += uint64(units)
	if l.removed {
		return
	}
	// The lease is used for a little less than its duration, because clocks differ in speed.
	lasts := time.Duration(leaseFor(&l.charge, d.At)) * time.Microsecond
	l.serials++
	is := grant{left: units, chargedAt: d.At, grantedAt: requestedAt, until: requestedAt + lasts - lasts/1000 - time.Microsecond, serial: l.serials}
	if l.grants[0].left > 0 && l.grants[1].left > 0 {
		sh.rotate(l, now)
	}
	switch at := &l.grants; {
	case at[0].left == 0:
		at[0] = is
	case is.until < at[0].until:
		at[0], at[1] = is, at[0]
	default:
		at[1] = is
	}
}

// expire ends expired leases. It returns list with all waiting returns appended, including the returns of the unused
// units of these leases.
func (sh *cacheShard) expire(list []backend.Charge, now time.Duration) []backend.Charge {
	for l := range sh.hot {
		for i := range l.grants {
			if g := &l.grants[i]; now >= g.until {
				sh.queueReturn(sh.returnCharge(&l.charge, g.left, g, now))
				*g = grant{}
			}
		}
	}
	list = append(list, sh.returns...)
	sh.returns = nil
	return list
}

// cool removes keys that are no longer hot: they had no recent requests, and no units are leased or being requested.
func (sh *cacheShard) cool(now time.Duration) {
	for l := range sh.hot {
		if l.left() == 0 && l.ahead == nil && now-l.lastRequestAt > max(time.Second, l.span()) {
			sh.drop(l.charge.Key)
		}
	}
}

// drop removes the hot key of a bucket, with its leases.
func (sh *cacheShard) drop(key []byte) {
	b := sh.buckets[string(key)]
	if l := b.hotKey(); l != nil {
		l.removed, l.grants = true, [2]grant{}
		delete(sh.hot, l)
		b.hot = nil
		sh.clean(key, b)
	}
}
