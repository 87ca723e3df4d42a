package h2grpc

import (
	"io"
	"time"
)

// flush writes c.out, unless another goroutine is writing. It may block on the client, so it may be called
// only by goroutines that serve no other connection. c.mu is held, and released.
func (c *conn) flush() { c.write(c.nc.Write) }

// flushSoon is flush for goroutines that serve other connections too. It never blocks: if the client does
// not read, a new goroutine waits for it. c.mu is held, and released.
func (c *conn) flushSoon() {
	c.count()
	nc, ok := c.nc.(interface{ WriteOnce(b []byte) (int, error) }) // a nonblock.Conn
	switch {
	case c.writing || c.closed || len(c.out) == 0 && !c.mayLeave():
		c.mu.Unlock()
	case ok:
		c.write(nc.WriteOnce)
	default:
		c.flushApart()
		c.mu.Unlock()
	}
}

// flushApart flushes on a new goroutine. c.mu is held.
func (c *conn) flushApart() {
	c.server.goroutines.Go(func() {
		c.mu.Lock()
		c.flush()
	})
}

// write passes c.out to the function to, unless another goroutine is writing. The function may write only a
// part without an error; a new goroutine then writes the rest. c.mu is held, and released.
func (c *conn) write(to func([]byte) (int, error)) {
	c.count()
	if c.writing || c.closed {
		c.mu.Unlock()
		return
	}
	c.writing = true
	for len(c.out) > 0 && !c.closed {
		b := c.out
		c.out, c.spare = c.spare[:0], nil
		c.writes++
		c.mu.Unlock()
		n, err := to(b)
		c.mu.Lock()
		if err == nil && n < len(b) {
			c.out = append(b[n:], c.out...)
			c.flushApart()
			break
		}
		if cap(b) <= maxOut {
			c.spare = b[:0]
		}
		if err != nil {
			c.shut()
		}
	}
	if c.mayLeave() {
		c.leave()
	}
	c.writing = false
	c.changed.Broadcast()
	c.mu.Unlock()
}

// mayLeave reports whether the connection accepts no more requests and has answered all. c.mu is held.
func (c *conn) mayLeave() bool { return c.finalized && !c.leaving && !c.closed && !c.busy() }

// leave closes the write side of a connection that has answered all requests. The client should then close
// the connection. c.writing is set, so that no other goroutine writes. c.mu is held, and released during
// the call, because TLS writes a close_notify.
func (c *conn) leave() {
	c.leaving = true
	c.mu.Unlock()
	c.closeWrite()
	_ = c.nc.SetReadDeadline(time.Now().Add(leaving))
	c.mu.Lock()
}

func (c *conn) closeWrite() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// fail ends the connection. If there is a reason, it first sends a GOAWAY with the reason.
func (c *conn) fail(reason *connError) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	if reason == nil || !c.greeted {
		c.shut()
		c.mu.Unlock()
		return
	}
	if !c.finalized {
		c.finalized, c.final = true, c.last
	}
	c.draining = true
	c.out = appendGoAway(c.out, c.final, reason.code, reason.text)
	_ = c.nc.SetWriteDeadline(time.Now().Add(lingering))
	c.flush()
}

// linger gives the client time to read the GOAWAY. If a socket is closed while it has unread bytes, the
// kernel also discards bytes that the client has not received yet.
func (c *conn) linger() {
	c.closeWrite()
	_ = c.nc.SetReadDeadline(time.Now().Add(lingering))
	_, _ = io.CopyN(io.Discard, c.nc, 1<<20)
}

// shut ends the connection at once. c.mu is held.
func (c *conn) shut() {
	if c.closed {
		return
	}
	c.closed = true
	c.socket.Close()
	c.changed.Broadcast()
}

// close ends all streams and removes the connection from the server. It is the reader's last call.
func (c *conn) close() {
	c.mu.Lock()
	c.shut()
	for _, s := range c.open {
		c.drop(s)
	}
	for c.operations > 0 || c.others > 0 { // these end soon, because they are canceled
		c.changed.Wait()
	}
	c.server.held.Add(-int64(c.counted))
	c.counted = 0
	c.mu.Unlock()
	c.server.gone(c)
}
