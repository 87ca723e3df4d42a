package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

const (
	// redialPause is the time between two attempts to reach a server that cannot be reached. It is so short
	// that requests are decided at most 100 ms after the server is back. That includes the round trips of an
	// attempt and of the probe.
	redialPause = 60 * time.Millisecond
	// redialDemand is how long redialing continues after the last call that needed a connection. It is also how
	// long after redialing a call may use the connection that redialing made.
	redialDemand = time.Second
	// dialPause is the time between two dials of a server that does not answer, after the burst is used up.
	dialPause = 100 * time.Millisecond
)

// line dials one server, or the current master, and makes the connections that go-redis uses.
//
// It bounds how often it dials a server that is unreachable or does not answer. When such a server gives a
// sign of life, the line calls signOfLife.
//
// go-redis pauses for a second after as many failed dials as its pool has connections. To avoid this pause,
// connect returns a broken connection instead of an error, and the line dials again by itself.
type line struct {
	dial        func(ctx context.Context) (net.Conn, error)
	timeout     time.Duration // timeout of a dial
	age         atomic.Uint32 // incremented by invalidate; connections of an earlier age are outdated, and no longer used
	unconfirmed atomic.Bool   // connections were made since the last answer of the server
	closing     chan struct{}
	running     sync.WaitGroup

	mu         sync.Mutex
	closed     bool // this and the following fields are guarded by mu
	budget     budget
	down       error // the error of the last attempt to reach the server; nil if the server can be dialed
	redialing  bool
	lastDemand time.Time // the time of the last call that needed a connection while down was set
	spare      net.Conn  // a connection that redial made
	spareAt    time.Time
	signOfLife func() // called when the server gives a sign of life; must not block
}

// lines has the lines of a Store, by the address of the server. With Sentinels, the line to the current master is
// stored by the name of the master.
type lines struct {
	timeout time.Duration // timeout of a dial
	burst   int

	mu         sync.Mutex
	all        map[string]*line  // guarded by mu
	signOfLife map[string]func() // guarded by mu; see line.signOfLife
	closed     bool              // guarded by mu
}

func (l *lines) of(addr string, dial func(ctx context.Context) (net.Conn, error)) *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.all[addr]
	if found == nil {
		found = newLine(dial, l.timeout, l.burst, l.signOfLife[addr])
		if l.closed {
			found.close()
		}
		l.all[addr] = found
	}
	return found
}

// dialer returns a dialer for go-redis that connects through the lines. The dialer never returns an error (see line).
func (l *lines) dialer(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return l.of(addr, func(ctx context.Context) (net.Conn, error) { return dial(ctx, network, addr) }).connect(ctx), nil
	}
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

func (l *lines) notify(addr string, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.signOfLife[addr] = f
	if line := l.all[addr]; line != nil {
		line.mu.Lock()
		line.signOfLife = f
		line.mu.Unlock()
	}
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, line := range l.all {
		line.close()
	}
}

func newLine(dial func(ctx context.Context) (net.Conn, error), timeout time.Duration, burst int, signOfLife func()) *line {
	if signOfLife == nil {
		signOfLife = func() {}
	}
	return &line{dial: dial, timeout: timeout, signOfLife: signOfLife, closing: make(chan struct{}), budget: budget{burst: burst}.full()}
}

// burst returns how many dials may follow each other without a pause. An answer of the server allows as many
// again. The number is enough for the pool, and for the calls to a server that does not answer until the
// breaker opens after 100 ms (two calls per timeout).
func burst(timeout time.Duration) int {
	const pool, calls, outage = 8, 2, 100 * time.Millisecond
	return pool + calls*int(1+outage/max(timeout, time.Millisecond))
}

// budget bounds dials: a burst at once, then one dial per dialPause.
type budget struct {
	burst, left int
	at          time.Time // when a dial was last added to left, or when the first dial of a full burst was consumed
}

func (b budget) full() budget { return budget{burst: b.burst, left: b.burst} }

func (b budget) consume(now time.Time) (budget, bool) {
	if more := int(now.Sub(b.at) / dialPause); b.left < b.burst && more > 0 {
		b.left = min(b.burst, b.left+more)
		b.at = now
	}
	if b.left == 0 {
		return b, false
	}
	if b.left == b.burst {
		b.at = now
	}
	b.left--
	return b, true
}

func (l *line) connect(ctx context.Context) net.Conn {
	age := l.age.Load()
	nc, err := l.acquire(ctx)
	if err != nil {
		return broken{rewrapped{err}}
	}
	l.unconfirmed.Store(true)
	return newConn(l, nc, age)
}

var errTooManyDials = notSent("dialed too often without an answer")

// notSent returns an error which means that the server has not received a byte of the call.
func notSent(text string) error { return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New(text)} }

func (l *line) acquire(ctx context.Context) (net.Conn, error) {
	now := time.Now()
	l.mu.Lock()
	switch spare := l.spare; {
	case l.closed:
		l.mu.Unlock()
		return nil, net.ErrClosed
	case spare != nil:
		l.spare = nil
		age := now.Sub(l.spareAt)
		l.mu.Unlock()
		if age < redialDemand {
			return spare, nil
		}
		spare.Close() // the server may have closed the spare connection meanwhile
		return l.acquire(ctx)
	case l.down != nil:
		defer l.mu.Unlock()
		l.lastDemand = now
		l.redial(0)
		return nil, l.down
	}
	budget, may := l.budget.consume(now)
	l.budget = budget
	l.mu.Unlock()
	if !may {
		return nil, errTooManyDials
	}
	nc, err := l.dial(ctx)
	if err != nil {
		l.failed(err, time.Since(now), ctx.Err() != nil)
	}
	return nc, err
}

// failed records that an attempt to reach the server has failed. took is the duration of the attempt. Until redial
// reaches the server, no call dials it. callerTimedOut means that the dial failed because its caller had no time
// left. Then redial starts at once, with the timeout of the line.
func (l *line) failed(err error, took time.Duration, callerTimedOut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down, l.lastDemand = err, time.Now()
	if pause := redialPause - took; !callerTimedOut {
		l.redial(max(0, pause))
	} else {
		l.redial(0)
	}
}

// redial starts a goroutine that dials, after a pause, until the server can be reached or no call needs it. It
// does nothing if that goroutine already runs. mu must be held.
func (l *line) redial(pause time.Duration) {
	if l.redialing || l.closed {
		return
	}
	l.redialing = true
	l.running.Go(func() {
		for pause := pause; l.wait(pause); {
			start := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
			nc, err := l.reach(ctx)
			cancel()
			if l.redialed(nc, err) {
				return
			}
			pause = max(0, redialPause-time.Since(start))
		}
	})
}

// reach makes a connection, and waits for an answer of the server on it. An accepted connection is not
// enough, because a proxy may accept connections for a server that has failed.
func (l *line) reach(ctx context.Context) (net.Conn, error) {
	nc, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := ping(ctx, nc); err != nil {
		nc.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	return nc, nil
}

// ping sends a PING and waits for the answer. Most error replies show that the server works, such as the reply
// that requires a login. Replies with ERR and DENIED do not: the server has too many clients, or admits no
// other machines, and closes the connection.
func ping(ctx context.Context, nc net.Conn) error {
	end, _ := ctx.Deadline()
	_ = nc.SetDeadline(end)
	if _, err := nc.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	var answer [256]byte
	for i := range answer {
		if _, err := io.ReadFull(nc, answer[i:i+1]); err != nil {
			return err
		}
		if answer[i] != '\n' {
			continue
		}
		text := strings.TrimSpace(string(answer[:i]))
		if strings.HasPrefix(text, "-ERR ") || strings.HasPrefix(text, "-DENIED ") {
			return refusal(text[1:])
		}
		return nc.SetDeadline(time.Time{})
	}
	return errors.New("the answer to PING is too long")
}

func (l *line) wait(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-l.closing:
		return false
	}
}

func (l *line) redialed(nc net.Conn, err error) (over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = err
	switch {
	case l.closed && err == nil:
		nc.Close()
	case err == nil:
		l.setSpare(nc)
		defer l.signOfLife()
	case time.Since(l.lastDemand) < redialDemand:
		return false
	}
	l.redialing = false
	return true
}

// setSpare stores nc as the spare connection, for the next call of connect. mu must be held.
func (l *line) setSpare(nc net.Conn) {
	if l.spare != nil {
		l.spare.Close()
	}
	l.spare, l.spareAt = nc, time.Now()
}

// invalidate makes all existing connections outdated: each of them is replaced before it is used again. It counts as
// a sign of life, because another server is the master now.
func (l *line) invalidate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.age.Add(1)
	l.budget = l.budget.full()
	l.down = nil
	if l.spare != nil {
		l.spare.Close()
		l.spare = nil
	}
	l.signOfLife()
}

// answered resets the budget. It is called when the server has answered a call in time with anything but an
// error.
func (l *line) answered() {
	if !l.unconfirmed.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unconfirmed.Store(false)
	l.budget = l.budget.full()
}

// close stops all goroutines of l, and closes the spare connection.
func (l *line) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	if l.spare != nil {
		l.spare.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
}

// newDialer returns a dialer like the one of go-redis, except that TLS reads and writes with nonblock.
func newDialer(o *goredis.Options) dialFunc {
	d := &net.Dialer{
		Timeout:         o.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	if o.TLSConfig == nil {
		return d.DialContext
	}
	return func(_ context.Context, network, addr string) (net.Conn, error) {
		// An aborted handshake costs the server as much as a complete one. So the handshake may last longer
		// than the call that needs the connection.
		ctx, cancel := context.WithTimeout(context.Background(), o.DialTimeout)
		defer cancel()
		nc, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if n := nonblock.Wrap(nc); n != nil {
			nc = n
		}
		conf := o.TLSConfig
		if conf.ServerName == "" {
			conf = conf.Clone()
			conf.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secure := tls.Client(nc, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		return secure, nil
	}
}
