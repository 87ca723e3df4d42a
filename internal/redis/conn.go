package redis

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// conn is a connection that a line made. go-redis uses it on one goroutine at a time. The wire reads it on one
// goroutine and writes it on others.
type conn struct {
	net.Conn
	line     *line
	age      uint32
	check    idleCheck
	awaiting atomic.Bool // the server has not answered the last call yet
	used     bool        // the server has answered on this connection
	bounds   replyBounds
}

func newConn(l *line, nc net.Conn, age uint32) *conn {
	c := &conn{Conn: nc, line: l, age: age, bounds: newReplyBounds()}
	c.check.conn = c
	if n := nonblock.Wrap(nc); n != nil {
		c.Conn, c.check.quiet, c.check.ended = n, n.Quiet, n.Ended
	}
	if secure, ok := nc.(*tls.Conn); ok {
		if n, ok := secure.NetConn().(*nonblock.Conn); ok {
			c.check.quiet, c.check.ended = n.Quiet, n.Ended
		}
	}
	if raw, ok := c.Conn.(syscall.Conn); ok {
		c.check.RawConn, _ = raw.SyscallConn()
	}
	return c
}

var errOutdated = notSent("the master has changed")

// Write implements net.Conn. It returns errOutdated if the connection has become outdated (see
// line.invalidate) before the first byte of a call was sent. A call that has been sent in part is sent
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
	if n == 0 && !c.used && c.awaiting.Load() && isEnd(err) {
		c.line.failed(errUnused, 0, false)
	}
	if err := c.bounds.add(b[:n]); err != nil {
		c.awaiting.Store(false)
		return 0, err
	}
	if n > 0 && c.awaiting.Load() {
		c.used = true
		c.awaiting.Store(false)
		if b[0] != '-' {
			c.line.answered()
		}
	}
	return n, err
}

// errUnused means that a server accepts connections and closes them without an answer. The reason may be a
// proxy in front of a server that has failed.
var errUnused = notSent("the server has closed a connection without an answer")

func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// ended reports whether the server has closed the connection. It may be called while another goroutine
// reads from it.
func (c *conn) ended() bool { return c.check.ended != nil && c.check.ended() }

// outdated reports whether another server is the master now.
func (c *conn) outdated() bool { return c.age != c.line.age.Load() }

// SyscallConn implements syscall.Conn. go-redis uses it to check a connection before each call, because the
// server may have closed it.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return &c.check, nil }

type idleCheck struct {
	syscall.RawConn // nil for TLS, because arriving bytes of TLS need not be an answer
	conn            *conn
	quiet           func() bool // nonblock.Conn.Quiet; nil if nonblock.Wrap does not wrap the connection
	ended           func() bool // nonblock.Conn.Ended; nil if quiet is nil
}

var errEnded = notSent("the server has closed the connection")

// Read implements syscall.RawConn for the check by go-redis. With f, go-redis looks for unexpected bytes and for the end
// of the stream. If Read knows that neither has arrived, it returns nil without calling f, and go-redis uses the
// connection. This is the usual case, and a call of f would announce a system call to the scheduler unnecessarily. Read
// returns an error if the connection must not be used.
func (l *idleCheck) Read(f func(fd uintptr) bool) error {
	switch {
	case l.conn.outdated():
		return errOutdated
	case l.quiet != nil && l.quiet():
		return nil
	case l.RawConn == nil:
		if l.ended != nil && l.ended() {
			return errEnded
		}
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
