package nonblock

import (
	"runtime"
	"sync"
)

// share is the number of bytes that a connection accepted by Listener may read without waiting before it
// yields.
const share = 32 << 10

// yields makes goroutines that never wait go through the poller. A goroutine whose socket always has data
// keeps its processor until the runtime preempts it, after ten milliseconds. runtime.Gosched does not help.
// It runs only goroutines that are ready, and a goroutine that waits for a socket becomes ready only when the
// poller is called.
var yields yielder

// Yield yields to other goroutines, including those whose sockets have become ready.
func Yield() { yields.pass(make(chan struct{}, 1)) }

// yielder is an eventfd that one goroutine at a time makes ready and then waits for. Goroutines that arrive
// meanwhile wait for that goroutine.
type yielder struct {
	mu      sync.Mutex
	tried   bool               // open was called; guarded by mu, like event, busy and waiting
	event   *worker            // nil if it could not be opened
	busy    bool               // a goroutine is waiting for event
	waiting []chan struct{}    // the channels of the goroutines that wait until busy is false
	enter   func(uintptr) bool // the argument of event.raw.Read
	entered bool               // enter has made event ready; only the goroutine that waits for event uses entered
}

// pass yields to other goroutines. wake is a channel of the caller with a capacity of 1.
func (t *yielder) pass(wake chan struct{}) {
	t.mu.Lock()
	if !t.tried {
		t.open()
	}
	switch {
	case t.event == nil:
		t.mu.Unlock()
		runtime.Gosched()
		return
	case t.busy:
		t.waiting = append(t.waiting, wake)
		t.mu.Unlock()
		<-wake
		return
	}
	t.busy, t.entered = true, false
	t.mu.Unlock()
	_ = t.event.raw.Read(t.enter)
	t.mu.Lock()
	t.busy = false
	for i, other := range t.waiting {
		other <- struct{}{}
		t.waiting[i] = nil
	}
	t.waiting = t.waiting[:0]
	t.mu.Unlock()
}

// open opens the event, which is never closed. mu is held.
func (t *yielder) open() {
	t.tried = true
	h, err := newWorker()
	if err != nil { // too many open files
		return
	}
	t.event = h
	t.enter = func(fd uintptr) bool {
		if !t.entered { // make the event ready first, then wait for it
			t.entered = true
			h.write(fd)
			return false
		}
		return h.read(fd)
	}
}
