package h2grpc

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// fullAndBroken is a connection whose writes fail once broken is set. Its reads fill the buffer. Before the second
// read returns, the connection calls meanwhile.
type fullAndBroken struct {
	tape
	first     []byte
	rest      []byte
	meanwhile func()
	broken    bool
	reads     int
}

func (f *fullAndBroken) Read(b []byte) (int, error) {
	switch f.reads++; {
	case len(f.first) > 0:
		n := copy(b, f.first)
		f.first = f.first[n:]
		return n, nil
	case f.meanwhile != nil:
		f.meanwhile()
		f.meanwhile = nil
	case f.reads > 100:
		return 0, errors.New("the reader does not end")
	}
	return copy(b, f.rest), nil
}

func (f *fullAndBroken) Write(b []byte) (int, error) {
	if f.broken {
		return 0, errors.New("broken pipe")
	}
	return len(b), nil
}

func (f *fullAndBroken) WriteOnce(b []byte) (int, error) { return f.Write(b) }

// While the reader reads, an answer cannot be written, so the connection is closed. The frames in the full buffer are
// then not handled. The reader must end, although it does not learn of the end from the socket.
func TestAConnectionThatIsClosedWithAFullBufferEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		s := New(Config{Path: path, Method: &echo{store: store}})
		defer s.Stop(t.Context())
		nc := &fullAndBroken{}
		to := newClient(t, nc)
		to.send("a")
		nc.first = append(nc.first, to.out.Bytes()...)
		to.out.Reset()
		for to.out.Len() < readBuffer {
			to.send("b")
		}
		nc.rest = to.out.Bytes()
		nc.meanwhile = func() {
			nc.broken = true
			store.complete()
		}
		s.start(nc)
		synctest.Wait()
		if open := len(s.openConns()); open != 0 || nc.reads > 4 {
			t.Errorf("%d connections are open after %d reads; want none, after at most 4 reads", open, nc.reads)
		}
	})
}

// A client that resets its connection at any byte, or at any time during a flood of requests, must leave nothing that
// still runs.
func TestResetConnectionsEnd(t *testing.T) {
	store := newSlowStore(ms)
	s, connect := serveTCP(t, &echo{store: store}, 0, plain)
	exchange := func(requests int) []byte {
		c := newClient(t, nil)
		for range requests {
			c.send("m")
		}
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: c.encode(":method", "POST", ":path", "/x.Y/Z",
			":scheme", "http", ":authority", "test", "content-type", "application/grpc"), EndHeaders: true})
		_ = c.to.WriteData(c.next, true, framed("m"))
		return c.out.Bytes()
	}
	short, long := exchange(3), exchange(4000)
	for n := range len(short) + 1 {
		resetAfter(connect(), short[:n], 0)
		resetAfter(connect(), short[:n], ms)
	}
	for i := range 200 {
		resetAfter(connect(), long, time.Duration(i)*ms/20)
	}
	for end := time.Now().Add(time.Minute); len(s.openConns()) > 0; time.Sleep(ms) {
		if time.Now().After(end) {
			t.Fatalf("%d connections have not ended a minute after their clients reset them; want none", len(s.openConns()))
		}
	}
	s.Stop(context.Background()) // waits for all goroutines
}

// resetAfter sends b, and resets the connection after d.
func resetAfter(nc *net.TCPConn, b []byte, d time.Duration) {
	_ = nc.SetLinger(0)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = nc.Write(b) // fails if the reset comes first
	}()
	if d == 0 {
		<-sent
	} else {
		time.Sleep(d)
	}
	nc.Close()
	<-sent
}
