package h2grpc

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// tape is a connection whose input comes from the test. It reports the length of each write.
type tape struct {
	net.Conn
	in  chan []byte
	out chan int
}

// startTape starts a connection of s, and sends the preface and SETTINGS of a client, whose further frames the test sends.
func startTape(t *testing.T, s *Server) (*tape, *client) {
	t.Helper()
	nc, c := &tape{in: make(chan []byte), out: make(chan int, 1000)}, newClient(t, nil)
	s.start(nc)
	nc.in <- c.out.Bytes()[:len(http2.ClientPreface)]
	nc.in <- bytes.Clone(c.out.Bytes()[len(http2.ClientPreface):])
	c.out.Reset()
	return nc, c
}

func (c *tape) Read(b []byte) (int, error) {
	in, ok := <-c.in
	if !ok {
		return 0, io.EOF
	}
	return copy(b, in), nil
}

func (c *tape) Write(b []byte) (int, error) { c.out <- len(b); return len(b), nil }

func (c *tape) Close() error                { return nil }
func (c *tape) SetDeadline(time.Time) error { return nil }
func (c *tape) RemoteAddr() net.Addr        { return &net.UnixAddr{} }

// WriteOnce is the method of a nonblock.Conn.
func (c *tape) WriteOnce(b []byte) (int, error) { return c.Write(b) }
