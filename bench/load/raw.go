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

// rawConnection writes requests as HTTP/2 frames. One goroutine sends as many requests as possible in one
// write, and another goroutine reads the answers.
type rawConnection struct {
	run     *run
	request request // the message, after the five bytes with which gRPC starts a message
	conn    net.Conn

	writing sync.Mutex // guards out and framer; locked before mu
	out     *bufio.Writer
	framer  *http2.Framer // writes to out; guarded by writing
	stream  uint32        // the number of the next stream; used by the sender only

	in      *bufio.Reader // only the reader uses this and the following fields, up to mu
	from    *http2.Framer
	headers *hpack.Decoder
	status  string // the value of grpc-status in the headers that are being read
	unacked uint32 // number of bytes received whose window was not returned to the server yet

	mu      sync.Mutex
	pending map[uint32]*pendingRequest // by stream; guarded by mu
	idle    []*pendingRequest          // for reuse; guarded by mu
	window  int64                      // number of bytes that the server accepts; guarded by mu
	changed chan struct{}              // receives a value when pending, idle or window has changed
	broken  chan struct{}              // closed when the reader has ended
}

// pendingRequest is a request that has no complete answer yet or, in rawConnection.idle, the memory for one.
type pendingRequest struct {
	due    time.Duration
	answer []byte // the received part of the answer, including its prefix
	done   []byte // the message that settles the reservation in the last answer; empty if there is none
}

const (
	prefixLen = 5 // length of the prefix of a gRPC message: a flag for compression, and the message's length
	// bigWindow is the number of bytes that the server may send before it needs a larger window. It is so
	// large that the server never has to wait.
	bigWindow = 1 << 24
	// firstWindow is the initial window of a server, for a connection and for a stream.
	firstWindow = 65535
)

func dialRaw(ctx context.Context, r *run, req request) (*rawConnection, error) {
	conn, err := Dial(ctx, r.Target)
	if err != nil {
		return nil, err
	}
	n := len(req.message)
	c := &rawConnection{
		run:     r,
		request: req.clone(0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n)),
		conn:    conn,
		out:     bufio.NewWriterSize(conn, 64<<10),
		in:      bufio.NewReaderSize(conn, 64<<10),
		stream:  1,
		pending: map[uint32]*pendingRequest{},
		window:  firstWindow,
		changed: make(chan struct{}, 1),
		broken:  make(chan struct{}),
	}
	for range r.Outstanding {
		c.idle = append(c.idle, &pendingRequest{})
	}
	c.framer = http2.NewFramer(c.out, nil)
	c.from = http2.NewFramer(nil, c.in)
	c.from.SetReuseFrames()
	c.headers = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			c.status = f.Value
		}
	})
	if err := c.handshake(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *rawConnection) close() { _ = c.conn.Close() }

// handshake exchanges settings with the server. It returns an error if the server permits fewer requests at a
// time than configured, or if a request is too long for one frame.
func (c *rawConnection) handshake() error {
	_, _ = c.out.WriteString(http2.ClientPreface)
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	_ = c.framer.WriteWindowUpdate(0, bigWindow)
	if err := c.out.Flush(); err != nil {
		return err
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(answerTimeout))
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
	if len(c.request.message) > frameMost {
		return fmt.Errorf("a request has %d bytes, which do not go into one frame of %d", len(c.request.message), frameMost)
	}
	return c.framer.WriteSettingsAck()
}

// requestHeaders encodes the headers of requests twice. The first result adds them to the server's table. The second
// result, for all later requests, refers to the table.
func (c *rawConnection) requestHeaders() (adding, referring []byte) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	encode := func() []byte {
		b.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "rlbench"},
			{"te", "trailers"}, {"content-type", "application/grpc"}, {"user-agent", "rlbench"},
		} {
			_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // cannot fail, because it writes to memory
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
			c.request.setKey(keys.next())
			message = c.request.message
		}
		if !c.sendOne(f, at, headers, message) {
			return false
		}
		headers = later
	}
}

// takeRequest returns an idle request if the server's window has room for it, and otherwise nil. If wait is
// true, it waits for such a request, and returns nil only if there will be none.
func (c *rawConnection) takeRequest(wait bool) *pendingRequest {
	for {
		c.mu.Lock()
		if last := len(c.idle) - 1; last >= 0 {
			f := c.idle[last]
			size := len(f.done)
			if size == 0 {
				size = len(c.request.message)
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
		case <-c.changed:
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
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: headers, EndHeaders: true})
	return errors.Join(err, c.framer.WriteData(stream, true, message)) == nil
}

func (c *rawConnection) flush() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.out.Flush()
}

func (c *rawConnection) allIdle() bool {
	for {
		c.mu.Lock()
		all := len(c.pending) == 0
		c.mu.Unlock()
		if all {
			return true
		}
		select {
		case <-c.changed:
		case <-c.broken:
			return false
		}
	}
}

func (c *rawConnection) read(answers *recorder) error {
	for {
		frame, err := c.from.ReadFrame()
		if err != nil {
			return err
		}
		if err := c.handle(frame, answers); err != nil {
			return err
		}
		if c.in.Buffered() == 0 { // wake the sender only when all received answers are handled
			select {
			case c.changed <- struct{}{}:
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
	case *http2.ContinuationFrame: // continues trailers; servers hardly ever send it
		return c.header(id, f.HeaderBlockFragment(), f.HeadersEnded(), true, answers)
	case *http2.RSTStreamFrame:
		c.complete(id, answers, f.ErrCode.String())
	case *http2.WindowUpdateFrame:
		if id == 0 {
			c.mu.Lock()
			c.window += int64(f.Increment)
			c.mu.Unlock()
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.write(func() error { return c.framer.WriteSettingsAck() })
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.write(func() error { return c.framer.WritePing(true, f.Data) })
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
		c.complete(id, answers, status)
	}
	return nil
}

// complete counts the outcome of the request of stream id, and makes its pendingRequest idle. status is the
// request's grpc-status, or the error.
func (c *rawConnection) complete(id uint32, answers *recorder, status string) {
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

// settleNext makes the next request of f a settlement of the reservation in the answer. If the request was
// itself a settlement, the next request is a normal one.
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

// received counts n received bytes. When they are half of bigWindow, it enlarges the server's window by the
// counted bytes.
func (c *rawConnection) received(n uint32) error {
	c.unacked += n
	if c.unacked < bigWindow/2 {
		return nil
	}
	n, c.unacked = c.unacked, 0
	return c.write(func() error { return c.framer.WriteWindowUpdate(0, n) })
}

// write is for the frames that the reader sends. It calls frame, which writes one, and flushes.
func (c *rawConnection) write(frame func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return errors.Join(frame(), c.out.Flush())
}
