package nonblock

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Crew is a pool of worker goroutines that are woken through an eventfd. When a goroutine is started, or woken by
// another one, Go wakes a thread for it if a processor is idle, which costs more than a short function does. The
// workers of a Crew are woken by the poller instead, and run on the thread of the goroutine that woke them, as soon
// as that one waits. The zero Crew is ready for use.
type Crew struct {
	mu     sync.Mutex
	idle   []*hand // guarded by mu
	closed bool    // guarded by mu
}

// maxIdle is the number of idle workers that a Crew keeps.
const maxIdle = 4

// hand is one worker of a Crew.
type hand struct {
	event *os.File
	raw   syscall.RawConn
	job   func() // guarded by the Crew's mu
	count [8]byte
	write func(fd uintptr)
	read  func(fd uintptr) bool
}

// Go runs f on a worker, and makes one if none is idle.
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
	_ = h.raw.Control(h.write) // fails only after the worker itself has closed it
}

// Close ends the idle workers. The others end after their present function.
func (c *Crew) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, h := range c.idle {
		_ = h.raw.Control(h.write)
	}
	c.idle = nil
}

// work is the goroutine of a worker; f is its first function.
func (c *Crew) work(f func()) {
	f()
	h, err := newHand()
	if err != nil { // too many open files: the worker is not kept
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

// wait waits until h is woken, and reports whether it was. If it returns false, the worker must end.
func (c *Crew) wait(h *hand) bool {
	c.mu.Lock()
	keep := !c.closed && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, h)
	}
	c.mu.Unlock()
	return keep && (h.raw.Read(h.read) == nil || !c.remove(h))
}

// remove removes h, which cannot wait, from the idle workers. It returns false if h was given a function meanwhile.
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

// openEvent opens an eventfd. Tests replace it with one that returns a file which the poller rejects.
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
	one := [8]byte{0: 1, 7: 1} // not 0 in either byte order, and far from the largest value
	h.write = func(fd uintptr) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&one)), uintptr(len(one)))
	}
	h.read = func(fd uintptr) bool {
		_, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&h.count)), uintptr(len(h.count)))
		return err == 0
	}
	return h, nil
}
