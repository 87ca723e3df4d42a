package server

import (
	"errors"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// answerMargin is the part of a caller's deadline that is reserved for sending the answer. By default, Envoy allows
// the request if the answer is late.
const answerMargin = 2 * time.Millisecond

// stack holds the Stores, from the one that the limiter calls down to the Redis servers.
type stack struct {
	top    backend.Store
	memory *memory.Store      // all buckets; with Redis, only the buckets of on_backend_failure local
	cache  *stores.CacheStore // nil without Redis
	redis  []*redis.Store     // empty without Redis; the second one, if present, is for limits per second
	undos  *stores.Undos      // refunds for requests with limits in both Redis servers; nil with one Redis
	// repeats submits the returns and renewals of slots.
	repeats *stores.Undos
}

func (s *server) newStack() (st stack, err error) {
	c := s.config.Redis
	st.memory = memory.New(memory.Config{MaxKeys: s.config.MemoryMaxKeys})
	s.metrics.WatchMemory(st.memory.Stats)
	st.top = st.memory
	st.repeats = stores.NewUndos(nil, max(100*time.Millisecond, 4*c.Timeout))
	switch {
	case c.URL == "" && c.PerSecondURL == "":
		return st, nil
	case c.URL == "":
		return st, errors.New("--redis-per-second-url needs --redis-url, for the limits that are not per second")
	}
	if st.redis, err = s.openRedis(); err != nil {
		return st, err
	}
	st.top = st.redis[0] // a redis.Store has a queue, a circuit breaker and connections for each server
	if len(st.redis) > 1 {
		st.undos = stores.NewUndos(nil, max(100*time.Millisecond, 4*c.Timeout))
		st.top = stores.Divided(st.redis[0], st.redis[1], bySecond, st.undos)
	}
	s.metrics.WatchUndos(s.stack.undosDropped)
	st.top = s.metrics.Backend(st.top, c.Timeout, s.storeTimes.Add, s.backendFailed())
	st.cache = stores.Cache(st.top, stores.CacheConfig{Timeout: leaseTimeout}) // also works during an outage of Redis
	s.metrics.WatchLeases(st.cache.Stats)
	// Deadline is the outermost Store, so that the answer is in time whatever the inner Stores do.
	st.top = stores.Deadline(nil, st.cache, c.Timeout, answerMargin, s.storePanicked)
	return st, nil
}

// undosDropped returns the number of refunds and clean-ups that were not sent.
func (st *stack) undosDropped() (n int64) {
	if st.undos != nil {
		n = st.undos.Dropped()
	}
	for _, r := range st.redis {
		n += r.UndosDropped()
	}
	return n
}

// forgetting changes limits. It also returns the leases of the buckets with these keys, or of all, and removes their
// remembered denials. It does so before the change, while the limits under which units were leased are still in use,
// and again after it, so that a raised limit applies at once.
func (st *stack) forgetting(keys [][]byte, all bool, change func()) {
	forget := func() {
		switch {
		case st.cache == nil: // without Redis
		case all:
			st.cache.Clear()
		default:
			for _, key := range keys {
				st.cache.ClearBucket(key)
			}
		}
	}
	forget()
	change()
	forget()
}

// close closes the Stores. No batch may be submitted after it has been called.
func (st *stack) close() {
	st.repeats.Close()
	if st.cache != nil {
		st.cache.Close()
	}
	if st.undos != nil {
		st.undos.Close()
	}
	for _, r := range st.redis {
		r.Close()
	}
}
