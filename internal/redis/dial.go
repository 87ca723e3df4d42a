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
	// redialPause is the time between two attempts to reach a server that cannot be reached. It is short
	// enough that requests are decided again 100 ms after the server is back, including the round trips of
	// an attempt and of the probe.
	redialPause = 60 * time.Millisecond
	// redialDemand is how long after the last call that needed a connection a server is still dialed.
	redialDemand = time.Second
	// dialPause is the time between two dials of a server that does not answer, once its burst is used up.
	dialPause = 100 * time.Millisecond
	// lateAnswer is how long after the end of its call an answer is still awaited.
	lateAnswer = 2 * time.Second
)

// line makes the connections to one server, or to the current master.
//
// It bounds how often it dials a server that is unreachable or does not answer. When such a server gives a
// sign of life, the line reports it.
//
// go-redis pauses for a second after as many failed dials as its pool has connections. To avoid this,
// connect returns a broken connection instead of an error, and the line dials again by itself.
type line struct {
	dial    func(ctx context.Context) (net.Conn, error)
	timeout time.Duration // timeout of a dial
	age     atomic.Uint32 // incremented by leave; connections of another age are not used any more
	strange atomic.Bool   // connections were made since the last answer
	closing chan struct{}
	running sync.WaitGroup

	mu         sync.Mutex
	closed     bool      // this and the following fields are guarded by mu
	budget     budget    // of dials
	down       error     // the error of the last dial; nil if it succeeded
	redialing  bool      // a goroutine is dialing
	wanted     time.Time // the time of the last call that needed a connection while down was set
	spare      net.Conn  // a connection that redial made
	spareAt    time.Time
	late       net.Conn // the connection whose call has ended while its answer is awaited
	signOfLife func()   // called at a sign of life; must not block
}

// lines has the lines of a Store by the addresses of their servers.
type lines struct {
	timeout time.Duration // timeout of a dial
	burst   int           // the burst of each line

	mu         sync.Mutex
	all        map[string]*line  // guarded by mu
	signOfLife map[string]func() // guarded by mu; see line.signOfLife
	closed     bool              // guarded by mu
}

// of returns the line to addr. If there is none, it makes one with dial.
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

// dialer returns a dialer that makes connections with the lines, which use dial.
func (l *lines) dialer(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return l.of(addr, func(ctx context.Context) (net.Conn, error) { return dial(ctx, network, addr) }).connect(ctx), nil
	}
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// hear registers f, to be called at each sign of life of the server at addr.
func (l *lines) hear(addr string, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.signOfLife[addr] = f
	if line := l.all[addr]; line != nil {
		line.mu.Lock()
		line.signOfLife = f
		line.mu.Unlock()
	}
}

// close ends all lines.
func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, line := range l.all {
		line.close()
	}
}

// newLine returns a line whose dials use dial and last at most timeout. signOfLife may be nil.
func newLine(dial func(ctx context.Context) (net.Conn, error), timeout time.Duration, burst int, signOfLife func()) *line {
	if signOfLife == nil {
		signOfLife = func() {}
	}
	return &line{dial: dial, timeout: timeout, signOfLife: signOfLife, closing: make(chan struct{}), budget: budget{burst: burst}.full()}
}

// burst returns the number of connections that may be made at once, and again after each answer of the
// server. It is enough for the pool, and for the calls to a server that does not answer until the breaker
// opens after 100 ms (two calls per timeout).
func burst(timeout time.Duration) int {
	const pool, calls, patience = 8, 2, 100 * time.Millisecond
	return pool + calls*int(1+patience/max(timeout, time.Millisecond))
}

// budget bounds dials: a burst, then one per dialPause.
type budget struct {
	burst, left int
	at          time.Time // when the last one was added
}

// full returns b with its whole burst.
func (b budget) full() budget { return budget{burst: b.burst, left: b.burst} }

// spend reports whether a dial is allowed now, and returns the remaining budget.
func (b budget) spend(now time.Time) (budget, bool) {
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

// connect makes a connection. If it fails, it returns a broken connection, whose Write returns the error.
func (l *line) connect(ctx context.Context) net.Conn {
	age := l.age.Load()
	nc, err := l.take(ctx)
	if err != nil {
		return broken{unwrapped{err}}
	}
	l.strange.Store(true)
	return newConn(l, nc, age)
}

var errTooManyDials = notSent("dialed too often without an answer")

// notSent returns an error which means that no byte has reached a server.
func notSent(text string) error { return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New(text)} }

func (l *line) take(ctx context.Context) (net.Conn, error) {
	now := time.Now()
	l.mu.Lock()
	switch spare := l.spare; {
	case l.closed:
		l.mu.Unlock()
		return nil, net.ErrClosed
	case spare != nil:
		l.spare = nil
		l.mu.Unlock()
		if now.Sub(l.spareAt) < redialDemand {
			return spare, nil
		}
		spare.Close() // the server may have closed the spare connection
		return l.take(ctx)
	case l.down != nil:
		defer l.mu.Unlock()
		l.wanted = now
		l.redial(0)
		return nil, l.down
	}
	budget, may := l.budget.spend(now)
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

// failed records a failed dial. From now on, only redial dials the server. If the dial failed because its
// caller had no time left (hurried), redial starts at once, with a longer timeout.
func (l *line) failed(err error, took time.Duration, hurried bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down, l.wanted = err, time.Now()
	if pause := redialPause - took; !hurried {
		l.redial(max(0, pause))
	} else {
		l.redial(0)
	}
}

// redial starts to dial after a pause, unless it is dialing already. mu must be held.
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
// enough, because a proxy may accept it for a server that has failed.
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

// ping waits for the answer to a PING. Most error replies show that the server is there, such as the one
// before a login. ERR and DENIED do not count as an answer: the server has too many clients, or admits none
// from other machines, and closes the connection.
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

// wait waits for the pause to end. It returns false if the line is being closed.
func (l *line) wait(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-l.closing:
		return false
	}
}

// redialed reports whether redialing has ended because the server has been reached or is no longer needed.
func (l *line) redialed(nc net.Conn, err error) (over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = err
	switch {
	case l.closed && err == nil:
		nc.Close()
	case err == nil:
		l.keep(nc)
		defer l.signOfLife()
	case time.Since(l.wanted) < redialDemand:
		return false
	}
	l.redialing = false
	return true
}

// keep stores a connection for the next caller of connect. mu must be held.
func (l *line) keep(nc net.Conn) {
	if l.spare != nil {
		l.spare.Close()
	}
	l.spare, l.spareAt = nc, time.Now()
}

// leave marks all existing connections, so that each is replaced before it is used again.
func (l *line) leave() {
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

// answered is called when the server has answered a call in time, unless the answer is an error.
func (l *line) answered() {
	if !l.strange.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strange.Store(false)
	l.budget = l.budget.full()
}

// await waits for the answer on a connection whose call has ended, and reports a sign of life when it
// arrives. Only the last such connection waits. It returns false if nc does not wait.
func (l *line) await(nc net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.late != nil {
		l.late.Close()
	}
	l.late = nc
	l.running.Go(func() {
		var b [1]byte
		_ = nc.SetReadDeadline(time.Now().Add(lateAnswer))
		n, _ := nc.Read(b[:])
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.late == nc {
			l.late = nil
		}
		nc.Close()
		if n > 0 {
			l.signOfLife()
		}
	})
	return true
}

// close stops all goroutines of l and closes its connections.
func (l *line) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	for _, nc := range []net.Conn{l.spare, l.late} {
		if nc != nil {
			nc.Close()
		}
	}
	l.mu.Unlock()
	l.running.Wait()
}

// newDialer returns a dialer like go-redis's, except that TLS reads and writes with nonblock.
func newDialer(o *goredis.Options) dialFunc {
	d := &net.Dialer{
		Timeout:         o.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	if o.TLSConfig == nil {
		return d.DialContext
	}
	return func(_ context.Context, network, addr string) (net.Conn, error) {
		// A handshake that is aborted costs the server as much as a complete one, so it may last longer
		// than the call that needs it.
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
