package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawConnection writes requests as HTTP/2 frames. One goroutine sends as many requests as possible in one write;
// another one reads answers.
type rawConnection struct {
	run      *run
	question question // behind the five bytes that gRPC puts before a message
	conn     net.Conn

	writing sync.Mutex // above reading and writing in the order of locks
	out     *bufio.Writer
	to      *http2.Framer // guarded by writing
	stream  uint32        // the next one; the sender's

	in      *bufio.Reader // this and all fields below belong to the reader
	from    *http2.Framer
	headers *hpack.Decoder
	status  string // grpc-status, of the headers being read
	unacked uint32 // bytes of answers that were not added to the server's window again

	mu      sync.Mutex
	pending map[uint32]*pendingRequest // by stream; guarded by mu
	idle    []*pendingRequest          // guarded by mu
	window  int64                      // bytes that the server accepts; guarded by mu
	wake    chan struct{}              // notifies the sender of changes of pending, idle and window
	broken  chan struct{}              // closed when the reader has ended
}

// pendingRequest is a request in progress.
type pendingRequest struct {
	due    time.Duration
	answer []byte // the received part of the message, with its prefix
	done   []byte // with Config.Settle, the message that settles the reservation in the last answer; empty if there is none
}

const (
	prefixLen = 5 // length of the prefix of a gRPC message: a flag for compression, and the length
	// bigWindow is the number of bytes that the server may send before it needs a larger window. It is so large that the
	// server never waits for it.
	bigWindow = 1 << 24
	// firstWindow is the default window of a server, for a connection and for a stream.
	firstWindow = 65535
)

func dialRaw(ctx context.Context, r *run, q question) (*rawConnection, error) {
	conn, err := Dial(ctx, r.Target)
	if err != nil {
		return nil, err
	}
	n := len(q.message)
	c := &rawConnection{
		run:      r,
		question: q.clone(0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n)),
		conn:     conn,
		out:      bufio.NewWriterSize(conn, 64<<10),
		in:       bufio.NewReaderSize(conn, 64<<10),
		stream:   1,
		pending:  map[uint32]*pendingRequest{},
		window:   firstWindow,
		wake:     make(chan struct{}, 1),
		broken:   make(chan struct{}),
	}
	for range r.Outstanding {
		c.idle = append(c.idle, &pendingRequest{})
	}
	c.to = http2.NewFramer(c.out, nil)
	c.from = http2.NewFramer(nil, c.in)
	c.from.SetReuseFrames()
	c.headers = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			c.status = f.Value
		}
	})
	if err := c.greet(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *rawConnection) close() { _ = c.conn.Close() }

// greet exchanges settings. It returns an error if the server allows fewer requests at a time than configured.
func (c *rawConnection) greet() error {
	_, _ = c.out.WriteString(http2.ClientPreface)
	_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	_ = c.to.WriteWindowUpdate(0, bigWindow)
	if err := c.out.Flush(); err != nil {
		return err
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	frame, err := c.from.ReadFrame()
	if err != nil {
		return err
	}
	_ = c.conn.SetReadDeadline(time.Time{})
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok {
		return fmt.Errorf("the server began with %v, not with SETTINGS", frame.Header().Type)
	}
	if most, ok := settings.Value(http2.SettingMaxConcurrentStreams); ok && int(most) < c.run.Outstanding {
		return fmt.Errorf("the server allows %d concurrent requests on a connection, the run needs %d", most, c.run.Outstanding)
	}
	const frameMost = 16 << 10 // the largest frame that every server accepts
	if len(c.question.message) > frameMost {
		return fmt.Errorf("a request has %d bytes, which do not go into one frame of %d", len(c.question.message), frameMost)
	}
	return c.to.WriteSettingsAck()
}

// requestHeaders are encoded once for all requests but the first: the first adds them to the server's table, and the
// later ones refer to it.
func (c *rawConnection) requestHeaders() (first, later []byte) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	encode := func() []byte {
		b.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "rlbench"},
			{"te", "trailers"}, {"content-type", "application/grpc"}, {"user-agent", "rlbench"},
		} {
			_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into memory
		}
		return bytes.Clone(b.Bytes())
	}
	return encode(), encode()
}

func (c *rawConnection) send(ctx context.Context, s *schedule) *recorder {
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	answers := newRecorder(c.run)
	var broken error
	go func() {
		broken = c.read(answers)
		close(c.broken)
	}()
	finished := c.sendAll(s) && c.allIdle()
	c.close()
	<-c.broken
	if !finished {
		answers.fail(fmt.Sprintf("connection: %v", broken))
	}
	return answers
}

// sendAll sends all requests of s. It reports whether all could be sent.
func (c *rawConnection) sendAll(s *schedule) bool {
	if s.open() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	keys := newKeys(c.run)
	headers, later := c.requestHeaders()
	for {
		at, more := s.next()
		if !more {
			return c.flush() == nil
		}
		if s.open() && at > s.now() {
			if c.flush() != nil {
				return false
			}
			s.sleepUntil(at)
		}
		f := c.takeRequest(false)
		if f == nil {
			if c.flush() != nil {
				return false
			}
			if f = c.takeRequest(true); f == nil {
				return false
			}
			if !s.open() {
				at = s.now()
			}
		}
		message := f.done
		if len(message) == 0 {
			c.question.about(keys.next())
			message = c.question.message
		}
		if !c.sendOne(f, at, headers, message) {
			return false
		}
		headers = later
	}
}

// takeRequest returns an idle request if the server's window has room for it, and nil otherwise. If wait is true, it
// waits for one, and returns nil only if there will be none.
func (c *rawConnection) takeRequest(wait bool) *pendingRequest {
	for {
		c.mu.Lock()
		if last := len(c.idle) - 1; last >= 0 {
			f := c.idle[last]
			size := len(f.done)
			if size == 0 {
				size = len(c.question.message)
			}
			if c.window >= int64(size) {
				c.idle = c.idle[:last]
				c.window -= int64(size)
				c.mu.Unlock()
				return f
			}
		}
		c.mu.Unlock()
		if !wait {
			return nil
		}
		select {
		case <-c.wake:
		case <-c.broken:
			return nil
		}
	}
}

func (c *rawConnection) sendOne(f *pendingRequest, due time.Duration, headers, message []byte) bool {
	stream := c.stream
	c.stream += 2
	f.due, f.answer = due, f.answer[:0]
	c.mu.Lock()
	c.pending[stream] = f
	c.mu.Unlock()

	c.writing.Lock()
	defer c.writing.Unlock()
	err := c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: headers, EndHeaders: true})
	return errors.Join(err, c.to.WriteData(stream, true, message)) == nil
}

func (c *rawConnection) flush() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.out.Flush()
}

// allIdle waits for all answers. It reports whether all arrived.
func (c *rawConnection) allIdle() bool {
	for {
		c.mu.Lock()
		all := len(c.pending) == 0
		c.mu.Unlock()
		if all {
			return true
		}
		select {
		case <-c.wake:
		case <-c.broken:
			return false
		}
	}
}

// read reads until the connection ends, and returns the reason.
func (c *rawConnection) read(answers *recorder) error {
	for {
		frame, err := c.from.ReadFrame()
		if err != nil {
			return err
		}
		if err := c.handle(frame, answers); err != nil {
			return err
		}
		if c.in.Buffered() == 0 { // the sender continues when it can send the most at once
			select {
			case c.wake <- struct{}{}:
			default:
			}
		}
	}
}

func (c *rawConnection) handle(frame http2.Frame, answers *recorder) error {
	id := frame.Header().StreamID
	switch f := frame.(type) {
	case *http2.DataFrame:
		c.mu.Lock()
		pendingRequest := c.pending[id]
		c.mu.Unlock()
		if pendingRequest != nil {
			pendingRequest.answer = append(pendingRequest.answer, f.Data()...)
		}
		return c.received(f.Length)
	case *http2.HeadersFrame:
		return c.header(id, f.HeaderBlockFragment(), f.HeadersEnded(), f.StreamEnded(), answers)
	case *http2.ContinuationFrame: // of trailers, if ever
		return c.header(id, f.HeaderBlockFragment(), f.HeadersEnded(), true, answers)
	case *http2.RSTStreamFrame:
		c.land(id, answers, f.ErrCode.String())
	case *http2.WindowUpdateFrame:
		if id == 0 {
			c.mu.Lock()
			c.window += int64(f.Increment)
			c.mu.Unlock()
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.write(func() error { return c.to.WriteSettingsAck() })
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.write(func() error { return c.to.WritePing(true, f.Data) })
		}
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server sent GOAWAY %v %q", f.ErrCode, f.DebugData())
	}
	return nil
}

func (c *rawConnection) header(id uint32, fragment []byte, ended, last bool, answers *recorder) error {
	if _, err := c.headers.Write(fragment); err != nil {
		return err
	}
	if !ended {
		return nil
	}
	if err := c.headers.Close(); err != nil {
		return err
	}
	if last {
		status := c.status
		c.status = ""
		c.land(id, answers, status)
	}
	return nil
}

// land ends a request; status is its grpc-status, or the error.
func (c *rawConnection) land(id uint32, answers *recorder, status string) {
	c.mu.Lock()
	f := c.pending[id]
	delete(c.pending, id)
	c.mu.Unlock()
	if f == nil {
		return
	}
	switch {
	case status != "0":
		answers.fail("grpc-status " + status)
	case len(f.answer) < prefixLen:
		answers.fail("empty answer")
	default:
		answers.answer(f.due, verdictOf(f.answer[prefixLen:]))
		c.settleNext(f, answers)
	}
	c.mu.Lock()
	c.idle = append(c.idle, f)
	c.mu.Unlock()
}

// settleNext makes the next request of f the settlement of what its answer reserved, if this was not a settlement.
func (c *rawConnection) settleNext(f *pendingRequest, answers *recorder) {
	if !c.run.Settle {
		return
	}
	if len(f.done) > 0 {
		f.done = f.done[:0]
		return
	}
	id := reservationOf(f.answer[prefixLen:])
	if id == nil {
		answers.fail("answer without a reservation")
		return
	}
	f.done = appendDone(append(f.done[:0], make([]byte, prefixLen)...), c.run.Domain, id)
	binary.BigEndian.PutUint32(f.done[1:], uint32(len(f.done)-prefixLen))
}

// received counts n bytes as received. From time to time it enlarges the server's window by the bytes received.
func (c *rawConnection) received(n uint32) error {
	c.unacked += n
	if c.unacked < bigWindow/2 {
		return nil
	}
	n, c.unacked = c.unacked, 0
	return c.write(func() error { return c.to.WriteWindowUpdate(0, n) })
}

// write writes a frame of the reader at once.
func (c *rawConnection) write(frame func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return errors.Join(frame(), c.out.Flush())
}
