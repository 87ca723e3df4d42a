package h2grpc

import (
	"encoding/binary"
	"time"

	"golang.org/x/net/http2"
)

type openBlock struct {
	stream uint32 // 0 means none
	end    bool
	data   []byte
	frames int
	since  time.Time
}

func (c *conn) onHeaders(f frameHeader, payload []byte) error {
	if f.stream%2 == 0 {
		return protocolError("a stream of a client has an odd number")
	}
	b, ok := unpad(f.flags, payload)
	if !ok {
		return protocolError("more padding than payload")
	}
	if f.flags.Has(http2.FlagHeadersPriority) {
		if len(b) < 5 {
			return sizeError("HEADERS without its priority")
		}
		if binary.BigEndian.Uint32(b)&(1<<31-1) == f.stream {
			// This ends the connection: without decoding the block, the state of the compression is lost.
			return protocolError("a stream depends on itself")
		}
		b = b[5:]
	}
	end := f.flags.Has(http2.FlagHeadersEndStream)
	if f.flags.Has(http2.FlagHeadersEndHeaders) {
		return c.headers(f.stream, b, end)
	}
	c.block = openBlock{stream: f.stream, end: end, data: append(c.block.data[:0], b...), since: c.now}
	return nil
}

func (c *conn) onContinuation(f frameHeader, payload []byte) error {
	o := &c.block
	if o.stream == 0 {
		return protocolError("CONTINUATION of nothing")
	}
	o.frames++
	if o.frames > maxContinuations || len(o.data)+len(payload) > maxHeaderBlock || c.held()+len(payload) > c.allowance() {
		return &connError{http2.ErrCodeEnhanceYourCalm, "header block too long"}
	}
	o.data = append(o.data, payload...)
	if !f.flags.Has(http2.FlagContinuationEndHeaders) {
		return nil
	}
	id, block, end := o.stream, o.data, o.end
	o.stream, o.data = 0, nil // long blocks are rare, so their memory is not kept
	return c.headers(id, block, end)
}

func (c *conn) headers(id uint32, block []byte, end bool) error {
	defer c.heads.release()
	if id <= c.last {
		return c.trailers(id, block, end)
	}
	if err := c.keepIncomplete(); err != nil {
		return err
	}
	finalized := c.finalized // read before readHead releases the lock: a call of finalize during that time includes this stream
	c.last = id
	h, err := c.readHead(block, false)
	if err != nil {
		return err
	}
	switch {
	case finalized: // the client knows that this stream is not answered
		c.recordReset(id)
		return nil
	case h.malformed:
		c.abort(id, http2.ErrCodeProtocol)
		return c.countFrames(1)
	case c.open.count+c.resetInStore+len(c.arrived) >= maxStreams:
		c.abort(id, http2.ErrCodeRefusedStream)
		return c.countFrames(1)
	}
	c.fresh.id, c.fresh.head, c.fresh.opened, c.fresh.ended = id, *h, c.now, end
	switch {
	case h.tooLong && h.forMethod:
		c.denyUnread(&c.fresh)
	case h.refusal != nil && end:
		return c.refuse(&c.fresh)
	case h.refusal != nil: // refused once the rest has arrived, because the rest may be malformed
	case !h.forMethod:
		return c.handToOthers(c.moveToOpen(), c.heads.fields)
	case end: // a request without a message
		return c.refuseMessage(&c.fresh, notOneMessage)
	}
	return nil
}

// readHead decodes a header block. c.mu is held. It is released while a long block is decoded, because
// goroutines that serve other connections may wait for it.
func (c *conn) readHead(block []byte, trailers bool) (h *head, err error) {
	if len(block) <= shortBlock {
		h, err = c.heads.read(block, trailers)
	} else {
		if hasMoreFields(block, maxFields) {
			return nil, &connError{http2.ErrCodeEnhanceYourCalm, "too many header fields"}
		}
		c.answerReady() // otherwise abort, on another goroutine, would submit the requests
		c.inProgress++  // keeps the connection busy
		c.mu.Unlock()
		h, err = c.heads.read(block, trailers)
		c.mu.Lock()
		c.inProgress--
	}
	if err != nil {
		return nil, &connError{http2.ErrCodeCompression, "header block cannot be read"}
	}
	return h, nil
}

func (c *conn) trailers(id uint32, block []byte, end bool) error {
	h, err := c.readHead(block, true)
	if err != nil {
		return err
	}
	s := c.find(id)
	switch {
	case s == nil && c.wasReset(id):
		return c.countFrames(1)
	case s == nil:
		return &connError{http2.ErrCodeStreamClosed, "HEADERS on a stream that is over"}
	case s.ended:
		c.abort(id, http2.ErrCodeStreamClosed)
		return c.countFrames(1)
	case h.malformed || h.tooLong || !end:
		c.abort(id, http2.ErrCodeProtocol)
		return c.countFrames(1)
	}
	return c.complete(s, nil)
}

func (c *conn) onData(f frameHeader, payload []byte) error {
	if f.stream == 0 {
		return protocolError("DATA on no stream")
	}
	// The connection's window is returned when half of it is used, whether or not the data was processed. So it
	// never stops the client. The windows of streams and maxBuffered bound what the client sends.
	if c.received += f.length; c.received >= connWindow/2 {
		c.out = appendWindowUpdate(c.out, 0, uint32(c.received))
		c.received = 0
	}
	data, ok := unpad(f.flags, payload)
	if !ok {
		return protocolError("more padding than payload")
	}
	s := c.find(f.stream)
	if s == nil || s.ended {
		switch {
		case f.stream > c.last:
			return protocolError("DATA on a stream that is not open")
		case !c.wasReset(f.stream):
			c.abort(f.stream, http2.ErrCodeStreamClosed)
		}
		return c.countFrames(1)
	}
	end := f.flags.Has(http2.FlagDataEndStream)
	if len(data) == 0 && !end {
		if err := c.countFrames(1); err != nil {
			return err
		}
	}
	if s.unread += int64(f.length); s.unread > streamWindow {
		c.abort(s.id, http2.ErrCodeFlowControl)
		return c.countFrames(1)
	}
	s.length += int64(len(data))
	if end {
		return c.complete(s, data)
	}
	return c.part(c.ensureOpen(s), data)
}

// part handles data that does not complete a request. complete also uses it for the last data of a request that
// Config.Others serves.
func (c *conn) part(s *stream, data []byte) error {
	switch {
	case s.state == stuck: // the stream is already answered
		return nil
	case s.head.refusal != nil && s.length > maxRefused:
		return c.refuse(s)
	case s.head.refusal != nil:
		return nil
	}
	if s.state != handedToOthers {
		s.body = append(s.body, data...)
		s.buffered += len(data)
		c.buffered += len(data)
		if tooLong(s.body) || c.held() > c.allowance() {
			c.denyUnread(s)
		}
		return nil
	}
	if c.held()+len(data) > c.allowance() {
		c.abort(s.id, http2.ErrCodeEnhanceYourCalm)
		return c.countFrames(otherReset)
	}
	s.buffered += len(data)
	c.buffered += len(data)
	s.other.body.write(data)
	return nil
}

// complete handles the last data of a request. The data before it is in s.body, or was passed to Config.Others.
func (c *conn) complete(s *stream, data []byte) error {
	s.ended = true
	if s.head.length >= 0 && s.head.length != s.length {
		c.abort(s.id, http2.ErrCodeProtocol)
		return c.countFrames(1)
	}
	switch {
	case s.state == stuck:
		return nil
	case s.head.refusal != nil:
		return c.refuse(s)
	}
	if s.state == handedToOthers {
		if len(data) > 0 {
			s.ended = false // part expects an open stream
			if err := c.part(s, data); err != nil {
				return err
			}
			s.ended = true
		}
		s.other.body.end(nil)
		return nil
	}
	message := data
	if len(s.body) > 0 {
		s.body = append(s.body, data...)
		message = s.body
	}
	return c.message(s, message)
}
