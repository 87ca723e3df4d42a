package h2grpc

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// conn is a connection. One goroutine, the reader, reads from it and does most of the work. Other goroutines
// (those that complete operations, the handlers, the timers of delayed answers, Server.watch, Server.Stop) append
// answers and control frames to out. They also write these bytes, unless another goroutine is writing. Fields that
// change are guarded by mu, unless their comments say otherwise.
type conn struct {
	server *Server
	socket net.Conn             // closed directly, which never blocks; closing TLS would write
	nc     net.Conn             // used for reading and writing: the socket, or TLS on it
	tls    *tls.ConnectionState // nil without TLS

	// These fields belong to the reader.
	heads       *headReader
	block       openBlock
	gotSettings bool      // the client's first SETTINGS have arrived
	now         time.Time // the earliest time at which the bytes of the last read can have arrived
	empty       time.Time // the last time at which the socket had no more bytes to read
	behind      bool      // the reader has paused since the time in empty, so bytes may have waited in the socket
	buffer      *[readBuffer]byte

	share  share // guarded by Server.outstanding.mu
	source backend.Source

	mu         sync.Mutex
	changed    *sync.Cond // signals changes of out, windows, streams and operations
	handshaken bool       // frames may be written
	closed     bool
	outgoing
	flow
	streams
	requests
	slotAnswers slotAnswers
	life
}

type outgoing struct {
	table        table
	out          []byte // the frames to be written
	spare        []byte // the buffer that replaces out at the next write
	writing      bool
	writes       uint64
	watchedWrite uint64    // the value of writes when Server.watch first saw the present write
	watchedAt    time.Time // the time at which watchedWrite was set
}

type flow struct {
	received int       // bytes received whose connection window was not returned yet; belongs to the reader
	window   int64     // the number of bytes that the client allows on the connection
	initial  int64     // the client's SETTINGS_INITIAL_WINDOW_SIZE
	stalled  []*stream // streams whose answers wait for the connection's window only; see enqueue
	stuck    int       // bytes of answers that wait for the client's windows, and streamBytes for each of them
	passed   time.Time // when the window of the connection last allowed bytes of an answer that had to wait
}

type streams struct {
	fresh     stream // the stream opened last, until its request is complete or it moves to open
	open      openStreams
	free      []*stream  // ended streams for reuse
	last      uint32     // the highest stream number so far
	others    int        // number of streams that Config.Others serves
	handed    int        // their memory, in bytes; see other.size
	resets    [64]uint32 // recent streams whose frames are ignored: this side reset them, or they follow its final GOAWAY
	nextReset int
}

type requests struct {
	arrived      []arrival // complete requests; only the reader appends, and submits them before it releases mu
	inProgress   int       // requests that the reader is submitting, or whose long header block it is decoding
	operations   int       // number of operations in the Store
	resetInStore int       // the requests in these operations whose streams were reset
	// buffered is the memory of incomplete requests, of bodies that handlers have not read and of delayed answers, in bytes.
	// submitted is that of the requests in operations; see operation.size.
	buffered, submitted int
	counted             int // the bytes of the connection that Server.bufferedBytes contains; see count
}

type life struct {
	born       time.Time
	age        time.Duration // the age at which to drain; 0 means never
	old        bool          // the connection is drained because of its age
	lastAtTick uint32
	usedAt     time.Time // the last tick at which there was a request, or bytes to write

	lastReceived time.Time
	idlePinged   bool      // the client was idle, and a ping was sent to it
	framesLeft   int       // the frames without a request that are still allowed in this tick; see framesPerTick
	pinged       time.Time // when the client's last ping arrived
	earlyPings   int
	answered     bool // a part of an answer was appended to out since the client's last ping

	reading        bool // handshake has succeeded
	bufferReleased bool // nothing was read since tick found the connection idle and called releaseBuffers
	interrupted    bool // tick has set a deadline to end the read, so that the reader calls awaitClient

	draining   bool
	drained    time.Time // when draining began
	finalized  bool      // the client was sent the number of the last stream that will be answered
	final      uint32    // the number of that stream
	halfClosed bool      // this side has closed its write side, because all streams are answered
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, socket: nc, nc: nc, heads: newHeadReader(&s.config)}
	c.changed = sync.NewCond(&c.mu)
	c.source.Flush = func() {
		c.mu.Lock()
		c.flushSoon()
	}
	c.share.room = make(chan struct{}, 1)
	c.table = table{size: 4096}
	c.window, c.initial = 65535, 65535
	c.open = newOpenStreams()
	c.born, c.framesLeft = time.Now(), framesPerTick
	c.lastReceived, c.usedAt = c.born, c.born
	if a := s.config.MaxConnectionAge; a > 0 {
		c.age = jittered(a)
	}
	return c
}

var errNoH2 = errors.New("the client does not support HTTP/2")

// serve runs on the reader's goroutine until the connection ends.
func (c *conn) serve() {
	err := c.handshake()
	if err == nil {
		err = c.read()
	}
	if e, is := errors.AsType[*connError](err); is {
		c.fail(e)
		c.drainAfterGoAway()
	} else if c.tls != nil && errors.Is(err, io.EOF) { // the client's close_notify must be answered
		_ = c.nc.SetWriteDeadline(time.Now().Add(goAwayTimeout))
		c.closeWrite()
	}
	c.close()
}

func (c *conn) handshake() error {
	_ = c.nc.SetDeadline(time.Now().Add(handshakeTimeout))
	if handshake := c.server.config.Handshake; handshake != nil {
		t, err := handshake(c.nc)
		if err != nil {
			return err
		}
		state := t.ConnectionState()
		if state.NegotiatedProtocol != http2.NextProtoTLS {
			return errNoH2
		}
		c.mu.Lock()
		c.nc, c.tls = t, &state
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.handshaken = true
	c.out = appendSettings(c.out,
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders})
	c.out = appendWindowUpdate(c.out, 0, connWindow-65535)
	if c.draining { // the connection is not just closed, because the client may have sent requests already
		c.sendGoAway()
	}
	c.flush()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.nc, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return protocolError("no HTTP/2 preface")
	}
	return c.nc.SetDeadline(time.Time{})
}

var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// read reads frames until the connection ends. All requests of one read are submitted before the next read,
// because they refer to the read buffer until then. Each turn of the loop receives bytes, waits, or yields after turnWork
// to continue with the bytes in the buffer; another turn ends the connection.
func (c *conn) read() error {
	c.buffer = readBuffers.Get().(*[readBuffer]byte)
	defer func() { readBuffers.Put(c.buffer) }()
	c.mu.Lock()
	c.reading = true
	c.mu.Unlock()
	for have := 0; ; {
		if c.heads.work < turnWork {
			n, err := c.receive(c.buffer[have:])
			if errors.Is(err, os.ErrDeadlineExceeded) && c.awaitClient(have) == nil {
				continue
			}
			if err != nil {
				return err
			}
			have += n
		} else {
			c.behind = true
			yield()
			c.mu.Lock()
		}
		c.heads.work = 0
		in := c.buffer[:]
		used, err := c.frames(in[:have])
		c.answerReady()
		if err == nil {
			err = c.keepIncomplete()
		}
		if err == nil && c.closed { // frames may have left bytes, even a full buffer
			err = net.ErrClosed
		}
		if err != nil {
			c.mu.Unlock()
			return err
		}
		c.flush()
		have = copy(in, in[used:have])
		c.awaitRoom()
	}
}

// receive reads into b, which is not empty. If it returns no error, it has read at least one byte, and c.mu is held.
func (c *conn) receive(b []byte) (n int, err error) {
	var began time.Time
	if c.behind {
		began = time.Now()
	}
	n, err = c.nc.Read(b)
	if err == nil && n == 0 { // the next turn would be the same, and so would all further turns
		err = io.ErrNoProgress
	}
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.setArrival(n, began)
	c.lastReceived, c.idlePinged, c.bufferReleased = c.now, false, false
	return n, nil
}

// yield lets other connections continue. Tests replace it.
var yield = nonblock.Yield

// awaitClient is called when a deadline has ended a read. If tick set the deadline, because the connection is
// idle, awaitClient waits for the client without a read buffer. An error means that the connection ends.
//
// have is the number of bytes of an incomplete frame in the read buffer. If it is not 0, awaitClient returns at
// once and keeps the buffer. It also returns at once if a read has returned bytes since tick set the deadline,
// because the connection is then not idle.
func (c *conn) awaitClient(have int) error {
	c.mu.Lock()
	if !c.interrupted || c.halfClosed || c.closed {
		c.mu.Unlock()
		return os.ErrDeadlineExceeded
	}
	c.interrupted = false
	wait := c.bufferReleased && have == 0
	err := c.nc.SetReadDeadline(time.Time{})
	c.mu.Unlock()
	if err != nil || !wait {
		return err
	}
	readBuffers.Put(c.buffer)
	c.buffer = nil
	err = c.nc.(awaiter).Await()
	c.buffer = readBuffers.Get().(*[readBuffer]byte)
	return err
}

// awaiter is a connection that can wait for its client without a buffer, such as a nonblock.Conn.
type awaiter interface{ Await() error }

// setArrival sets c.now to the earliest time at which the n bytes of a read can have arrived. began is the start of
// the read if c.behind is set. The deadlines of requests count from c.now. With a later time, a request that has
// waited unread would be answered too late.
//
// Usually c.now is the present time. After the reader has paused, the bytes may have arrived as early as c.empty.
// This also applies to the following reads, until one returns fewer than backlog bytes or has to wait.
func (c *conn) setArrival(n int, began time.Time) {
	now := time.Now()
	c.now = now
	if c.behind && now.Sub(began) < reading {
		c.now = c.empty
		c.behind = n >= backlog
	} else {
		c.behind = false
	}
	if !c.behind {
		c.empty = now
	}
}

// awaitRoom pauses the reader while too many bytes wait to be written, or while the requests that are submitted and
// not completed need too much memory.
func (c *conn) awaitRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count()
	for !c.closed && (c.writing && len(c.out) > min(maxOut, c.allowance()) || c.submitted > c.allowance()) {
		c.behind = true
		c.changed.Wait()
		c.count()
	}
}

// count updates Server.bufferedBytes. c.mu is held.
func (c *conn) count() {
	n := c.held() + c.submitted + c.slotAnswers.bytes
	if c.writing {
		n += len(c.out)
	}
	if n != c.counted {
		c.server.bufferedBytes.Add(int64(n - c.counted))
		c.counted = n
	}
}

// held returns the memory, in bytes, of the requests that are not submitted, and of the answers that are delayed or wait
// for the client's windows.
func (c *conn) held() int { return c.buffered + c.stuck + c.handed + len(c.block.data) }

// allowance returns the number of bytes to which held is bounded, and separately submitted and out. It is maxBuffered.
// While all connections together hold more than Config.BufferedBytes, it is an equal share of BufferedBytes, and at least
// ownBuffered. While they hold more than twice BufferedBytes, it is ownBuffered: each further connection lowers the
// share, but a connection keeps what it has.
func (c *conn) allowance() int {
	held, most := int(c.server.bufferedBytes.Load()), c.server.config.BufferedBytes
	if held <= most {
		return maxBuffered
	}
	if held > 2*most {
		return ownBuffered
	}
	return max(ownBuffered, most/int(max(1, c.server.connCount.Load())))
}

// frames handles the complete frames at the start of data, until the connection is closed or the turn of the
// connection ends. It returns their total length. c.mu is held.
func (c *conn) frames(data []byte) (used int, err error) {
	for !c.closed && c.heads.work < turnWork && len(data)-used >= frameHeaderLen {
		f := readFrameHeader(data[used:])
		if f.length > maxFrame {
			return used, sizeError("frame too long")
		}
		end := used + frameHeaderLen + f.length
		if end > len(data) {
			break
		}
		if err := c.frame(f, data[used+frameHeaderLen:end]); err != nil {
			return used, err
		}
		used = end
	}
	return used, nil
}

func (c *conn) frame(f frameHeader, payload []byte) error {
	if c.block.stream != 0 && (f.kind != http2.FrameContinuation || f.stream != c.block.stream) {
		return protocolError("a header block is incomplete")
	}
	if !c.gotSettings && (f.kind != http2.FrameSettings || f.flags.Has(http2.FlagSettingsAck)) {
		return protocolError("the first frame is not SETTINGS")
	}
	if int(f.kind) < len(handlers) {
		return handlers[f.kind](c, f, payload)
	}
	return c.countFrames(1) // RFC 9113, 5.5: unknown types are ignored
}

// handlers are called with c.mu held.
var handlers = [...]func(c *conn, f frameHeader, payload []byte) error{
	http2.FrameData:         (*conn).onData,
	http2.FrameHeaders:      (*conn).onHeaders,
	http2.FramePriority:     (*conn).onPriority,
	http2.FrameRSTStream:    (*conn).onReset,
	http2.FrameSettings:     (*conn).onSettings,
	http2.FramePushPromise:  (*conn).onPushPromise,
	http2.FramePing:         (*conn).onPing,
	http2.FrameGoAway:       (*conn).onGoAway,
	http2.FrameWindowUpdate: (*conn).onWindowUpdate,
	http2.FrameContinuation: (*conn).onContinuation,
}

// countFrames counts n frames without a request. It returns an error if there are too many, because that is an
// attack.
func (c *conn) countFrames(n int) error {
	if c.framesLeft -= n; c.framesLeft < 0 {
		return &connError{http2.ErrCodeEnhanceYourCalm, "too many frames without a request"}
	}
	return nil
}
