package nonblock

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Crew runs functions on goroutines that it keeps. Whenever a goroutine is started, or woken by another, Go
// wakes a thread for it if a processor is free, which costs more than a short function does. Those of a
// Crew are woken by the poller instead: one runs where who woke it did, once that one waits for something. The
// zero Crew is ready for use.
type Crew struct {
	mu     sync.Mutex
	idle   []*hand // guarded by mu
	closed bool    // guarded by mu
}

// maxIdle is how many goroutines a Crew keeps.
const maxIdle = 4

// hand is one goroutine of a Crew.
type hand struct {
	event *os.File
	raw   syscall.RawConn
	job   func() // guarded by the Crew's mu
	count [8]byte
	write func(fd uintptr)
	read  func(fd uintptr) bool
}

// Go has f run.
func (c *Crew) Go(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.idle) - 1
	if last < 0 {
		go c.work(f)
		return
	}
	h := c.idle[last]
	c.idle, h.job = c.idle[:last], f
	_ = h.raw.Control(h.write) // fails only once it is closed, which it does itself
}

// Close lets go of the goroutines that do nothing, and of the others when they have nothing more to do.
func (c *Crew) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, h := range c.idle {
		_ = h.raw.Control(h.write)
	}
	c.idle = nil
}

// work is a goroutine.
func (c *Crew) work(f func()) {
	f()
	h, err := newHand()
	if err != nil { // no more files can be open: it is not kept
		return
	}
	defer h.event.Close()
	for c.wait(h) {
		c.mu.Lock()
		f, h.job = h.job, nil
		c.mu.Unlock()
		if f == nil {
			return
		}
		f()
	}
}

// wait waits until h is woken, and reports whether it was: otherwise it is not kept.
func (c *Crew) wait(h *hand) bool {
	c.mu.Lock()
	keep := !c.closed && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, h)
	}
	c.mu.Unlock()
	return keep && (h.raw.Read(h.read) == nil || !c.remove(h))
}

// remove takes h, which cannot wait, off the list of those that do nothing. It reports false if h is no longer
// there, because it was given something to do.
func (c *Crew) remove(h *hand) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.Index(c.idle, h)
	if at < 0 {
		return false
	}
	c.idle = slices.Delete(c.idle, at, at+1)
	return true
}

// openEvent opens an eventfd. Tests replace it by what the poller refuses.
var openEvent = func() (fd int, err error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

func newHand() (*hand, error) {
	fd, err := openEvent()
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	h := &hand{event: os.NewFile(uintptr(fd), "eventfd")}
	if h.raw, err = h.event.SyscallConn(); err != nil {
		h.event.Close()
		return nil, err
	}
	one := [8]byte{0: 1, 7: 1} // not 0 in either order of bytes, and far from the greatest
	h.write = func(fd uintptr) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&one)), uintptr(len(one)))
	}
	h.read = func(fd uintptr) bool {
		_, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&h.count)), uintptr(len(h.count)))
		return err == 0
	}
	return h, nil
}
