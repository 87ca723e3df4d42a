// Package simulate runs the client side of the program on one seeded loop: the limiter, the wrappers of
// Stores, and the Redis store, all unchanged. The network, Redis itself, clocks and random numbers are
// simulated. A judge compares the answers with the charges of the simulated servers. The same seed always
// gives the same run.
//
// Code that waits runs on a coroutine (iter.Pull). Exactly one coroutine runs at a time, and the loop decides
// which one, so that Go's scheduler decides nothing.
package simulate

import (
	"container/heap"
	"iter"
	"math/rand/v2"
	"sync"
	"time"
)

// loop has the current time and the future events. Times are in nanoseconds since the start of the run.
type loop struct {
	now     int64
	events  events
	free    []*event // past events, for reuse
	rng     *rand.Rand
	steps   int
	hash    uint64
	running *coroutine // the running coroutine; nil while the loop itself runs
}

// idle has coroutines that any run can use. It saves the time in which their stacks grow.
var idle struct {
	sync.Mutex
	all []*coroutine // guarded by Mutex
}

// event is a function to call at a time. Events of the same time happen in random order. A past event is
// reused, so only a future event may be canceled.
type event struct {
	at       int64
	order    uint64
	process  *process // the process that the event belongs to, or nil; the event waits while the process is paused
	f        func()
	plain    bool // f does not wait, so that it needs no coroutine
	canceled bool
}

func newLoop(seed uint64) *loop { return &loop{rng: rand.New(rand.NewPCG(seed, seed>>7))} }

// after calls f after d. f may wait.
func (l *loop) after(d time.Duration, p *process, f func()) *event {
	var e *event
	if n := len(l.free); n > 0 {
		e = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		e = new(event)
	}
	*e = event{at: l.now + max(0, int64(d)), order: l.rng.Uint64(), process: p, f: f}
	heap.Push(&l.events, e)
	return e
}

// afterPlain is after for a function that does not wait.
func (l *loop) afterPlain(d time.Duration, p *process, f func()) *event {
	e := l.after(d, p, f)
	e.plain = true
	return e
}

// run runs all events at the time last and before. It reports whether no event is left.
func (l *loop) run(last int64) (ended bool) {
	for len(l.events) > 0 && l.events[0].at <= last {
		e := heap.Pop(&l.events).(*event)
		if e.canceled {
			l.reuse(e)
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
		f, plain := e.f, e.plain
		l.reuse(e)
		if plain {
			f()
		} else {
			l.do(f)
		}
	}
	l.now = max(l.now, last)
	return len(l.events) == 0
}

func (l *loop) reuse(e *event) {
	*e = event{}
	l.free = append(l.free, e)
}

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

// do runs f on a coroutine. It returns when f ends or waits.
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

// wait calls start with a function, and suspends the coroutine until that function is called. Only a
// coroutine may call wait.
func (l *loop) wait(start func(resume func())) {
	c, resumed, waits := l.running, false, false
	start(func() {
		if resumed {
			panic("simulate: woken twice")
		}
		if resumed = true; waits {
			l.afterPlain(0, nil, func() { l.enter(c) })
		}
	})
	if !resumed {
		waits = true
		c.yield(struct{}{})
	}
}

// events is a heap with the first event at its root.
type events []*event

func (e events) Len() int { return len(e) }

func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}

func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

func (e *events) Push(x any) { *e = append(*e, x.(*event)) }

func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return x
}
