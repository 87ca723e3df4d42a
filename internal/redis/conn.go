package redis

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// conn is a connection to the current master. go-redis uses it on one goroutine at a time. The wire reads it on one
// goroutine and writes it on others.
type conn struct {
	net.Conn
	age      *atomic.Uint32 // changes when another server becomes the master
	made     uint32         // the age when the connection was made
	check    idleCheck
	closed   func() bool // nonblock.Conn.Ended; nil if nonblock.Wrap does not wrap the connection
	awaiting atomic.Bool // the server has not answered the last call yet
	bounds   replyBounds
}

func newConn(nc net.Conn, age *atomic.Uint32, made uint32) *conn {
	c := &conn{Conn: nc, age: age, made: made, bounds: newReplyBounds()}
	c.check.conn = c
	if n := nonblock.Wrap(nc); n != nil {
		c.Conn, c.closed = n, n.Ended
	}
	if secure, ok := nc.(*tls.Conn); ok {
		if n, ok := secure.NetConn().(*nonblock.Conn); ok {
			c.closed = n.Ended
		}
	}
	if raw, ok := c.Conn.(syscall.Conn); ok {
		c.check.RawConn, _ = raw.SyscallConn()
	}
	return c
}

var errOutdated = notSent("the master has changed")

// Write implements net.Conn. It returns errOutdated if the connection has become outdated before the first byte of a call
// was sent. A call that has been sent in part is sent
// completely.
func (c *conn) Write(b []byte) (int, error) {
	if c.outdated() && !c.awaiting.Load() {
		return 0, errOutdated
	}
	c.awaiting.Store(true)
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err := c.bounds.add(b[:n]); err != nil {
		return 0, err
	}
	if n > 0 {
		c.awaiting.Store(false)
	}
	return n, err
}

// ended reports whether the server has closed the connection. It may be called while another goroutine
// reads from it.
func (c *conn) ended() bool { return c.closed != nil && c.closed() }

// outdated reports whether another server is the master now.
func (c *conn) outdated() bool { return c.made != c.age.Load() }

// SyscallConn implements syscall.Conn. go-redis uses it to check a connection before each call, because the
// server may have closed it.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return &c.check, nil }

type idleCheck struct {
	syscall.RawConn // nil for TLS, because arriving bytes of TLS need not be an answer
	conn            *conn
}

// Read implements syscall.RawConn for the check by go-redis. With f, go-redis looks for unexpected bytes and for the end
// of the stream. Read returns an error if the connection must not be used.
func (l *idleCheck) Read(f func(fd uintptr) bool) error {
	switch {
	case l.conn.outdated():
		return errOutdated
	case l.RawConn == nil:
		return nil
	default:
		return l.RawConn.Read(f)
	}
}

// broken is returned in place of a connection that could not be made. Its Read and Write return the error.
type broken struct{ err error }

// rewrapped wraps the error of a dial once more. While go-redis prepares a connection, it unwraps the error
// once. Without the second wrapper, the error would lose the address.
type rewrapped struct{ error }

func (r rewrapped) Unwrap() error { return r.error }

func (b broken) Read([]byte) (int, error)              { return 0, b.err }
func (b broken) Write([]byte) (int, error)             { return 0, b.err }
func (broken) Close() error                            { return nil }
func (broken) LocalAddr() net.Addr                     { return &net.TCPAddr{} }
func (broken) RemoteAddr() net.Addr                    { return &net.TCPAddr{} }
func (broken) SetDeadline(time.Time) error             { return nil }
func (broken) SetReadDeadline(time.Time) error         { return nil }
func (broken) SetWriteDeadline(time.Time) error        { return nil }
func (b broken) SyscallConn() (syscall.RawConn, error) { return nil, b.err }
