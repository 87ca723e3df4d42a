package h2grpc

import (
	"slices"
	"sync"
	"sync/atomic"
)

// outstanding bounds the weight of all operations in the Store. When the bound is reached, a connection waits for
// its turn before it submits another operation, and is not read during the wait. A connection with little
// outstanding weight never waits. So a connection with many requests cannot delay other connections.
type outstanding struct {
	mu      sync.Mutex
	weight  int          // the weight of the admitted operations
	sharers atomic.Int32 // the number of connections with a share of that weight
	waiting []*operation // in the order of arrival; at most one per connection
}

// turn returns the number of requests after which a connection yields to the others: its fair share of one call of the
// Store. A request passes several goroutines, each of which waits for its turn, so that long turns add up.
func (s *outstanding) turn() int { return max(leastTurn, maxWeight/max(1, int(s.sharers.Load()))) }

// share is one connection's part of outstanding. It is guarded by outstanding.mu.
type share struct {
	weight  int
	waiting *operation    // the waiting operation, or nil
	room    chan struct{} // receives a value when waiting is admitted; its capacity is 1
}

// enter admits o and returns true if nothing waits and o fits, or if o may be admitted before its turn (fitsOwn).
// Otherwise, if wait is true, it adds o to waiting.
func (s *outstanding) enter(o *operation, wait bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 && s.fits(o) || o.fitsOwn() {
		s.admit(o)
		return true
	}
	if wait {
		s.waiting, o.conn.share.waiting = append(s.waiting, o), o
	}
	return false
}

// fits reports whether o may be admitted in its turn. mu is held.
func (s *outstanding) fits(o *operation) bool {
	return s.weight == 0 || s.weight+o.weight <= maxOutstanding
}

// fitsOwn reports whether o may be admitted before its turn. outstanding.mu is held.
func (o *operation) fitsOwn() bool { return o.conn.share.weight+o.weight <= ownOutstanding }

// admit adds o to the weight, and ends its wait. mu is held.
func (s *outstanding) admit(o *operation) {
	s.weight += o.weight
	mine := &o.conn.share
	if mine.weight == 0 && o.weight > 0 {
		s.sharers.Add(1)
	}
	mine.weight += o.weight
	if mine.waiting == o {
		mine.waiting = nil
		mine.room <- struct{}{}
	}
}

// leave removes o, which was admitted or has no weight, from the weight, and admits waiting operations for which there is
// room now. o.conn must still be set.
func (s *outstanding) leave(o *operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weight -= o.weight
	if o.conn.share.weight -= o.weight; o.conn.share.weight == 0 && o.weight > 0 {
		s.sharers.Add(-1)
	}
	n := 0
	for ; n < len(s.waiting) && s.fits(s.waiting[n]); n++ {
		s.admit(s.waiting[n])
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
	if own := o.conn.share.waiting; own != nil && own.fitsOwn() {
		s.remove(own)
		s.admit(own)
	}
}

// cancelWait ends the wait of o. It returns false if o has been admitted.
func (s *outstanding) cancelWait(o *operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.conn.share.waiting != o {
		return false
	}
	o.conn.share.waiting = nil
	s.remove(o)
	return true
}

// remove removes o from waiting. mu is held.
func (s *outstanding) remove(o *operation) {
	at := slices.Index(s.waiting, o)
	s.waiting = slices.Delete(s.waiting, at, at+1)
}
