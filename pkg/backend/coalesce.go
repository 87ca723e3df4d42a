package backend

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Coalesce lets concurrent Takes ride in one Take of next: while one is under way, those that come
// wait and go together with the next. Idle, a Take goes at once: no timer adds latency, and no other
// goroutine has a part in it. Another starts, up to Flights, when the last has been under way for half of
// Timeout, or enough wait to fill it. Groups stay apart, and each charge keeps its own Decision, so it is
// exact.
//
// A Take that ends before it is sent is not sent. One whose time is over while it is under way answers
// ErrUnavailable: whether it was charged is not known. One that is cancelled while it is under way by
// itself, and has as long as Timeout, lasts until next has answered.
func Coalesce(next Taker, c CoalesceConfig) Taker {
	if c.Flights <= 0 {
		c.Flights = 2
	}
	if c.Go == nil {
		c.Go = func(f func()) { go f() }
	}
	if c.MaxCharges <= 0 {
		c.MaxCharges = MaxBatch
	}
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = 65_536
	}
	s := &coalescer{next: next, config: c, long: c.Timeout / 2}
	s.riders.New = func() any { return &rider{done: make(chan struct{}, 1)} }
	s.flyer = s.fly
	s.flights.New = func() any { return &flight{} }
	return s
}

// CoalesceConfig configures Coalesce; zero fields are the defaults.
type CoalesceConfig struct {
	// Timeout of one Take of next; 0: none.
	Timeout time.Duration
	// Flights is how many Takes of next may be under way at once (2: one may be late, or on its way
	// while the other is at work). They share the load, so each is smaller and costs more.
	Flights int
	// Go runs what makes flights on another goroutine (go f()).
	Go func(f func())
	// Panicked is called with what next, or a caller whose Take was started, panicked with on a goroutine of
	// the Store's: the process goes on. May be nil.
	Panicked func(value any)
	// MaxCharges of one Take of next (256), unless one rider alone has more.
	MaxCharges int
	// MaxWaiting bounds the Takes that wait (65,536); one more is ErrUnavailable at once.
	MaxWaiting int
}

type coalescer struct {
	next            Taker
	config          CoalesceConfig
	long            time.Duration // after which another flight starts
	riders, flights sync.Pool
	flyer           func() // fly

	mu       sync.Mutex
	waiting  []*rider // guarded by mu, and so is what follows
	charges  int      // of those who wait
	flying   int
	departed time.Time // the last flight
	watched  bool      // overdue will look
}

// rider is one Take that waits or is under way. Its charges are copies: the caller may leave. One that was
// started has the caller's own.
type rider struct {
	charges   []Charge
	keys      []byte
	decisions []Decision
	done      chan struct{}
	state     atomic.Int32

	started func()    // what its caller wants called; nil: it waits for done
	until   time.Time // it is not sent later than this; zero: whenever
}

const (
	waits = iota
	sent
	left
)

// Take implements Store.
func (s *coalescer) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	if ctx.Err() != nil {
		failAll(decisions, fmt.Errorf("%w: not sent in time: %w", ErrNotTaken, ctx.Err()))
		return
	}
	if s.flyAlone(ctx, charges, decisions) {
		return
	}
	r := s.riders.Get().(*rider)
	r.board(charges)
	if !s.wait(r) {
		failAll(decisions, fmt.Errorf("%w: %d requests wait for it", ErrNotTaken, s.config.MaxWaiting))
		return
	}
	select {
	case <-r.done:
		copy(decisions, r.decisions)
		s.riders.Put(r)
	case <-ctx.Done():
		if r.state.CompareAndSwap(waits, left) {
			failAll(decisions, fmt.Errorf("%w: not sent in time: %w", ErrNotTaken, ctx.Err()))
			return
		}
		failAll(decisions, fmt.Errorf("%w: no answer in time: %w", ErrUnavailable, ctx.Err()))
	}
}

// Start implements Starter.
func (s *coalescer) Start(charges []Charge, decisions []Decision, done func()) bool {
	r := &rider{charges: charges, decisions: decisions, started: done}
	if s.config.Timeout > 0 {
		r.until = time.Now().Add(s.config.Timeout)
	}
	return s.wait(r)
}

// wait puts r among those who wait; false: there are too many.
func (s *coalescer) wait(r *rider) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) >= s.config.MaxWaiting {
		return false
	}
	s.waiting = append(s.waiting, r)
	s.charges += len(r.charges)
	s.start()
	return true
}

// flyAlone makes a flight of charges, here and now, if nobody waits, there is room for a flight, and its
// time is not cut short by ctx. To be woken costs more than all else there is to a Take.
func (s *coalescer) flyAlone(ctx context.Context, charges []Charge, decisions []Decision) bool {
	const short = 8 // a part of the time
	now := time.Now()
	until := now.Add(s.config.Timeout)
	switch end, ok := ctx.Deadline(); {
	case s.config.Timeout <= 0, ok && end.Before(until.Add(-s.config.Timeout/short)):
		return false
	case ok && end.Before(until):
		until = end
	}
	s.mu.Lock()
	free := s.flying == 0 && len(s.waiting) == 0
	if free {
		s.flying, s.departed = 1, now
	}
	s.mu.Unlock()
	if !free {
		return false
	}
	defer s.over()
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	s.next.Take(ctx, charges, decisions)
	return true
}

// start starts a flight for those who wait, if one is due. mu is held.
func (s *coalescer) start() {
	if s.depart() {
		s.config.Go(s.flyer)
	}
}

// depart counts a flight, if one is due. mu is held.
func (s *coalescer) depart() bool {
	now := time.Now()
	if !s.due(now) {
		return false
	}
	s.flying++
	s.departed = now
	return true
}

// due tells whether those who wait should go now, one flight being ready for them. Fewer and larger ones
// cost less, but one that is late must not hold up all others: it is waited for no longer than long, which
// overdue sees to. mu is held.
func (s *coalescer) due(now time.Time) bool {
	switch out := now.Sub(s.departed); {
	case len(s.waiting) == 0 || s.flying >= s.config.Flights:
		return false
	case s.flying == 0 || out >= s.long || s.charges >= s.config.MaxCharges:
		return true
	default:
		if !s.watched {
			s.watched = true
			time.AfterFunc(s.long-out, s.overdue)
		}
		return false
	}
}

func (s *coalescer) overdue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = false
	s.start()
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
	late      []*rider // are not taken along
	charges   []Charge
	decisions []Decision
}

// fly makes a flight, and others as long as they are due.
func (s *coalescer) fly() {
	f := s.flights.Get().(*flight)
	defer s.flights.Put(f)
	for more := s.load(f); more; more = s.another(f) {
		s.takeTogether(f)
		if len(f.riders) > few { // what is next is not to wait until all of these are told
			s.over()
			s.unload(f)
			return
		}
		s.unload(f)
	}
}

// takeTogether has next decide f. If that panics it has failed: whether it was charged is not known.
func (s *coalescer) takeTogether(f *flight) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if s.config.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, s.config.Timeout)
	}
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			s.panicked(p)
			failAll(f.decisions, fmt.Errorf("%w: panic: %v", ErrUnavailable, p))
		}
	}()
	s.next.Take(ctx, f.charges, f.decisions)
}

func (s *coalescer) panicked(value any) {
	if s.config.Panicked != nil {
		s.config.Panicked(value)
	}
}

// few is how many riders may be told before the next flight leaves. To have another goroutine make that costs
// more.
const few = 8

// over ends a flight; another starts if one is due.
func (s *coalescer) over() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying--
	s.start()
}

// unload gives the riders of f their decisions, and empties it.
func (s *coalescer) unload(f *flight) {
	at := 0
	for _, r := range f.riders {
		at += copy(r.decisions, f.decisions[at:at+len(r.charges)])
		s.land(r)
	}
	clear(f.riders)
	clear(f.charges) // limits of a configuration that is gone are not kept alive
	f.riders, f.charges = f.riders[:0], f.charges[:0]
}

// land tells who asked that the decisions are there. A caller that panics then harms no other.
func (s *coalescer) land(r *rider) {
	if r.started == nil {
		r.done <- struct{}{}
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.panicked(p)
		}
	}()
	r.started()
}

// another ends a flight, and begins another if one is due.
func (s *coalescer) another(f *flight) bool {
	s.mu.Lock()
	s.flying--
	due := s.depart()
	s.mu.Unlock()
	return due && s.load(f)
}

// load fills f, which is empty, with those that wait; if there are none, the flight is over.
func (s *coalescer) load(f *flight) bool {
	loaded := s.fill(f)
	for _, r := range f.late {
		failAll(r.decisions, fmt.Errorf("%w: not sent in time", ErrNotTaken))
		s.land(r)
	}
	clear(f.late)
	f.late = f.late[:0]
	return loaded
}

func (s *coalescer) fill(f *flight) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, group, now := 0, 0, time.Now()
	for _, r := range s.waiting {
		if len(f.charges) > 0 && len(f.charges)+len(r.charges) > s.config.MaxCharges {
			break
		}
		n++
		s.charges -= len(r.charges)
		switch {
		case !r.state.CompareAndSwap(waits, sent): // it left
			continue
		case !r.until.IsZero() && now.After(r.until):
			f.late = append(f.late, r)
			continue
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
