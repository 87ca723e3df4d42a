package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
)

// firstRequests waits for the first requests of accepted connections before an http.Server is shut down. After
// Shutdown has begun, net/http reads such a request and closes the connection without an answer.
type firstRequests struct {
	waiting atomic.Int64 // connections whose first request net/http has not read

	mu       sync.Mutex
	listener net.Listener  // guarded by mu; nil before serve
	stopped  bool          // guarded by mu
	served   chan struct{} // made by serve, and closed when it ends; guarded by mu
}

// firstRequest is a part of a connection of an http.Server. The ConnState of the server uses it.
type firstRequest struct {
	awaited bool // net/http has not read the first request
}

func (f *firstRequest) await(awaited bool) (changed bool) {
	changed = f.awaited != awaited
	f.awaited = awaited
	return changed
}

// mayWait is how long stop waits for a connection that sends nothing. net/http's Shutdown waits as long.
const mayWait = 5 * time.Second

// changed is called by the ConnState of the http.Server.
func (f *firstRequests) changed(nc net.Conn, state http.ConnState) {
	if p, ok := nc.(*proxyproto.Conn); ok {
		nc = p.Raw()
	}
	c, ok := nc.(interface {
		await(awaited bool) (changed bool)
	})
	if !ok || !c.await(state == http.StateNew) {
		return
	}
	if state == http.StateNew {
		f.waiting.Add(1)
	} else {
		f.waiting.Add(-1)
	}
}

func (f *firstRequests) serve(h *http.Server, l net.Listener) error {
	f.mu.Lock()
	if f.stopped {
		f.mu.Unlock()
		return l.Close()
	}
	f.listener, f.served = l, make(chan struct{})
	f.mu.Unlock()
	defer close(f.served)
	err := h.Serve(l)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// stop closes the listener. It returns when the first request of each connection has been read, after mayWait at the
// latest, or when ctx ends.
func (f *firstRequests) stop(ctx context.Context) {
	f.mu.Lock()
	f.stopped = true
	listener, served := f.listener, f.served
	f.mu.Unlock()
	if listener == nil {
		return
	}
	listener.Close()
	ctx, cancel := context.WithTimeout(ctx, mayWait)
	defer cancel()
	select {
	case <-served: // connections that were accepted before have been counted
	case <-ctx.Done():
	}
	for pause := time.Millisecond; f.waiting.Load() > 0; pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
