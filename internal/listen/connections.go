package listen

import (
	"cmp"
	"errors"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/logthrottle"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
)

const (
	// mostConnections bounds the sum of the default bounds of the gRPC and HTTP listeners.
	mostConnections = 16 << 10
	// connectionBytes is the approximate memory of a connection in use: its read buffer, and the stack of a goroutine.
	connectionBytes = 64 << 10
	// fewestConnections is the smallest default bound of the gRPC and HTTP listeners.
	fewestConnections = 8
	// HealthConnections is the number of connections that the HTTP listener accepts beyond its bound. They
	// serve only health checks.
	HealthConnections = 16
	// maxToClose is the largest number of connections that one pass over all connections selects for closing.
	// passInterval is the shortest time between two passes.
	maxToClose, passInterval = 64, 100 * time.Millisecond
)

// evictAfter is how long a connection must have sent nothing before the listener may close it to make room for a
// new one. Tests change evictAfter.
var evictAfter = time.Second

// ConnectionBounds returns the default bounds: traffic for each of the gRPC and HTTP listeners, admin for
// each of the admin and metrics listeners. files is the number of files that this process may open (0 if
// unknown). memory is its memory limit in bytes (math.MaxInt64 if there is none). listeners is the number of gRPC and
// HTTP listeners.
func ConnectionBounds(files uint64, memory int64, listeners int) (traffic, admin int) {
	total, reserve := uint64(mostConnections), uint64(1024) // reserve is for Redis, the configuration and the admin listener
	if files > 0 {
		reserve = min(max(files/8, 40), 1024)
		total = min(total, max(files, reserve)-reserve)
	}
	if memory != math.MaxInt64 {
		total = min(total, uint64(memory)/4/connectionBytes)
	}
	return max(int(total)/listeners, fewestConnections), min(int(reserve)/4, 64)
}

// Bounds has the listeners of a process, which share its open files.
type Bounds struct{ listeners []*Listener }

// Add returns a Listener on socket with at most most connections, and extra ones for health checks. log gets each
// message at most once a second.
func (b *Bounds) Add(socket net.Listener, most, extra int, log *zap.Logger) *Listener {
	l := &Listener{
		Listener: nonblock.Listener(socket), all: b, start: time.Now(), open: map[*conn]struct{}{},
		max: most, extra: extra, log: logthrottle.Log(log, time.Second),
	}
	b.listeners = append(b.listeners, l)
	return l
}

// makeRoom closes a connection, because this process cannot open more files. It tries the listeners in turn, the
// one with the most connections first. It reports whether it closed a connection.
func (b *Bounds) makeRoom() bool {
	byOpen := slices.SortedFunc(slices.Values(b.listeners), func(x, y *Listener) int {
		return cmp.Compare(y.Stats().Open, x.Stats().Open)
	})
	for _, l := range byOpen {
		l.mu.Lock()
		closed := l.evict()
		l.mu.Unlock()
		if closed {
			return true
		}
	}
	return false
}

// Listener bounds the open connections by its field max. Its field extra bounds further connections, which serve
// only health checks. At the bound max, a new connection replaces the one that has been silent for longest, if that
// silence has lasted for at least evictAfter. Otherwise the new connection is a further one, or is closed.
type Listener struct {
	net.Listener
	all        *Bounds
	max, extra int
	log        *zap.Logger // logs each message at most once a second
	start      time.Time

	evicted, refused atomic.Uint64

	mu       sync.Mutex
	open     map[*conn]struct{} // guarded by mu
	toClose  []*conn            // connections to close; the one that has been silent for longest is last; guarded by mu
	lastPass time.Duration      // guarded by mu
}

func (l *Listener) now() time.Duration { return time.Since(l.start) }

// Stats describes the connections of l.
func (l *Listener) Stats() metrics.ConnectionStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return metrics.ConnectionStats{Open: len(l.open), Max: l.max, Evicted: l.evicted.Load(), Refused: l.refused.Load()}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			if l.retry(err) {
				continue
			}
			return nil, err
		}
		if c := l.admit(nc); c != nil {
			return c, nil
		}
		nc.Close()
	}
}

// retry reports whether Accept should be called again. That is so if Accept failed because too many files
// were open, and retry has closed a connection.
func (l *Listener) retry(err error) bool {
	// Accept reports by Temporary that another call may succeed
	if t, ok := errors.AsType[net.Error](err); !ok || !t.Temporary() {
		return false
	}
	l.log.Warn("connections cannot be accepted; if the error is about open files, raise their limit (ulimit -n), or lower RLSIDECAR_GRPC_MAX_CONNECTIONS and RLSIDECAR_HTTP_MAX_CONNECTIONS", zap.Error(err))
	return (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && l.all.makeRoom()
}

// admit returns nc as a connection of l, or nil if there is no room for it.
func (l *Listener) admit(nc net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := len(l.open) >= l.max && !l.evict()
	if full && len(l.open) >= l.max+l.extra {
		l.refused.Add(1)
		l.log.Warn("connections are refused, because the maximum number is open; raise RLSIDECAR_GRPC_MAX_CONNECTIONS or RLSIDECAR_HTTP_MAX_CONNECTIONS, or use fewer connections", zap.Int("max", l.max))
		return nil
	}
	c := &conn{Conn: nc, listener: l, reservedForHealth: full}
	c.lastReceived.Store(int64(l.now()))
	l.open[c] = struct{}{}
	if socket, ok := nc.(*nonblock.Conn); ok {
		return &socketConn{c, socket}
	}
	return c
}

// evict closes the connection in toClose that has been silent for longest, and reports whether there was one. If
// toClose is empty, evict first calls choose, unless the last pass was too recent. The caller holds mu.
func (l *Listener) evict() bool {
	now := l.now()
	if len(l.toClose) == 0 && (l.lastPass == 0 || now-l.lastPass >= passInterval) {
		l.choose(now)
	}
	for len(l.toClose) > 0 {
		last := len(l.toClose) - 1
		c := l.toClose[last]
		l.toClose = l.toClose[:last]
		if _, open := l.open[c]; open && c.idleAt(now) {
			delete(l.open, c)
			l.evicted.Add(1)
			l.log.Warn("idle connections are closed to make room for new ones, because the maximum number is open; raise RLSIDECAR_GRPC_MAX_CONNECTIONS or RLSIDECAR_HTTP_MAX_CONNECTIONS if clients reconnect too often", zap.Int("max", l.max))
			c.Conn.Close()
			return true
		}
	}
	return false
}

// choose stores in toClose the connections that have been silent for longest, at most maxToClose. The caller holds mu.
func (l *Listener) choose(now time.Duration) {
	l.lastPass = now
	for c := range l.open {
		if c.idleAt(now) {
			l.toClose = append(l.toClose, c)
		}
	}
	slices.SortFunc(l.toClose, func(a, b *conn) int { return cmp.Compare(b.lastReceived.Load(), a.lastReceived.Load()) })
	if most := len(l.toClose) - maxToClose; most > 0 {
		l.toClose = slices.Delete(l.toClose, 0, most)
	}
}

func (l *Listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

type conn struct {
	net.Conn
	listener          *Listener
	header            headerLines
	unread            bool // the first request is not read yet; used by the ConnState of an http.Server
	reservedForHealth bool
	lastReceived      atomic.Int64 // when bytes were last received, on the listener's clock, or the end of Hold
}

func (c *conn) self() *conn { return c }

// changed is called by the ConnState of an http.Server, on the goroutine that serves c.
func (c *conn) changed(state http.ConnState) {
	c.header.changed(state)
	if socket, ok := c.Conn.(*nonblock.Conn); ok && state == http.StateIdle {
		socket.TakeTurn()
	}
}

// Gone reports whether the client has closed its end of the connection of r. net/http notices that too, but on another
// goroutine, which may be late.
func Gone(r *http.Request) bool {
	socket, ok := connOf(r).Conn.(*nonblock.Conn)
	return ok && socket.Ended()
}

// Hold lets the connection of r count as in use for the duration d, in which its answer is held.
func Hold(r *http.Request, d time.Duration) {
	c := connOf(r)
	c.lastReceived.Store(int64(c.listener.now() + d))
}

func (c *conn) idleAt(now time.Duration) bool {
	return now-time.Duration(c.lastReceived.Load()) >= evictAfter
}

func (c *conn) Read(b []byte) (int, error) {
	if c.header.tooMany() {
		return 0, c.refuseLines()
	}
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.lastReceived.Store(int64(c.listener.now()))
		c.header.read(b[:n])
	}
	return n, err
}

func (c *conn) Close() error {
	if c.header.next.CompareAndSwap(refusedLines, 0) {
		time.AfterFunc(lingering, func() { c.Close() }) // not a wait, during which net/http would keep the header
		return nil
	}
	c.listener.remove(c)
	return c.Conn.Close()
}

func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// socketConn is a conn that also has the methods WriteOnce and Await of its nonblock.Conn.
type socketConn struct {
	*conn
	socket *nonblock.Conn
}

func (c *socketConn) WriteOnce(b []byte) (int, error) { return c.socket.WriteOnce(b) }

func (c *socketConn) Await() error { return c.socket.Await() }

// onlyHealth reports whether it has refused the request. It refuses requests other than health checks on a
// connection that serves only these. After any answer on such a connection, the connection is closed.
func onlyHealth(w http.ResponseWriter, r *http.Request) bool {
	if !connOf(r).reservedForHealth {
		return false
	}
	w.Header().Set("Connection", "close")
	switch r.URL.Path {
	case "/livez", "/readyz", "/healthcheck":
		return false
	}
	http.Error(w, "too many connections are open", http.StatusServiceUnavailable)
	return true
}
