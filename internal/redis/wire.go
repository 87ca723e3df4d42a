package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// maxFrame is the largest size of a call that the wire sends. The buffer of an idle socket accepts so many
// bytes in one write. The goroutine that starts a call may have to start calls to other servers, so it must
// not wait for a server that does not read.
const maxFrame = 32 << 10

// maxScriptReply is the largest reply of the script: for a group of the largest size, with the heads of its records.
const maxScriptReply = headSize + 2*maxGroup*answerSize

// wire is a connection that a sender uses for its usual calls. The goroutine that starts a call writes it
// without waiting, and another goroutine reads the answers.
//
// With go-redis, each call waits on another goroutine, takes a connection from the pool, checks it, and sets
// timers. In a Cluster, where calls are small, this is most of the cost of a call.
//
// go-redis connects the wire and logs in. It also makes all other calls: the first calls, probes, resets, large
// calls (maxFrame), calls with a script that the server does not know or with slots that have moved, and calls while
// the wire is broken or busy.
type wire struct {
	node   *node
	sender *sender

	mu      sync.Mutex
	conn    net.Conn // nil if not connected; this and the following fields are guarded by mu
	busy    bool     // the wire is reserved: a call is about to be written, being written, or in flight
	call    *call    // the call in flight, or nil
	until   time.Time
	readBy  time.Time // the read deadline of conn, which may have been set for an earlier call; zero means none
	writeBy time.Time // the write deadline of conn; zero means none
	broken  error     // not nil if the connection must not be used any more
	closed  bool
	dialing bool
	dialed  time.Time // the time of the last attempt to dial

	// writing is held during send. Without it, the next call could overwrite out during a Write, because the answer to a
	// call may be read before its Write has returned.
	writing sync.Mutex
	out     []byte // the frame that is being written; guarded by writing
}

// reserve reserves the wire for a call. It returns false if the wire has another call, or no connection that can be
// used.
func (w *wire) reserve() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil || w.busy || w.broken != nil {
		return false
	}
	w.busy = true
	return true
}

// release ends a reservation without a call.
func (w *wire) release() {
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// send writes the call c; reserve must have reserved the wire for it. It returns false if c was not sent and
// go-redis must send it.
func (w *wire) send(c *call, until time.Time) bool {
	w.writing.Lock()
	defer w.writing.Unlock()
	if !w.encode(c) {
		return false
	}
	w.mu.Lock()
	if w.conn == nil || w.broken != nil || ended(w.conn) { // broken since reserve; the reader may not have noticed yet
		w.mu.Unlock()
		return false
	}
	conn := w.conn
	w.call, w.until = c, until
	w.deadlines(conn, until)
	w.mu.Unlock()
	_, err := conn.Write(w.out)
	if err == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	mine := w.call == c // false if the reader has found the connection closed and has answered the call
	if w.conn == conn && w.broken == nil {
		w.broken = err
	}
	_ = conn.SetReadDeadline(time.Unix(1, 0)) // makes Read fail, so that the reader closes the connection and answers the call in flight
	if mine && neverRan(err) {
		w.call = nil
		return false
	}
	return true
}

// deadlines sets the deadlines of conn for a call that must end by until. The deadline of a Read may be an earlier one,
// of a call before; the reader then sets the next deadline (goesOn). The deadline of a Write is at most the timeout of a
// call later than until. Setting both deadlines for each call would cost as much as a system call. mu must be held.
func (w *wire) deadlines(conn net.Conn, until time.Time) {
	if w.readBy.IsZero() {
		w.readBy = until
		_ = conn.SetReadDeadline(until) // if this fails, Write fails too
	}
	if w.writeBy.Before(until) {
		w.writeBy = until.Add(w.sender.timeout)
		_ = conn.SetWriteDeadline(w.writeBy)
	}
}

// ended reports whether the server has closed nc. If a call were written to such a connection, nothing would
// show whether the server has run it.
func ended(nc net.Conn) bool {
	c, ok := nc.(*conn)
	return ok && c.ended()
}

// encode writes the frame of c to out. It returns false if c is more than a single run of the script, or too
// large for the wire.
func (w *wire) encode(c *call) (ok bool) {
	defer func() {
		if p := recover(); p != nil { // go-redis will then make the call, panic in the same way, and report the panic
			ok = false
		}
	}()
	f := &c.payload
	f.resets = f.resets[:0]
	runs := w.node.plan(c, false)
	if len(runs) != 1 || len(f.resets) > 0 {
		return false
	}
	w.out = appendCommand(w.out[:0], runs[0].arguments(runs[0].form(w.node.plain.Load()), false))
	return len(w.out) <= maxFrame
}

// read reads the answers on conn until the connection fails. Then it closes conn and client, which made conn.
func (w *wire) read(conn net.Conn, client io.Closer) {
	defer client.Close()
	defer conn.Close()
	buf := make([]byte, 0, 4096)
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, cap(buf))
		}
		n, err := conn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			if w.goesOn(conn, err) {
				continue
			}
			break
		}
		text, refused, whole, err := parseReply(buf)
		if err != nil {
			w.goesOn(conn, err)
			break
		}
		if !whole {
			continue
		}
		c, over := w.answered()
		if c == nil {
			break
		}
		t := c.payload.scriptRuns[0]
		t.reply, t.err = "", nil
		if refused {
			t.err = refusal(text)
		} else {
			t.reply = unsafe.String(unsafe.SliceData(text), len(text)) // the string is valid until conclude returns, because buf is not changed before
		}
		buf = buf[:0]
		w.conclude(c)
		if over {
			return
		}
	}
	w.mu.Lock()
	c := w.call
	err := w.broken
	w.conn, w.call, w.broken, w.readBy, w.writeBy = nil, nil, nil, time.Time{}, time.Time{}
	w.busy = w.busy && c == nil // if the wire is reserved but has no call yet, the goroutine that reserved it releases it
	w.mu.Unlock()
	if c != nil {
		c.fail(unavailable(err))
		w.sender.complete(c, callFailed)
		w.sender.concluded(c)
	}
}

// goesOn reports whether conn can still be used after a Read has failed with err. It can if the deadline was
// set for an earlier call. goesOn then sets the next deadline. Otherwise it marks the wire as broken.
func (w *wire) goesOn(conn net.Conn, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.call == nil && !w.busy
	if w.broken != nil || w.closed && idle || !errors.Is(err, os.ErrDeadlineExceeded) || w.call != nil && !time.Now().Before(w.until) {
		if w.broken == nil {
			w.broken = err
		}
		return false
	}
	w.readBy = time.Time{}
	if w.call != nil {
		w.readBy = w.until
	}
	_ = conn.SetReadDeadline(w.readBy)
	return true
}

// answered returns the call in flight, whose answer has arrived, or nil if there is none. over means that the
// wire must be closed.
func (w *wire) answered() (c *call, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c = w.call; c == nil {
		w.broken = errors.New("the server sent an answer without a call")
		return nil, true
	}
	w.call, w.busy = nil, false
	if w.closed {
		w.conn, over = nil, true
	}
	return c, over
}

// conclude ends the call c with its answer. If nothing was decided, go-redis makes the call again: the server lacks the
// script, cannot compile it or does not serve a slot, the script needs other windows of a calendar, or it has failed at the
// value of a bucket.
func (w *wire) conclude(c *call) {
	t := c.payload.scriptRuns[0]
	_, outsideCalendar := t.outsideCalendar()
	if outsideCalendar || isReply(t.err, "NOSCRIPT") || isRedirect(t.err) || isForeign(t.err) || isCompileError(t.err) || isSpoiled(t.err) {
		t.reply = ""
		w.sender.spawn(func() { w.sender.makeCalls(c, w.sender.clock.Now()) })
		return
	}
	outcome := callAnswered
	if w.answer(c, t) != nil {
		outcome = callFailed
	}
	t.reply = ""
	w.sender.complete(c, outcome)
	w.sender.concluded(c)
}

func (w *wire) answer(c *call, t *scriptRun) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.sender.panicked(p)
			err = fmt.Errorf("%w: panic: %v", backend.ErrUnavailable, p)
			c.fail(err)
		}
	}()
	return t.answer()
}

// dial connects the wire in the background. It does nothing if the wire is connected, being dialed or closed, or if
// the last attempt was less than dialPause ago.
func (w *wire) dial() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.closed || w.conn != nil || w.dialing || now.Sub(w.dialed) < dialPause {
		return
	}
	w.dialing, w.dialed = true, now
	go func() {
		conn, client := w.connect()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.dialing = false
		switch {
		case conn == nil || w.closed:
			client.Close()
		default:
			w.conn = conn
			go w.read(conn, client)
		}
	}()
}

// connect makes a connection that is ready for calls. It uses the pool of a separate client, which the caller must
// close. If it fails, conn is nil.
func (w *wire) connect() (conn net.Conn, client *goredis.Client) {
	o := *w.node.client.Options()
	o.PoolSize, o.MinIdleConns, o.MaxRetries = 1, 0, -1
	var made atomic.Pointer[net.Conn] // atomic, because go-redis may still dial after Ping has timed out
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err == nil {
			made.Store(&nc)
		}
		return nc, err
	}
	client = newClient(&o)
	ctx, cancel := context.WithTimeout(context.Background(), detachedTimeout)
	defer cancel()
	if client.Ping(ctx).Err() != nil {
		return nil, client
	}
	return *made.Load(), client
}

// close closes the wire. A call in flight ends first.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.conn != nil && !w.busy {
		_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError marks refusal as a reply, as go-redis does.
func (refusal) RedisError() {}

func appendCommand(dst []byte, args []any) []byte {
	dst = appendSize(dst, '*', len(args))
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			dst = append(appendSize(dst, '$', len(arg)), arg...)
		case *string:
			dst = append(appendSize(dst, '$', len(*arg)), *arg...)
		case []byte:
			dst = append(appendSize(dst, '$', len(arg)), arg...)
		case int:
			var digits [20]byte
			text := strconv.AppendInt(digits[:0], int64(arg), 10)
			dst = append(appendSize(dst, '$', len(text)), text...)
		default:
			panic(fmt.Sprintf("redis: an argument is a %T", arg))
		}
		dst = append(dst, "\r\n"...)
	}
	return dst
}

func appendSize(dst []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(dst, kind), int64(n), 10), "\r\n"...)
}

// parseReply parses a bulk string or an error reply (refused). whole is false if bytes are missing. An error
// means that the bytes are neither, or that more bytes follow.
func parseReply(have []byte) (text []byte, refused, whole bool, err error) {
	line, rest, ok := bytes.Cut(have, []byte("\r\n"))
	switch {
	case !ok:
		return nil, false, false, nil
	case len(line) > 0 && line[0] == '-' && len(rest) == 0:
		return line[1:], true, true, nil
	case len(line) == 0 || line[0] != '$':
		return nil, false, false, fmt.Errorf("the server answered %.20q to a script call", have)
	}
	n, err := strconv.Atoi(string(line[1:]))
	switch {
	case err != nil || n < 0 || n > maxScriptReply || len(rest) > n+2:
		return nil, false, false, fmt.Errorf("the server answered %.20q to a script call", have)
	case len(rest) < n+2:
		return nil, false, false, nil
	default:
		return rest[:n], false, true, nil
	}
}
