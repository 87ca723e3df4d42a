package listen

import (
	"crypto/tls"
	"net"
	"runtime"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// Handshakes bounds the processor time of TLS handshakes. A handshake computes for milliseconds without a pause, so a
// few clients that only begin handshakes would delay everyone. At most a quarter of the processors computes handshakes
// at a time, at least one; the others wait in turn. A handshake that waits for its client does not count.
type Handshakes struct {
	config *tls.Config
	// Computing has an element for each handshake that is computing.
	Computing chan struct{}
}

// NewHandshakes returns Handshakes of servers with config.
func NewHandshakes(config *tls.Config) *Handshakes {
	return &Handshakes{config, make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4))}
}

func (h *Handshakes) begin(nc net.Conn) *handshakeConn { return &handshakeConn{Conn: nc, of: h} }

// Server makes the handshake of a TLS server.
func (h *Handshakes) Server(nc net.Conn) (*tls.Conn, error) {
	c := h.begin(nc)
	defer c.end()
	t := tls.Server(c, h.config)
	return t, t.Handshake()
}

// handshakeConn is the connection below TLS. Until end it may be used on one goroutine only.
type handshakeConn struct {
	net.Conn
	of        *Handshakes
	ended     bool
	computing bool // this handshake has an element in of.Computing
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
	c.of.Computing <- struct{}{}
	c.computing = true
	nonblock.Yield() // otherwise the handshakes that wait in turn would compute one after the other in one time slice
}

func (c *handshakeConn) pause() {
	if c.computing {
		c.computing = false
		<-c.of.Computing
	}
}

// end must be called after the handshake.
func (c *handshakeConn) end() {
	c.pause()
	c.ended = true
}
