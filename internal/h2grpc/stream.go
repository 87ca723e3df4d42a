package h2grpc

import (
	"context"
	"encoding/binary"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// stream is a request that is not completely answered. A request that arrives in one read and is answered
// at once stays in conn.fresh.
type stream struct {
	id    uint32
	state streamState
	head  head
	// body is the part of an incomplete request that has arrived.
	body     []byte
	length   int64 // bytes that have arrived, without padding
	unread   int64 // bytes received whose window was not returned yet
	window   int64 // the client's window, relative to conn.initial; it may be negative
	opened   time.Time
	ended    bool // the client has ended its side of the stream
	buffered int  // bytes counted in conn.buffered

	rest []byte // DATA that waits for the client's windows
	tail []byte // the trailers after rest
	// queued means that the stream is in conn.stalled.
	queued bool
	stop   func() // stops the timer of a held answer
	// canceled tells the Store, while it decides, that the client has canceled the request.
	canceled *atomic.Bool
	// other is set if Config.Others serves the stream.
	other *other
}

type streamState uint8

const (
	coming  streamState = iota // the request is incomplete
	waiting                    // the Store is deciding
	holding                    // the answer is held back
	stuck                      // the answer waits for the client's windows
	handed                     // Config.Others serves it
)

// find returns an open stream, or nil.
func (c *conn) find(id uint32) *stream {
	if c.fresh.id == id && id != 0 {
		return &c.fresh
	}
	return c.open[id]
}

// park moves c.fresh to c.open.
func (c *conn) park() *stream {
	s := c.unused()
	*s = c.fresh
	c.fresh = stream{}
	c.open[s.id] = s
	return s
}

// keep makes a stream for a whole request that has none.
func (c *conn) keep(id uint32) *stream {
	s := c.unused()
	s.id, s.ended, s.state = id, true, waiting
	c.open[id] = s
	return s
}

// unused returns an empty stream.
func (c *conn) unused() (s *stream) {
	last := len(c.free) - 1
	if last < 0 {
		return &stream{}
	}
	s, c.free = c.free[last], c.free[:last]
	return s
}

// recycle keeps s, which has ended, for another request, unless a timer or a handler may still refer to it.
func (c *conn) recycle(s *stream) {
	if s.stop == nil && s.other == nil && s.tail == nil && len(c.free) < maxFree {
		*s = stream{}
		c.free = append(c.free, s)
	}
}

// kept returns s, after moving it to c.open if it is c.fresh.
func (c *conn) kept(s *stream) *stream {
	if s == &c.fresh {
		return c.park()
	}
	return s
}

// drop removes s, and cancels whatever it waits for.
func (c *conn) drop(s *stream) {
	if s == &c.fresh {
		c.fresh = stream{}
		return
	}
	delete(c.open, s.id)
	c.buffered -= s.buffered
	s.buffered = 0
	switch s.state {
	case waiting:
		c.undead++ // counted until its operation is completed
		if s.canceled != nil {
			s.canceled.Store(true)
		}
	case holding:
		s.stop()
	case handed:
		s.other.end(context.Canceled)
	case stuck:
		c.stuck -= len(s.rest)
		c.dequeue(s)
	case coming:
	}
}

// busy reports whether the connection still has requests, or bytes to write.
func (c *conn) busy() bool {
	return len(c.open) > 0 || c.fresh.id != 0 || len(c.arrived)+c.taking > 0 || c.others > 0 || len(c.out) > 0
}

// abort resets a stream, which may be one of c.arrived. Frames that the client sends before it knows of the
// reset are ignored.
func (c *conn) abort(id uint32, code http2.ErrCode) {
	c.answerReady()
	if s := c.find(id); s != nil {
		c.drop(s)
	}
	c.forget(id)
	c.out = appendReset(c.out, id, code)
}

// forget records that a stream was reset and that frames may still arrive on it.
func (c *conn) forget(id uint32) {
	c.gone[c.goneAt] = id
	c.goneAt = (c.goneAt + 1) % len(c.gone)
}

func (c *conn) forgotten(id uint32) bool {
	for _, gone := range c.gone {
		if gone == id {
			return true
		}
	}
	return false
}

// openBlock is an incomplete header block.
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
			// The block is not decoded, so the state of the compression is lost.
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
	if o.frames > maxContinuations || len(o.data)+len(payload) > maxHeaderBlock {
		return &connError{http2.ErrCodeEnhanceYourCalm, "header block too long"}
	}
	o.data = append(o.data, payload...)
	if !f.flags.Has(http2.FlagContinuationEndHeaders) {
		return nil
	}
	id, block, end := o.stream, o.data, o.end
	o.stream = 0
	if err := c.headers(id, block, end); err != nil {
		return err
	}
	o.data = nil // long blocks are rare, so their memory is not kept
	return nil
}

// headers handles a whole header block.
func (c *conn) headers(id uint32, block []byte, end bool) error {
	if id <= c.last {
		return c.trailers(id, block, end)
	}
	finalized := c.finalized // readHead releases the lock; meanwhile a GOAWAY may promise the client an answer on this stream
	c.last = id
	if c.fresh.id != 0 {
		c.park()
	}
	h, err := c.readHead(block, false)
	if err != nil {
		return &connError{http2.ErrCodeCompression, "header block cannot be read"}
	}
	switch {
	case finalized: // the client knows that this stream is not answered
		c.forget(id)
		return nil
	case h.malformed:
		c.abort(id, http2.ErrCodeProtocol)
		return c.idle(1)
	case len(c.open)+c.undead+len(c.arrived) >= maxStreams:
		c.abort(id, http2.ErrCodeRefusedStream)
		return c.idle(1)
	}
	c.fresh.id, c.fresh.head, c.fresh.opened, c.fresh.ended = id, *h, c.now, end
	switch {
	case h.tooLong && h.ours:
		c.denyUnread(&c.fresh)
	case h.refusal != nil && end:
		return c.refuse(&c.fresh)
	case h.refusal != nil: // refused after the rest has arrived, which may be malformed
	case !h.ours:
		return c.handOver(c.park(), c.heads.fields)
	case end: // a request without a message
		return c.handOverBody(c.park())
	}
	return nil
}

// readHead decodes a header block. c.mu is held, but released while a long block is decoded, because
// goroutines that serve other connections may wait for it.
func (c *conn) readHead(block []byte, trailers bool) (*head, error) {
	if len(block) <= shortBlock {
		return c.heads.read(block, trailers)
	}
	c.taking++ // keeps the connection busy
	c.mu.Unlock()
	h, err := c.heads.read(block, trailers)
	c.mu.Lock()
	c.taking--
	return h, err
}

// refuse answers a request that is not gRPC with an HTTP status and plain text.
func (c *conn) refuse(s *stream) error {
	s = c.kept(s)
	r := s.head.refusal
	block := c.table.appendSize(nil)
	block = appendField(block, ":status", strconv.Itoa(r.httpStatus))
	block = appendField(block, typeField.Name, "text/plain")
	c.out = appendHeaders(c.out, s.id, false, block)
	c.getStuck(s, []byte(r.status.Message), appendField(nil, statusField.Name, strconv.Itoa(int(r.status.Code))))
	return c.idle(1)
}

// denyUnread denies a request that exceeds a bound, without decoding it.
func (c *conn) denyUnread(s *stream) {
	s = c.kept(s)
	c.forgetBody(s)
	c.respond(s.id, s, c.denial)
}

func (c *conn) denial(to []byte) ([]byte, *Status) {
	return append(to, c.server.config.Method.Denial()...), nil
}

// attempt calls f and reports whether it returned without a panic. A panic caused by one request must not
// affect others.
func (c *conn) attempt(f func()) (returned bool) {
	defer func() {
		if p := recover(); p != nil {
			c.server.config.Method.Panicked(p)
		}
	}()
	f()
	return true
}

// forgetBody releases the received part of a request.
func (c *conn) forgetBody(s *stream) {
	c.buffered -= s.buffered
	s.buffered, s.body = 0, nil
}

// trailers handles a header block on a stream that is not new.
func (c *conn) trailers(id uint32, block []byte, end bool) error {
	h, err := c.readHead(block, true)
	if err != nil {
		return &connError{http2.ErrCodeCompression, "header block cannot be read"}
	}
	s := c.find(id)
	switch {
	case s == nil && c.forgotten(id):
		return c.idle(1)
	case s == nil:
		return &connError{http2.ErrCodeStreamClosed, "HEADERS on a stream that is over"}
	case s.ended:
		c.abort(id, http2.ErrCodeStreamClosed)
		return c.idle(1)
	case h.malformed || h.tooLong || !end:
		c.abort(id, http2.ErrCodeProtocol)
		return c.idle(1)
	}
	return c.whole(s, nil)
}

func (c *conn) onData(f frameHeader, payload []byte) error {
	if f.stream == 0 {
		return protocolError("DATA on no stream")
	}
	// The connection's window is returned at once, so it never stops the client. The windows of streams and
	// maxBuffered bound what it sends.
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
		case !c.forgotten(f.stream):
			c.abort(f.stream, http2.ErrCodeStreamClosed)
		}
		return c.idle(1)
	}
	end := f.flags.Has(http2.FlagDataEndStream)
	if len(data) == 0 && !end {
		if err := c.idle(1); err != nil {
			return err
		}
	}
	if s.unread += int64(f.length); s.unread > streamWindow {
		c.abort(s.id, http2.ErrCodeFlowControl)
		return c.idle(1)
	}
	s.length += int64(len(data))
	if end {
		return c.whole(s, data)
	}
	return c.part(c.kept(s), data)
}

// part handles data that does not end its stream.
func (c *conn) part(s *stream, data []byte) error {
	switch {
	case s.state == stuck: // the stream is already answered
		return nil
	case s.head.refusal != nil && s.length > maxRefused:
		return c.refuse(s)
	case s.head.refusal != nil:
		return nil
	}
	if s.state != handed {
		s.body = append(s.body, data...)
		s.buffered += len(data)
		c.buffered += len(data)
		switch {
		case unusual(s.body):
			return c.handOverBody(s)
		case c.buffered > c.allowance():
			c.denyUnread(s)
		}
		return nil
	}
	if c.buffered+len(data) > c.allowance() {
		c.abort(s.id, http2.ErrCodeEnhanceYourCalm)
		return c.idle(otherReset)
	}
	s.buffered += len(data)
	c.buffered += len(data)
	s.other.body.write(data)
	return nil
}

// whole handles the last data of a request. The data before it is in s.body.
func (c *conn) whole(s *stream, data []byte) error {
	s.ended = true
	if s.head.length >= 0 && s.head.length != s.length {
		c.abort(s.id, http2.ErrCodeProtocol)
		return c.idle(1)
	}
	switch {
	case s.state == stuck:
		return nil
	case s.head.refusal != nil:
		return c.refuse(s)
	}
	if s.state == handed {
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
	if unusual(message) || len(message) < prefixLen || len(message)-prefixLen != int(binary.BigEndian.Uint32(message[1:])) {
		s = c.kept(s)
		s.body = append(s.body[:0], message...)
		return c.handOverBody(s)
	}
	c.request(s, message[prefixLen:])
	return nil
}

// prefixLen is the length of gRPC's message prefix: a compression flag and the length of the message.
const prefixLen = 5

// unusual reports whether body cannot be the beginning of one uncompressed message. Config.Others answers
// such requests.
func unusual(body []byte) bool {
	if len(body) == 0 {
		return false
	}
	if body[0] != 0 {
		return true
	}
	if len(body) < prefixLen {
		return false
	}
	n := int(binary.BigEndian.Uint32(body[1:]))
	return n > maxMessage || len(body)-prefixLen > n
}

// arrival is a complete request that is not submitted yet.
type arrival struct {
	id      uint32
	stream  *stream       // nil if it has no stream
	message []byte        // a part of the read buffer, or of the stream's body
	left    time.Duration // see Batch.Add
}

// request appends a whole request to c.arrived.
func (c *conn) request(s *stream, message []byte) {
	left := s.head.timeout
	if left > 0 {
		if left -= c.now.Sub(s.opened); left == 0 {
			left = -1
		}
	}
	c.arrived = append(c.arrived, arrival{})
	a := &c.arrived[len(c.arrived)-1]
	a.id, a.message, a.left = s.id, message, left
	if s == &c.fresh {
		c.fresh = stream{}
	} else {
		a.stream, s.state = s, waiting
	}
	if len(c.arrived) >= maxBatch {
		c.answerReady()
	}
}

// answerReady submits c.arrived, which is empty unless the reader calls it. c.mu is held, but released
// while requests are decoded and submitted, because goroutines that serve other connections may wait for
// it.
func (c *conn) answerReady() {
	if len(c.arrived) == 0 {
		return
	}
	list := c.arrived
	c.arrived = nil // abort calls this function again
	rest := list
	for len(rest) > 0 && !c.closed {
		c.taking = len(rest)
		rest = rest[c.submit(rest):]
	}
	for i := range rest { // these were not submitted, because the connection was closed
		if s := rest[i].stream; s != nil {
			s.state = coming
		}
	}
	c.taking = 0
	clear(list)
	c.arrived = list[:0]
}

// answer answers request i of o. A request that is not finished is denied. c.mu is held.
func (c *conn) answer(o *operation, i int) {
	r := &o.requests[i]
	if s := r.stream; s != nil {
		c.forgetBody(s)
		s.state = coming // so that drop does not count it as undead
	}
	switch {
	case !r.finished:
		c.respond(r.id, r.stream, c.denial)
	case r.hold > 0:
		c.hold(o, i)
		return
	default:
		c.respond(r.id, r.stream, func(to []byte) ([]byte, *Status) { return c.encode(to, o.batch, i) })
	}
	c.calm = min(calm, c.calm+1)
	c.server.config.Method.Answered(o.arrived)
}

// encode appends the answer to request i of b, which is finished.
func (c *conn) encode(to []byte, b Batch, i int) (out []byte, status *Status) {
	if !c.attempt(func() { out, status = b.Append(to, i) }) {
		return c.denial(to)
	}
	return out, status
}
