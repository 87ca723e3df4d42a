package listen

import (
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/zap"
)

func bounded(inner net.Listener, most int) *Listener {
	l := &Listener{
		Listener: inner, all: &Bounds{}, max: most, log: zap.NewNop(), start: time.Now().Add(-time.Hour), open: map[*conn]struct{}{},
	}
	l.all.listeners = append(l.all.listeners, l)
	return l
}

// The listener selects several silent connections in one pass, and closes one of them for each new connection. A
// selected connection that has sent something before its turn stays open.
func TestTheConnectionThatWasSilentForLongestIsClosed(t *testing.T) {
	l := bounded(nil, 4)
	admit := func(silent time.Duration) (*conn, net.Conn) {
		t.Helper()
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close() })
		c, ok := l.admit(near).(*conn)
		if !ok {
			return nil, far
		}
		c.lastReceived.Store(int64(l.now() - silent))
		return c, far
	}
	isOpen := func(c *conn) bool {
		_, open := l.open[c]
		return open
	}
	short, _ := admit(10 * time.Second)
	long, end := admit(time.Minute)
	busy, _ := admit(0)
	middle, _ := admit(30 * time.Second)
	for _, step := range []struct {
		before   func()
		admitted bool
		open     []*conn
		closed   []*conn
	}{
		{func() {}, true, []*conn{short, middle, busy}, []*conn{long}},
		{func() { middle.lastReceived.Store(int64(l.now())) }, true, []*conn{middle, busy}, []*conn{short, long}},
		{func() {}, false, []*conn{middle, busy}, []*conn{short, long}},
	} {
		step.before()
		if c, _ := admit(0); (c != nil) != step.admitted {
			t.Errorf("admitted: %t; want %v", c != nil, step.admitted)
		}
		for _, c := range step.open {
			if !isOpen(c) {
				t.Error("a connection that was silent for less time is closed; want it open")
			}
		}
		for _, c := range step.closed {
			if isOpen(c) {
				t.Error("the connection that was silent for longest is still open; want it closed")
			}
		}
	}
	for _, c := range []*conn{middle, busy} { // their answers are held
		Hold(httptest.NewRequestWithContext(withConn(t.Context(), c), "GET", "/", nil), 2*time.Hour)
	}
	l.start = l.start.Add(-time.Hour)
	for range 2 { // in place of the two others
		if c, _ := admit(time.Minute); c == nil || !isOpen(middle) || !isOpen(busy) {
			t.Error("a connection whose answer is held is closed; want it open")
		}
	}
	if _, err := end.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // net.Pipe returns io.EOF unwrapped
		t.Errorf("the client of the closed connection reads %v; want the error %v", err, io.EOF)
	}
	if s := l.Stats(); s.Evicted != 4 || s.Refused != 1 || s.Open != 4 {
		t.Errorf("got %+v; want evicted 4, 1 refused and open 4", s)
	}
}
