package h2grpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// other has the body and the context of a request that Config.Others serves.
type other struct {
	size   int // its part of conn.handed
	body   *body
	cancel context.CancelCauseFunc
}

func (o *other) end(cause error) {
	o.cancel(cause)
	o.body.end(cause)
}

func (c *conn) handToOthers(s *stream, fields []hpack.HeaderField) error {
	c.releaseBody(s)
	size := otherBytes
	for i := range fields {
		size += headerFactor * int(fields[i].Size())
	}
	if c.others >= maxOthers || c.held()+size > c.allowance() {
		c.abort(s.id, http2.ErrCodeRefusedStream)
		return c.countFrames(otherReset)
	}
	r := c.newRequest(s, fields)
	s.other = &other{body: newBody(c, s), size: size}
	var ctx context.Context
	ctx, s.other.cancel = context.WithCancelCause(context.WithValue(c.server.context, http.LocalAddrContextKey, c.nc.LocalAddr()))
	r.Body = s.other.body
	s.state = handedToOthers
	if s.ended {
		s.other.body.end(nil)
	}
	c.others++
	c.heads.work += turnWork / othersPerTurn
	c.handed += size
	c.count()
	w := &responseWriter{conn: c, stream: s, header: http.Header{}}
	c.server.goroutines.Go(func() {
		w.broken = !c.attempt(func() { c.server.config.Others.ServeHTTP(w, r.WithContext(ctx)) })
		c.handlerEnded(w)
	})
	return nil
}

func (c *conn) newRequest(s *stream, fields []hpack.HeaderField) *http.Request {
	r := &http.Request{
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{}, ContentLength: s.head.length,
		RemoteAddr: c.nc.RemoteAddr().String(), TLS: c.tls,
	}
	for _, f := range fields {
		switch f.Name {
		case ":method":
			r.Method = f.Value
		case ":path":
			r.RequestURI = f.Value
		case ":authority":
			r.Host = f.Value
		case ":scheme":
		case "host":
			if r.Host == "" {
				r.Host = f.Value
			}
		default:
			r.Header.Add(textproto.CanonicalMIMEHeaderKey(f.Name), f.Value)
		}
	}
	var err error
	if r.URL, err = url.ParseRequestURI(r.RequestURI); err != nil {
		r.URL = &url.URL{Path: r.RequestURI} // grpc-go then answers that the method is unknown
	}
	return r
}

func (c *conn) handlerEnded(w *responseWriter) {
	if !w.broken {
		w.finish()
	}
	w.stream.other.cancel(nil)
	c.mu.Lock()
	if s := w.stream; w.broken && s.open && !c.closed {
		c.abort(s.id, http2.ErrCodeInternal)
	}
	c.others--
	c.handed -= w.stream.other.size
	c.changed.Broadcast()
	c.flush()
}

type body struct {
	conn   *conn
	stream *stream

	mu    sync.Mutex
	more  *sync.Cond
	data  []byte
	cause error // the reason for the end of the body; nil if it has not ended
}

func newBody(c *conn, s *stream) *body {
	b := &body{conn: c, stream: s}
	b.more = sync.NewCond(&b.mu)
	return b
}

func (b *body) write(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, data...)
	b.more.Broadcast()
}

// end ends the body after the data received so far, with cause, or with io.EOF if cause is nil.
func (b *body) end(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause == nil {
		if b.cause = cause; cause == nil {
			b.cause = io.EOF
		}
	}
	b.more.Broadcast()
}

// Read implements io.Reader. It returns the window of the read bytes to the client.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	for len(b.data) == 0 && b.cause == nil {
		b.more.Wait()
	}
	n := copy(p, b.data)
	if b.data = b.data[n:]; len(b.data) == 0 {
		b.data = nil
	}
	cause := b.cause
	b.mu.Unlock()
	if n == 0 {
		return 0, cause
	}
	b.conn.consumed(b.stream, n)
	return n, nil
}

func (b *body) Close() error {
	b.end(errors.New("body closed by handler")) // grpc-go looks for this text
	return nil
}

// consumed is called when a handler has read n bytes. It returns their window to the client as soon as half of
// the stream's window is used up, unless the stream or its request has ended.
func (c *conn) consumed(s *stream, n int) {
	c.mu.Lock()
	if !s.open {
		c.mu.Unlock()
		return
	}
	s.buffered -= n
	c.buffered -= n
	if read := s.unread - int64(s.buffered); !s.ended && read >= streamWindow/2 {
		s.unread -= read
		c.out = appendWindowUpdate(c.out, s.id, uint32(read))
	}
	c.flush()
}

// responseWriter is an http.ResponseWriter. One goroutine uses it.
type responseWriter struct {
	conn     *conn
	stream   *stream
	header   http.Header
	began    bool
	declared []string // trailers
	broken   bool     // the handler has panicked
}

var errStreamEnded = errors.New("the stream has ended")

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(code int) {
	if w.began {
		return
	}
	w.began = true
	for _, name := range w.header["Trailer"] {
		w.declared = append(w.declared, textproto.CanonicalMIMEHeaderKey(name))
	}
	block := appendField(nil, ":status", strconv.Itoa(code))
	for name, values := range w.header {
		if name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(w.declared, name) {
			continue
		}
		for _, v := range values {
			block = appendField(block, strings.ToLower(name), v)
		}
	}
	w.headers(block, false)
}

func (w *responseWriter) headers(block []byte, end bool) {
	c, s := w.conn, w.stream
	c.mu.Lock()
	if !s.open || c.closed {
		c.mu.Unlock()
		return
	}
	c.out = appendHeaders(c.out, s.id, end, append(c.table.appendSize(nil), block...))
	c.answered = true
	if end {
		c.endStream(s)
	}
	c.flush()
}

// Write implements http.ResponseWriter. It blocks until the client's windows and maxOut allow the write.
func (w *responseWriter) Write(p []byte) (written int, err error) {
	w.WriteHeader(http.StatusOK)
	c, s := w.conn, w.stream
	for len(p) > 0 {
		c.mu.Lock()
		n := 0
		for {
			if !s.open || c.closed {
				c.mu.Unlock()
				return written, errStreamEnded
			}
			if n = int(min(int64(len(p)), c.window, c.initial+s.window, maxFrame)); n > 0 && len(c.out) <= maxOut {
				break
			}
			if n <= 0 && s.waits.IsZero() {
				s.waits = time.Now()
			}
			c.changed.Wait()
		}
		if !s.waits.IsZero() {
			s.waits, c.passed = time.Time{}, time.Now()
		}
		c.out = append(appendFrame(c.out, n, http2.FrameData, 0, s.id), p[:n]...)
		c.answered = true
		c.window -= int64(n)
		s.window -= int64(n)
		p, written = p[n:], written+n
		c.flush()
	}
	return written, nil
}

func (w *responseWriter) Flush() { w.WriteHeader(http.StatusOK) }

func (w *responseWriter) finish() {
	w.WriteHeader(http.StatusOK)
	var block []byte
	for name, values := range w.header {
		trailer, is := strings.CutPrefix(name, http.TrailerPrefix)
		if !is && !slices.Contains(w.declared, name) {
			continue
		}
		for _, v := range values {
			block = appendField(block, strings.ToLower(trailer), v)
		}
	}
	if len(block) > 0 {
		w.headers(block, true)
		return
	}
	c, s := w.conn, w.stream
	c.mu.Lock()
	if s.open && !c.closed {
		c.out = appendFrame(c.out, 0, http2.FrameData, http2.FlagDataEndStream, s.id)
		c.endStream(s)
	}
	c.flush()
}
