package h2grpc

import (
	"slices"
	"sync"
	"time"
)

// flight is requests of one connection that are put to the Method together. Those that come while all
// flights are out ride in the next.
type flight struct {
	messages []byte
	riders   []rider

	mu    sync.Mutex // with conn.mu held it is only tried for
	batch Batch
	live  []int // riders in batch, in its order
}

// rider is a request in a flight.
type rider struct {
	stream   *stream
	from, to int // its message
	arrived  time.Time
	left     time.Duration // as Batch.Add has it
	until    time.Time     // it is given up then
	answered bool          // guarded by flight.mu once it is in the air, by conn.mu before
	finished bool          // its Batch has an answer for it; guarded by flight.mu
}

// board gives a request to the flight that is being filled. c.mu is held.
func (c *conn) board(s *stream, message []byte, left time.Duration) {
	if c.filling == nil {
		c.filling = c.server.flights.Get().(*flight)
	}
	f := c.filling
	r := rider{stream: s, from: len(f.messages), arrived: c.now, left: left}
	f.messages = append(f.messages, message...)
	r.to = len(f.messages)
	r.until = c.now.Add(c.server.config.Timeout)
	if left != 0 {
		if d := left - c.server.config.Margin; d < c.server.config.Timeout {
			r.until = c.now.Add(d)
		}
	}
	s.state = waiting
	f.riders = append(f.riders, r)
	c.boarded += len(message)
	c.forgetBody(s)
	c.wake(r.until)
	if len(f.riders) >= maxBatch {
		c.queue, c.filling = append(c.queue, f), nil
	}
}

// takeOff starts flights for those who wait, as many as may be out. c.mu is held.
func (c *conn) takeOff() {
	for !c.closed && c.flying < c.server.config.Flights {
		f := c.next()
		if f == nil {
			return
		}
		if !c.load(f) {
			c.discard(f)
			continue
		}
		c.flying++
		c.inAir = append(c.inAir, f)
		if !f.batch.Start(func() { c.landed(f, c.flushSoon) }) {
			c.server.goroutines.Go(func() {
				f.batch.Take(c.context())
				c.landed(f, c.flush)
			})
		}
	}
}

// load makes the batch of f of its riders that still wait, and reports whether there are any: the others are
// not charged. Those whose time is over are answered. c.mu is held.
func (c *conn) load(f *flight) bool {
	c.boarded -= len(f.messages)
	c.giveUp(f, time.Now(), func(time.Time) {})
	for i := range f.riders {
		switch r := &f.riders[i]; {
		case r.answered:
		case c.streams[r.stream.id] != r.stream: // the client has reset it
			r.answered = true
			c.undead--
		default:
			f.live = append(f.live, i)
			f.batch.Add(f.messages[r.from:r.to], r.arrived, r.left)
		}
	}
	return len(f.live) > 0
}

// landed answers the riders of f, has those who wait take off, and flushes.
func (c *conn) landed(f *flight, flush func()) {
	f.mu.Lock()
	for i, at := range f.live {
		if r := &f.riders[at]; !r.answered {
			r.finished = c.attempt(func() { f.batch.Finish(c.context(), i) })
		}
	}
	c.mu.Lock()
	for i, at := range f.live {
		if r := &f.riders[at]; !r.answered {
			c.land(r, f.batch, i)
		}
	}
	for i, have := range c.inAir {
		if have == f {
			c.inAir = append(c.inAir[:i], c.inAir[i+1:]...)
			break
		}
	}
	f.mu.Unlock()
	c.flying--
	c.takeOff()
	c.changed.Broadcast()
	flush()
	c.discard(f)
}

// discard keeps f, of which nothing is under way, for other requests.
func (c *conn) discard(f *flight) {
	f.empty()
	c.server.flights.Put(f)
}

// next is the flight that waits longest; nil: nobody waits, or nobody waits any more.
func (c *conn) next() (f *flight) {
	switch {
	case len(c.queue) > 0:
		f = c.queue[0]
		c.queue = append(c.queue[:0], c.queue[1:]...)
	case c.filling != nil:
		f, c.filling = c.filling, nil
	}
	return f
}

// empty makes f ready for others.
func (f *flight) empty() {
	const large = 64 << 10
	if cap(f.messages) > large {
		f.messages = nil
	}
	clear(f.riders)
	f.messages, f.riders, f.live = f.messages[:0], f.riders[:0], f.live[:0]
	f.batch.Reset()
}

// land gives a rider its answer, which is number i of b. c.mu is held.
func (c *conn) land(r *rider, b Batch, i int) {
	r.answered = true
	if s := r.stream; c.streams[s.id] == s {
		c.answer(s.id, s, b, i, r.arrived, r.finished)
	} else {
		c.undead--
	}
}

// wake has overdue riders given up at a time. c.mu is held.
func (c *conn) wake(at time.Time) {
	if !c.timerAt.IsZero() && !at.Before(c.timerAt) {
		return
	}
	c.timerAt = at
	d := max(0, at.Sub(c.now))
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.overdue)
	} else {
		c.timer.Reset(d)
	}
}

// overdue answers the riders whose time is over, wherever they are.
func (c *conn) overdue() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	now := time.Now()
	c.timerAt = time.Time{}
	var next time.Time
	see := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, f := range c.inAir {
		if !f.mu.TryLock() {
			see(now.Add(time.Millisecond)) // it is being answered, or packed
			continue
		}
		for i, at := range f.live {
			switch r := &f.riders[at]; {
			case r.answered:
			case now.Before(r.until):
				see(r.until)
			default:
				r.finished = c.attempt(func() { f.batch.GiveUp(c.context(), i, c.server.config.Late) })
				c.land(r, f.batch, i)
			}
		}
		f.mu.Unlock()
	}
	on := c.queue
	if c.filling != nil {
		on = append(slices.Clip(on), c.filling)
	}
	for _, f := range on {
		c.giveUp(f, now, see)
	}
	if !next.IsZero() {
		c.now = now
		c.wake(next)
	}
	c.flush()
}

// giveUp answers the riders of a flight that has not started whose time is over: they are not charged. see is
// called with the time of each other. c.mu is held.
func (c *conn) giveUp(f *flight, now time.Time, see func(time.Time)) {
	var late []int
	for i := range f.riders {
		switch r := &f.riders[i]; {
		case r.answered:
		case now.Before(r.until):
			see(r.until)
		default:
			late = append(late, i)
		}
	}
	if len(late) == 0 {
		return
	}
	b := c.server.batches.Get().(Batch)
	defer c.server.batches.Put(b)
	for _, at := range late {
		r := &f.riders[at]
		b.Add(f.messages[r.from:r.to], r.arrived, r.left)
	}
	for i, at := range late {
		r := &f.riders[at]
		r.finished = c.attempt(func() { b.GiveUp(c.context(), i, c.server.config.Late) })
		c.land(r, b, i)
	}
	b.Reset()
}
