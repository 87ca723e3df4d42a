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

// Conn is a connection of package net. There may be one Read and one Write at a time.
type Conn struct {
	net.Conn
	raw     syscall.RawConn
	in, out call
	one     [1]byte // for peek

	wake     chan struct{} // of a connection that takes turns; nil: it does not
	unwaited int           // bytes read since it last had to wait, or took turns

	// What raw calls, kept so that they are made once.
	read, write, writeOnce, peek func(fd uintptr) bool
}

// takeTurns has c, each time it has read its share without having to wait, let other goroutines go first.
func (c *Conn) takeTurns() { c.wake = make(chan struct{}, 1) }

// Wrap makes a Conn of a TCP connection or one of a Unix socket; nil: nc is something else.
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
			c.unwaited = 0
			return false
		}
		return true
	}
	c.peek = func(fd uintptr) bool { c.in.do(sysRecvfrom, fd); return true }
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

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if c.unwaited >= share && c.wake != nil {
		c.unwaited = 0
		turns.pass(c.wake)
	}
	c.in = call{b: b}
	err := c.raw.Read(c.read)
	c.in.b = nil
	c.unwaited += c.in.n
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

// Quiet tells whether there is nothing to be read: no bytes, no end, no error. It is not to be called during
// a Read.
func (c *Conn) Quiet() bool {
	c.in = call{b: c.one[:], flags: syscall.MSG_PEEK}
	err := c.raw.Read(c.peek)
	c.in.b = nil
	return err == nil && c.in.err == syscall.EAGAIN
}

// Ended reports whether the peer has closed its end, even if there are bytes before it that have not been read.
func (c *Conn) Ended() (ended bool) {
	err := c.raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(polled, 0)
		ended = err == nil && n > 0
	})
	return ended || err != nil
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) { return c.send(b, c.write) }

// WriteOnce writes as much of b as there is room for now, which may be nothing.
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

// CloseWrite is that of package net's connections.
func (c *Conn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// error is what package net says of a system call that failed.
func (c *Conn) error(name string, err syscall.Errno) error {
	return &net.OpError{Op: name, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(name, err)}
}

// call is a system call and what came of it.
type call struct {
	b     []byte
	flags uintptr
	n     int
	err   syscall.Errno
}

// do makes the call, and tells whether it did not have to wait.
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
