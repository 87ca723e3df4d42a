package h2grpc

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// respond writes the answer to a stream, which is over then: headers, a message, trailers. s is nil
// for one that needed no place of its own. c.mu is held.
func (c *conn) respond(id uint32, s *stream, message func([]byte) ([]byte, *Status)) {
	tell, filled := c.table.tell, c.table.filled
	start := len(c.out)
	use := &plainBlocks
	if !tell {
		use = c.table.next()
	}
	if tell {
		block := append(c.table.appendSize(nil), use.headers...)
		c.out = appendHeaders(c.out, id, false, block)
	} else {
		c.out = append(appendFrame(c.out, len(use.headers), http2.FrameHeaders, http2.FlagHeadersEndHeaders, id), use.headers...)
	}
	data := len(c.out)
	c.out = append(appendFrame(c.out, 0, http2.FrameData, 0, id), 0, 0, 0, 0, 0)
	out, status := message(c.out)
	if status != nil {
		c.out = c.out[:start] // nothing has been sent after all
		c.table.tell, c.table.filled = tell, filled
		c.out = c.table.appendFailure(c.out, id, 200, status)
		c.over(s)
		return
	}
	c.out = out
	n := len(c.out) - data - frameHeaderLen
	binary.BigEndian.PutUint32(c.out[data+frameHeaderLen+1:], uint32(n-prefixLen))
	window := c.initial
	if s != nil {
		window += s.window
	}
	if n > maxFrame || int64(n) > c.window || int64(n) > window {
		rest := append([]byte(nil), c.out[data+frameHeaderLen:]...)
		c.out = c.out[:data]
		if c.table.filled && !filled {
			// What goes into the table with the trailers must go there right after this.
			c.table.filled = false
			c.out = appendHeaders(c.out[:start], id, false, plainBlocks.headers)
		}
		if s == nil {
			s = &stream{id: id, ended: true}
			c.open[id] = s
		}
		c.getStuck(s, rest, plainBlocks.trailers)
		return
	}
	c.out[data], c.out[data+1], c.out[data+2] = byte(n>>16), byte(n>>8), byte(n)
	c.window -= int64(n)
	c.out = append(appendFrame(c.out, len(use.trailers), http2.FrameHeaders,
		http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, id), use.trailers...)
	c.over(s)
}

// over ends a stream on which all is said. One that needed no place of its own is nil.
func (c *conn) over(s *stream) {
	c.answered = true
	if s == nil {
		return
	}
	if s.state != stuck {
		s.state = coming // it waits for nothing
	}
	c.drop(s)
	if s.ended {
		c.recycle(s)
	} else { // the client need not go on
		c.abort(s.id, http2.ErrCodeNo)
	}
}

// getStuck keeps DATA that does not fit into the client's windows, or into one frame, and the trailers.
func (c *conn) getStuck(s *stream, rest, tail []byte) {
	if c.stuck += len(rest); c.stuck > min(maxStuck, c.allowance()) {
		c.stuck -= len(rest)
		c.abort(s.id, http2.ErrCodeEnhanceYourCalm)
		return
	}
	s.state, s.rest, s.tail = stuck, rest, tail
	c.enqueue(s)
	c.push()
}

// enqueue has s, which is stuck, wait for the connection's window; it waits for its own by itself, for
// else every increment would mean a look at all streams.
func (c *conn) enqueue(s *stream) {
	if !s.queued && (c.initial+s.window > 0 || len(s.rest) == 0) {
		s.queued = true
		c.stalled = append(c.stalled, s)
	}
}

// push sends what the client's windows let through of what is stuck, the oldest first.
func (c *conn) push() {
	for len(c.stalled) > 0 && (c.window > 0 || len(c.stalled[0].rest) == 0) {
		s := c.stalled[0]
		n := min(int64(len(s.rest)), c.window, c.initial+s.window, maxFrame)
		if n > 0 {
			c.out = append(appendFrame(c.out, int(n), http2.FrameData, 0, s.id), s.rest[:n]...)
			c.answered = true
			s.rest = s.rest[n:]
			c.window -= n
			s.window -= n
			c.stuck -= int(n)
		}
		switch {
		case len(s.rest) == 0:
			c.out = appendHeaders(c.out, s.id, true, append(c.table.appendSize(nil), s.tail...))
			c.over(s)
		case c.initial+s.window <= 0:
			c.dequeue(s)
		}
	}
}

// dequeue takes s out of those who wait for the connection's window.
func (c *conn) dequeue(s *stream) {
	if !s.queued {
		return
	}
	s.queued = false
	if c.stalled[0] == s {
		c.stalled[0] = nil
		c.stalled = c.stalled[1:]
		return
	}
	at := slices.Index(c.stalled, s)
	c.stalled = slices.Delete(c.stalled, at, at+1)
}

// hold keeps the answer to request i of b back for d. c.mu is held.
func (c *conn) hold(id uint32, s *stream, b Batch, i int, arrived time.Time, d algorithms.Micros) {
	answer, status := c.encode(nil, b, i)
	if s == nil {
		s = &stream{id: id, ended: true}
		c.open[id] = s
	}
	s.state = holding
	s.stop = c.server.config.Method.Later(d, func() {
		c.mu.Lock()
		if c.open[id] != s || c.closed {
			c.mu.Unlock()
			return
		}
		c.respond(id, s, func(to []byte) ([]byte, *Status) { return append(to, answer...), status })
		c.server.config.Method.Answered(arrived)
		c.flush()
	})
}
