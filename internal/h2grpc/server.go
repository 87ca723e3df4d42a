// Package h2grpc is a gRPC server for one unary method, directly on HTTP/2 frames. All requests that a
// connection has brought are put to the method together, and their answers leave in one write: what a
// gRPC library does for each request (goroutines, channels, contexts, header maps) is what a cheap
// method would otherwise mostly cost. Where the method answers at once a request costs no goroutine and
// no allocation.
//
// Everything else on the connection, other methods and what is unusual about this one (compression,
// other content types, malformed messages), is handed over stream by stream to an http.Handler, which
// is a grpc.Server.
//
// It knows nothing of what the messages mean. Whatever a client does, memory and processor time are
// bounded: see limits.go.
package h2grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Method answers the requests of one unary method.
type Method interface {
	NewBatch() Batch
	// Ready tells whether Batch.Now may answer anything now.
	Ready() bool
	// Denial is the answer to requests that are too much to be looked at.
	Denial() []byte
	// Later calls answer after d, unless it is stopped before.
	Later(d algorithms.Micros, answer func()) (stop func())
	// Answered is told of each answer to a request that arrived then.
	Answered(arrived time.Time)
	// Panicked reports what Finish, GiveUp, Hold or Append of a Batch panicked with; the request is denied. Or
	// what Config.Others did; the stream is reset.
	Panicked(value any)
}

// Batch answers many requests together: Add each, Take once, then Finish and Append each; from Reset on
// it is empty again. Requests are numbered from 0.
type Batch interface {
	Reset()
	// Add adds a message, which stays what it is until Reset. The caller waits for as long as left; 0: for
	// ever, negative: no more.
	Add(message []byte, arrived time.Time, left time.Duration)
	// Now takes the message that was added last, if that needs no waiting: Take is not called for it then.
	// Otherwise it is as if it had not been added. With Config.Flights only.
	Now() bool
	// Take may wait, where Config.Flights says so.
	Take(ctx context.Context)
	// Start is Take, but returns at once; done is called once requests may be finished, not before it has
	// returned, by a goroutine that is not to be kept. false: it cannot. With Config.Flights only.
	Start(done func()) bool
	Finish(ctx context.Context, i int)
	// GiveUp takes the place of Finish, and may be called while Take is under way.
	GiveUp(ctx context.Context, i int, late error)
	// Append appends the answer; an error is a status, and nothing has been appended.
	Append(to []byte, i int) ([]byte, *Status)
	// Weight is how much was added, but for what Now has taken back: a charge, and a descriptor without one,
	// weighs 1.
	Weight() int
	// Hold is how long the answer is to be held back.
	Hold(i int) algorithms.Micros
}

// Status is a gRPC status that is not OK.
type Status struct {
	Code    uint32
	Message string
}

// Config of a Server.
type Config struct {
	// Path is /package.Service/Method.
	Path   string
	Method Method
	// Others answers all other streams.
	Others http.Handler

	// Flights is how many Takes of one connection may be under way; 0: Take does not wait, and is called
	// by who reads the connection.
	Flights int
	// Timeout is for how long a request may wait for Take, and Margin what is kept of its caller's
	// deadline to give the answer in. Late is what it is then given up with. With Flights only.
	Timeout, Margin time.Duration
	Late            error

	// TLS of the connections; nil: none.
	TLS *tls.Config
	// MaxConnectionAge ends connections that are older, MaxConnectionGrace what they still have under way
	// later; 0: never.
	MaxConnectionAge, MaxConnectionGrace time.Duration
	// MaxConnectionIdle ends connections that have nothing under way for so long; 0: never.
	MaxConnectionIdle time.Duration

	// Tick is how often connections are looked after; 0: once a second, or as MaxConnectionAge and
	// MaxConnectionIdle need it.
	Tick time.Duration
}

// Server serves connections. Make it with New.
type Server struct {
	config  Config
	context context.Context // of all that is handed over
	cancel  context.CancelFunc
	batches sync.Pool
	flights sync.Pool

	aloft aloft
	held  atomic.Int64 // bytes of requests and answers that connections keep: conn.counted
	count atomic.Int64 // connections

	goroutines sync.WaitGroup
	stopped    chan struct{}
	end        func() // closes stopped

	mu        sync.Mutex
	draining  bool                      // guarded by mu
	listeners map[net.Listener]struct{} // guarded by mu
	conns     map[*conn]struct{}        // guarded by mu
	empty     *sync.Cond                // conns may be empty
}

// New makes a Server.
func New(c Config) *Server {
	if c.Tick == 0 {
		c.Tick = time.Second
		for _, d := range []time.Duration{c.MaxConnectionAge, c.MaxConnectionIdle} {
			if d > 0 {
				c.Tick = min(c.Tick, max(10*time.Millisecond, d/10))
			}
		}
	}
	s := &Server{
		config: c, stopped: make(chan struct{}),
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{},
	}
	s.empty = sync.NewCond(&s.mu)
	s.end = sync.OnceFunc(func() { close(s.stopped) })
	s.context, s.cancel = context.WithCancel(context.Background())
	s.batches.New = func() any { return c.Method.NewBatch() }
	s.flights.New = func() any { return &flight{batch: c.Method.NewBatch()} }
	s.goroutines.Go(s.watch)
	return s
}

// Serve serves what l accepts, best nonblock.Conns, until l fails or the server is told to stop: then it returns nil.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	for delay := time.Duration(0); ; {
		nc, err := l.Accept()
		if err == nil {
			delay = 0
			s.start(nc)
			continue
		}
		s.mu.Lock()
		ending := s.draining
		s.mu.Unlock()
		if ending {
			return nil
		}
		//nolint:staticcheck // of Accept it tells that trying again may help: too many open files
		if t, ok := errors.AsType[net.Error](err); !ok || !t.Temporary() {
			return err
		}
		delay = min(max(5*time.Millisecond, 2*delay), time.Second)
		select {
		case <-time.After(delay):
		case <-s.stopped:
		}
	}
}

func (s *Server) start(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.count.Add(1)
	s.goroutines.Go(c.serve)
}

func (s *Server) gone(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.count.Add(-1)
	if len(s.conns) == 0 {
		s.empty.Broadcast()
	}
}

// all are the connections there are.
func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}

// Stop tells clients to go elsewhere, waits until what they have asked is answered, and cuts off what
// is left when ctx ends. It returns when all is closed.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	s.draining = true
	for l := range s.listeners {
		l.Close()
	}
	s.mu.Unlock()
	for _, c := range s.all() {
		c.drain()
	}
	cut := context.AfterFunc(ctx, func() {
		for _, c := range s.all() {
			c.fail(nil)
		}
	})
	s.mu.Lock()
	for len(s.conns) > 0 {
		s.empty.Wait()
	}
	s.mu.Unlock()
	cut()
	s.cancel()
	s.end()
	s.goroutines.Wait()
}

// watch looks after connections from time to time.
func (s *Server) watch() {
	tick := time.NewTicker(s.config.Tick)
	defer tick.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case now := <-tick.C:
			for _, c := range s.all() {
				c.tick(now)
			}
		}
	}
}
