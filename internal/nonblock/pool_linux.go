package nonblock

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pool is a pool of worker goroutines that are woken through an eventfd.
//
// When a goroutine starts or wakes another one, the scheduler wakes a thread for it if a processor is idle. That
// costs more than a short function. The poller wakes the workers of a Pool instead. They run
// on the thread of the goroutine that woke them, as soon as that goroutine waits. The zero Pool is ready for use.
type Pool struct {
	mu     sync.Mutex
	idle   []*worker // guarded by mu
	closed bool      // guarded by mu
}

const maxIdle = 4

// worker is an eventfd and, in a Pool, the next function of the goroutine that waits for the eventfd.
type worker struct {
	event *os.File
	raw   syscall.RawConn
	job   func()  // guarded by the Pool's mu
	count [8]byte // the buffer of read, which only a yielder calls
	write func(fd uintptr)
	read  func(fd uintptr) bool
}

// Go runs f on a worker, and makes one if none is idle.
func (p *Pool) Go(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		go p.work(f)
		return
	}
	w := p.idle[last]
	p.idle, w.job = p.idle[:last], f
	_ = w.raw.Control(w.write) // cannot fail, because an idle worker has not closed its eventfd
}

// Close ends the idle workers. A busy worker ends after its current function.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.idle {
		_ = w.raw.Control(w.write)
	}
	p.idle = nil
}

func (p *Pool) work(f func()) {
	f()
	w, err := newWorker()
	if err != nil { // too many open files, so the worker is not kept
		return
	}
	defer w.event.Close()
	if !p.keep(w) {
		return
	}
	for w.raw.Read(func(uintptr) bool { return !p.run(w) }) != nil && !p.remove(w) {
		if !p.run(w) {
			return
		}
	}
}

// keep makes w idle. If it returns false, w must end.
func (p *Pool) keep(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := !p.closed && len(p.idle) < maxIdle
	if keep {
		p.idle = append(p.idle, w)
	}
	return keep
}

// run runs the function that w has received, if any, and reports whether w is idle afterwards. Otherwise w
// must end. It is called at each event of w. It does not read the events, because the poller reports each
// write to an eventfd, whatever its count.
func (p *Pool) run(w *worker) bool {
	p.mu.Lock()
	f := w.job
	w.job = nil
	closed := p.closed
	p.mu.Unlock()
	if f == nil {
		return !closed
	}
	f()
	return p.keep(w)
}

// remove removes w, which cannot wait, from the idle workers. It returns false if w has received a function, or if
// the Pool is closed.
func (p *Pool) remove(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.idle, w)
	if at < 0 {
		return false
	}
	p.idle = slices.Delete(p.idle, at, at+1)
	return true
}

// openEvent opens an eventfd. Tests replace it by a function that returns a file which the poller rejects.
var openEvent = func() (fd int, err error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

func newWorker() (*worker, error) {
	fd, err := openEvent()
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	w := &worker{event: os.NewFile(uintptr(fd), "eventfd")}
	if w.raw, err = w.event.SyscallConn(); err != nil {
		w.event.Close()
		return nil, err
	}
	one := uint64(1) // a Pool never reads its eventfds, but their counters overflow only after 2^64 writes
	w.write = func(fd uintptr) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
	}
	w.read = func(fd uintptr) bool {
		_, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&w.count)), uintptr(len(w.count)))
		return err == 0
	}
	return w, nil
}
