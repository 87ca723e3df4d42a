package nonblock

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Conn reads and writes a TCP or Unix socket connection with system calls that the scheduler does not see. At a time it
// allows one call of Read or Await, and one of Write or WriteOnce.
type Conn struct {
	net.Conn
	raw     syscall.RawConn
	in, out call
	one     [1]byte        // the buffer of Await
	polled  [1]unix.PollFd // the argument of ppoll

	wake           chan struct{} // not nil if the connection yields regularly
	readSinceYield int           // bytes read since the connection last waited or yielded
	waited         bool          // a Read of more than one byte has waited since the last call of TakeTurn

	// These functions are arguments of the methods of raw. They are stored, so that a call does not allocate them.
	read, write, writeOnce func(fd uintptr) bool
	poll                   func(fd uintptr)
}

// enableYield makes c yield to other goroutines each time it has read share bytes without waiting. It must be called
// before the first Read.
func (c *Conn) enableYield() {
	c.wake = make(chan struct{}, 1)
	c.waited = true // a connection that has one request does not have to yield
}

// Wrap returns a Conn for a TCP or Unix socket connection. For other connections it returns nil.
func Wrap(nc net.Conn) *Conn {
	var raw syscall.RawConn
	var err error
	switch nc := nc.(type) {
	case *net.TCPConn:
		raw, err = nc.SyscallConn()
	case *net.UnixConn:
		raw, err = nc.SyscallConn()
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	c := &Conn{Conn: nc, raw: raw}
	c.read = func(fd uintptr) bool {
		if !c.in.do(syscall.SYS_READ, fd) {
			c.readSinceYield = 0
			c.waited = c.waited || len(c.in.b) > 1
			return false
		}
		return true
	}
	c.poll = func(fd uintptr) {
		c.polled[0].Fd = int32(fd)
		c.ppoll()
	}
	c.writeOnce = func(fd uintptr) bool { c.out.do(syscall.SYS_WRITE, fd); return true }
	c.write = func(fd uintptr) bool {
		for c.out.n < len(c.out.b) {
			some := call{b: c.out.b[c.out.n:]}
			if !some.do(syscall.SYS_WRITE, fd) {
				return false
			}
			if c.out.err = some.err; some.err != 0 {
				return true
			}
			c.out.n += some.n
		}
		return true
	}
	return c
}

func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if c.readSinceYield >= share && c.wake != nil {
		c.readSinceYield = 0
		yields.pass(c.wake)
	}
	c.in = call{b: b}
	err := c.raw.Read(c.read)
	c.in.b = nil
	c.readSinceYield += c.in.n
	switch {
	case err != nil:
		return 0, err
	case c.in.err != 0:
		return 0, c.error("read", c.in.err)
	case c.in.n == 0:
		return 0, io.EOF
	}
	return c.in.n, nil
}

// TakeTurn yields to other goroutines, unless c has waited for its peer since the last call. The goroutine that serves
// requests of c calls it after each request: requests that arrive together would otherwise all have one turn. A Read
// of one byte does not count as waiting, because net/http makes it on another goroutine. TakeTurn must not be called
// during a Read.
func (c *Conn) TakeTurn() {
	if !c.waited && c.wake != nil {
		c.readSinceYield = 0
		yields.pass(c.wake)
	}
	c.waited = false
}

// Await waits until there is something to read: bytes, the end of the stream or an error. It does not read
// it. Like Read, it obeys the deadline.
func (c *Conn) Await() error {
	c.in = call{b: c.one[:], flags: syscall.MSG_PEEK}
	err := c.raw.Read(func(fd uintptr) bool { return c.in.do(sysRecvfrom, fd) })
	c.in.b = nil
	return err
}

// Ended reports whether c is closed or the peer has closed its end of the connection, even if bytes before the end are
// unread. It may be called during a Read or a Write, but not during another call of Ended.
func (c *Conn) Ended() bool {
	c.polled[0] = unix.PollFd{Events: unix.POLLRDHUP}
	err := c.raw.Control(c.poll)
	return err != nil || c.polled[0].Revents != 0
}

// ppoll polls without waiting. unix.Poll would announce a system call to the scheduler, which wakes the
// monitor thread. An interrupted call leaves Revents at 0, as if there were no event.
func (c *Conn) ppoll() {
	var timeout unix.Timespec
	_, _, _ = syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&c.polled)), 1, uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
}

func (c *Conn) Write(b []byte) (int, error) { return c.send(b, c.write) }

// WriteOnce writes as much of b as the socket accepts now, which may be nothing. It never blocks.
func (c *Conn) WriteOnce(b []byte) (int, error) {
	n, err := c.send(b, c.writeOnce)
	if errors.Is(err, syscall.EAGAIN) {
		err = nil
	}
	return n, err
}

func (c *Conn) send(b []byte, how func(fd uintptr) bool) (int, error) {
	c.out = call{b: b}
	err := c.raw.Write(how)
	c.out.b = nil
	if err == nil && c.out.err != 0 {
		err = c.error("write", c.out.err)
	}
	return c.out.n, err
}

// CloseWrite closes the write side, as in package net.
func (c *Conn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

func (c *Conn) error(name string, err syscall.Errno) error {
	return &net.OpError{Op: name, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(name, err)}
}

type call struct {
	b     []byte
	flags uintptr
	n     int
	err   syscall.Errno
}

// do makes the call. It returns false if the call would have blocked.
func (c *call) do(number, fd uintptr) bool {
	for {
		n, _, err := syscall.RawSyscall6(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(c.b))), uintptr(len(c.b)), c.flags, 0, 0)
		if err == syscall.EINTR {
			continue
		}
		if c.n, c.err = int(n), err; err != 0 {
			c.n = 0
		}
		return err != syscall.EAGAIN
	}
}
