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
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Method answers the requests of one unary method.
type Method interface {
	NewBatch() Batch
	// Denial is the answer to requests that are too much to be looked at.
	Denial() []byte
	// Later calls answer after d, unless it is stopped before.
	Later(d algorithms.Micros, answer func()) (stop func())
	// Answered is told of each answer to a request that arrived then.
	Answered(arrived time.Time)
	// Panicked reports the value with which a Batch panicked; its requests are denied, or the one request that it
	// panicked about. Or that with which Config.Others panicked; the stream is reset.
	Panicked(value any)
}

// Batch answers many requests together: Add each, Submit once, then Finish and Append each; from Reset on
// it is empty again. Requests are numbered from 0. It is used by one goroutine at a time.
type Batch interface {
	Reset()
	// Add adds a message, which stays unchanged until Reset. The caller waits for as long as left; 0: for
	// ever, negative: no longer. canceled becomes true when the client has gone; nil with Config.Inline.
	Add(message []byte, arrived time.Time, left time.Duration, canceled *atomic.Bool)
	// Submit has all requests decided, by deadline where it is not zero. done is called once, from any goroutine, and
	// possibly before Submit returns; with Config.Inline always. When it is called after Submit has returned,
	// source.Flush must be called later.
	Submit(deadline time.Time, source *backend.Source, done func())
	// Known reports whether request i can be finished before done. It is called after Submit.
	Known(i int) bool
	Finish(i int)
	// Append appends the answer; an error is a status, and nothing has been appended.
	Append(to []byte, i int) ([]byte, *Status)
	// Weight is how much was added: a charge, and a descriptor without one, weighs 1.
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

	// Inline says that Batch.Submit calls done before it returns. Then messages are not copied, and deadlines are
	// the Method's own business.
	Inline bool
	// Patience is how long a request may wait to be submitted where much is outstanding; 0: as long as its caller
	// waits.
	Patience time.Duration

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

	operations  sync.Pool
	outstanding outstanding
	held        atomic.Int64 // bytes of requests and answers that connections keep: conn.counted
	count       atomic.Int64 // connections

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
	s.operations.New = func() any { return newOperation(c.Method.NewBatch()) }
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
