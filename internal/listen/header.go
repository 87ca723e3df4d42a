package listen

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
)

const (
	// maxHeader bounds the header of an HTTP request, in bytes. It exceeds Envoy's default of 60 KiB.
	maxHeader = 64 << 10
	// maxHeaderLines bounds the lines of the header. net/http needs a hundred times the memory of a short line, so
	// maxHeader alone would allow megabytes for each connection.
	maxHeaderLines = 256
	// readAhead is the size of net/http's read buffer. net/http accepts a header that exceeds its bound by this size.
	readAhead = 4 << 10
	// lingering is how long a connection stays open after refuseLines. If it were closed while bytes of its client are
	// unread, the client could lose the answer. net/http waits as long.
	lingering = 500 * time.Millisecond
)

// headerLines counts the lines that arrive while net/http reads the header of a request. Its zero value counts
// nothing.
type headerLines struct {
	next atomic.Int32 // the number of the next line, from 1; 0 while no header is being read; refusedLines after refuseLines
}

const refusedLines = -1

func (h *headerLines) changed(state http.ConnState) {
	switch state {
	case http.StateNew, http.StateIdle:
		h.next.Store(1)
	case http.StateActive:
		h.end()
	}
}

// end must be called when the header has been read.
func (h *headerLines) end() {
	if h.next.Load() > 0 {
		h.next.Store(0)
	}
}

// tooMany reports whether the header is incomplete and has too many lines already. It must be called before each
// read: only then is it certain that the bytes read before contain no end of the header. So one read buffer can exceed
// the bound; refuseHeader counts again.
func (h *headerLines) tooMany() bool {
	next := h.next.Load()
	return next > maxHeaderLines+2 || next == refusedLines // line 1 is the request line
}

func (h *headerLines) read(b []byte) {
	if next := h.next.Load(); next > 0 {
		h.next.CompareAndSwap(next, next+int32(bytes.Count(b, []byte{'\n'})))
	}
}

const headerRefused = "the header of a request must have at most 256 lines and 64 KiB"

// refuseLines answers the request whose header has too many lines, as net/http answers one that has too many bytes.
// It returns the error of the read, after which net/http may try to read again, and closes the connection.
func (c *conn) refuseLines() error {
	if c.header.next.Swap(refusedLines) == refusedLines {
		return io.EOF
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // an error only means that the connection has ended
	_, _ = io.WriteString(c.Conn, "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"+headerRefused+"\n")
	_ = c.CloseWrite()
	return io.EOF
}

type connKey struct{}

// withConn is a part of the ConnContext of an http.Server. Its result has the connection for connOf.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, innerConn(nc))
}

// connOf returns the connection of a request.
func connOf(r *http.Request) *conn { return r.Context().Value(connKey{}).(*conn) }

// innerConn returns the conn in a connection of an http.Server.
func innerConn(nc net.Conn) *conn {
	if p, ok := nc.(*proxyproto.Conn); ok {
		nc = p.Raw()
	}
	return nc.(interface{ self() *conn }).self()
}

// refuseHeader reports whether it has refused the request, because its header has too many lines.
func refuseHeader(w http.ResponseWriter, r *http.Request) bool {
	lines := 1 // the line with the host, which is not in r.Header
	for _, values := range r.Header {
		lines += len(values)
	}
	if lines <= maxHeaderLines {
		return false
	}
	w.Header().Set("Connection", "close")
	http.Error(w, headerRefused, http.StatusRequestHeaderFieldsTooLarge)
	return true
}
