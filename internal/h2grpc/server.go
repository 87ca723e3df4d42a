// Package h2grpc is a gRPC server for one unary method, implemented directly on HTTP/2 frames.
//
// The requests that one read of a connection returns form one batch (up to 256 of them, with one deadline), and
// their answers are sent in one write. A gRPC library uses goroutines, channels, contexts and header maps for
// each request, which would cost more than a cheap method itself. If the method answers at once, a request needs
// no goroutine and no allocation.
//
// Calls of other methods are passed to an http.Handler stream by stream. That handler is a grpc.Server.
//
// The package does not know the content of messages. Memory and processor time per client are bounded; see
// limits.go.
package h2grpc

import (
	"cmp"
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
	// Denial returns the answer to a request that exceeds a bound, and to a request whose Batch panicked.
	Denial() []byte
	// Oversized is called for each request that is denied without being decoded, because it exceeds a bound.
	Oversized()
	// Later calls answer after d, unless stop is called before.
	Later(d algorithms.Micros, answer func()) (stop func())
	// Unused is called with the id of each slot (Answer.Slots) whose answer the client does not use: it reset the call
	// before the answer, or within 5 s after it. It must not block.
	Unused(id string)
	// Panicked is called with the value of a recovered panic. After a panic in a Batch, all its requests,
	// or the one that caused it, are denied. After a panic in Config.Others, the stream is reset.
	Panicked(value any)
}

// Batch decides many requests together. The server calls Add for each request, Submit once, then Finish for each
// request, and finally Reset, which empties the Batch. Requests are numbered from 0. Only one goroutine uses a Batch at
// a time. All methods may panic (see Method.Panicked). Add numbers the request even then, and Finish denies it. After a
// panic in Submit the server does not use the Batch any more.
type Batch interface {
	Reset()
	// Add adds a message, which stays unchanged until Reset. left is the time until the caller's deadline;
	// 0 means that there is none, and a negative value that the deadline has passed. canceled becomes true
	// when the client cancels the request or disconnects; with Config.Inline it is nil. trace is the result of
	// Config.Caller. Add returns the size of the batch: the sum over its requests of the number of charges or the number
	// of descriptors, whichever is larger.
	Add(message []byte, arrived time.Time, left time.Duration, canceled *atomic.Bool, trace any) (weight int)
	// Submit starts to decide all requests, by deadline unless that is zero. It calls done exactly once,
	// from any goroutine, possibly before Submit returns. With Config.Inline it always does so before. If
	// it calls done after Submit has returned, it must call source.Flush afterwards.
	Submit(deadline time.Time, source *backend.Source, done func())
	// Known reports whether request i can be finished before done is called. The server calls it after Submit.
	Known(i int) bool
	// Finish computes the answer to request i from its decisions, and appends its message to to. The server calls it
	// once.
	Finish(to []byte, i int) ([]byte, Answer)
}

// Answer is the answer to a request, without its message.
type Answer struct {
	// Status is nil for an answer with a message.
	Status *Status
	// Slots is the id of the slots that the request occupies until they are returned, or "" if it occupies none.
	Slots string
	// Delay is how long the answer must be delayed; 0 means not at all.
	Delay algorithms.Micros
}

// Status is a gRPC status that is not OK.
type Status struct {
	Code    uint32
	Message string
}

// Config configures a Server.
type Config struct {
	Path   string // /package.Service/Method
	Method Method
	// Others serves the streams of other methods.
	Others http.Handler
	// Caller, if not nil, is called for each request for the Method, with a function that returns the value of a header
	// field, or "". Its result is passed to Batch.Add.
	Caller func(field func(name string) string) any

	// Inline means that Batch.Submit always calls done before it returns. The server then does not copy
	// messages, and leaves deadlines to the Method.
	Inline bool
	// SubmitTimeout is how long a request may wait to be submitted while too much is outstanding. 0 means until
	// the caller's deadline.
	SubmitTimeout time.Duration
	// BufferedBytes is the memory of the streams of all connections together, in bytes, from which on the bounds of each
	// connection become lower. 0 means 32 MiB. All connections together hold at most twice as many bytes, and 64 KiB each
	// for their streams. Each may hold further 64 KiB of submitted requests, and 64 KiB that wait to be written.
	BufferedBytes int

	// Handshake makes the handshake of a TLS server. nil means no TLS.
	Handshake func(net.Conn) (*tls.Conn, error)
	// MaxConnectionAge is the age at which connections are drained. MaxConnectionGrace is the time after which
	// a connection that is drained because of its age is closed. 0 means never.
	MaxConnectionAge, MaxConnectionGrace time.Duration
	// MaxConnectionIdle is the time after which connections without requests are drained; 0 means never.
	MaxConnectionIdle time.Duration

	// Tick is the interval between checks of a connection's timeouts. 0 means one second, or less if
	// MaxConnectionAge or MaxConnectionIdle require it.
	Tick time.Duration
}

// Server serves connections. Make it with New.
type Server struct {
	config  Config
	context context.Context // parent of the contexts of Config.Others
	cancel  context.CancelFunc

	operations    sync.Pool
	outstanding   outstanding
	bufferedBytes atomic.Int64 // the sum of conn.counted
	connCount     atomic.Int64
	decompressing sync.Mutex // see conn.compressed

	goroutines   sync.WaitGroup
	closing      chan struct{} // closed when Stop begins
	stopped      chan struct{}
	closeStopped func()

	serveCalls sync.WaitGroup

	mu        sync.Mutex // guards the fields after it
	draining  bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	empty     *sync.Cond // signals that conns may be empty
}

// New makes a Server. Stop releases its resources.
func New(c Config) *Server {
	c.BufferedBytes = cmp.Or(c.BufferedBytes, maxTotalBuffered)
	if c.Tick == 0 {
		c.Tick = time.Second
		for _, d := range []time.Duration{c.MaxConnectionAge, c.MaxConnectionIdle} {
			if d > 0 {
				c.Tick = min(c.Tick, max(10*time.Millisecond, d/10))
			}
		}
	}
	s := &Server{
		config: c, closing: make(chan struct{}), stopped: make(chan struct{}),
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{},
	}
	s.empty = sync.NewCond(&s.mu)
	s.closeStopped = sync.OnceFunc(func() { close(s.stopped) })
	s.context, s.cancel = context.WithCancel(context.Background())
	s.operations.New = func() any { return newOperation(c.Method.NewBatch()) }
	s.goroutines.Go(s.watch)
	return s
}

// Serve serves the connections that l accepts, until Accept returns an error that is not temporary. It returns nil
// if Stop ended it. If Stop was called before, Serve only closes l and returns the error of Close. Connections of
// type nonblock.Conn are the most efficient.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	s.serveCalls.Add(1)
	s.mu.Unlock()
	defer s.serveCalls.Done()
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
		// Temporary is deprecated, but for Accept it means that a retry may help, as with too many open files
		if t, ok := errors.AsType[net.Error](err); !ok || !t.Temporary() {
			return err
		}
		delay = min(max(5*time.Millisecond, 2*delay), time.Second)
		select {
		case <-time.After(delay):
		case <-s.closing:
		}
	}
}

func (s *Server) start(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.connCount.Add(1)
	s.goroutines.Go(c.serve)
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.connCount.Add(-1)
	if len(s.conns) == 0 {
		s.empty.Broadcast()
	}
}

func (s *Server) openConns() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}

// Stop drains the server: it closes the listeners, sends GOAWAY to clients, and waits until all requests
// are answered. When ctx ends, it closes the remaining connections. It returns when all connections are closed.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		close(s.closing)
	}
	for l := range s.listeners {
		l.Close()
	}
	s.mu.Unlock()
	s.serveCalls.Wait() // so that the loop below drains the connection accepted last, whose client may have sent requests
	for _, c := range s.openConns() {
		c.drain()
	}
	cut := context.AfterFunc(ctx, func() {
		for _, c := range s.openConns() {
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
	s.closeStopped()
	s.goroutines.Wait()
}

func (s *Server) watch() {
	tick := time.NewTicker(s.config.Tick)
	defer tick.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case now := <-tick.C:
			for _, c := range s.openConns() {
				c.tick(now)
			}
		}
	}
}
