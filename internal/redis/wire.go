package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// transport sends commands to one server.
type transport interface {
	// start sends x, and calls x.done when x has its replies or has failed, at the latest soon after x.until. It never
	// waits for the server, and does not call x.done before it returns.
	start(x *exchange)
	// close makes the transport refuse further exchanges. Those in flight end first.
	close()
	// lead may be called after start by the goroutine that waits for x, with x.leads set. It may use that goroutine to read
	// the replies, until x ends. Waking another goroutine takes longer than the rest of a call.
	lead()
}

// exchange has commands that are sent in one write, and the replies to them. It is never sent twice, so a caller that
// starts it again must know that no command has run.
type exchange struct {
	commands [][]any
	until    time.Time // the time by which the replies must have arrived
	done     func()
	leads    bool // lead follows

	// replies has a reply for each command, valid until done returns, unless err is set. If err means that nothing was
	// sent, neverRan(err) is true. Otherwise the commands may have run.
	replies []reply
	err     error
}

func (x *exchange) end(err error) {
	x.err = err
	x.done()
}

const (
	// maxFrame is the largest number of bytes that are written on the goroutine that starts an exchange, together with
	// the bytes that were written before and are not answered. The buffer of an idle socket accepts so many bytes in one
	// write. The goroutine may have to start calls to other servers, so it must not wait for a server that does not read.
	maxFrame = 32 << 10
	// redialPause is the time between two attempts to reach a server that cannot be reached. It is so short
	// that requests are decided at most 100 ms after the server is back. That includes the round trips of an
	// attempt and of the probe.
	redialPause = 60 * time.Millisecond
	// redialDemand is how long such attempts continue after the last exchange.
	redialDemand = time.Second
	// watchedFor is how long after a reply the goroutine that reads is trusted to have noticed the end of its connection.
	// Later, the socket is asked, because this process may have been paused.
	watchedFor = time.Millisecond
	// lateAnswer is how long a connection waits for an answer after its exchange has ended.
	lateAnswer = 2 * time.Second
)

var (
	errNoReply  = fmt.Errorf("no reply in time: %w", context.DeadlineExceeded)
	errNoConn   = &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("not sent in time: %w", context.DeadlineExceeded)}
	errNoServer = notSent("the store is closed")
	errDrained  = errors.New("the connection was replaced")
)

// wire is the transport to a real server. It has one connection for new exchanges, and sends them without waiting for the
// replies to earlier ones. One goroutine for each connection reads the replies, in the order of the exchanges. After an
// exchange whose caller leads there is none, until the next exchange.
//
// go-redis connects the wire and logs in. With go-redis, each call would wait on another goroutine, take a connection
// from the pool, check it, and set timers. In a Cluster, where calls are small, this would be most of the cost of a call.
//
// When a reply is late, the next exchange gets another connection. The old one stays open for a while, because a late
// reply shows that the server works.
type wire struct {
	dial  func() (conn net.Conn, release func(), err error) // release is called after conn has been closed, or the dial has failed
	alive func()                                            // called when the server gives a sign of life: it can be reached, or its reply comes late

	mu     sync.Mutex
	pipes  []*pipe // the connections that are not closed; this and the following fields are guarded by mu
	timer  *time.Timer
	due    time.Time // when timer calls tick; zero if it does not
	down   error     // why the server cannot be reached; nil if it may be dialed
	demand time.Time // when an exchange last needed a new connection
	closed bool
}

// pipe is a connection with the exchanges on it. Its fields are guarded by the mutex of the wire, except where noted.
type pipe struct {
	conn       net.Conn  // nil while it is being made
	release    func()    // called after conn has been closed
	flights    []flight  // the exchanges without all their replies, in the order in which they are sent
	written    int       // how many flights are written or being written
	queued     []byte    // the commands of the other flights
	writing    bool      // a goroutine writes, or makes conn and will write
	unanswered int       // the bytes of the written flights
	heard      time.Time // when the last flight ended with its replies and none followed
	over       bool      // gets no more exchanges
	dead       bool      // has failed: conn is closed, and flights is empty
	closeBy    time.Time // if not zero, conn is closed at this time
	reading    bool      // a goroutine reads
	led        bool      // the caller of the first exchange reads, until that exchange ends
	lends      bool      // the goroutine that reads stops when no exchange waits

	out     []byte  // what is being written; used by the goroutine that writes
	replies []reply // this and the following field are used by the goroutine that reads
	buf     []byte  // bytes whose replies are not complete
}

// flight is an exchange on a connection. The exchange is nil if it has ended without a reply.
type flight struct {
	x           *exchange
	count, size int // of the commands
}

func newWire(o *goredis.Options, alive func()) *wire {
	return &wire{dial: func() (net.Conn, func(), error) { return dialWire(*o) }, alive: alive}
}

// start implements transport.
func (w *wire) start(x *exchange) {
	x.err = nil
	p, writes, err := w.enqueue(x)
	switch {
	case err != nil:
		go x.end(err)
	case writes:
		w.write(p, true)
	}
}

// enqueue adds x to the connection for the next exchange, and reports whether the caller must write. After a panic, which
// means that a command of x cannot be encoded, p is as before.
func (w *wire) enqueue(x *exchange) (p *pipe, writes bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, err = w.usable(); err != nil {
		return nil, false, err
	}
	queued := p.queued
	for _, command := range x.commands {
		queued = appendCommand(queued, command)
	}
	p.flights = append(p.flights, flight{x, len(x.commands), len(queued) - len(p.queued)})
	p.queued = queued
	w.arm(x.until)
	writes = !p.writing
	p.writing = true
	if p.lends = x.leads && p.noticesEnd(); !p.lends && !p.reading && p.conn != nil {
		p.reading = true
		go w.read(p, false)
	}
	return p, writes, nil
}

// noticesEnd reports whether ended works, so that no goroutine has to read while no exchange waits.
func (p *pipe) noticesEnd() bool {
	c, ok := p.conn.(*conn)
	return ok && c.closed != nil
}

// lead implements transport.
func (w *wire) lead() {
	w.mu.Lock()
	n := len(w.pipes)
	if n == 0 || w.pipes[n-1].reading || w.pipes[n-1].conn == nil || len(w.pipes[n-1].flights) == 0 {
		w.mu.Unlock()
		return
	}
	p := w.pipes[n-1]
	p.reading, p.led = true, true
	w.mu.Unlock()
	w.read(p, true)
}

// warm connects w, so that the first exchange does not have to wait.
func (w *wire) warm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.usable()
}

// usable returns the connection for the next exchange. It starts to make one if there is none. An error means that w is
// closed, or that the server cannot be reached. mu must be held.
func (w *wire) usable() (*pipe, error) {
	if n := len(w.pipes); n > 0 && !w.pipes[n-1].over {
		p := w.pipes[n-1]
		if !p.ended() {
			return p, nil
		}
		w.retire(p)
	}
	if w.closed {
		return nil, errNoServer
	}
	if w.demand = time.Now(); w.down != nil {
		return nil, w.down
	}
	return w.open(), nil
}

// open starts to make a connection. mu must be held.
func (w *wire) open() *pipe {
	p := &pipe{writing: true}
	w.pipes = append(w.pipes, p)
	go w.connect(p)
	return p
}

// unreachable is called when a connection could not be made in the time took. It arranges the next attempt.
func (w *wire) unreachable(err error, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = asUnsent(err)
	time.AfterFunc(max(0, redialPause-took), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		again := w.down != nil && !w.closed && time.Since(w.demand) < redialDemand
		if w.down = nil; again {
			w.open()
		}
	})
}

// renew is called when another server has become the master. It may be dialed at once.
func (w *wire) renew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = nil
}

// asUnsent returns an error with which neverRan is true.
func asUnsent(err error) error {
	if neverRan(err) {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: err}
}

// ended reports whether the server has closed the connection, or is not the master any more. If a call were written to
// such a connection, nothing would show whether the server has run it.
func (p *pipe) ended() bool {
	c, ok := p.conn.(*conn)
	switch {
	case !ok:
		return false
	case c.outdated():
		return true
	default:
		return len(p.flights) == 0 && !(p.reading && time.Since(p.heard) < watchedFor) && c.ended()
	}
}

// retire makes p get no more exchanges, and closes it if none waits for replies. mu must be held.
func (w *wire) retire(p *pipe) {
	p.over = true
	if p.conn != nil && !slices.ContainsFunc(p.flights, func(f flight) bool { return f.x != nil }) {
		go w.fail(p, errDrained, 0)
	}
}

// connect makes the connection of p.
func (w *wire) connect(p *pipe) {
	began := time.Now()
	conn, release, err := w.dial()
	if err != nil {
		w.unreachable(err, time.Since(began))
	}
	w.mu.Lock()
	if err == nil && p.over && len(p.flights) == 0 {
		err = errDrained
	}
	p.conn, p.release, p.reading = conn, release, err == nil
	w.mu.Unlock()
	if err != nil {
		w.fail(p, err, 0)
		return
	}
	go w.read(p, false)
	w.alive()
	w.write(p, false)
}

// dialWire makes a connection that is ready for commands. It uses the pool of a separate client, which release closes.
func dialWire(o goredis.Options) (conn net.Conn, release func(), err error) {
	timeout := max(detachedTimeout, o.DialTimeout)
	o.PoolSize, o.MaxRetries = 1, -1
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout
	var made atomic.Pointer[net.Conn] // atomic, because go-redis may still dial after Ping has timed out
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err == nil {
			made.Store(&nc)
		}
		return nc, err
	}
	client := newClient(&o)
	release = func() { _ = client.Close() }
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, release, err
	}
	conn = *made.Load()
	return conn, release, conn.SetDeadline(time.Time{}) // go-redis leaves those of Ping
}

// write writes the commands of p; the caller has set p.writing. With inline, another goroutine continues before a write
// that may have to wait.
func (w *wire) write(p *pipe, inline bool) {
	w.mu.Lock()
	for !p.dead && p.written < len(p.flights) {
		if inline && p.unanswered+len(p.queued) > maxFrame {
			w.mu.Unlock()
			go w.write(p, false)
			return
		}
		writes := len(p.flights) - p.written
		p.written += writes
		p.unanswered += len(p.queued)
		p.out, p.queued = p.queued, p.out[:0]
		w.mu.Unlock()
		_, err := p.conn.Write(p.out)
		if err != nil {
			unsent := 0
			if neverRan(err) {
				unsent = writes
			}
			w.fail(p, err, unsent)
			return
		}
		w.mu.Lock()
	}
	p.writing = false
	w.mu.Unlock()
}

// read reads the replies on the connection of p until it fails, or until leaves. led means that the caller of the first
// exchange reads.
func (w *wire) read(p *pipe, led bool) {
	for {
		if len(p.buf) == cap(p.buf) {
			p.buf = slices.Grow(p.buf, max(4096, cap(p.buf)))
		}
		n, failed := p.conn.Read(p.buf[len(p.buf):cap(p.buf)])
		p.buf = p.buf[:len(p.buf)+n]
		used, err := w.answer(p, p.buf)
		p.buf = p.buf[:copy(p.buf, p.buf[used:])]
		if led && errors.Is(failed, os.ErrDeadlineExceeded) { // tick has ended the exchange
			failed = p.conn.SetReadDeadline(time.Time{})
		}
		if err = cmp.Or(err, failed); err != nil {
			w.fail(p, err, 0)
			return
		}
		if w.leaves(p, led) {
			return
		}
	}
}

// leaves reports whether the goroutine that reads p stops. If exchanges wait for replies, another one continues.
func (w *wire) leaves(p *pipe, led bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := len(p.flights) == 0 && len(p.buf) == 0
	if led && p.led || !led && !(p.lends && idle) {
		return false
	}
	if p.reading = !idle; p.reading {
		_ = p.conn.SetReadDeadline(time.Time{})
		go w.read(p, false)
	}
	return true
}

// answer ends the exchanges of p whose replies are in have, and returns the number of bytes of these replies.
func (w *wire) answer(p *pipe, have []byte) (used int, err error) {
	for used < len(have) {
		w.mu.Lock()
		count := 0
		if p.written > 0 {
			count = p.flights[0].count
		}
		w.mu.Unlock()
		if count == 0 {
			return used, fmt.Errorf("the server sent %.20q without a command", have[used:])
		}
		p.replies = p.replies[:0]
		at := used
		for range count {
			r, size, err := parseReply(have[at:])
			if err != nil || size == 0 {
				return used, err
			}
			p.replies = append(p.replies, r)
			at += size
		}
		used = at
		if err := w.answered(p); err != nil {
			return used, err
		}
	}
	return used, nil
}

// answered ends the first exchange of p with p.replies. An error means that p must be closed.
func (w *wire) answered(p *pipe) error {
	w.mu.Lock()
	if p.written == 0 { // p has failed meanwhile
		w.mu.Unlock()
		return errDrained
	}
	f := p.flights[0]
	p.flights = slices.Delete(p.flights, 0, 1)
	p.written--
	p.led = false
	p.unanswered -= f.size
	if len(p.flights) == 0 {
		p.heard = time.Now()
	}
	over := p.over && len(p.flights) == 0
	w.mu.Unlock()
	if f.x == nil {
		w.alive()
	} else {
		f.x.replies = p.replies
		f.x.end(nil)
	}
	if over {
		return errDrained
	}
	return nil
}

// fail closes p, and ends its exchanges with err. unsent is the number of the last written flights of which no byte was
// sent.
func (w *wire) fail(p *pipe, err error, unsent int) {
	w.mu.Lock()
	flights, written := p.flights, p.written-unsent
	if !p.dead {
		p.dead, p.over, p.flights, p.written = true, true, nil, 0
		w.pipes = slices.DeleteFunc(w.pipes, func(have *pipe) bool { return have == p })
		go func() { // closing a TLS connection may wait
			if p.conn != nil {
				p.conn.Close()
			}
			p.release()
		}()
	}
	w.mu.Unlock()
	lost := err
	if neverRan(err) {
		lost = errors.New(err.Error())
	}
	for i, f := range flights {
		switch {
		case f.x == nil:
		case i < written:
			f.x.end(lost)
		default:
			f.x.end(asUnsent(err))
		}
	}
}

// arm makes sure that tick is called at the time until, or earlier. mu must be held.
func (w *wire) arm(until time.Time) {
	switch {
	case !w.due.IsZero() && !until.Before(w.due):
		return
	case w.timer == nil:
		w.timer = time.AfterFunc(time.Until(until), w.tick)
	default:
		w.timer.Reset(time.Until(until))
	}
	w.due = until
}

// tick ends the exchanges that have no reply in time.
func (w *wire) tick() {
	var late, unsent []*exchange
	w.mu.Lock()
	now := time.Now()
	w.due = time.Time{}
	for _, p := range w.pipes {
		for i, f := range slices.Backward(p.flights) {
			x := f.x
			if x == nil {
				continue
			}
			if now.Before(x.until) {
				w.arm(x.until)
				continue
			}
			if i == 0 && p.led {
				p.led = false
				_ = p.conn.SetReadDeadline(now) // makes Read return
			}
			switch {
			case i >= p.written:
				unsent = append(unsent, x)
				p.remove(i)
			default:
				late = append(late, x)
				p.flights[i].x = nil
				if !p.reading { // the caller of x has not begun to read, and must not begin now
					p.reading = true
					go w.read(p, false)
				}
				if p.over = true; p.closeBy.IsZero() {
					p.closeBy = now.Add(lateAnswer)
				}
			}
		}
		switch {
		case p.closeBy.IsZero():
		case now.Before(p.closeBy):
			w.arm(p.closeBy)
		default:
			go p.conn.Close()
		}
	}
	w.mu.Unlock()
	for _, x := range late {
		x.end(errNoReply)
	}
	for _, x := range unsent {
		x.end(errNoConn)
	}
}

// remove removes the flight i, which has not been written.
func (p *pipe) remove(i int) {
	from := 0
	for _, f := range p.flights[p.written:i] {
		from += f.size
	}
	p.queued = slices.Delete(p.queued, from, from+p.flights[i].size)
	p.flights = slices.Delete(p.flights, i, i+1)
}

// close implements transport.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, p := range w.pipes {
		w.retire(p)
	}
}
