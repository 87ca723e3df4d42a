package server

import (
	"crypto/tls"
	"net"
	"runtime"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// handshakes bounds the processor time of TLS handshakes. A handshake computes for milliseconds without a pause, so a
// few clients that only begin handshakes would delay everyone. At most a quarter of the processors computes handshakes
// at a time, at least one; the others wait in turn. A handshake that waits for its client does not count.
type handshakes struct {
	config    *tls.Config
	computing chan struct{} // has an element for each handshake that is computing
}

func newHandshakes(config *tls.Config) *handshakes {
	return &handshakes{config, make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4))}
}

func (h *handshakes) begin(nc net.Conn) *handshakeConn { return &handshakeConn{Conn: nc, of: h} }

// server makes the handshake of a TLS server.
func (h *handshakes) server(nc net.Conn) (*tls.Conn, error) {
	c := h.begin(nc)
	defer c.end()
	t := tls.Server(c, h.config)
	return t, t.Handshake()
}

// handshakeConn is the connection below TLS. Until end it may be used on one goroutine only.
type handshakeConn struct {
	net.Conn
	of        *handshakes
	ended     bool
	computing bool // this handshake has an element in of.computing
}

// Read implements net.Conn. TLS computes with what Read returns.
func (c *handshakeConn) Read(b []byte) (int, error) {
	if c.ended {
		return c.Conn.Read(b)
	}
	c.pause()
	n, err := c.Conn.Read(b)
	if err == nil {
		c.compute()
	}
	return n, err
}

// Write implements net.Conn. The client may not read, so Write may wait too.
func (c *handshakeConn) Write(b []byte) (int, error) {
	if c.ended {
		return c.Conn.Write(b)
	}
	c.pause()
	n, err := c.Conn.Write(b)
	if err == nil {
		c.compute()
	}
	return n, err
}

func (c *handshakeConn) compute() {
	c.of.computing <- struct{}{}
	c.computing = true
	nonblock.Yield() // otherwise the handshakes that wait in turn would compute one after the other in one time slice
}

func (c *handshakeConn) pause() {
	if c.computing {
		c.computing = false
		<-c.of.computing
	}
}

// end must be called after the handshake.
func (c *handshakeConn) end() {
	c.pause()
	c.ended = true
}
