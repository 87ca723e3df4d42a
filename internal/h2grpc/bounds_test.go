package h2grpc

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestTheBytesOfAConnectionAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		l := serve(t, &echo{store: store})
		s := serverOf(l)
		counted := func(what string, least, most int64) {
			t.Helper()
			synctest.Wait()
			if n := s.bufferedBytes.Load(); n < least || n > most {
				t.Errorf("%s: %d bytes are counted; want %d to %d", what, n, least, most)
			}
		}
		c := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		half := c.open(c.fields())
		_ = c.to.WriteData(half, false, framed(strings.Repeat("m", 10_000))[:8000])
		c.flush()
		counted("an incomplete request of 8000 bytes", 8000, 8000)
		answered := c.send("now " + strings.Repeat("m", 4000))
		c.flush()
		counted("and an answer of 4009 bytes without a window", 12_009, 12_009)
		c.send(strings.Repeat("m", 5000))
		c.flush()
		counted("and a submitted request of 5000 bytes", 17_009, 17_009+4096)
		_ = c.to.WriteRSTStream(answered, http2.ErrCodeCancel)
		_ = c.to.WriteRSTStream(half, http2.ErrCodeCancel)
		c.flush()
		counted("after the resets of two streams", 5000, 5000+4096)
		other := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		_ = other.to.WriteData(other.open(other.fields()), false, framed(strings.Repeat("m", 10_000))[:8000])
		other.send("now " + strings.Repeat("m", 4000))
		other.flush()
		counted("with another connection", 17_009, 17_009+4096)
		other.nc.Close()
		counted("after the end of the other connection", 5000, 5000+4096)
		store.complete()
		c.nc.Close()
		counted("after the end of all connections", 0, 0)
	})
}

// A connection is not read while its submitted requests have too many bytes. It continues when the Store has decided.
func TestTheBytesOfSubmittedRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, requests = 1 << 20, 30
		store := &pendingStore{}
		c := dial(t, serve(t, &echo{store: store}))
		go func() { // reads and discards frames
			for {
				if _, err := c.from.ReadFrame(); err != nil {
					return
				}
			}
		}()
		go func() {
			for range requests {
				id := c.open(c.fields())
				data := framed(strings.Repeat("m", size))
				for ; len(data) > maxFrame; data = data[maxFrame:] {
					_ = c.to.WriteData(id, false, data[:maxFrame])
				}
				_ = c.to.WriteData(id, true, data)
				if c.write() != nil {
					return
				}
			}
		}()
		done := 0
		for done < requests {
			synctest.Wait()
			n := store.requests()
			if n == 0 || n > maxBuffered/size+1 {
				t.Fatalf("%d requests of %d bytes are submitted; want 1 to %d", n, size, maxBuffered/size+1)
			}
			done += n
			store.complete()
		}
	})
}

// A server waits for its Store before Stop returns, because the Store still uses its requests.
func TestStopWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		s, l := start(t, func(c *Config) { c.Method, c.Inline = &echo{store: store}, false })
		c := dial(t, l)
		c.send("m")
		c.flush()
		synctest.Wait()
		c.nc.Close()
		stopped := make(chan struct{})
		go func() { s.Stop(context.Background()); close(stopped) }()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("Stop returned before the Store had decided")
		default:
		}
		store.complete()
		<-stopped
	})
}

// A client that sends a window update for each answer is not disconnected, however many requests it sends.
func TestEachAnswerAllowsAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for range 3 * calm / 200 {
			var id uint32
			for range 100 {
				id = c.send("m")
				_ = c.to.WriteWindowUpdate(0, 6)
			}
			c.flush()
			if r := c.answer(id); r.message() != "m" {
				t.Fatalf("%d: got %+v; want the message \"m\"", id, r)
			}
			clear(c.answers)
		}
	})
}

func TestWithoutATimeoutARequestWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		l := serve(t, &echo{store: store})
		first, much := dial(t, l), dial(t, l)
		for range maxOutstanding {
			first.send("first")
		}
		go func() { _ = first.write() }()
		synctest.Wait()
		var id uint32
		for range ownOutstanding + 1 {
			id = much.send("much")
		}
		much.flush()
		time.Sleep(time.Minute)
		if n := store.requests(); n != maxOutstanding || much.reply(id).ended {
			t.Errorf("after a minute: %d requests are submitted, the last one is answered: %t; want %d, and no answer", n, much.reply(id).ended, maxOutstanding)
		}
		store.complete()
		synctest.Wait()
		store.complete()
		if r := much.answer(id); r.message() != "much" {
			t.Errorf("got %+v; want the message \"much\"", r)
		}
	})
}

// A connection whose own part is used up waits for its turn, also when one of its operations ends.
func TestAnUsedPartDoesNotAdmitBeforeTheTurn(t *testing.T) {
	var all outstanding
	op := func(c *conn, weight int) *operation { return &operation{conn: c, weight: weight} }
	full, c := &conn{}, &conn{}
	c.share.room = make(chan struct{}, 1)
	all.enter(op(full, maxOutstanding), true)
	little := op(c, ownOutstanding)
	all.enter(little, true)
	more := op(c, ownOutstanding+1)
	if all.enter(more, true) {
		t.Fatal("an operation beyond the connection's own part was admitted")
	}
	if all.leave(little); len(c.share.room) != 0 || len(all.waiting) != 1 {
		t.Error("an operation beyond the connection's own part was admitted when another one ended")
	}
}

func TestAgesDiffer(t *testing.T) {
	const d = 1000 * time.Second
	least, most := jittered(d), jittered(d)
	for range 1000 {
		n := jittered(d)
		least, most = min(least, n), max(most, n)
	}
	if least < d*9/10 || least > d*95/100 || most < d*105/100 || most > d*11/10 {
		t.Errorf("ages of %v to %v; want nearly %v to %v", least, most, d*9/10, d*11/10)
	}
}

func TestAnIdleClientThatAnswersPingsStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		c.must("m", "m")
		began, pings := time.Now(), 0
		for time.Since(began) < 5*idlePing {
			_ = c.nc.SetReadDeadline(time.Now().Add(idlePing / 2))
			f, err := c.read()
			if p, ok := f.(*http2.PingFrame); err == nil && ok {
				pings++
				_ = c.to.WritePing(true, p.Data)
				c.flush()
			}
		}
		_ = c.nc.SetReadDeadline(time.Time{})
		if c.must("m", "m"); pings != 4 && pings != 5 {
			t.Errorf("%d pings in %v; want one every %v", pings, 5*idlePing, idlePing)
		}
	})
}

// MaxConnectionGrace bounds only the drain of connections that are old. 0 means that the drain has no bound.
func TestGraceEndsOldConnectionsOnly(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"idle":              func(c *Config) { c.MaxConnectionIdle, c.MaxConnectionGrace = time.Minute, 2*time.Second },
		"old, but no bound": func(c *Config) { c.MaxConnectionAge = time.Minute },
	} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			c := dial(t, serve(t, &echo{}, withOthers(func(http.ResponseWriter, *http.Request) { <-release }), edit))
			for {
				f, err := c.read()
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := f.(*http2.GoAwayFrame); ok {
					break
				}
			}
			id := c.open(c.fields("grpc-encoding", "gzip")) // as if sent before the GOAWAY arrived
			c.flush()
			go func() { time.Sleep(time.Minute); close(release) }()
			if r := c.answer(id); !r.ended {
				t.Errorf("%s: got %+v; want an answer after a minute", name, r)
			}
		})
	}
}

// A client has handshakeTimeout for its handshake. A server that stops waits no longer than drainAnswer for it.
func TestAHandshakeMayTakeLongerThanATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Path: path, Method: &echo{}, Inline: true})
		defer s.Stop(t.Context())
		c := newConn(s, &tape{})
		if c.tick(time.Now().Add(10 * time.Second)); c.closed || len(c.out) > 0 {
			t.Errorf("a tick during the handshake: closed %t, %d bytes to write; want neither", c.closed, len(c.out))
		}
		c.drain()
		if c.tick(time.Now().Add(drainAnswer / 2)); c.closed || len(c.out) > 0 {
			t.Errorf("a tick soon after the server began to stop: closed %t, %d bytes to write; want neither", c.closed, len(c.out))
		}
		if c.tick(time.Now().Add(2 * drainAnswer)); !c.closed {
			t.Errorf("the connection is open %v after the server began to stop; want it closed", 2*drainAnswer)
		}
	})
}

func TestALongAnswerLeavesTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for _, size := range []int{maxFrame - prefixLen, maxFrame - prefixLen + 1, maxFrame, 3 * maxFrame} {
			_ = c.to.WriteWindowUpdate(0, 1<<16)
			c.must("m", "m")
			c.must("long "+strconv.Itoa(size), string(bytes.Repeat([]byte("x"), size)))
			c.must("m", "m")
		}
	})
}

// lateTimer is a Method whose stop functions come too late: they do nothing.
type lateTimer struct{ *echo }

func (m lateTimer) Later(d algorithms.Micros, answer func()) func() {
	m.echo.Later(d, answer)
	return func() {}
}

// The body of a request is released when its answer is known, even if the answer is delayed. A delayed answer is not
// sent after a reset, even if its timer has ended at the same moment.
func TestADelayedAnswerHoldsNoBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &echo{}
		l := serve(t, m, func(c *Config) { c.Method = lateTimer{m} })
		c := dial(t, l)
		var ids []uint32
		for range 2 {
			id := c.open(c.fields())
			_ = c.to.WriteData(id, false, framed("hold")[:7])
			c.flush()
			synctest.Wait()
			if n := serverOf(l).bufferedBytes.Load(); n != 7 {
				t.Errorf("%d bytes are counted; want 7", n)
			}
			_ = c.to.WriteData(id, true, framed("hold")[7:])
			c.flush()
			synctest.Wait()
			if n := serverOf(l).bufferedBytes.Load(); n != 0 {
				t.Errorf("%d bytes are counted while the answer is delayed; want 0", n)
			}
			ids = append(ids, id)
		}
		_ = c.to.WriteRSTStream(ids[0], http2.ErrCodeCancel)
		c.flush()
		if r := c.answer(ids[1]); r.message() != "hold" {
			t.Errorf("got %+v; want the message \"hold\"", r)
		}
		c.must("m", "m")
		if r := c.reply(ids[0]); len(r.fields) > 0 || r.ended {
			t.Errorf("got %+v; want nothing after the reset", r)
		}
		if n := m.answered.Load(); n != 2 {
			t.Errorf("%d answers are counted; want 2", n)
		}
	})
}

// Handlers that write more than their client reads wait. The bytes that wait for the client are bounded, whatever its
// windows are.
func TestTheBytesOfAHandlerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frames = 100
		l := serve(t, &echo{}, withOthers(func(w http.ResponseWriter, _ *http.Request) {
			for range frames {
				if _, err := w.Write(make([]byte, maxFrame)); err != nil {
					return
				}
			}
		}))
		c := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		_ = c.to.WriteWindowUpdate(0, 1<<30)
		// The handler that writes first is blocked by the client, the other one by the bound.
		ids := []uint32{c.open(c.fields("grpc-encoding", "gzip")), c.open(c.fields("grpc-encoding", "gzip"))}
		c.flush()
		synctest.Wait()
		conn := serverOf(l).openConns()[0]
		conn.mu.Lock()
		if n := len(conn.out); n > maxOut+2*maxFrame {
			t.Errorf("%d bytes wait for the client; want at most %d", n, maxOut+2*maxFrame)
		}
		conn.mu.Unlock()
		for _, id := range ids {
			if r := c.answer(id); len(r.data) != frames*maxFrame {
				t.Errorf("%d bytes arrived; want %d", len(r.data), frames*maxFrame)
			}
		}
	})
}

// A request that has waited in the socket while the connection was not read may wait no longer than
// Config.SubmitTimeout in total, also for the Store.
func TestAWaitInTheSocketCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * ms
		store := &pendingStore{}
		l := serve(t, &echo{store: inTime(store, time.Hour, 2*ms)}, func(c *Config) { c.SubmitTimeout = timeout })
		first, much := dial(t, l), dial(t, l)
		for range maxOutstanding {
			first.send("first")
		}
		go func() { _ = first.write() }()
		synctest.Wait()
		for range ownOutstanding + 1 {
			much.send("much")
		}
		much.flush()
		began := time.Now()
		synctest.Wait()
		var ids []uint32
		for range 2 {
			ids = append(ids, much.send(strings.Repeat("x", backlog)))
		}
		much.flush()
		time.Sleep(timeout - 3*ms)
		store.complete()
		for _, id := range ids {
			if r := much.answer(id); r.message() != "late" || time.Since(began) > timeout {
				t.Errorf("got %+v after %v; want the message \"late\" after at most %v", r, time.Since(began), timeout)
			}
		}
	})
}
