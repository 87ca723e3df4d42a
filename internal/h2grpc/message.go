package h2grpc

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
)

// prefixLen is the length of gRPC's message prefix: a compression flag and the length of the message.
const prefixLen = 5

// These are the answers to a request whose body is not one message that can be read.
var (
	notOneMessage     = &Status{13, "the request is not one complete message"}
	unknownFlag       = &Status{13, "the first byte of the message is neither 0 nor 1"}
	unknownCompressed = &Status{12, "the message is compressed; the only supported grpc-encoding is gzip"}
	brokenCompressed  = &Status{13, "the compressed message cannot be read"}
)

// tooLong reports whether body starts with the prefix of a message that is longer than maxMessage. Such a request is
// denied. A library would answer with an error, and Envoy allows a request after an error.
func tooLong(body []byte) bool {
	return len(body) >= prefixLen && binary.BigEndian.Uint32(body[1:]) > maxMessage
}

// message handles the complete body of a request for the Method. c.mu is held.
func (c *conn) message(s *stream, body []byte) error {
	switch {
	case tooLong(body):
		c.denyUnread(s)
		return nil
	case len(body) < prefixLen || len(body)-prefixLen != int(binary.BigEndian.Uint32(body[1:])):
		return c.refuseMessage(s, notOneMessage)
	case body[0] == 0:
		c.appendArrival(s, body[prefixLen:])
		return nil
	case body[0] != 1:
		return c.refuseMessage(s, unknownFlag)
	case !s.head.gzip:
		return c.refuseMessage(s, unknownCompressed)
	}
	return c.compressed(c.ensureOpen(s), body[prefixLen:])
}

// compressed handles a compressed message. One is decompressed at a time, because a message of a few bytes may need the
// memory of maxMessage. c.mu is held. It is released meanwhile, because goroutines that serve other connections may wait
// for it.
func (c *conn) compressed(s *stream, data []byte) error {
	c.answerReady() // otherwise abort, on another goroutine, would submit the requests
	c.heads.work += turnWork
	c.mu.Unlock()
	c.server.decompressing.Lock()
	message, err := gunzip(data)
	c.mu.Lock()
	defer c.server.decompressing.Unlock()
	switch {
	case c.closed || c.find(s.id) != s: // the request took too long to arrive
		return nil
	case err != nil:
		return c.refuseMessage(s, brokenCompressed)
	}
	s.body, s.buffered = message, s.buffered+len(message)
	c.buffered += len(message)
	if c.count(); len(message) > maxMessage || c.held() > c.allowance() {
		c.denyUnread(s)
	} else {
		c.appendArrival(s, message)
	}
	return nil
}

// gunzip returns at most maxMessage+1 bytes.
func gunzip(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxMessage+1))
}

func (c *conn) refuseMessage(s *stream, status *Status) error {
	s = c.ensureOpen(s)
	c.releaseBody(s)
	c.respond(s.id, s, nil, status)
	return c.countFrames(1)
}
