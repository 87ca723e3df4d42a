package h2grpc

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// conn is a connection. The goroutine that reads it does nearly all of the work; the others (those that complete
// operations, handlers, held answers, the watch) only add to what is to be written, and write it if no other does.
// What is in several parts is guarded by mu, but for what is the reader's own.
type conn struct {
	server *Server
	socket net.Conn             // is closed, which never waits; closing TLS would write
	nc     net.Conn             // is read and written: the socket, or TLS on it
	tls    *tls.ConnectionState // nil: no TLS

	// The reader's own.
	heads   *headReader
	block   openBlock
	settled bool      // the client's first SETTINGS have come
	now     time.Time // when what was read last has come, at the earliest
	empty   time.Time // when there was last nothing more to be read
	behind  bool      // since then the connection was not read for some time

	share  share // guarded by outstanding.mu
	source backend.Source

	mu      sync.Mutex
	changed *sync.Cond // out, windows, streams or operations have
	greeted bool       // from now on may be written
	closed  bool       // nothing is read or written any more
	outgoing
	flow
	streams
	requests
	life
}

// outgoing is what is to be written.
type outgoing struct {
	table   table
	out     []byte // to be written
	spare   []byte // what out may be next
	writing bool
	writes  uint64    // how many there have been
	seen    uint64    // what writes was when the watch first saw the write under way
	seenAt  time.Time // when that was
}

// flow is how much the client may send, and how much it takes.
type flow struct {
	received int       // bytes that the client may not send again yet; the reader's own
	window   int64     // what the client takes on the connection
	initial  int64     // and on a stream from its start
	stalled  []*stream // wait for window
	stuck    int       // bytes of answers that the client's windows do not let through
}

// streams are those of the client.
type streams struct {
	fresh  stream // the one opened last; only in open when others come in between
	open   map[uint32]*stream
	free   []*stream  // of none of the client's
	last   uint32     // the greatest stream there has been
	others int        // streams that are handed over
	gone   [64]uint32 // streams that were reset here: what the client had sent by then is ignored
	goneAt int        // where in gone the next goes
}

// requests are those that are not answered.
type requests struct {
	arrived    []arrival // whole ones; only the reader adds some, and submits them before it releases mu
	taking     int       // that the reader is decoding, or submitting
	operations int       // that the Store has
	undead     int       // requests in these whose streams were reset
	// Bytes of requests that are not whole, and of those in operations.
	buffered, submitted int
	counted             int // how much of these, and of stuck, is counted in Server.held
}

// life is when the connection ends.
type life struct {
	born     time.Time
	age      time.Duration // when to end; 0: never
	old      bool          // it is ending because of its age
	seenLast uint32        // what last was when the watch looked
	usedAt   time.Time     // when the watch last saw a request under way

	heard    time.Time // when the client last sent anything
	asked    bool      // a ping asks whether it is there still
	calm     int       // see the constant
	pinged   time.Time
	strikes  int
	answered bool // a part of an answer was written since the last ping

	draining  bool
	drained   time.Time // when
	finalized bool      // the client knows which streams are answered
	final     uint32    // the last of them
	leaving   bool      // and all of them are
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, socket: nc, nc: nc, heads: newHeadReader(s.config.Path)}
	c.changed = sync.NewCond(&c.mu)
	c.source.Flush = func() {
		c.mu.Lock()
		c.flushSoon()
	}
	c.share.room = make(chan struct{}, 1)
	c.table = table{size: 4096}
	c.window, c.initial = 65535, 65535
	c.open = map[uint32]*stream{}
	c.born, c.calm = time.Now(), calm
	c.heard, c.usedAt = c.born, c.born
	if a := s.config.MaxConnectionAge; a > 0 {
		c.age = jittered(a)
	}
	return c
}

var errNoH2 = errors.New("the client does not speak HTTP/2")

// serve is the reader.
func (c *conn) serve() {
	err := c.greet()
	if err == nil {
		err = c.read()
	}
	if e, is := errors.AsType[*connError](err); is {
		c.fail(e)
		c.linger()
	} else if c.tls != nil && errors.Is(err, io.EOF) { // TLS has an end of its own, to be answered
		_ = c.nc.SetWriteDeadline(time.Now().Add(lingering))
		c.closeWrite()
	}
	c.close()
}

// greet does what comes before the first frame.
func (c *conn) greet() error {
	_ = c.nc.SetDeadline(time.Now().Add(greeting))
	if config := c.server.config.TLS; config != nil {
		t := tls.Server(c.nc, config)
		if err := t.Handshake(); err != nil {
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
	c.greeted = true
	c.out = appendSettings(c.out,
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders})
	c.out = appendWindowUpdate(c.out, 0, connWindow-65535)
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

// read reads until the connection ends. All requests that one read has brought are answered before the
// next: in is theirs until then.
func (c *conn) read() error {
	buffer := readBuffers.Get().(*[readBuffer]byte)
	defer readBuffers.Put(buffer)
	in, have := buffer[:], 0
	for {
		var began time.Time
		if c.behind {
			began = time.Now()
		}
		n, err := c.nc.Read(in[have:])
		if err != nil {
			return err
		}
		have += n
		c.mu.Lock()
		c.date(n, began)
		c.heard, c.asked = c.now, false
		used, err := c.frames(in[:have])
		c.answerReady()
		if c.fresh.id != 0 {
			c.park()
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

// date notes when what n bytes hold has come; the read took since began. That is now, unless the connection was not
// read while something waited for room. Then it may have come as early as that began, and so may what is read after it,
// until a read finds less than backlog or has to wait itself: the deadlines of requests count from there, or those that
// waited unread would be answered too late.
func (c *conn) date(n int, began time.Time) {
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

// awaitRoom waits while there is so much to be written, or submitted, that nothing more is to be read.
func (c *conn) awaitRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count()
	for !c.closed && (c.writing && len(c.out) > maxOut || c.submitted > c.allowance()) {
		c.behind = true
		c.changed.Wait()
		c.count()
	}
}

// count brings Server.held up to date. c.mu is held.
func (c *conn) count() {
	if n := c.buffered + c.submitted + c.stuck; n != c.counted {
		c.server.held.Add(int64(n - c.counted))
		c.counted = n
	}
}

// allowance is how much of each kind the connection may hold. It is less while all connections together hold too
// much, but a small part remains for each.
func (c *conn) allowance() int {
	if c.server.held.Load() <= maxHeld {
		return maxBuffered
	}
	return max(ownHeld, maxHeld/int(max(1, c.server.count.Load())))
}

// frames handles the whole frames at the start of in, and returns how long they are. c.mu is held.
func (c *conn) frames(in []byte) (used int, err error) {
	for !c.closed && len(in)-used >= frameHeaderLen {
		f := readFrameHeader(in[used:])
		if f.length > maxFrame {
			return used, sizeError("frame too long")
		}
		end := used + frameHeaderLen + f.length
		if end > len(in) {
			break
		}
		if err := c.frame(f, in[used+frameHeaderLen:end]); err != nil {
			return used, err
		}
		used = end
	}
	return used, nil
}

func (c *conn) frame(f frameHeader, payload []byte) error {
	if c.block.stream != 0 && (f.kind != http2.FrameContinuation || f.stream != c.block.stream) {
		return protocolError("a header block is not whole")
	}
	if !c.settled && (f.kind != http2.FrameSettings || f.flags.Has(http2.FlagSettingsAck)) {
		return protocolError("the first frame is no SETTINGS")
	}
	if int(f.kind) < len(handlers) {
		return handlers[f.kind](c, f, payload)
	}
	return c.idle(1) // RFC 9113, 5.5: to be ignored
}

// handlers of frames, by their type. c.mu is held.
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

// idle counts frames that mean no work. Too many of them are an attack.
func (c *conn) idle(n int) error {
	if c.calm -= n; c.calm < 0 {
		return &connError{http2.ErrCodeEnhanceYourCalm, "too many frames that ask for nothing"}
	}
	return nil
}

// flush writes what is to be written, unless another goroutine does already. It waits for the client, so only
// goroutines that serve this connection alone may call it. c.mu is held, and released.
func (c *conn) flush() { c.write(c.nc.Write) }

// flushSoon is flush for goroutines that serve other connections too: it never waits for the client. Where
// somebody must wait, a new goroutine does. c.mu is held, and released.
func (c *conn) flushSoon() {
	c.count()
	nc, ok := c.nc.(interface{ WriteOnce(b []byte) (int, error) }) // a nonblock.Conn
	switch {
	case c.writing || c.closed || len(c.out) == 0 && !c.mayLeave():
		c.mu.Unlock()
	case ok:
		c.write(nc.WriteOnce)
	default:
		c.flushApart()
		c.mu.Unlock()
	}
}

// flushApart flushes on a new goroutine. c.mu is held.
func (c *conn) flushApart() {
	c.server.goroutines.Go(func() {
		c.mu.Lock()
		c.flush()
	})
}

// write writes what is to be written, unless somebody does already. to may write less than all, without an
// error: then another goroutine waits for the client. c.mu is held, and let go of.
func (c *conn) write(to func([]byte) (int, error)) {
	c.count()
	if c.writing || c.closed {
		c.mu.Unlock()
		return
	}
	c.writing = true
	for len(c.out) > 0 && !c.closed {
		b := c.out
		c.out, c.spare = c.spare[:0], nil
		c.writes++
		c.mu.Unlock()
		n, err := to(b)
		c.mu.Lock()
		if err == nil && n < len(b) {
			c.out = append(b[n:], c.out...)
			c.flushApart()
			break
		}
		if cap(b) <= maxOut {
			c.spare = b[:0]
		}
		if err != nil {
			c.shut()
		}
	}
	if c.mayLeave() {
		c.leave()
	}
	c.writing = false
	c.changed.Broadcast()
	c.mu.Unlock()
}

// mayLeave reports whether all is answered on a connection that takes no more requests. c.mu is held.
func (c *conn) mayLeave() bool { return c.finalized && !c.leaving && !c.closed && !c.busy() }

// leave ends a connection on which all is answered: the client should close it. c.writing is set, so that
// nothing else is written. c.mu is held, and released meanwhile: TLS writes that this is the end.
func (c *conn) leave() {
	c.leaving = true
	c.mu.Unlock()
	c.closeWrite()
	_ = c.nc.SetReadDeadline(time.Now().Add(leaving))
	c.mu.Lock()
}

func (c *conn) closeWrite() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// fail ends the connection, with a word to the client where there is a reason.
func (c *conn) fail(reason *connError) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	if reason == nil || !c.greeted {
		c.shut()
		c.mu.Unlock()
		return
	}
	if !c.finalized {
		c.finalized, c.final = true, c.last
	}
	c.draining = true
	c.out = appendGoAway(c.out, c.final, reason.code, reason.text)
	_ = c.nc.SetWriteDeadline(time.Now().Add(lingering))
	c.flush()
}

// linger lets the client read why: what it has sent meanwhile would otherwise make the kernel discard
// what is on its way to it.
func (c *conn) linger() {
	c.closeWrite()
	_ = c.nc.SetReadDeadline(time.Now().Add(lingering))
	_, _ = io.CopyN(io.Discard, c.nc, 1<<20)
}

// shut ends the connection at once. c.mu is held.
func (c *conn) shut() {
	if c.closed {
		return
	}
	c.closed = true
	c.socket.Close()
	c.changed.Broadcast()
}

// close lets go of everything; the reader's last.
func (c *conn) close() {
	c.mu.Lock()
	c.shut()
	for _, s := range c.open {
		c.drop(s)
	}
	for c.operations > 0 || c.others > 0 { // they end soon: nobody waits for them
		c.changed.Wait()
	}
	c.server.held.Add(-int64(c.counted))
	c.counted = 0
	c.mu.Unlock()
	c.server.gone(c)
}
