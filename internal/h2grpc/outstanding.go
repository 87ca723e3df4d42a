package h2grpc

import (
	"slices"
	"sync"
)

// outstanding bounds the weight of all operations that wait for the Store. Beyond it a connection waits for its turn
// before it submits another, and reads nothing meanwhile. A connection with little outstanding never waits, so that
// one that sends much cannot delay the others.
type outstanding struct {
	mu      sync.Mutex
	weight  int          // of the operations that were admitted
	waiting []*operation // in the order in which they came; at most one of each connection
}

// share is a connection's part of what is outstanding; guarded by outstanding.mu.
type share struct {
	weight int
	waits  *operation    // nil: none
	room   chan struct{} // receives when waits was admitted; has room for one
}

// enter admits o. false: there is no room; o then waits for its turn, if it is to.
func (s *outstanding) enter(o *operation, wait bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 && s.fits(o) || o.fitsOwn() {
		s.admit(o)
		return true
	}
	if wait {
		s.waiting, o.conn.share.waits = append(s.waiting, o), o
	}
	return false
}

// fits reports whether o may be admitted in its turn. mu is held.
func (s *outstanding) fits(o *operation) bool {
	return s.weight == 0 || s.weight+o.weight <= maxOutstanding
}

// fitsOwn reports whether o may be admitted before its turn. outstanding.mu is held.
func (o *operation) fitsOwn() bool { return o.conn.share.weight+o.weight <= ownOutstanding }

// admit counts o, and ends its wait. mu is held.
func (s *outstanding) admit(o *operation) {
	s.weight += o.weight
	mine := &o.conn.share
	mine.weight += o.weight
	if mine.waits == o {
		mine.waits = nil
		mine.room <- struct{}{}
	}
}

// leave ends an operation that was admitted, and admits those for which there is room now. o still has its connection.
func (s *outstanding) leave(o *operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weight -= o.weight
	o.conn.share.weight -= o.weight
	n := 0
	for ; n < len(s.waiting) && s.fits(s.waiting[n]); n++ {
		s.admit(s.waiting[n])
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
	if own := o.conn.share.waits; own != nil && own.fitsOwn() {
		s.remove(own)
		s.admit(own)
	}
}

// withdraw ends the wait of o. false: it was admitted meanwhile.
func (s *outstanding) withdraw(o *operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.conn.share.waits != o {
		return false
	}
	o.conn.share.waits = nil
	s.remove(o)
	return true
}

// remove removes o from those that wait. mu is held.
func (s *outstanding) remove(o *operation) {
	at := slices.Index(s.waiting, o)
	s.waiting = slices.Delete(s.waiting, at, at+1)
}
