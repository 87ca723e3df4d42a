package stores

import (
	"bytes"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const unknown algorithms.Micros = -1

// denial is the cached answer to a group.
type denial struct {
	hash         uint64 // by groupHash
	charges      []backend.Charge
	decisions    []backend.Decision
	unchangedFor []algorithms.Micros // how long each Remaining stays unchanged; unknown if the decision does not contain the whole state of the bucket
	submittedAt  time.Time
	revalidateAt time.Time // from this time on, one caller revalidates the denial
	retryAt      time.Time // the earliest time at which a retry may succeed: submittedAt plus the retry time of the group
	arrivedAt    time.Time
	revalidating atomic.Bool
}

// answerGroup writes the decisions on a group if d is the denial of the same group. It reports whether the
// group is still denied. If it returns false, the decisions are meaningless.
func (d *denial) answerGroup(charges []backend.Charge, decisions []backend.Decision, now time.Time) (denied bool) {
	if !now.Before(d.retryAt) || len(charges) != len(d.charges) {
		return false
	}
	sinceSubmit, sinceArrival := algorithms.Micros(now.Sub(d.submittedAt)/time.Microsecond), algorithms.Micros(max(0, now.Sub(d.arrivedAt))/time.Microsecond)
	for i := range charges {
		if !d.answer(i, &charges[i], sinceSubmit, sinceArrival, &decisions[i]) {
			return false
		}
	}
	return !backend.Allowed(charges, decisions)
}

// answer computes the decision on c from charge i of the denied group. It returns false if c is another charge, if
// its cost is smaller, if the decision on a larger cost is unknown, or if a denied charge would now be allowed.
//
// sinceSubmit and sinceArrival are the times since the group was submitted to the wrapped Store, and since the
// decisions arrived. The wrapped Store decided between these two moments. Retry times count from the arrival, so that
// none is too early. So every caller receives a retry time that ends at the same moment as that of the first caller.
func (d *denial) answer(i int, c *backend.Charge, sinceSubmit, sinceArrival algorithms.Micros, answer *backend.Decision) bool {
	was := &d.charges[i]
	terms := was.Terms
	terms.Cost = max(terms.Cost, c.Terms.Cost)
	if was.Limit != c.Limit || terms != c.Terms || was.Then != c.Then || c.Own != nil || !bytes.Equal(was.Key, c.Key) {
		return false
	}
	*answer = d.decisions[i]
	switch more := terms.Cost > was.Terms.Cost; {
	case more && (answer.Allowed || d.unchangedFor[i] == unknown):
		return false // a bucket that allowed a cost might deny a larger one
	case more:
		answer.RetryAfter = retryLater(c, answer, sinceArrival)
	case !answer.Allowed:
		answer.RetryAfter -= sinceArrival
		answer.Blocked = max(0, answer.Blocked-sinceArrival)
	}
	if unchangedFor := d.unchangedFor[i]; unchangedFor == unknown || sinceSubmit < unchangedFor {
		answer.ResetAfter = max(0, answer.ResetAfter-sinceSubmit)
	} else {
		answer.Remaining, answer.ResetAfter = remainsLater(c, answer, sinceSubmit)
	}
	return answer.Allowed || answer.RetryAfter > 0
}

// retryLater returns the retry time of c at the time d.At+delay. d is the earlier denial of the cost of c, or of a
// smaller one. d.Value must be the whole state of the bucket. The result is 0 if the cost can never fit, or would be
// allowed.
func retryLater(c *backend.Charge, d *backend.Decision, delay algorithms.Micros) algorithms.Micros {
	return peekLater(c, d, delay, c.Terms).RetryAfter
}

// allowedAfter returns the time until c is allowed again, which was charged although another charge of its group was
// denied. d is the decision on c; d.Value must be the whole state of the bucket.
func allowedAfter(c *backend.Charge, d *backend.Decision) algorithms.Micros {
	again := c.Terms
	again.Free = true // a denial would be charged, too
	return peekLater(c, d, 0, again).RetryAfter
}

func peekLater(c *backend.Charge, d *backend.Decision, delay algorithms.Micros, terms algorithms.Charge) algorithms.Decision {
	terms.DryRun = true
	_, later := c.Limit.Take(algorithms.State{By: c.Limit, Value: d.Value, At: d.At}, d.At+delay, terms)
	return later
}

// peekAt returns the decision of a dry run at time now, with a cost of 0, for a bucket that held value at time valueAt.
// If now is before valueAt, valueAt is used. c has the limit of the bucket.
func peekAt(c *backend.Charge, value int64, valueAt, now algorithms.Micros) (d algorithms.Decision) {
	state := algorithms.State{By: c.Limit, Value: value, At: valueAt}
	c.Limit.TakeAt(&state, max(now, valueAt), &algorithms.Charge{Hash: c.Terms.Hash, DryRun: true}, &d)
	return d
}

// remainsLater returns Remaining and ResetAfter at the time d.At+delay. d.Value must be the whole state of the bucket.
func remainsLater(c *backend.Charge, d *backend.Decision, delay algorithms.Micros) (int64, algorithms.Micros) {
	later := peekAt(c, d.Value, d.At, d.At+delay)
	return later.Remaining, later.ResetAfter
}

// unchanged returns how long Remaining of d, the decision on c, stays unchanged. It returns unknown for a limit
// with a Rate of 0, and if d.Value may not be the whole state of the bucket. Examples are a sliding window, a bucket
// with shards or a penalty, a Value in the numbers of another limit, and a clock that stepped back. It returns 0 for
// a full bucket.
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

// denialOf returns the denial of a group, to be cached for at most maxAge. The group was submitted at submittedAt, and
// its decisions arrived at arrivedAt. denialOf returns nil if the group was not denied, or if its denial must not be
// cached.
func denialOf(charges []backend.Charge, decisions []backend.Decision, submittedAt, arrivedAt time.Time, maxAge time.Duration) *denial {
	lasts, plan, blocked := algorithms.Micros(0), algorithms.Micros(0), algorithms.Micros(math.MaxInt64)
	for i := range charges {
		d := &decisions[i]
		instead := i > 0 && charges[i-1].Then
		if charges[i].Limit.Penalty.After > 0 {
			blocked = min(blocked, d.Blocked)
		}
		switch {
		case d.Err != nil || charges[i].Limit.ChargesDenied() || charges[i].Terms.Cost < 0 || charges[i].Own != nil:
			return nil
		case d.Never:
			return nil // no retry can succeed, so the denial has no retry time
		case charges[i].Then:
			plan = max(plan, d.RetryAfter)
			continue
		case !d.Allowed && instead && d.RetryAfter == 0:
			return nil // the alternative was not needed, so whether it would allow is unknown
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
	d := &denial{hash: groupHash(charges), decisions: slices.Clone(decisions), submittedAt: submittedAt, arrivedAt: arrivedAt}
	d.retryAt = submittedAt.Add(time.Duration(lasts) * time.Microsecond)
	d.revalidateAt = submittedAt.Add(min(maxAge, d.retryAt.Sub(submittedAt)))
	for i := range charges {
		c := charges[i]
		c.Key = bytes.Clone(c.Key)
		d.charges = append(d.charges, c)
		d.unchangedFor = append(d.unchangedFor, unchanged(&c, &decisions[i]))
	}
	return d
}

// denials is the bounded set of cached denials. It is a state machine without a lock or a clock.
type denials struct {
	most    int
	groups  map[uint64]*denial  // by denial.hash
	buckets map[uint64][]uint64 // for each bucket, by the hash of its key: the hashes of its denied groups
	listed  int                 // the number of hashes in buckets, including hashes of groups that were removed
}

func newDenials(most int) denials {
	return denials{most: most, groups: map[uint64]*denial{}, buckets: map[uint64][]uint64{}}
}

// add adds d, and replaces an older denial of the same group. If there is no room, it removes all other
// denials first.
func (s *denials) add(d *denial) {
	// The lists in buckets have their own bound: a group that was removed because of one bucket is still listed
	// under its other buckets.
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

func (s *denials) remove(d *denial) {
	if s.groups[d.hash] == d {
		delete(s.groups, d.hash)
	}
}

func (s *denials) removeBucket(keyHash uint64) {
	for _, group := range s.buckets[keyHash] {
		delete(s.groups, group)
	}
	s.listed -= len(s.buckets[keyHash])
	delete(s.buckets, keyHash)
}

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

func refundsOrResets(charges []backend.Charge) bool {
	for i := range charges {
		if charges[i].Refunds() || charges[i].Reset {
			return true
		}
	}
	return false
}
