package h2grpc

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// respond appends the answer to a request (headers, a message, trailers) to c.out and ends stream id. The function
// message appends the message to its argument, or returns a Status. A message that the client's windows do not
// allow yet is sent later. s is nil if the request is not in c.open. c.mu is held.
func (c *conn) respond(id uint32, s *stream, message func([]byte) ([]byte, *Status)) {
	report, filled := c.table.report, c.table.filled
	start := len(c.out)
	use := &plainBlocks
	if !report {
		use = c.table.next()
	}
	if report {
		block := append(c.table.appendSize(nil), use.headers...)
		c.out = appendHeaders(c.out, id, false, block)
	} else {
		c.out = append(appendFrame(c.out, len(use.headers), http2.FrameHeaders, http2.FlagHeadersEndHeaders, id), use.headers...)
	}
	data := len(c.out)
	c.out = append(appendFrame(c.out, 0, http2.FrameData, 0, id), 0, 0, 0, 0, 0)
	out, status := message(c.out)
	if status != nil {
		c.out = c.out[:start] // removes the headers that were appended
		c.table.report, c.table.filled = report, filled
		c.out = c.table.appendFailure(c.out, id, 200, status)
		c.endStream(s)
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
			// The blocks would add fields to the table, so no other block may come between them. But these
			// trailers are sent later, so the answer uses blocks that add nothing.
			c.table.filled = false
			c.out = appendHeaders(c.out[:start], id, false, plainBlocks.headers)
		}
		if s == nil {
			s = &stream{id: id, ended: true}
			c.addToOpen(s)
		}
		c.sendOrStall(s, rest, plainBlocks.trailers)
		return
	}
	c.out[data], c.out[data+1], c.out[data+2] = byte(n>>16), byte(n>>8), byte(n)
	c.window -= int64(n)
	c.out = append(appendFrame(c.out, len(use.trailers), http2.FrameHeaders,
		http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, id), use.trailers...)
	c.endStream(s)
}

// endStream ends a stream that has been answered. s may be nil.
func (c *conn) endStream(s *stream) {
	c.answered = true
	if s == nil {
		return
	}
	if s.state != stuck {
		s.state = incomplete // drop then has nothing to cancel
	}
	c.drop(s)
	if s.ended {
		c.recycle(s)
	} else { // the client need not send the rest of its request
		c.abort(s.id, http2.ErrCodeNo)
	}
}

// sendOrStall sends as much of the DATA in rest as the client's windows allow, and then the trailers in tail. It
// keeps the bytes that cannot be sent yet. If the connection would hold too much with all of rest, sendOrStall resets
// the stream instead.
func (c *conn) sendOrStall(s *stream, rest, tail []byte) {
	size := len(rest) + streamBytes
	if c.held()+size > c.allowance() {
		c.abort(s.id, http2.ErrCodeEnhanceYourCalm)
		return
	}
	c.stuck += size
	c.count()
	s.state, s.rest, s.tail, s.waits = stuck, rest, tail, time.Now()
	c.enqueue(s)
	c.sendStalled()
}

// enqueue appends s, whose answer cannot be sent completely, to the streams that wait for the connection's window.
// A stream whose own window is used up is not queued, because an increment of the connection's window does not
// help it.
func (c *conn) enqueue(s *stream) {
	if !s.queued && (c.initial+s.window > 0 || len(s.rest) == 0) {
		s.queued = true
		c.stalled = append(c.stalled, s)
	}
}

// sendStalled sends as much of the stalled answers as the client's windows allow, in the order of c.stalled.
func (c *conn) sendStalled() {
	for len(c.stalled) > 0 && (c.window > 0 || len(c.stalled[0].rest) == 0) {
		s := c.stalled[0]
		n := min(int64(len(s.rest)), c.window, c.initial+s.window, maxFrame)
		if n > 0 {
			c.out = append(appendFrame(c.out, int(n), http2.FrameData, 0, s.id), s.rest[:n]...)
			c.answered = true
			s.rest, s.waits = s.rest[n:], time.Now()
			c.window -= n
			s.window -= n
			c.stuck -= int(n)
		}
		switch {
		case len(s.rest) == 0:
			c.out = appendHeaders(c.out, s.id, true, append(c.table.appendSize(nil), s.tail...))
			c.endStream(s)
		case c.initial+s.window <= 0:
			c.dequeue(s)
		}
	}
}

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

// delay delays the answer to request i of o. c.mu is held.
func (c *conn) delay(o *operation, i int) {
	answer, status := c.encode(nil, o.batch, i)
	id, s := o.requests[i].id, o.requests[i].stream
	if s == nil {
		s = &stream{id: id, ended: true}
		c.addToOpen(s)
	}
	s.state = delayed
	s.stop = c.server.config.Method.Later(o.requests[i].delay, func() {
		c.mu.Lock()
		if c.open[id] != s || c.closed {
			c.mu.Unlock()
			return
		}
		c.respond(id, s, func(to []byte) ([]byte, *Status) { return append(to, answer...), status })
		c.flush()
	})
}
