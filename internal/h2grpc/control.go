package h2grpc

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/net/http2"
)

func (c *conn) onReset(f frameHeader, payload []byte) error {
	switch {
	case f.stream == 0 || f.stream > c.last:
		return protocolError("RST_STREAM of a stream that is not open")
	case len(payload) != 4:
		return sizeError("RST_STREAM")
	}
	c.answerReady() // submits the requests that were complete before the reset; the stream may belong to one of them
	s := c.find(f.stream)
	cost := 1
	if s != nil {
		if s.state == handedToOthers {
			cost = otherReset
		}
		c.drop(s)
	}
	c.returnSlots(f.stream)
	return c.countFrames(cost)
}

func (c *conn) onWindowUpdate(f frameHeader, payload []byte) error {
	if len(payload) != 4 {
		return sizeError("WINDOW_UPDATE")
	}
	if f.stream > c.last {
		return protocolError("WINDOW_UPDATE on a stream that is not open")
	}
	n := int64(binary.BigEndian.Uint32(payload) & (1<<31 - 1))
	if f.stream == 0 {
		switch {
		case n == 0:
			return protocolError("WINDOW_UPDATE of 0")
		case c.window+n > math.MaxInt32:
			return &connError{http2.ErrCodeFlowControl, "window too large"}
		}
		c.window += n
	} else {
		c.answerReady() // the stream may belong to a complete request that is not submitted
		s := c.find(f.stream)
		switch {
		case s == nil:
		case n == 0:
			c.abort(f.stream, http2.ErrCodeProtocol)
		case c.initial+s.window+n > math.MaxInt32:
			c.abort(f.stream, http2.ErrCodeFlowControl)
		default:
			s = c.ensureOpen(s)
			s.window += n
			if s.state == stuck {
				c.enqueue(s)
			}
		}
	}
	c.sendStalled()
	c.changed.Broadcast()
	return c.countFrames(1)
}

func (c *conn) onSettings(f frameHeader, payload []byte) error {
	switch {
	case f.stream != 0:
		return protocolError("SETTINGS on a stream")
	case f.flags.Has(http2.FlagSettingsAck) && len(payload) > 0, len(payload)%6 != 0:
		return sizeError("SETTINGS")
	case f.flags.Has(http2.FlagSettingsAck):
		return c.countFrames(1)
	}
	c.gotSettings = true
	initial := c.initial
	for ; len(payload) > 0; payload = payload[6:] {
		s := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(payload)), Val: binary.BigEndian.Uint32(payload[2:])}
		if err := s.Valid(); err != nil {
			code := http2.ErrCodeProtocol
			if s.ID == http2.SettingInitialWindowSize {
				code = http2.ErrCodeFlowControl
			}
			return &connError{code, "SETTINGS out of range"}
		}
		switch s.ID { // the others have no effect on a server
		case http2.SettingHeaderTableSize:
			c.answerReady() // the former size applies to answers to earlier requests
			c.table.resize(s.Val)
		case http2.SettingInitialWindowSize:
			initial = int64(s.Val)
		}
	}
	cost := 1
	if initial != c.initial { // the streams are visited once per frame, even if the frame has several values
		c.initial = initial
		cost += c.open.count / streamsChecked
		for _, s := range c.open.all() {
			switch {
			case c.initial+s.window > math.MaxInt32:
				return &connError{http2.ErrCodeFlowControl, "window too large"}
			case s.state == stuck:
				c.enqueue(s)
			}
		}
	}
	c.out = appendFrame(c.out, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	c.sendStalled()
	c.changed.Broadcast()
	return c.countFrames(cost)
}

// drainPing is the ping that follows the first GOAWAY. The client's answer shows that it has received the
// GOAWAY.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'}

func (c *conn) onPing(f frameHeader, payload []byte) error {
	switch {
	case f.stream != 0:
		return protocolError("PING on a stream")
	case len(payload) != 8:
		return sizeError("PING")
	}
	data := [8]byte(payload)
	if f.flags.Has(http2.FlagPingAck) {
		if c.draining && data == drainPing {
			c.finalize()
		}
		return c.countFrames(1)
	}
	c.out = appendPing(c.out, http2.FlagPingAck, data)
	// As in grpc-go, a ping is early if it comes less than pingEvery after the previous ping, and no part of an
	// answer was sent between them.
	since := c.now.Sub(c.pinged)
	c.pinged = c.now
	switch {
	case c.answered:
		c.earlyPings = 0
	case since < pingEvery:
		c.earlyPings++
	}
	c.answered = false
	if c.earlyPings > maxEarlyPings {
		return &connError{http2.ErrCodeEnhanceYourCalm, "too_many_pings"} // gRPC clients react to this text
	}
	return c.countFrames(1)
}

func (c *conn) onPriority(f frameHeader, payload []byte) error {
	switch {
	case f.stream == 0:
		return protocolError("PRIORITY of no stream")
	case len(payload) != 5:
		c.abort(f.stream, http2.ErrCodeFrameSize)
	case binary.BigEndian.Uint32(payload)&(1<<31-1) == f.stream:
		c.abort(f.stream, http2.ErrCodeProtocol)
	}
	return c.countFrames(1)
}

// onGoAway ignores the frame, because a client that opens no more streams may still use its open ones.
func (c *conn) onGoAway(f frameHeader, _ []byte) error {
	if f.stream != 0 {
		return protocolError("GOAWAY on a stream")
	}
	return c.countFrames(1)
}

func (c *conn) onPushPromise(frameHeader, []byte) error {
	return protocolError("PUSH_PROMISE from a client")
}

// drain sends GOAWAY, after which the client must not open more streams. Streams that it opens before it
// has received the GOAWAY are still answered.
func (c *conn) drain() {
	c.mu.Lock()
	if c.draining || c.closed {
		c.mu.Unlock()
		return
	}
	c.draining, c.drained = true, time.Now()
	if !c.handshaken { // handshake sends GOAWAY
		c.mu.Unlock()
		return
	}
	c.sendGoAway()
	c.flushSoon()
}

// sendGoAway requests that the client open no more streams on c, and that it answer drainPing. c.mu is held.
func (c *conn) sendGoAway() {
	c.out = appendGoAway(c.out, math.MaxInt32, http2.ErrCodeNo, "")
	c.out = appendPing(c.out, 0, drainPing)
}

// finalize sends the client the number of the last stream that will be answered.
func (c *conn) finalize() {
	if c.finalized {
		return
	}
	c.finalized, c.final = true, c.last
	c.out = appendGoAway(c.out, c.final, http2.ErrCodeNo, "")
}

// tick checks the timeouts of the connection. One goroutine does this for all connections, so tick must
// never block on a client.
func (c *conn) tick(now time.Time) {
	c.mu.Lock()
	if c.closed || !c.handshaken {
		if c.draining && now.Sub(c.drained) > drainAnswer {
			c.closeNow()
		}
		c.mu.Unlock()
		return
	}
	c.framesLeft = framesPerTick
	grace := c.server.config.MaxConnectionGrace
	late := func(since time.Time, d time.Duration) bool { return now.Sub(since) > d }
	if !c.writing || c.watchedWrite != c.writes {
		c.watchedWrite, c.watchedAt = c.writes, now
	}
	switch {
	case late(c.watchedAt, writeTimeout), c.idlePinged && late(c.lastReceived, idlePing+idleAnswer),
		c.old && grace > 0 && late(c.drained, grace):
		c.closeNow()
		c.mu.Unlock()
		return
	case c.block.stream != 0 && late(c.block.since, blockTimeout):
		c.block.since = now // so that the next tick does not start the goroutine again
		c.mu.Unlock()
		c.failSoon("a header block stays incomplete")
		return
	case c.draining && !c.finalized && late(c.drained, drainAnswer):
		c.finalize()
	case !c.idlePinged && late(c.lastReceived, idlePing):
		c.idlePinged = true
		c.out = appendPing(c.out, 0, [8]byte{})
	}
	if !c.checkStreams(now) {
		c.mu.Unlock()
		c.failSoon("an answer is not read")
		return
	}
	c.shrink()
	c.slotAnswers.forget(now, c.allowance())
	c.count()
	if c.busy() || c.last != c.lastAtTick {
		c.lastAtTick, c.usedAt = c.last, now
	} else if late(c.lastReceived, c.server.config.Tick) {
		c.releaseBuffers()
	}
	age, idle := c.age > 0 && late(c.born, c.age), c.server.config.MaxConnectionIdle
	end := !c.draining && (age || idle > 0 && late(c.usedAt, idle))
	c.old = c.old || end && age
	c.flushSoon()
	if end {
		c.drain()
	}
}

// checkStreams resets the streams whose requests have not arrived in time. It returns false if the client has not read
// an answer in time. An answer that waits only for the window of the connection may wait while others use that window.
func (c *conn) checkStreams(now time.Time) (ok bool) {
	ok = true
	for _, s := range c.open.all() {
		switch {
		case !s.open: // ended meanwhile
		case s.state == incomplete && now.Sub(s.opened) > arrivalTimeout(s.head.timeout):
			c.abort(s.id, http2.ErrCodeCancel) // as grpc-go does
		case s.waits.IsZero() || now.Sub(s.waits) <= windowTimeout:
		case c.initial+s.window <= 0 || now.Sub(c.passed) > windowTimeout:
			ok, s.waits = false, now // so that the next tick does not end the connection again
		}
	}
	return ok
}

// failSoon ends the connection on a new goroutine, with a GOAWAY that contains text.
func (c *conn) failSoon(text string) {
	c.server.goroutines.Go(func() {
		c.fail(&connError{http2.ErrCodeEnhanceYourCalm, text})
		c.fail(nil)
	})
}

// shrink releases memory that many streams or long answers have needed, and that is not in use now. c.mu is held.
func (c *conn) shrink() {
	c.open.shrink()
	if len(c.stalled) == 0 {
		c.stalled = nil
	}
	if len(c.out) == 0 && cap(c.out) > keptOut {
		c.out = nil
	}
	if cap(c.spare) > keptOut {
		c.spare = nil
	}
}

// releaseBuffers releases the buffers of a connection that has been idle for a tick. The reader releases its read
// buffer itself, in awaitClient. c.mu is held.
func (c *conn) releaseBuffers() {
	if c.bufferReleased || !c.reading || c.writing || c.draining {
		return
	}
	c.bufferReleased = true
	c.out, c.spare, c.arrived, c.free = nil, nil, nil, nil
	if _, can := c.nc.(awaiter); can {
		c.interrupted = true
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // ends the present read, after which the reader calls awaitClient
	}
}

func arrivalTimeout(d time.Duration) time.Duration {
	if d <= 0 {
		return wholeTimeout
	}
	return min(d, wholeTimeout)
}

// jittered returns d, changed by up to a tenth at random. So connections that began together do not end
// together, as in grpc-go.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()*2-1)*0.1*float64(d))
}
