package listen

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// defaultIdle is longer than the default idle timeouts of NGINX, Traefik and Caddy. If the sidecar closed an idle
// connection first, the proxy might be sending a request on it.
const defaultIdle = 5 * time.Minute

// HTTPServer is an http.Server whose end loses no request.
type HTTPServer struct {
	http.Server
	unready atomic.Bool  // answers close their connections
	unread  atomic.Int64 // accepted connections whose first request net/http has not read

	mu       sync.Mutex
	listener net.Listener  // guarded by mu; nil before Serve and after Stop
	served   chan struct{} // closed when Serve ends
	stopped  bool          // guarded by mu
}

// NewHTTP returns a server whose requests handler serves. timeout bounds the time to write an answer; 0 means none. idle
// is the time without a request after which a connection is closed; 0 means five minutes.
func NewHTTP(handler http.Handler, timeout, idle time.Duration, log *zap.Logger) *HTTPServer {
	h := &HTTPServer{served: make(chan struct{})}
	h.ReadTimeout, h.ReadHeaderTimeout, h.WriteTimeout = 10*time.Second, 5*time.Second, timeout
	h.IdleTimeout = cmp.Or(idle, defaultIdle)
	h.MaxHeaderBytes = maxHeader - readAhead
	h.ErrorLog, _ = zap.NewStdLogAt(log, zap.DebugLevel) // the errors are mistakes of clients
	h.ConnContext = withConn
	h.ConnState = func(nc net.Conn, state http.ConnState) {
		c := innerConn(nc)
		if c.unread != (state == http.StateNew) {
			if c.unread = !c.unread; c.unread {
				h.unread.Add(1)
			} else {
				h.unread.Add(-1)
			}
		}
		c.changed(state)
	}
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connOf(r).header.end()
		if h.unready.Load() {
			w.Header().Set("Connection", "close") // the client continues on another connection, to another process
		}
		if !refuseHeader(w, r) && !onlyHealth(w, r) {
			handler.ServeHTTP(w, r)
		}
	})
	return h
}

// Unready makes each answer close its connection, so that clients continue elsewhere.
func (h *HTTPServer) Unready() { h.unready.Store(true) }

// Serve serves the connections of l, which are those of a Listener. It returns nil after Stop.
func (h *HTTPServer) Serve(l net.Listener) error {
	h.mu.Lock()
	if h.stopped {
		h.mu.Unlock()
		return l.Close()
	}
	h.listener = l
	h.mu.Unlock()
	defer close(h.served)
	err := h.Server.Serve(l)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil
	}
	return err
}

// Stop closes the listener, and waits for the requests in flight until ctx ends.
//
// After Shutdown has begun, net/http reads the first request of a connection and closes the connection without an
// answer. Proxies open a connection for each request while the listener is not ready. So Stop first waits until these
// requests are read. It does not wait longer than 5 s, as long as Shutdown waits for a connection that sends nothing.
func (h *HTTPServer) Stop(ctx context.Context) {
	h.mu.Lock()
	h.stopped = true
	l := h.listener
	h.mu.Unlock()
	if l != nil {
		l.Close()
		<-h.served // now unread counts all accepted connections
	}
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for pause := time.Millisecond; h.unread.Load() > 0 && soon.Err() == nil; pause = min(2*pause, 50*time.Millisecond) {
		time.Sleep(pause)
	}
	if h.Shutdown(ctx) != nil {
		h.Close()
	}
}
