package redis

import (
	"crypto/tls"
	"net"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// conn is a connection to the current master. The wire reads it on one goroutine and writes it on others.
type conn struct {
	net.Conn
	age      *atomic.Uint32 // changes when another server becomes the master
	made     uint32         // the age when the connection was made
	closed   func() bool    // nonblock.Conn.Ended; nil if nonblock.Wrap does not wrap the connection
	awaiting atomic.Bool    // the server has not answered the last call yet
}

func newConn(nc net.Conn, age *atomic.Uint32, made uint32) *conn {
	c := &conn{Conn: nc, age: age, made: made}
	if n := nonblock.Wrap(nc); n != nil {
		c.Conn, c.closed = n, n.Ended
	}
	if secure, ok := nc.(*tls.Conn); ok {
		if n, ok := secure.NetConn().(*nonblock.Conn); ok {
			c.closed = n.Ended
		}
	}
	return c
}

var errOutdated = notSent("the master has changed")

// Write implements net.Conn. It returns errOutdated if the connection has become outdated before the first byte of a call
// was sent. A call that has been sent in part is sent completely.
func (c *conn) Write(b []byte) (int, error) {
	if c.outdated() && !c.awaiting.Load() {
		return 0, errOutdated
	}
	c.awaiting.Store(true)
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
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
