package h2grpc

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/test/bufconn"
)

func TestStopWaitsForRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := start(t, &echo{})
		c, idle, silent := dial(t, l), dial(t, l), dial(t, l)
		delayed := c.send("hold")
		half := c.open(c.fields())
		_ = c.to.WriteData(half, false, framed("half")[:7])
		c.flush()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { s.Stop(context.Background()); close(stopped) }()
		go idle.readToEnd()
		synctest.Wait()
		if _, err := l.Dial(); err == nil {
			t.Error("the server accepts a connection after its listener was closed; want an error")
		}
		// The client may not have read GOAWAY yet. The server must still answer requests that it sends before. The answer
		// to another ping does not show that it has read GOAWAY.
		_ = c.to.WritePing(true, [8]byte{1})
		meanwhile := c.send("meanwhile")
		c.flush()
		pinged := [8]byte{}
		for c.reply(meanwhile); !c.reply(meanwhile).ended; {
			f, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			if p, ok := f.(*http2.PingFrame); ok {
				pinged = p.Data
			}
		}
		_ = c.to.WritePing(true, pinged)
		c.flush()
		synctest.Wait()
		late := c.send("late")
		_ = c.to.WriteData(half, true, framed("half")[7:])
		c.flush()
		for _, id := range []uint32{delayed, half} {
			if r := c.answer(id); r.message() != map[uint32]string{delayed: "hold", half: "half"}[id] {
				t.Errorf("%d: got %+v; want the message that belongs to the stream", id, r)
			}
		}
		if code := c.readToEnd(); code != http2.ErrCodeNo || c.reply(late).ended {
			t.Errorf("got %v, %+v; want NO_ERROR, and no answer to the late request", code, c.reply(late))
		}
		<-stopped // the connection ends even if the client sends nothing
		silent.readToEnd()
		s.Stop(context.Background()) // a second call has no effect
	})
}

// broken is a listener whose Accept returns the elements of errors in order, and a connection in place of a nil.
type broken struct {
	net.Listener
	errors []error
}

func (b *broken) Accept() (net.Conn, error) {
	err := b.errors[0]
	b.errors = b.errors[1:]
	if err == nil {
		nc, client := net.Pipe()
		client.Close()
		return nc, nil
	}
	return nil, err
}

// After an error that may pass, such as too many open files, the server must accept again, after a short pause. The
// pause becomes longer with each error, and short again after a connection.
func TestTemporaryErrorsOfAcceptDoNotEndAListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Path: path, Method: &echo{}})
		defer s.Stop(context.Background())
		began, gone := time.Now(), errors.New("the listener is gone")
		err := s.Serve(&broken{bufconn.Listen(1), []error{syscall.EMFILE, syscall.EMFILE, nil, syscall.EMFILE, gone}})
		if took := time.Since(began); !errors.Is(err, gone) || took != 20*time.Millisecond {
			t.Errorf("Serve returned %v after %v; want %v after pauses of 5 ms, 10 ms and 5 ms", err, took, gone)
		}
	})
}

func TestStopEndsThePauseOfAListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Path: path, Method: &echo{}})
		served := make(chan error, 1)
		go func() { served <- s.Serve(&broken{bufconn.Listen(1), slices.Repeat([]error{syscall.EMFILE}, 10)}) }()
		time.Sleep(40 * time.Millisecond) // the pauses begin after 0, 5, 15 and 35 ms
		began := time.Now()
		s.Stop(context.Background())
		if err := <-served; err != nil || time.Since(began) != 0 {
			t.Errorf("Serve returned %v %v after Stop; want no error, at once", err, time.Since(began))
		}
	})
}

type halfCloser struct {
	net.Conn
	closed atomic.Bool
}

func (c *halfCloser) CloseWrite() error { c.closed.Store(true); return nil }

// A drained connection closes its write side when the last request is answered, so that the client closes it too.
func TestADrainedConnectionClosesItsWriteSide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := New(Config{Path: path, Method: &echo{}, Inline: true}), bufconn.Listen(1<<20)
		defer s.Stop(t.Context())
		go func() {
			if nc, err := l.Accept(); err == nil {
				s.start(&halfCloser{Conn: nc})
			}
		}()
		c := dial(t, l)
		id := c.send("hold")
		c.flush()
		synctest.Wait()
		nc := s.openConns()[0].nc.(*halfCloser)
		go s.Stop(context.Background())
		synctest.Wait()
		_ = c.to.WritePing(true, drainPing)
		c.flush()
		synctest.Wait()
		if nc.closed.Load() {
			t.Error("the write side was closed before the last answer")
		}
		c.answered(id, "hold")
		synctest.Wait()
		if !nc.closed.Load() {
			t.Error("the write side was not closed after the last answer")
		}
		c.nc.Close()
	})
}

func TestOldConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serve(t, &echo{}, func(c *Config) { c.MaxConnectionAge, c.MaxConnectionGrace = time.Minute, 10*time.Second })
		c, notReading := dial(t, l), dial(t, l)
		began := time.Now()
		notReading.open(notReading.fields("grpc-timeout", "2M"))
		notReading.flush()
		done := make(chan struct{})
		defer func() { <-done }()
		go func() {
			defer close(done)
			for range 1000 {
				_ = notReading.to.WriteData(1, false, []byte{0})
				if notReading.write() != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		for gone := false; !gone; {
			c.send("m")
			if c.write() != nil {
				t.Fatal("closed without a GOAWAY")
			}
			for {
				f, err := c.read()
				if err != nil {
					t.Fatal(err)
				}
				if _, gone = f.(*http2.GoAwayFrame); gone || c.reply(c.next-2).ended {
					break
				}
			}
			time.Sleep(time.Second)
		}
		if age := time.Since(began); age < 54*time.Second || age > 68*time.Second { // the age varies by a tenth, plus a tick
			t.Errorf("drained after %v; want 54 s to 68 s", age)
		}
		notReading.readToEnd()
		if age := time.Since(began); age < 60*time.Second || age > 80*time.Second {
			t.Errorf("closed after %v; want 60 s to 80 s", age)
		}
	})
}

func TestTheGraceOfOldConnectionsStartsWithGOAWAY(t *testing.T) {
	const grace = 30 * time.Second
	for range 5 { // the age varies by a tenth
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}, func(c *Config) {
				c.MaxConnectionAge, c.MaxConnectionGrace = time.Hour, grace
				c.Others = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			}))
			c.open(c.fields(":path", "/other"))
			c.flush()
			c.goesAway()
			going := time.Now()
			c.readToEnd()
			if took := time.Since(going); took < grace || took > grace+2*time.Second {
				t.Errorf("closed %v after GOAWAY; want about %v", took, grace)
			}
		})
	}
}

// A connection without a request must end, even if the client sends pings.
func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		l := serve(t, &echo{}, func(c *Config) {
			c.MaxConnectionIdle = idle
			c.Others = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		})
		alive := func(c *client) {
			t.Helper()
			c.must("m", "m")
		}
		busy, used, pings := dial(t, l), dial(t, l), dial(t, l)
		busy.open(busy.fields(":path", "/other"))
		busy.flush()
		pings.must("m", "m")
		began := time.Now()
		var ended sync.WaitGroup
		ended.Go(func() {
			if code := pings.readToEnd(); code != http2.ErrCodeNo {
				t.Errorf("got %v; want NO_ERROR", code)
			}
			if took := time.Since(began); took < idle || took > idle+10*time.Second { // the server waits 5 s for the answer to its ping
				t.Errorf("ended after %v; want about %v", took, idle)
			}
		})
		for range 10 {
			time.Sleep(idle * 9 / 10)
			alive(used)
			_ = pings.to.WritePing(false, [8]byte{})
			_ = pings.write()
		}
		ended.Wait()
		alive(busy)
	})
}

func TestPingsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for i := range 20 { // pings with long pauses are allowed
			c.ping(byte(i))
			time.Sleep(pingEvery)
		}
		for i := range 20 { // pings without a pause are allowed after each answer to a request
			c.ping(byte(i))
			c.must("m", "m")
		}
		for range 5 { // this many pings are tolerated; each answer allows as many again
			c.must("m", "m")
			for i := range 1 + maxEarlyPings {
				c.ping(byte(i))
			}
		}
		_ = c.to.WritePing(false, [8]byte{})
		c.flush()
		if code := c.readToEnd(); code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("got %v; want ENHANCE_YOUR_CALM", code)
		}
	})
}

func (c *client) ping(data byte) {
	c.t.Helper()
	_ = c.to.WritePing(false, [8]byte{data})
	c.flush()
	for {
		f, err := c.read()
		if err != nil {
			c.t.Fatal(err)
		}
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
			if p.Data[0] != data {
				c.t.Errorf("got %v; want the data %v", p.Data, data)
			}
			return
		}
	}
}

// A server waits for its Store before Stop returns, because the Store still uses its requests.
func TestStopWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		s, l := start(t, &echo{store: store})
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
			c.goesAway()
			id := c.open(c.fields(":path", "/other")) // as if sent before the GOAWAY arrived
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

// RFC 9113, 6.8: a GOAWAY must not raise the last stream, because the client has already sent later
// requests elsewhere.
func TestGOAWAYNeverRaisesTheLastStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := start(t, &echo{})
		c := dial(t, l)
		half := c.open(c.fields())
		c.flush()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { s.Stop(context.Background()); close(stopped) }()
		var last []uint32
		for {
			f, err := c.read()
			if err != nil {
				break
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				_ = c.to.WritePing(true, f.Data)
				c.send("ignored")
				_ = c.to.WriteData(0, false, nil) // this frame ends the connection with an error
				c.flush()
			case *http2.GoAwayFrame:
				last = append(last, f.LastStreamID)
			}
		}
		if len(last) != 3 || last[0] != 1<<31-1 || last[1] != half || last[2] != half {
			t.Errorf("got %v; want GOAWAY with the last streams 2^31-1, %d, %d", last, half, half)
		}
		<-stopped
	})
}

func TestHalfOpenConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serve(t, &echo{})
		silent, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, _ = io.Copy(io.Discard, silent)
		if took := time.Since(start); took < handshakeTimeout || took > handshakeTimeout+2*time.Second {
			t.Errorf("a silent client was disconnected after %v; want about %v", took, handshakeTimeout)
		}
		idle := dial(t, l)
		idle.must("m", "m")
		start = time.Now()
		idle.readToEnd() // the client does not answer the ping
		if took := time.Since(start); took < idlePing || took > idlePing+idleAnswer+2*time.Second {
			t.Errorf("an idle client was disconnected after %v; want about %v", took, idlePing+idleAnswer)
		}
	})
}
