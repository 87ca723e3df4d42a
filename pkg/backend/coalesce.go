package backend

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Coalesce lets concurrent Takes ride in one Take of next: while Flights of them are under way,
// those that come wait and go together with the next. Idle, a Take goes at once: no timer adds
// latency, and no other goroutine has a part in it. Groups stay apart, and each charge keeps its own
// Decision, so it is exact.
//
// A Take that ends before it is sent is not sent. One whose time is over while it is under way answers
// ErrUnavailable: whether it was charged is not known. One that is cancelled while it is under way by
// itself, and has as long as Timeout, lasts until next has answered.
func Coalesce(next Store, c CoalesceConfig) Store {
	if c.Flights <= 0 {
		c.Flights = 2
	}
	if c.MaxCharges <= 0 {
		c.MaxCharges = 256
	}
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = 65_536
	}
	s := &coalescer{next: next, config: c}
	s.riders.New = func() any { return &rider{done: make(chan struct{}, 1)} }
	s.flights.New = func() any { return &flight{} }
	return s
}

// CoalesceConfig configures Coalesce; zero fields are the defaults.
type CoalesceConfig struct {
	// Timeout of one Take of next; 0: none.
	Timeout time.Duration
	// Flights is how many Takes of next may be under way at once (2: one at work, one on its way;
	// more would be smaller, and cost more each).
	Flights int
	// MaxCharges of one Take of next (256), unless one rider alone has more.
	MaxCharges int
	// MaxWaiting bounds the Takes that wait (65,536); one more is ErrUnavailable at once.
	MaxWaiting int
}

type coalescer struct {
	next            Store
	config          CoalesceConfig
	riders, flights sync.Pool

	mu      sync.Mutex
	waiting []*rider // guarded by mu
	flying  int      // guarded by mu
}

// rider is one Take that waits or is under way. Its charges are copies: the caller may leave.
type rider struct {
	charges   []Charge
	keys      []byte
	decisions []Decision
	done      chan struct{}
	state     atomic.Int32
}

const (
	waits = iota
	sent
	left
)

// Take implements Store.
func (s *coalescer) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	if ctx.Err() != nil {
		failAll(decisions, fmt.Errorf("%w: not sent in time: %w", ErrUnavailable, ctx.Err()))
		return
	}
	if s.flyAlone(ctx, charges, decisions) {
		return
	}
	r := s.riders.Get().(*rider)
	r.board(charges)
	s.mu.Lock()
	if len(s.waiting) >= s.config.MaxWaiting {
		s.mu.Unlock()
		failAll(decisions, fmt.Errorf("%w: %d requests wait for it", ErrUnavailable, s.config.MaxWaiting))
		return
	}
	s.waiting = append(s.waiting, r)
	start := s.flying < s.config.Flights
	if start {
		s.flying++
	}
	s.mu.Unlock()
	if start {
		go s.fly()
	}
	select {
	case <-r.done:
		copy(decisions, r.decisions)
		s.riders.Put(r)
	case <-ctx.Done():
		if r.state.CompareAndSwap(waits, left) {
			failAll(decisions, fmt.Errorf("%w: not sent in time: %w", ErrUnavailable, ctx.Err()))
			return
		}
		failAll(decisions, fmt.Errorf("%w: no answer in time: %w", ErrUnavailable, ctx.Err()))
	}
}

// flyAlone makes a flight of charges, here and now, if nobody waits, there is room for a flight, and its
// time is not cut short by ctx. To be woken costs more than all else there is to a Take.
func (s *coalescer) flyAlone(ctx context.Context, charges []Charge, decisions []Decision) bool {
	const short = 8 // a part of the time
	until := time.Now().Add(s.config.Timeout)
	switch end, ok := ctx.Deadline(); {
	case s.config.Timeout <= 0, ok && end.Before(until.Add(-s.config.Timeout/short)):
		return false
	case ok && end.Before(until):
		until = end
	}
	s.mu.Lock()
	free := s.flying < s.config.Flights && len(s.waiting) == 0
	if free {
		s.flying++
	}
	s.mu.Unlock()
	if !free {
		return false
	}
	defer func() {
		s.mu.Lock()
		wanted := len(s.waiting) > 0
		if !wanted {
			s.flying--
		}
		s.mu.Unlock()
		if wanted {
			go s.fly()
		}
	}()
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	s.next.Take(ctx, charges, decisions)
	return true
}

func (r *rider) board(charges []Charge) {
	r.state.Store(waits)
	r.charges = append(r.charges[:0], charges...)
	r.decisions = append(r.decisions[:0], make([]Decision, len(charges))...)
	size := 0
	for i := range charges {
		size += len(charges[i].Key)
	}
	if cap(r.keys) < size {
		r.keys = make([]byte, 0, size) // grown once, so that keys already copied stay where they are
	}
	r.keys = r.keys[:0]
	for i := range charges {
		at := len(r.keys)
		r.keys = append(r.keys, charges[i].Key...)
		r.charges[i].Key = r.keys[at:]
	}
}

// flight is one Take of next.
type flight struct {
	riders    []*rider
	charges   []Charge
	decisions []Decision
}

// fly makes flights until nobody waits.
func (s *coalescer) fly() {
	f := s.flights.Get().(*flight)
	defer s.flights.Put(f)
	for s.load(f) {
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if s.config.Timeout > 0 {
			ctx, cancel = context.WithTimeout(ctx, s.config.Timeout)
		}
		s.next.Take(ctx, f.charges, f.decisions)
		cancel()
		at := 0
		for _, r := range f.riders {
			at += copy(r.decisions, f.decisions[at:at+len(r.charges)])
			r.done <- struct{}{}
		}
	}
}

// load fills f with those that wait, or, if there are none, ends the flight.
func (s *coalescer) load(f *flight) bool {
	clear(f.riders)
	clear(f.charges) // limits of a configuration that is gone are not kept alive
	f.riders, f.charges = f.riders[:0], f.charges[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	n, group := 0, 0
	for _, r := range s.waiting {
		if len(f.charges) > 0 && len(f.charges)+len(r.charges) > s.config.MaxCharges {
			break
		}
		n++
		if !r.state.CompareAndSwap(waits, sent) {
			continue // it left
		}
		for i := range r.charges {
			if i == 0 || r.charges[i].Group != r.charges[i-1].Group {
				group++
			}
			f.charges = append(f.charges, r.charges[i])
			f.charges[len(f.charges)-1].Group = group
		}
		f.riders = append(f.riders, r)
	}
	rest := copy(s.waiting, s.waiting[n:])
	clear(s.waiting[rest:])
	s.waiting = s.waiting[:rest]
	if len(f.charges) == 0 {
		s.flying--
		return false
	}
	if cap(f.decisions) < len(f.charges) {
		f.decisions = make([]Decision, 2*len(f.charges))
	}
	f.decisions = f.decisions[:len(f.charges)]
	clear(f.decisions)
	return true
}

// failAll answers that the store could not decide.
func failAll(decisions []Decision, err error) {
	for i := range decisions {
		decisions[i] = Decision{Err: err}
	}
}
