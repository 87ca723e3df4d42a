package h2grpc

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// stream is a request that is not completely answered. A request that arrives in one read uses conn.fresh until
// it is complete. It gets an entry in conn.open only if it is not answered at once.
type stream struct {
	id    uint32
	state streamState
	open  bool    // it is in conn.open
	next  *stream // see openStreams
	head  head
	// body is the part of an incomplete request that has arrived, or the message of a delayed answer.
	body     []byte
	length   int64 // bytes that have arrived, without padding
	unread   int64 // bytes received whose window was not returned yet
	window   int64 // the client's window, relative to conn.initial; it may be negative
	opened   time.Time
	ended    bool // the client has ended its side of the stream
	buffered int  // bytes counted in conn.buffered: the body, and streamBytes while the request is incomplete or delayed

	rest []byte // DATA that waits for the client's windows
	tail []byte // the trailers after rest
	// waits is the time since which the client's windows have allowed no byte of the answer; zero if no byte waits.
	waits time.Time
	// queued means that the stream is in conn.stalled.
	queued bool
	stop   func() // stops the timer of a delayed answer
	slots  string // the slots of a delayed answer; see Answer.Slots
	// canceled becomes true when the client cancels the request. The Store reads it while it decides.
	canceled *atomic.Bool
	// other is set if Config.Others serves the stream.
	other *other
}

type streamState uint8

const (
	incomplete     streamState = iota
	waiting                    // the Store is deciding
	delayed                    // the answer is sent later; see Batch.Delay
	stuck                      // the answer waits for the client's windows
	handedToOthers             // Config.Others serves it
)

func (c *conn) find(id uint32) *stream {
	if c.fresh.id == id && id != 0 {
		return &c.fresh
	}
	return c.open.find(id)
}

func (c *conn) moveToOpen() *stream {
	s := c.unused()
	*s = c.fresh
	c.fresh = stream{}
	c.open.add(s)
	s.buffered += streamBytes
	c.buffered += streamBytes
	return s
}

// keepIncomplete moves c.fresh, which is incomplete if it has a request, to c.open. If the incomplete requests of the
// connection then exceed their bound, it answers the request, because a client may open streams and never end them.
func (c *conn) keepIncomplete() error {
	if c.fresh.id == 0 {
		return nil
	}
	s := c.moveToOpen()
	switch c.count(); {
	case c.held() <= c.allowance():
	case s.head.refusal != nil:
		return c.refuse(s)
	default:
		c.denyUnread(s)
	}
	return nil
}

func (c *conn) openComplete(id uint32) *stream {
	s := c.unused()
	s.id, s.ended, s.state = id, true, waiting
	c.open.add(s)
	return s
}

func (c *conn) unused() (s *stream) {
	last := len(c.free) - 1
	if last < 0 {
		return &stream{}
	}
	s, c.free = c.free[last], c.free[:last]
	return s
}

// recycle keeps s, which has ended, for another request. It does not if a timer or a handler may still refer to
// s, if the answer was stalled, or if maxFreeStreams streams are kept already.
func (c *conn) recycle(s *stream) {
	if s.stop == nil && s.other == nil && s.tail == nil && len(c.free) < maxFreeStreams {
		*s = stream{}
		c.free = append(c.free, s)
	}
}

// ensureOpen moves s to c.open if it is c.fresh, and returns its address.
func (c *conn) ensureOpen(s *stream) *stream {
	if s == &c.fresh {
		return c.moveToOpen()
	}
	return s
}

// drop removes s from the connection, and cancels the timer, the handler or the Store's work that s waits for.
func (c *conn) drop(s *stream) {
	if s == &c.fresh {
		c.fresh = stream{}
		return
	}
	if s.open {
		c.open.remove(s)
	}
	c.buffered -= s.buffered
	s.buffered = 0
	switch s.state {
	case waiting:
		c.resetInStore++ // it counts until its operation is completed
		if s.canceled != nil {
			s.canceled.Store(true)
		}
	case delayed:
		s.stop()
		if s.slots != "" {
			c.server.config.Method.Unused(s.slots)
		}
	case handedToOthers:
		s.other.end(context.Canceled)
	case stuck:
		c.stuck -= len(s.rest) + streamBytes
		c.dequeue(s)
	case incomplete:
	}
}

func (c *conn) busy() bool {
	return c.open.count > 0 || c.fresh.id != 0 || len(c.arrived)+c.inProgress > 0 || c.others > 0 || len(c.out) > 0
}

// abort resets a stream. It first submits c.arrived, because the stream may belong to one of these requests.
// Frames that the client sends before it knows of the reset are ignored.
func (c *conn) abort(id uint32, code http2.ErrCode) {
	c.answerReady()
	if s := c.find(id); s != nil {
		c.drop(s)
		c.returnSlots(id)
	}
	c.recordReset(id)
	c.out = appendReset(c.out, id, code)
}

// recordReset records that frames may still arrive on a stream that was reset, or that follows a final GOAWAY.
func (c *conn) recordReset(id uint32) {
	c.resets[c.nextReset] = id
	c.nextReset = (c.nextReset + 1) % len(c.resets)
}

func (c *conn) wasReset(id uint32) bool {
	for _, reset := range c.resets {
		if reset == id {
			return true
		}
	}
	return false
}

// refuse answers a request that has a refusal with an HTTP status and plain text.
func (c *conn) refuse(s *stream) error {
	s = c.ensureOpen(s)
	c.releaseBody(s)
	r := s.head.refusal
	block := c.table.appendSize(nil)
	block = appendField(block, ":status", strconv.Itoa(r.httpStatus))
	block = appendField(block, typeField.Name, "text/plain")
	c.out = appendHeaders(c.out, s.id, false, block)
	c.sendOrStall(s, []byte(r.status.Message), appendField(nil, statusField.Name, strconv.Itoa(int(r.status.Code))))
	return c.countFrames(1)
}

func (c *conn) denyUnread(s *stream) {
	s = c.ensureOpen(s)
	c.releaseBody(s)
	c.server.config.Method.Oversized()
	c.respond(s.id, s, c.server.config.Method.Denial(), nil)
}

// attempt calls f and reports whether it returned without a panic. A panic is reported to the Method, so that one
// request cannot affect others.
func (c *conn) attempt(f func()) (returned bool) {
	defer func() {
		if p := recover(); p != nil {
			c.server.config.Method.Panicked(p)
		}
	}()
	f()
	return true
}

func (c *conn) releaseBody(s *stream) {
	c.buffered -= s.buffered
	s.buffered, s.body = 0, nil
}

// arrival is a complete request that is not submitted yet.
type arrival struct {
	id      uint32
	stream  *stream       // nil if the request is not in conn.open
	message []byte        // a part of the read buffer, or of the stream's body
	left    time.Duration // see Batch.Add
	trace   any           // see Batch.Add
}

func (c *conn) appendArrival(s *stream, message []byte) {
	left := s.head.timeout
	if left > 0 {
		if left -= c.now.Sub(s.opened); left == 0 {
			left = -1
		}
	}
	c.arrived = append(c.arrived, arrival{})
	a := &c.arrived[len(c.arrived)-1]
	a.id, a.message, a.left, a.trace = s.id, message, left, s.head.trace
	if s == &c.fresh {
		c.fresh = stream{}
	} else {
		a.stream, s.state = s, waiting
	}
	if !c.server.config.Inline {
		c.heads.work += turnWork / c.server.outstanding.turn()
	}
	if len(c.arrived) >= maxBatch {
		c.answerReady()
	}
}

// answerReady submits the requests in c.arrived. c.mu is held. It is released while requests are decoded and
// submitted, because goroutines that serve other connections may wait for it. Goroutines other than the reader
// always find c.arrived empty, because the reader calls answerReady before it releases c.mu.
func (c *conn) answerReady() {
	if len(c.arrived) == 0 {
		return
	}
	list := c.arrived
	c.arrived = nil // abort calls this function again
	rest := list
	for len(rest) > 0 && !c.closed {
		c.inProgress = len(rest)
		rest = rest[c.submit(rest):]
	}
	for i := range rest { // these were not submitted, because the connection was closed
		if s := rest[i].stream; s != nil {
			s.state = incomplete
		}
	}
	c.inProgress = 0
	clear(list)
	c.arrived = list[:0]
}

// answer answers request i of o, or delays its answer (see Answer.Delay). A request that is not finished, because
// of a panic, is denied. c.mu is held.
func (c *conn) answer(o *operation, i int) {
	r := &o.requests[i]
	if s := r.stream; s != nil {
		c.releaseBody(s)
		s.state = incomplete // so that drop does not add it to conn.resetInStore
	}
	switch {
	case !r.finished:
		c.respond(r.id, r.stream, c.server.config.Method.Denial(), nil)
	case r.Delay > 0:
		c.delay(r)
		return
	default:
		c.remember(r.id, r.Slots)
		c.respond(r.id, r.stream, r.message, r.Status)
	}
	c.framesLeft = min(framesPerTick, c.framesLeft+1)
}
