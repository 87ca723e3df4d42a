package server

import (
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// parkAfter is the idle time after which an HTTP connection is parked. Tests change parkAfter.
var parkAfter = time.Second

// parkingListener saves the memory of idle HTTP connections. For each connection net/http keeps two buffers
// and a large stack, 18 KiB in all. When a connection has been idle for parkAfter, parkingListener reports to
// net/http that the connection has ended, but keeps the socket open: the connection is parked. When the
// client sends something, the listener returns the socket as a new connection.
type parkingListener struct {
	net.Listener
	accepted chan acceptance
	closing  chan struct{}
	ended    chan struct{} // closed when the goroutines of running have ended
	close    func() error  // closes the listener; later calls have no effect
	running  sync.WaitGroup

	mu     sync.Mutex
	parked map[*boundedSocket]struct{} // guarded by mu; nil after Close
}

type acceptance struct {
	conn net.Conn
	err  error
}

func newParkingListener(inner net.Listener) *parkingListener {
	l := &parkingListener{
		Listener: inner, accepted: make(chan acceptance), closing: make(chan struct{}), ended: make(chan struct{}),
		parked: map[*boundedSocket]struct{}{},
	}
	l.close = sync.OnceValue(func() error {
		close(l.closing)
		err := inner.Close()
		l.mu.Lock()
		for socket := range l.parked {
			socket.Close()
		}
		l.parked = nil
		l.mu.Unlock()
		go func() {
			l.running.Wait()
			close(l.ended)
		}()
		return err
	})
	l.running.Go(func() {
		for {
			c, err := inner.Accept()
			if socket, ok := c.(*boundedSocket); ok {
				c = &parkable{boundedSocket: socket, listener: l}
			}
			if !l.pass(acceptance{c, err}) {
				return
			}
		}
	})
	return l
}

// Accept still returns, after Close, the connections that were accepted before.
func (l *parkingListener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close also closes the parked connections, as net/http closes idle connections.
func (l *parkingListener) Close() error { return l.close() }

// passTimeout is how long a connection waits for a call of Accept after Close. The Serve method of an
// http.Server may be about to call Accept.
const passTimeout = time.Second

// pass returns false if the listener is closed.
func (l *parkingListener) pass(a acceptance) bool {
	select {
	case l.accepted <- a:
		return true
	case <-l.closing:
	}
	if a.conn == nil {
		return false
	}
	select {
	case l.accepted <- a: // the client may be waiting for an answer
	case <-time.After(passTimeout): // Accept is no longer called
		a.conn.Close()
	}
	return false
}

// park keeps a socket open until its client sends something, until timeout, or until l is closed. The zero timeout means
// none. If the client sends something, Accept returns the socket.
func (l *parkingListener) park(socket *boundedSocket, timeout time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parked == nil {
		return socket.Close()
	}
	l.parked[socket] = struct{}{}
	l.running.Go(func() {
		_ = socket.SetReadDeadline(timeout)
		err := socket.Await()
		l.mu.Lock()
		delete(l.parked, socket)
		l.mu.Unlock()
		if err != nil {
			socket.Close()
			return
		}
		_ = socket.SetReadDeadline(time.Time{})
		l.pass(acceptance{conn: &parkable{boundedSocket: socket, listener: l}})
	})
	return nil
}

// parkable is a connection that can be parked. net/http reads it on one goroutine at a time.
type parkable struct {
	*boundedSocket
	// firstRequest is not part of boundedSocket, because a parked socket becomes a new parkable before net/http has
	// finished with the old one.
	firstRequest
	listener  *parkingListener
	buffer    int  // the length of net/http's buffer
	idle      bool // net/http waits for the next request
	idleUntil time.Time
	parked    atomic.Bool
}

// parkIdle is the ConnState function of an http.Server.
func parkIdle(nc net.Conn, state http.ConnState) {
	if c, ok := nc.(*parkable); ok {
		c.idle = state == http.StateIdle
	}
}

// SetReadDeadline implements net.Conn. net/http calls it with the idle timeout before it waits for the next
// request.
func (c *parkable) SetReadDeadline(t time.Time) error {
	if c.idle {
		c.idleUntil = t
		if soon := time.Now().Add(parkAfter); t.IsZero() || soon.Before(t) {
			t = soon
		}
	}
	return c.boundedSocket.SetReadDeadline(t)
}

// Read implements net.Conn. A connection is not parked while net/http's buffer contains bytes of a request.
// The buffer contains bytes if b is shorter than the longest b so far.
func (c *parkable) Read(b []byte) (int, error) {
	c.buffer = max(c.buffer, len(b))
	n, err := c.boundedSocket.Read(b)
	if n > 0 || !c.idle || !errors.Is(err, os.ErrDeadlineExceeded) || !c.idleUntil.IsZero() && !time.Now().Before(c.idleUntil) {
		return n, err
	}
	if len(b) == c.buffer {
		c.parked.Store(true) // net/http closes the connection next
		return n, err
	}
	_ = c.boundedSocket.SetReadDeadline(c.idleUntil)
	return c.boundedSocket.Read(b)
}

func (c *parkable) Close() error {
	if c.parked.Swap(false) {
		return c.listener.park(c.boundedSocket, c.idleUntil)
	}
	return c.boundedSocket.Close()
}
