package stores

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const unknown algorithms.Micros = -1

// forgetAfter is how many times MaxAge a remembered decision may be old. An older one has had no requests that would
// have revalidated it.
const forgetAfter = 10

// denial is the remembered decision on one charge of a denied group. The charge itself may have been allowed.
type denial struct {
	charge       backend.Charge
	decision     backend.Decision
	unchangedFor algorithms.Micros // how long Remaining stays unchanged; unknown if the decision does not contain the whole state of the bucket
	submittedAt  time.Duration
	arrivedAt    time.Duration
	steps        time.Duration // elapsed.steps when the group was submitted
	revalidateAt time.Duration // from this time on, one caller revalidates the denial
	until        time.Duration // before the earliest time at which a retry may succeed
	revalidating atomic.Bool
}

// newDenial remembers d, the decision on c. The group was submitted at submittedAt, and its decisions arrived at
// arrivedAt.
func newDenial(c *backend.Charge, d *backend.Decision, submittedAt, arrivedAt, maxAge time.Duration) *denial {
	is := &denial{charge: *c, decision: *d, submittedAt: submittedAt, arrivedAt: arrivedAt, unchangedFor: unchanged(c, d)}
	is.charge.Key, is.charge.Canceled = bytes.Clone(c.Key), nil
	lasts := forgetAfter * maxAge
	if !d.Allowed {
		lasts = min(lasts, time.Duration(d.RetryAfter)*time.Microsecond)
	}
	if c.Limit.Penalty.After > 0 {
		lasts = min(lasts, time.Duration(d.Blocked)*time.Microsecond)
	}
	is.revalidateAt, is.until = submittedAt+min(maxAge, lasts), submittedAt+lasts
	return is
}

// answer computes the decision on c from a remembered decision on the same bucket. It returns false if the numbers of
// the limit have changed, if c's cost is smaller, if the decision on a larger cost is unknown, or if a denied charge
// would now be allowed.
//
// The wrapped Store decided after submittedAt, and before arrivedAt. Retry times count from the arrival, so that none is
// too early. So every caller receives a retry time that ends at the same moment as that of the first caller.
func (d *denial) answer(c *backend.Charge, answer *backend.Decision, now time.Duration) bool {
	terms := d.charge.Terms
	terms.Cost = max(terms.Cost, c.Terms.Cost)
	if now >= d.until || d.charge.Limit != c.Limit || terms != c.Terms {
		return false
	}
	sinceSubmit, sinceArrival := micros(now-d.submittedAt), micros(max(0, now-d.arrivedAt))
	*answer = d.decision
	switch more := terms.Cost > d.charge.Terms.Cost; {
	case more && (answer.Allowed || d.unchangedFor == unknown):
		return false // a bucket that allowed a cost might deny a larger one
	case more:
		answer.RetryAfter = peek(c, answer, sinceArrival, &terms).RetryAfter // 0 if it can never fit, or would be allowed
	case !answer.Allowed:
		answer.RetryAfter -= sinceArrival
		answer.Blocked = max(0, answer.Blocked-sinceArrival)
	}
	if d.unchangedFor == unknown || sinceSubmit < d.unchangedFor {
		answer.ResetAfter = max(0, answer.ResetAfter-sinceSubmit)
	} else {
		later := peekFree(c, answer, sinceSubmit)
		answer.Remaining, answer.ResetAfter = later.Remaining, later.ResetAfter
	}
	return answer.Allowed || answer.RetryAfter > 0
}

// remembers reports whether the decisions on a denied group may be remembered, and answer such a group.
func remembers(group []backend.Charge) bool {
	for i := range group {
		c := &group[i]
		repeatable, alternative := c.IdempotencyKey != nil, c.Then || c.Own != nil
		if repeatable || alternative || c.Reset || c.Terms.DryRun || c.Terms.Settle || c.Terms.Cost < 0 {
			return false
		}
		if c.Limit.ChargesDenied() || c.Limit.Kind == algorithms.Concurrency { // other sidecars return slots at any time
			return false
		}
	}
	return true
}

// remember updates the remembered decisions after the wrapped Store has decided a group. parts is nil, or has the parts
// of charges; the held ones were not submitted.
func (s *CacheStore) remember(t *flight, charges []backend.Charge, parts []cachePart, decisions []backend.Decision) {
	if backend.ConsumedAny(charges, decisions) {
		for i := range charges {
			if c := &charges[i]; c.Terms.Cost > 0 || c.Own != nil {
				s.forget(c.Key)
			}
		}
		return
	}
	if !remembers(charges) {
		return
	}
	for i := range charges {
		d := &decisions[i]
		if d.Never || !d.Allowed && d.RetryAfter == 0 || charges[i].Limit.Penalty.After > 0 && d.Blocked == 0 {
			return // an unknown outcome, or a denial that no retry time ends, or that a penalty must count
		}
	}
	now := s.now()
	for i := range charges {
		if parts == nil || !parts[i].held {
			d := newDenial(&charges[i], &decisions[i], t.began, now, s.config.MaxAge)
			d.steps = t.steps
			s.rememberDenial(t, d)
		}
	}
}

// rememberDenial remembers d, unless this process may have changed the bucket since it submitted the flight t.
func (s *CacheStore) rememberDenial(t *flight, d *denial) {
	sh, hash := s.shard(d.charge.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.buckets[string(d.charge.Key)] == nil && len(sh.buckets) >= sh.maxBuckets {
		sh.forgetDenials(func(*denial) bool { return true })
	}
	// insert raises s.cached before s.changed is read here, and forget writes s.changed before it reads s.cached. So
	// either d counts as outdated, or forget removes it.
	b := sh.insert(d.charge.Key)
	if s.clearedAt.Load() < t.number && s.changedBy(hash).Load() < t.number {
		b.denial = d
		s.arm()
	}
	sh.clean(d.charge.Key, b)
}

func (s *CacheStore) changedBy(hash uint64) *atomic.Uint64 {
	return &s.changed[hash%uint64(len(s.changed))]
}

// forget removes the remembered decision on a bucket, because this process has changed the bucket. A later decision is
// remembered only if its flight begins after forget.
func (s *CacheStore) forget(key []byte) {
	sh, hash := s.shard(key)
	s.changedBy(hash).Store(s.submitted.Load())
	if s.cached.Load() == 0 {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if b := sh.buckets[string(key)]; b != nil {
		b.denial = nil
		sh.clean(key, b)
	}
}

// forgetRefunded forgets the decisions on buckets that charges refund or reset.
func (s *CacheStore) forgetRefunded(charges []backend.Charge) {
	for i := range charges {
		if charges[i].Refunds() || charges[i].Reset {
			s.forget(charges[i].Key)
		}
	}
}

// forgetDenial removes d, unless a newer decision has replaced it.
func (s *CacheStore) forgetDenial(d *denial) {
	sh, _ := s.shard(d.charge.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if b := sh.buckets[string(d.charge.Key)]; b != nil && b.denial == d {
		b.denial = nil
		sh.clean(d.charge.Key, b)
	}
}

// forgetDenials removes the decisions for which which returns true.
func (sh *cacheShard) forgetDenials(which func(*denial) bool) {
	for key, b := range sh.buckets {
		if b.denial != nil && which(b.denial) {
			b.denial = nil
			sh.clean([]byte(key), b)
		}
	}
}

// allowedAfter returns the time until c is allowed again, which was charged although another charge of its group was
// denied. d is the decision on c; d.Value must be the whole state of the bucket.
func allowedAfter(c *backend.Charge, d *backend.Decision) algorithms.Micros {
	again := c.Terms
	again.Free = true // a denial would be charged, too
	return peek(c, d, 0, &again).RetryAfter
}

// peek returns the decision of a dry run at the time d.At+delay, or at d.At if delay is negative. c has the limit of the
// bucket, and d.Value must be its whole state. It sets terms.DryRun.
func peek(c *backend.Charge, d *backend.Decision, delay algorithms.Micros, terms *algorithms.Charge) (later algorithms.Decision) {
	terms.DryRun = true
	state := algorithms.State{By: c.Limit, Value: d.Value, At: d.At}
	c.Limit.TakeAt(&state, d.At+max(0, delay), terms, &later)
	return later
}

// peekFree does what peek does, for a cost of 0.
func peekFree(c *backend.Charge, d *backend.Decision, delay algorithms.Micros) algorithms.Decision {
	return peek(c, d, delay, &algorithms.Charge{Hash: c.Terms.Hash})
}

// unchanged returns how long Remaining of d, the decision on c, stays unchanged. It returns unknown for a limit
// with a Rate of 0, and if d.Value may not be the whole state of the bucket. Examples are a sliding window, a bucket
// with shards or a penalty, a Value in the numbers of another limit, and a clock that stepped back. It returns 0 for
// a full bucket.
func unchanged(c *backend.Charge, d *backend.Decision) algorithms.Micros {
	kind := c.Limit.Kind
	if kind != algorithms.TokenBucket && kind != algorithms.FixedWindow || c.Limit.Rate == 0 || len(c.Shards) > 0 || c.Limit.Penalty.After > 0 || c.Limit.OpenFor > 0 {
		return unknown
	}
	is, terms := peekFree(c, d, 0), c.Terms
	if is.Remaining != d.Remaining || is.ResetAfter != d.ResetAfter || !d.Allowed && peek(c, d, 0, &terms).RetryAfter != d.RetryAfter {
		return unknown
	}
	return peek(c, d, 0, &algorithms.Charge{Cost: d.Remaining + 1, Hash: c.Terms.Hash}).RetryAfter
}

// adapt changes d, a decision on c, for a bucket that has a number of extra units, and for a time that is delay
// microseconds later.
func adapt(c *backend.Charge, d *backend.Decision, extra int64, delay algorithms.Micros) {
	if len(c.Shards) > 0 { // d.Value is a sum over the shards, so peek cannot compute from it
		d.Remaining = min(c.Limit.Capacity, d.Remaining+extra)
		d.ResetAfter = max(0, d.ResetAfter-delay)
		d.At += delay
		return
	}
	d.Value += extra * c.Limit.Unit()
	there := peekFree(c, d, delay)
	d.At += delay
	d.Value, d.Remaining, d.ResetAfter = there.Value, there.Remaining, there.ResetAfter
}
