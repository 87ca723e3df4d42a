package nonblock

import (
	"runtime"
	"sync"
)

// share is how many bytes a connection that Listener has accepted may read without having to wait; then it lets
// others go first.
const share = 32 << 10

// turns lets goroutines that never have to wait go through the poller. A goroutine whose socket always has data
// keeps its processor until the runtime interrupts it, which is after ten milliseconds. runtime.Gosched is no
// cure: it runs what is ready, and what waits for a socket is not until somebody asks the poller.
var turns turnstile

// turnstile is an eventfd that one goroutine at a time waits for, which it has made ready itself. Goroutines that
// come meanwhile wait for that one.
type turnstile struct {
	mu      sync.Mutex
	opened  bool            // guarded by mu, as what follows; whether event was tried
	event   *hand           // nil: there is none
	busy    bool            // somebody waits for event
	waiting []chan struct{} // for that one
	enter   func(uintptr) bool
	entered bool // of the goroutine that waits for event
}

// pass lets others go first. wake is the caller's own, with room for one.
func (t *turnstile) pass(wake chan struct{}) {
	t.mu.Lock()
	if !t.opened {
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

// open opens the event, which stays open. mu is held.
func (t *turnstile) open() {
	t.opened = true
	h, err := newHand()
	if err != nil { // no more files can be open
		return
	}
	t.event = h
	t.enter = func(fd uintptr) bool {
		if !t.entered { // makes it ready, and then waits for that
			t.entered = true
			h.write(fd)
			return false
		}
		return h.read(fd)
	}
}
