package h2grpc

import (
	"sync"
	"time"
	"unsafe"
)

// flight is requests of one connection that are put to the Method together. Those that come while all
// flights are out ride in the next. Requests are decoded by the reader as they come, into the first flight that
// waits; a flight behind it is decoded when it is the next, by a goroutine of its own.
type flight struct {
	conn     *conn
	messages []byte
	riders   []rider
	size     int       // what it counts for in conn.boarded
	due      time.Time // of the rider that is given up first

	mu     sync.Mutex // with conn.mu held it is only tried for
	batch  Batch
	loaded int // so many riders, from the first, are in batch, in its order

	aloft int // what it counts for in aloft.weight; guarded by aloft.mu
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

// riderSize is what a rider that waits takes beside its message.
const riderSize = int(unsafe.Sizeof(rider{}) + unsafe.Sizeof(stream{}))

// board gives requests, all of which have a stream, to the flight that is being filled. c.mu is held, and
// released while they are decoded: the flight is the reader's own meanwhile.
func (c *conn) board(list []arrival) {
	f, ahead, now := c.filling, len(c.queue) == 0, c.now
	c.filling = nil
	c.mu.Unlock()
	var full []*flight
	size := 0
	for i := range list {
		if f == nil {
			f = c.server.flights.Get().(*flight)
			f.conn = c
		}
		size += f.add(&list[i], now)
		if ahead {
			f.decode()
		}
		if len(f.riders) >= maxBatch || f.batch.Weight() >= maxWeight {
			full, f, ahead = append(full, f), nil, false
		}
	}
	c.mu.Lock()
	for i := range list {
		c.forgetBody(list[i].stream)
	}
	c.boarded += size
	c.queue, c.filling = append(c.queue, full...), f
	for _, f := range full {
		c.wake(f.due)
	}
	if f != nil {
		c.wake(f.due)
	}
}

// add adds a request, and returns its size.
func (f *flight) add(a *arrival, now time.Time) int {
	config := &f.conn.server.config
	f.riders = append(f.riders, rider{stream: a.stream, from: len(f.messages), arrived: now, left: a.left})
	f.messages = append(f.messages, a.message...) // strings in batch may point to what it was before
	r := &f.riders[len(f.riders)-1]
	r.to = len(f.messages)
	r.until = now.Add(config.Timeout)
	if a.left != 0 {
		if d := a.left - config.Margin; d < config.Timeout {
			r.until = now.Add(d)
		}
	}
	f.count(r)
	return r.to - r.from + riderSize
}

// count counts a rider that was added.
func (f *flight) count(r *rider) {
	f.size += r.to - r.from + riderSize
	if len(f.riders) == 1 || r.until.Before(f.due) {
		f.due = r.until
	}
}

// decode decodes riders that are not yet in the batch, until it has enough.
func (f *flight) decode() {
	for ; f.loaded < len(f.riders) && (f.loaded == 0 || f.batch.Weight() < maxWeight); f.loaded++ {
		r := &f.riders[f.loaded]
		f.batch.Add(f.messages[r.from:r.to:r.to], r.arrived, r.left)
	}
}

// takeOff starts flights for those who wait, as many as may be out. c.mu is held.
func (c *conn) takeOff() {
	for !c.closed && c.flying < c.server.config.Flights {
		f := c.next()
		if f == nil {
			return
		}
		c.flying++
		c.boarded -= f.size
		if f.loaded == len(f.riders) && !c.stale(f, time.Now()) {
			c.launch(f, false)
		} else {
			c.server.goroutines.Go(func() { c.depart(f, false) })
		}
	}
}

// stale reports whether f has riders that should not be charged: they are answered, the client has reset them,
// or their time is over. c.mu is held.
func (c *conn) stale(f *flight, now time.Time) bool {
	for i := range f.riders {
		if r := &f.riders[i]; r.answered || c.streams[r.stream.id] != r.stream || !now.Before(r.until) {
			return true
		}
	}
	return false
}

// launch sends f, which is decoded; or another connection does, when it is the turn of f. It may be granted
// already that it is. c.mu is held.
func (c *conn) launch(f *flight, granted bool) {
	c.inAir = append(c.inAir, f)
	if !granted && !c.server.aloft.enter(f) {
		return
	}
	if !f.batch.Start(func() { c.landed(f, c.flushSoon) }) {
		c.server.goroutines.Go(func() {
			f.batch.Take(c.context())
			c.landed(f, c.flush)
		})
	}
}

// resume sends f, whose turn it is.
func (c *conn) resume(f *flight) {
	c.mu.Lock()
	c.landing(f)
	c.mu.Unlock()
	c.depart(f, true)
}

// depart decodes f, which is the next, without the riders that should not be charged, and sends it. What would
// be too much for one flight is left to another.
func (c *conn) depart(f *flight, granted bool) {
	f.mu.Lock()
	c.mu.Lock()
	now := time.Now()
	for late := c.late([]*flight{f}, now, func(time.Time) {}); len(late) > 0; late = c.late([]*flight{f}, now, func(time.Time) {}) {
		c.giveUp(late)
	}
	if c.sift(f) {
		f.batch.Reset()
		f.loaded = 0
	}
	c.mu.Unlock()
	f.decode()
	c.mu.Lock()
	if f.loaded < len(f.riders) {
		c.queue = append([]*flight{c.rest(f)}, c.queue...)
	}
	if len(f.riders) > 0 && !c.closed {
		c.launch(f, granted)
		c.now = time.Now()
		c.wake(f.due) // meanwhile its riders were in no flight that overdue knows
		f.mu.Unlock()
		c.flush()
		return
	}
	if granted {
		c.server.aloft.leave(f)
	}
	c.flying--
	f.mu.Unlock()
	c.takeOff()
	c.changed.Broadcast()
	c.flush()
	c.discard(f)
}

// sift removes the riders of f that are answered, or that the client has reset, and reports whether some of
// them were decoded. c.mu is held.
func (c *conn) sift(f *flight) (decoded bool) {
	kept := f.riders[:0]
	for i := range f.riders {
		r := &f.riders[i]
		if !r.answered && c.streams[r.stream.id] == r.stream {
			kept = append(kept, *r)
			continue
		}
		if !r.answered {
			c.undead--
		}
		decoded = decoded || i < f.loaded
	}
	clear(f.riders[len(kept):])
	f.riders = kept
	return decoded
}

// rest makes another flight of the riders of f that are not decoded. c.mu is held.
func (c *conn) rest(f *flight) *flight {
	g := c.server.flights.Get().(*flight)
	g.conn = c
	for _, r := range f.riders[f.loaded:] {
		from := len(g.messages)
		g.messages = append(g.messages, f.messages[r.from:r.to]...)
		r.from, r.to = from, len(g.messages)
		g.riders = append(g.riders, r)
		g.count(&r)
	}
	clear(f.riders[f.loaded:])
	f.riders = f.riders[:f.loaded]
	c.boarded += g.size
	c.now = time.Now()
	c.wake(g.due)
	return g
}

// landed answers the riders of f, has those who wait take off, and flushes.
func (c *conn) landed(f *flight, flush func()) {
	f.mu.Lock()
	for i := range f.riders {
		if r := &f.riders[i]; !r.answered {
			r.finished = c.attempt(func() { f.batch.Finish(c.context(), i) })
		}
	}
	c.mu.Lock()
	for i := range f.riders {
		if r := &f.riders[i]; !r.answered {
			c.land(r, f.batch, i)
		}
	}
	c.landing(f)
	f.mu.Unlock()
	c.server.aloft.leave(f)
	c.flying--
	c.takeOff()
	c.changed.Broadcast()
	flush()
	c.discard(f)
}

// landing removes f from the flights in the air. c.mu is held.
func (c *conn) landing(f *flight) {
	for i, have := range c.inAir {
		if have == f {
			c.inAir = append(c.inAir[:i], c.inAir[i+1:]...)
			return
		}
	}
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
	f.messages, f.riders = f.messages[:0], f.riders[:0]
	f.size, f.loaded, f.conn = 0, 0, nil
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
		for i := range f.riders {
			switch r := &f.riders[i]; {
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
	for late := c.late(c.waiting(), now, see); len(late) > 0; late = c.late(c.waiting(), now, see) {
		c.giveUp(late)
	}
	if !next.IsZero() {
		c.now = now
		c.wake(next)
	}
	c.flush()
}

// waiting are the flights that have not started. c.mu is held.
func (c *conn) waiting() []*flight {
	list := append([]*flight(nil), c.queue...)
	if c.filling != nil {
		list = append(list, c.filling)
	}
	return list
}

// lateRider is a rider that is given up, and a copy of its message.
type lateRider struct {
	rider
	message []byte
}

// late takes riders whose time is over from flights that have not started; they are not charged. see is called
// with the time of each other. c.mu is held.
func (c *conn) late(flights []*flight, now time.Time, see func(time.Time)) (late []lateRider) {
	for _, f := range flights {
		for i := range f.riders {
			switch r := &f.riders[i]; {
			case r.answered:
			case now.Before(r.until):
				see(r.until)
			case len(late) < maxBatch:
				late = append(late, lateRider{*r, append([]byte(nil), f.messages[r.from:r.to]...)})
				r.answered = true
			}
		}
	}
	return late
}

// giveUp answers riders whose time is over. c.mu is held, and released while they are decoded.
func (c *conn) giveUp(late []lateRider) {
	c.mu.Unlock()
	b := c.server.batches.Get().(Batch)
	defer c.server.batches.Put(b)
	for len(late) > 0 {
		n := 0
		for ; n < len(late) && (n == 0 || b.Weight() < maxWeight); n++ {
			b.Add(late[n].message, late[n].arrived, late[n].left)
		}
		for i := range n {
			late[i].finished = c.attempt(func() { b.GiveUp(c.context(), i, c.server.config.Late) })
		}
		c.mu.Lock()
		for i := range n {
			c.land(&late[i].rider, b, i)
		}
		b.Reset()
		if late = late[n:]; len(late) > 0 {
			c.mu.Unlock()
		}
	}
}
