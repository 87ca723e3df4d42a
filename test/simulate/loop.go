// Package simulate runs the client side of the program on one seeded loop: the limiter, the Stores around Stores, and
// the Redis store, as they are shipped. Only the network, Redis's transport, clocks and random numbers are simulated. A
// judge, which shares no code with them, checks the results. The same seed gives the same run, to the last step.
//
// Code that waits runs on a coroutine (iter.Pull). Exactly one coroutine runs at a time, and the loop decides which
// one, so that Go's scheduler decides nothing.
package simulate

import (
	"container/heap"
	"iter"
	"math/rand/v2"
	"sync"
	"time"
)

// loop has the time and the events to come. Its times are in nanoseconds since the start of the run.
type loop struct {
	now     int64
	events  events
	rng     *rand.Rand
	steps   int
	hash    uint64
	running *coroutine // nil: the loop itself
}

// idle are coroutines for any run: their stacks have grown already.
var idle struct {
	sync.Mutex
	all []*coroutine // guarded by Mutex
}

// event is something that happens at a time. Events of one time happen in random order.
type event struct {
	at       int64
	order    uint64
	process  *process // which it happens to; nil: none. While that is paused, the event waits
	f        func()
	plain    bool // f does not wait, so that it needs no coroutine
	canceled bool
}

func newLoop(seed uint64) *loop { return &loop{rng: rand.New(rand.NewPCG(seed, seed>>7))} }

// after calls f when d has passed. f may wait.
func (l *loop) after(d time.Duration, p *process, f func()) *event {
	e := &event{at: l.now + max(0, int64(d)), order: l.rng.Uint64(), process: p, f: f}
	heap.Push(&l.events, e)
	return e
}

// afterPlain is after for a function that does not wait.
func (l *loop) afterPlain(d time.Duration, p *process, f func()) *event {
	e := l.after(d, p, f)
	e.plain = true
	return e
}

// run runs events until a time, or until there are none. It reports whether there are none.
func (l *loop) run(until int64) (ended bool) {
	for len(l.events) > 0 && l.events[0].at <= until {
		e := heap.Pop(&l.events).(*event)
		if e.canceled {
			continue
		}
		l.now = max(l.now, e.at)
		if p := e.process; p != nil && p.pausedUntil > l.now {
			e.at = p.pausedUntil
			heap.Push(&l.events, e)
			continue
		}
		l.steps++
		l.mix(uint64(l.now))
		if e.plain {
			e.f()
		} else {
			l.do(e.f)
		}
	}
	l.now = max(l.now, until)
	return len(l.events) == 0
}

// mix adds a number to the hash of the run.
func (l *loop) mix(n uint64) {
	l.hash = (l.hash ^ n) * 0x9E3779B97F4A7C15
	l.hash ^= l.hash >> 29
}

// coroutine runs functions that may wait, one after the other.
type coroutine struct {
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	f     func()
}

// do runs f on a coroutine until it ends or waits.
func (l *loop) do(f func()) {
	var c *coroutine
	idle.Lock()
	if n := len(idle.all); n > 0 {
		c = idle.all[n-1]
		idle.all = idle.all[:n-1]
	}
	idle.Unlock()
	if c == nil {
		c = &coroutine{}
		c.next, _ = iter.Pull(func(yield func(struct{}) bool) {
			c.yield = yield
			for ok := true; ok; ok = yield(struct{}{}) {
				c.f()
				c.f = nil
			}
		})
	}
	c.f = f
	l.enter(c)
}

// enter runs c until it waits or is idle.
func (l *loop) enter(c *coroutine) {
	was := l.running
	l.running = c
	c.next()
	l.running = was
	if c.f == nil {
		idle.Lock()
		idle.all = append(idle.all, c)
		idle.Unlock()
	}
}

// wait waits until the function that it passes to start is called. It must be called on a coroutine.
func (l *loop) wait(start func(wake func())) {
	c, woken, waits := l.running, false, false
	start(func() {
		if woken {
			panic("simulate: woken twice")
		}
		if woken = true; waits {
			l.afterPlain(0, nil, func() { l.enter(c) })
		}
	})
	if !woken {
		waits = true
		c.yield(struct{}{})
	}
}

// events implements heap.Interface.
type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return x
}
