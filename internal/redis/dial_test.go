package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

type dialed struct {
	away    atomic.Bool
	proxied bool          // a proxy in front accepts connections while the server is unreachable, and closes them
	answers bool          // the server answers the first call of each connection
	far     time.Duration // the time of a round trip
	dials   atomic.Int64
	ends    chan net.Conn // the server's end of each connection
}

var errAway = errors.New("away")

func (d *dialed) dial(context.Context) (net.Conn, error) {
	d.dials.Add(1)
	time.Sleep(d.far)
	client, server := net.Pipe()
	switch away := d.away.Load(); {
	case away && !d.proxied:
		return nil, errAway
	case away:
		server.Close()
	case d.answers:
		go func() {
			if _, err := server.Read(make([]byte, 100)); err == nil {
				time.Sleep(d.far)
				_, _ = io.WriteString(server, "-NOAUTH Authentication required.\r\n")
			}
		}()
	default:
		d.ends <- server
	}
	return client, nil
}

func lineTo(t *testing.T) (l *line, d *dialed, signOfLife *atomic.Int64) {
	t.Helper()
	d, signOfLife = &dialed{ends: make(chan net.Conn, 100)}, new(atomic.Int64)
	l = newLine(d.dial, 50*ms, 16, func() { signOfLife.Add(1) })
	t.Cleanup(l.close)
	return l, d, signOfLife
}

func works(c net.Conn) bool {
	_, failed := c.(broken)
	return !failed
}

// An unreachable server is dialed 16 times a second, however many calls need a connection. When the server is back, the
// line connects within 70 ms, although a round trip takes 4 ms. Of the 100 ms until requests must be decided, that
// leaves 30 ms for the probe.
func TestAnUnreachableServerIsDialed16TimesASecond(t *testing.T) {
	for _, proxied := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, d, signOfLife := lineTo(t)
			defer l.close()
			d.proxied, d.answers, d.far = proxied, true, 4*ms
			for phase := range 60 * ms / ms {
				d.away.Store(true)
				if nc, c := net.Pipe(); proxied { // the proxy has accepted this connection before
					c.Close()
					own := newConn(l, nc, l.age.Load())
					own.awaiting.Store(true)
					_, _ = own.Read(make([]byte, 100))
				}
				before, dials := signOfLife.Load(), d.dials.Load()
				for start := time.Now(); time.Since(start) < time.Second+phase*ms; time.Sleep(ms) {
					if works(l.connect(t.Context())) {
						t.Fatal("connected, although the server is unreachable")
					}
				}
				if n := d.dials.Load() - dials; n < 12 || n > 19 {
					t.Errorf("%d dials in a second; want 12 to 19", n)
				}
				d.away.Store(false)
				back := time.Now()
				for signOfLife.Load() == before && time.Since(back) < time.Minute {
					time.Sleep(ms)
					synctest.Wait()
				}
				if took := time.Since(back); took > 70*ms {
					t.Errorf("behind a proxy: %v: found %v after it was back (%d ms); want at most %v", proxied, took, phase, 70*ms)
				}
				if c := l.connect(t.Context()); !works(c) {
					t.Error("the connection that found the server is not used")
				} else {
					c.Close()
				}
			}
		})
	}
}

// Such a server answers and closes the connection, so the dial itself succeeds.
func TestAServerThatRefusesClientsIsNotCountedAsReached(t *testing.T) {
	for _, text := range []string{"ERR max number of clients reached", "DENIED Redis is running in protected mode"} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				_, _ = far.Read(make([]byte, 100))
				_, _ = io.WriteString(far, "-"+text+"\r\n")
				far.Close()
			}()
			l := newLine(func(context.Context) (net.Conn, error) { return near, nil }, 50*ms, 16, nil)
			defer l.close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := l.reach(ctx); err == nil || !strings.Contains(err.Error(), text) || !neverRan(err) {
				t.Errorf("got %v; want an error that contains %q and neverRan(err) true", err, text)
			}
		})
	}
}

func TestAServerIsNotDialedWithoutACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, d, signOfLife := lineTo(t)
		defer l.close()
		d.answers = true
		d.away.Store(true)
		l.connect(t.Context())
		time.Sleep(time.Minute)
		if n := d.dials.Load(); n > 20 {
			t.Errorf("%d dials for one call; want at most 20", n)
		}
		d.away.Store(false)
		l.connect(t.Context()) // connect also makes redial dial at once
		synctest.Wait()
		if !works(l.connect(t.Context())) || signOfLife.Load() != 1 {
			t.Errorf("not connected, or %d signs of life; want a connection and one sign of life", signOfLife.Load())
		}
	})
}

func TestAServerThatDoesNotAnswerIsDialedTenTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, d, _ := lineTo(t)
		defer l.close()
		var last net.Conn
		for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(ms) {
			if c := l.connect(t.Context()); works(c) {
				last = c
			}
		}
		if n := d.dials.Load(); n < 16+48 || n > 16+51 {
			t.Errorf("%d dials in five seconds; want %v to %v", n, 16+48, 16+51)
		}
		// An error does not count as an answer. After any other answer, new connections are allowed at
		// once.
		for text, want := range map[string]bool{"-ERR no\r\n": false, "+OK\r\n": true} {
			for works(l.connect(t.Context())) {
			}
			for len(d.ends) > 1 {
				<-d.ends
			}
			_ = last
			c, server := net.Pipe()
			own := newConn(l, c, l.age.Load())
			go func() {
				b := make([]byte, 10)
				_, _ = server.Read(b)
				_, _ = server.Write([]byte(text))
			}()
			_, _ = own.Write([]byte("PING"))
			_, _ = own.Read(make([]byte, 100))
			if got := works(l.connect(t.Context())); got != want {
				t.Errorf("after %q there may be connections: %v; want %v", text, got, want)
			}
			own.Close()
			server.Close()
		}
	})
}

// A call may use the spare connection while redialing stores another one. The race detector must not report that.
func TestASpareConnectionIsStoredWhileTheLastIsUsed(t *testing.T) {
	l, _, _ := lineTo(t)
	var wg sync.WaitGroup
	for range 100 {
		near, _ := net.Pipe()
		wg.Go(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.setSpare(near)
		})
		wg.Go(func() { l.connect(t.Context()) })
	}
	wg.Wait()
}

func TestNothingIsSentToAMasterThatWasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, d, signOfLife := lineTo(t)
		defer l.close()
		c := l.connect(t.Context()).(*conn)
		l.invalidate()
		if _, err := c.Write([]byte("x")); !errors.Is(err, errOutdated) {
			t.Errorf("got %v; want errOutdated", err)
		}
		raw, _ := c.SyscallConn()
		if err := raw.Read(func(uintptr) bool { return true }); !errors.Is(err, errOutdated) {
			t.Errorf("go-redis would use the connection: %v; want errOutdated", err)
		}
		begun := l.connect(t.Context())
		if !works(begun) || d.dials.Load() != 2 || signOfLife.Load() != 1 {
			t.Errorf("%d dials, %d signs of life; want a new connection, 2 dials and 1 sign of life", d.dials.Load(), signOfLife.Load())
		}
		(<-d.ends).Close()
		c.Close()
		// A call that was sent in part is sent completely. If Write returned an error, go-redis would assume
		// that nothing was sent.
		server := <-d.ends
		go func() { _, _ = io.Copy(io.Discard, server) }()
		for _, part := range []string{"one ", "call"} {
			if _, err := begun.Write([]byte(part)); err != nil {
				t.Errorf("%q: %v; want no error", part, err)
			}
			l.invalidate()
		}
		server.Close()
		begun.Close()
	})
}

// A probe sends the whole text of the script. A server that was restarted does not know the script, and
// would need a second call.
func TestAProbeSendsTheScript(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	n := nodeTo(t, client)
	for _, probe := range []bool{true, false} {
		server.Do("SCRIPT", "FLUSH")
		server.Do("CONFIG", "RESETSTAT")
		b := limited(1)
		c := &call{charges: 1, runs: []run{{b, 0, 1}}}
		if probe {
			c.permit = doProbe
		}
		failed := make(chan error)
		n.start(c, time.Now().Add(time.Minute), func(_ *call, err error) { failed <- err })
		if err := <-failed; err != nil || !b.Decisions[0].Allowed {
			t.Fatalf("got %+v, %v; want no error and allowed", b.Decisions[0], err)
		}
		stats := client.Info(t.Context(), "commandstats").Val()
		if twice := strings.Contains(stats, "cmdstat_evalsha"); twice == probe || !strings.Contains(stats, "cmdstat_eval:calls=1") {
			t.Errorf("a probe: %v; the server got %s; want one EVAL, and an EVALSHA only without a probe", probe, stats)
		}
	}
}
