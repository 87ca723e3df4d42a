package stores

import (
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// ahead is a request for a lease, which is made in the background.
type ahead struct {
	store       *CacheStore
	shard       *cacheShard
	hotKey      *hotKey
	units       int64
	requestedAt time.Duration
	batch       backend.Batch
	charge      [1]backend.Charge
	answer      [1]backend.Decision
	following   *ahead   // is submitted next, or nil
	then        []func() // called when the request has ended; guarded by the lock of shard
}

// leaseAhead prepares a request for the next lease of l. It returns nil if no lease is wanted, if one is being requested
// already, or if s.background permits no further call. The lock of sh is held. After releasing it, the caller must call
// submit on the result.
func (s *CacheStore) leaseAhead(sh *cacheShard, l *hotKey, cost int64, now time.Duration) *ahead {
	l.low, l.early = -1, never
	units := l.leaseSize(cost, now)
	if l.ahead != nil || units == 0 || !s.background.Begin() {
		return nil
	}
	a := &ahead{store: s, shard: sh, hotKey: l, units: units}
	l.ahead = a
	c := &a.charge[0]
	*c = l.charge
	c.Lease, c.Terms = nil, algorithms.Charge{Hash: c.Terms.Hash, Cost: units}
	return a
}

func (a *ahead) submit() {
	if a == nil {
		return
	}
	s := a.store
	a.requestedAt = s.now()
	a.batch = backend.Batch{Charges: a.charge[:], Decisions: a.answer[:], Deadline: s.config.Clock.Now().Add(s.config.Timeout), Detached: true}
	a.batch.Done = func(*backend.Batch) {
		s.forget(a.charge[0].Key)
		for _, f := range s.grantedAhead(a) {
			f()
		}
		s.background.End()
	}
	s.next.Submit(&a.batch)
	a.following.submit()
}

// grantedAhead records the decision on a lease. The caller must call the functions that it returns, without holding the
// lock of the shard.
func (s *CacheStore) grantedAhead(a *ahead) (then []func()) {
	sh, l, d := a.shard, a.hotKey, &a.answer[0]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	l.ahead = nil
	if d.Err != nil {
		// The units may have been charged. The next request is for fewer units, so that continued failures lose
		// fewer units.
		l.failed++
		l.early = now + l.span()/16
		return a.then
	}
	l.failed = 0
	l.record(d, a.requestedAt, now)
	if d.Allowed {
		sh.granted(l, a.units, d, a.requestedAt, now)
	}
	l.arm()
	return a.then
}
