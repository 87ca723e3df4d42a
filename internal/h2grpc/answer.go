package h2grpc

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// respond appends the answer to a request (headers, a message, trailers) to c.out and ends stream id. If status is not
// nil, it is the answer. A message that the client's windows do not allow yet is sent later. s is nil if the request is
// not in c.open. c.mu is held.
func (c *conn) respond(id uint32, s *stream, message []byte, status *Status) {
	if status != nil {
		c.out = c.table.appendFailure(c.out, id, 200, status)
		c.endStream(s)
		return
	}
	n, window := prefixLen+len(message), c.initial
	if s != nil {
		window += s.window
	}
	if n > maxFrame || int64(n) > c.window || int64(n) > window {
		c.respondInParts(id, s, message)
		return
	}
	use := &plainBlocks
	if c.table.report {
		c.out = appendHeaders(c.out, id, false, append(c.table.appendSize(nil), use.headers...))
	} else {
		use = c.table.next()
		c.out = append(appendFrame(c.out, len(use.headers), http2.FrameHeaders, http2.FlagHeadersEndHeaders, id), use.headers...)
	}
	c.out = append(appendPrefix(appendFrame(c.out, n, http2.FrameData, 0, id), len(message)), message...)
	c.window -= int64(n)
	c.out = append(appendFrame(c.out, len(use.trailers), http2.FrameHeaders,
		http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, id), use.trailers...)
	c.endStream(s)
}

// respondInParts does what respond does, for a message that does not fit into one frame or into the client's windows.
// Its blocks add nothing to the table, because other blocks may come between them.
func (c *conn) respondInParts(id uint32, s *stream, message []byte) {
	c.out = appendHeaders(c.out, id, false, append(c.table.appendSize(nil), plainBlocks.headers...))
	if s == nil {
		s = &stream{id: id, ended: true}
		c.open.add(s)
	}
	c.sendOrStall(s, append(appendPrefix(nil, len(message)), message...), plainBlocks.trailers)
}

// appendPrefix appends the prefix of an uncompressed gRPC message of n bytes.
func appendPrefix(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0), uint32(n))
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
			c.passed = s.waits
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

// delay delays the answer to r, which is finished. It is counted until it is sent, like the body of a request. If the
// connection would hold too much with it, the request is denied instead. c.mu is held.
func (c *conn) delay(r *request) {
	id, s, status := r.id, r.stream, r.Status
	if s == nil {
		s = &stream{id: id, ended: true}
		c.open.add(s)
	}
	s.body, s.buffered = bytes.Clone(r.message), len(r.message)+streamBytes
	c.buffered += s.buffered
	if c.count(); c.held() > c.allowance() {
		if r.Slots != "" {
			c.server.config.Method.Unused(r.Slots)
		}
		c.denyUnread(s)
		return
	}
	s.state, s.slots = delayed, r.Slots
	s.stop = c.server.config.Method.Later(r.Delay, func() {
		c.mu.Lock()
		if !s.open || c.closed {
			c.mu.Unlock()
			return
		}
		s.state = incomplete // so that drop neither stops the timer nor returns the slots
		message := s.body
		c.releaseBody(s)
		c.remember(id, s.slots)
		c.respond(id, s, message, status)
		c.flush()
	})
}
