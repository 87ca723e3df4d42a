package listen

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

func TestConnectionBoundsFollowFilesAndMemory(t *testing.T) {
	for _, c := range []struct {
		files     uint64
		memory    int64
		listeners int
		traffic   int
		admin     int
	}{
		{0, math.MaxInt64, 2, 8192, 64}, // the number of files is unknown
		{1 << 20, math.MaxInt64, 2, 8192, 64},
		{1 << 20, math.MaxInt64, 1, 16 << 10, 64},
		{1024, math.MaxInt64, 2, 448, 32}, // 128 files are reserved
		{256, math.MaxInt64, 2, 108, 10},  // 40 files are reserved
		{16, math.MaxInt64, 2, 8, 10},     // too few files, but some connections are served
		{1 << 20, 256 << 20, 2, 512, 64},  // connections may use a quarter of 256 MiB
		{1 << 20, 1 << 20, 2, fewestConnections, 64},
	} {
		if traffic, admin := ConnectionBounds(c.files, c.memory, c.listeners); traffic != c.traffic || admin != c.admin {
			t.Errorf("%+v: %d connections for traffic and %d for admin; want %d and %d", c, traffic, admin, c.traffic, c.admin)
		}
	}
}

func TestHealthIsServedBeyondTheBound(t *testing.T) {
	usual := evictAfter
	t.Cleanup(func() { evictAfter = usual })
	evictAfter = time.Hour // no connection counts as silent, even on a slow machine
	const most = 3
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := NewHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), 0, 0, zap.NewNop())
	served := make(chan error, 1)
	go func() { served <- h.Serve((&Bounds{}).Add(socket, most, HealthConnections, zap.NewNop())) }()
	defer func() {
		now, cancel := context.WithCancel(t.Context())
		cancel()
		h.Stop(now)
		_ = <-served
	}()
	send := func(nc net.Conn) {
		_, _ = io.WriteString(nc, "GET /v1/auth HTTP/1.1\r\nHost: h\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(nc), nil)
		if err != nil || r.StatusCode != 200 {
			t.Fatalf("a connection in use: %v %v; want no error and status 200", r, err)
		}
		r.Body.Close()
	}
	var inUse []net.Conn
	for range most {
		nc, err := net.Dial("tcp", socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		send(nc)
		inUse = append(inUse, nc)
	}
	for range 2 * HealthConnections {
		for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/healthcheck": 200, "/v1/auth": 503, "/json": 503} {
			r, err := http.Get("http://" + socket.Addr().String() + path)
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode != want || !r.Close {
				t.Errorf("%s: %d, closes the connection: %t; want %d and a closed connection", path, r.StatusCode, r.Close, want)
			}
		}
	}
	for _, nc := range inUse {
		send(nc)
	}
}

// outOfFiles is a listener that cannot accept while other listeners have connections.
type outOfFiles struct {
	net.Listener
	others func() int
}

func (l outOfFiles) Accept() (net.Conn, error) {
	if l.others() > 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestAnIdleConnectionIsClosedWhenFileDescriptorsRunOut(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	all := &Bounds{}
	bound := func() *Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		b := &Listener{
			Listener: nonblock.Listener(l), all: all, max: 100, log: zap.New(core),
			start: time.Now().Add(-time.Hour), open: map[*conn]struct{}{},
		}
		all.listeners = append(all.listeners, b)
		return b
	}
	full, other := bound(), bound()
	dial := func(l net.Listener) net.Conn {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	client := dial(full)
	nc, err := full.Accept()
	if err != nil {
		t.Fatal(err)
	}
	nc.(*socketConn).lastReceived.Store(0) // as if an hour ago
	other.Listener = outOfFiles{other.Listener, func() int { return full.Stats().Open }}
	dial(other)
	accepted := make(chan error, 1)
	go func() {
		nc, err := other.Accept()
		if err == nil {
			err = nc.Close()
		}
		accepted <- err
	}()
	select {
	case err := <-accepted:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the process is out of files, and no silent connection was closed for the new one: %+v", full.Stats())
	}
	if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("the silent connection: %v; want an error other than net.ErrClosed", err)
	}
	if logs.FilterMessageSnippet("connections cannot be accepted").Len() != 1 {
		t.Errorf("got the log %+v; want one line about connections that cannot be accepted", logs.All())
	}
	if full, other := full.Stats(), other.Stats(); full.Evicted != 1 || full.Open != 0 || other.Open != 0 {
		t.Errorf("got %+v, %+v; want full.Evicted 1, full.Open 0 and other.Open 0", full, other)
	}
}
