package h2grpc

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// slowStore is a Store that takes some time for each batch, and decides at most two at the same time. Further
// batches wait in a queue. It allows everything. Like the queue of a server, it skips requests that are canceled
// or past their deadline.
type slowStore struct {
	delay atomic.Int64
	ended atomic.Int64

	mu    sync.Mutex
	busy  int
	queue []*backend.Batch
	sizes []int // the number of charges of each call
}

func newSlowStore(delay time.Duration) *slowStore {
	s := &slowStore{}
	s.delay.Store(int64(delay))
	return s
}

func (s *slowStore) batchSizes() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sizes)
}

func (s *slowStore) Submit(b *backend.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, b)
	s.next()
}

// next starts waiting batches. mu is held.
func (s *slowStore) next() {
	for s.busy < 2 && len(s.queue) > 0 {
		b := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
		now, n := time.Now(), 0
		for i := range b.Charges {
			if c := b.Charges[i].Canceled; c != nil && c.Load() || !b.Deadline.IsZero() && !now.Before(b.Deadline) {
				b.Decisions[i].Err = backend.ErrNotTaken
			} else {
				n++
			}
		}
		if n == 0 {
			go s.end(b)
			continue
		}
		s.busy++
		s.sizes = append(s.sizes, n)
		go func() {
			time.Sleep(time.Duration(s.delay.Load()))
			s.mu.Lock()
			s.busy--
			s.next()
			s.mu.Unlock()
			for i := range b.Decisions {
				b.Decisions[i].Allowed = b.Decisions[i].Err == nil
			}
			s.end(b)
		}()
	}
}

func (s *slowStore) drain() {
	idle := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.busy == 0 && len(s.queue) == 0
	}
	for !idle() {
		time.Sleep(time.Second)
	}
}

func (s *slowStore) end(b *backend.Batch) {
	b.Finish()
	s.ended.Add(1)
}

// inTime ends the batches of s early, as the outermost wrapper of the server does: after timeout, or margin
// before the deadline of the batch if that is earlier.
func inTime(s backend.Store, timeout, margin time.Duration) backend.Store {
	return stores.Deadline(nil, s, timeout, margin, func(value any) { panic(value) })
}

const ms = time.Millisecond

// slow runs test with a server whose Store takes 3 ms. Requests may wait for 10 ms. The last 2 ms before the
// caller's deadline are reserved for the answer.
func slow(t *testing.T, test func(*testing.T, *echo, *slowStore, *client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSlowStore(3 * ms)
		defer s.drain()
		m := &echo{store: inTime(s, 10*ms, 2*ms)}
		test(t, m, s, dial(t, serve(t, m, func(c *Config) { c.SubmitTimeout = 10 * ms })))
	})
}
