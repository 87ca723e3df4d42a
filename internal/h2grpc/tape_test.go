package h2grpc

import (
	"io"
	"net"
	"time"
)

// tape is a connection whose input comes from the test. It reports the length of each write.
type tape struct {
	net.Conn
	in  chan []byte
	out chan int
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
