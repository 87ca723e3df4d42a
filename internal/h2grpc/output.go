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
	case c.writing || c.closed || len(c.out) == 0 && !c.mayHalfClose():
		c.mu.Unlock()
	case ok:
		c.write(nc.WriteOnce)
	default:
		c.flushOnGoroutine()
		c.mu.Unlock()
	}
}

// flushOnGoroutine flushes on a new goroutine. c.mu is held.
func (c *conn) flushOnGoroutine() {
	c.server.goroutines.Go(func() {
		c.mu.Lock()
		c.flush()
	})
}

// write passes c.out to writeBytes, unless another goroutine is writing. If writeBytes writes only a part without an
// error, a new goroutine writes the rest. c.mu is held, and released.
func (c *conn) write(writeBytes func([]byte) (int, error)) {
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
		n, err := writeBytes(b)
		c.mu.Lock()
		if err == nil && n < len(b) {
			c.out = append(b[n:], c.out...)
			c.flushOnGoroutine()
			break
		}
		if cap(b) <= maxOut {
			c.spare = b[:0]
		}
		if err != nil {
			c.closeNow()
		}
	}
	if c.mayHalfClose() {
		c.halfClose()
	}
	c.writing = false
	c.changed.Broadcast()
	c.mu.Unlock()
}

// mayHalfClose reports whether the connection accepts no more requests and has answered all. c.mu is held.
func (c *conn) mayHalfClose() bool { return c.finalized && !c.halfClosed && !c.closed && !c.busy() }

// halfClose closes the write side of a connection that has answered all requests. The client should then close
// the connection. c.writing is set, so that no other goroutine writes. c.mu is held, and released during
// the call, because TLS writes a close_notify.
func (c *conn) halfClose() {
	c.halfClosed = true
	c.mu.Unlock()
	c.closeWrite()
	_ = c.nc.SetReadDeadline(time.Now().Add(halfCloseTimeout))
	c.mu.Lock()
}

func (c *conn) closeWrite() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// fail closes the connection at once if reason is nil or no frame may be written yet. Otherwise it only sends a
// GOAWAY with the reason, and the caller then ends the connection.
func (c *conn) fail(reason *connError) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	if reason == nil || !c.handshaken {
		c.closeNow()
		c.mu.Unlock()
		return
	}
	if !c.finalized {
		c.finalized, c.final = true, c.last
	}
	c.draining = true
	c.out = appendGoAway(c.out, c.final, reason.code, reason.text)
	_ = c.nc.SetWriteDeadline(time.Now().Add(goAwayTimeout))
	c.flush()
}

// drainAfterGoAway gives the client time to read the GOAWAY. If a socket is closed while it has unread bytes, the
// kernel also discards bytes that the client has not received yet.
func (c *conn) drainAfterGoAway() {
	c.closeWrite()
	_ = c.nc.SetReadDeadline(time.Now().Add(goAwayTimeout))
	_, _ = io.CopyN(io.Discard, c.nc, 1<<20)
}

// closeNow ends the connection at once. c.mu is held.
func (c *conn) closeNow() {
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
	c.closeNow()
	ended := 0
	for _, s := range c.open.all() {
		if !s.open { // ended meanwhile
			continue
		}
		c.drop(s)
		if s.state != handedToOthers {
			continue
		}
		if ended++; ended%othersPerTurn == 0 {
			c.mu.Unlock()
			yield()
			c.mu.Lock()
		}
	}
	for c.operations > 0 || c.others > 0 { // these end soon, because they are canceled
		c.changed.Wait()
	}
	c.out, c.slotAnswers, c.block = nil, slotAnswers{}, openBlock{}
	c.count() // counts nothing; backend.Source.Flush may count once more
	c.mu.Unlock()
	c.server.remove(c)
}
