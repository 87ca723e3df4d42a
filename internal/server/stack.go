package server

import (
	"errors"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
)

// answerMargin is the time kept of a caller's deadline to give the answer in: a late one opens Envoy's gate.
const answerMargin = 2 * time.Millisecond

// stack is the Stores, from the one that the limiter asks down to the servers.
type stack struct {
	top    backend.Store
	memory *memory.Store       // all buckets; with Redis those that stand in for it
	denied *stores.DeniedStore // nil: in memory
	lease  *stores.LeaseStore  // nil: in memory
	redis  []*redis.Store      // one, or that for limits by the second too; none: in memory
	undos  *stores.Undos       // refunds where a request's limits are in both; nil: there is one
}

// newStack makes the Stores, from the bottom to the top. A batch passes them from the top to the bottom.
func (s *server) newStack() (st stack, err error) {
	c := s.config.Redis
	st.memory = memory.New(memory.Config{MaxKeys: s.config.MemoryMaxKeys})
	s.metrics.WatchMemory(st.memory.Stats)
	st.top = st.memory
	switch {
	case c.URL == "" && c.PerSecondURL == "":
		return st, nil
	case c.URL == "":
		return st, errors.New("there is a redis for limits by the second, but none for the others: give --redis-url too")
	}
	if st.redis, err = s.openRedis(); err != nil {
		return st, err
	}
	st.top = st.redis[0] // it has a lane to each server: a queue, a breaker and connections
	if len(st.redis) > 1 {
		st.undos = stores.NewUndos(max(100*time.Millisecond, 4*c.Timeout))
		st.top = stores.Divided(st.top, st.redis[1], bySecond, st.undos)
	}
	s.metrics.WatchUndos(s.stack.undosDropped)
	st.top = s.metrics.Backend(st.top, c.Timeout, s.backendFailed())
	// These outlive an outage of Redis. A lease comes before a remembered denial: its units are there, even though Redis
	// denied.
	st.denied = stores.Denied(st.top, stores.DeniedConfig{})
	st.lease = stores.Lease(st.denied, stores.LeaseConfig{Timeout: leaseTimeout})
	s.metrics.WatchLeases(st.lease.Stats)
	// Outermost: whatever happens below it, the answer is in time.
	st.top = stores.Deadline(st.lease, c.Timeout, answerMargin, s.storePanicked)
	return st, nil
}

// undosDropped is how many refunds and clean-ups were not sent.
func (st *stack) undosDropped() (n int64) {
	if st.undos != nil {
		n = st.undos.Dropped()
	}
	for _, r := range st.redis {
		n += r.UndosDropped()
	}
	return n
}

// close gives back what is on loan, and ends all connections. Nothing may be submitted any more.
func (st *stack) close() {
	if st.lease != nil {
		st.lease.Close()
	}
	if st.undos != nil {
		st.undos.Close()
	}
	for _, r := range st.redis {
		r.Close()
	}
}
