package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestNothingIsSentToAMasterThatWasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := make(chan net.Conn, 2)
		age := new(atomic.Uint32)
		dial := dialer(func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			ends <- far
			return near, nil
		}, age)
		c, _ := dial(t.Context(), "tcp", "")
		age.Add(1)
		if _, err := c.Write([]byte("x")); !errors.Is(err, errOutdated) || !neverRan(err) {
			t.Errorf("got %v; want errOutdated, with which nothing ran", err)
		}
		raw, _ := c.(*conn).SyscallConn()
		if err := raw.Read(func(uintptr) bool { return true }); !errors.Is(err, errOutdated) {
			t.Errorf("go-redis would use the connection: %v; want errOutdated", err)
		}
		(<-ends).Close()
		// A call that was sent in part is sent completely. If Write returned an error, go-redis would assume
		// that nothing was sent.
		begun, _ := dial(t.Context(), "tcp", "")
		server := <-ends
		go func() { _, _ = io.Copy(io.Discard, server) }()
		for _, part := range []string{"one ", "call"} {
			if _, err := begun.Write([]byte(part)); err != nil {
				t.Errorf("%q: %v; want no error", part, err)
			}
			age.Add(1)
		}
		server.Close()
	})
}

// An unreachable server is dialed about 16 times a second, however many calls need a connection. When the server is back,
// the wire connects within 70 ms, although a login takes 4 ms. Of the 100 ms until requests must be decided, that
// leaves 30 ms for the probe. Without calls the server is not dialed.
func TestAnUnreachableServerIsDialed16TimesASecond(t *testing.T) {
	for phase := range 60 * ms / ms {
		synctest.Test(t, func(t *testing.T) {
			p := &peers{failing: notSent("away"), dialing: 4 * ms, reply: echoed}
			l, n := p.sender(t)
			call := func() error {
				b := limited(1)
				n.Take(t.Context(), b.Charges, b.Decisions)
				return b.Decisions[0].Err
			}
			for start := time.Now(); time.Since(start) < time.Second+phase*ms; time.Sleep(ms) {
				if !neverRan(call()) {
					t.Fatal("decided, although the server is unreachable")
				}
			}
			if dials := p.dials.Load(); dials < 15 || dials > 19 {
				t.Errorf("%d dials in a second; want 15 to 19", dials)
			}
			p.become(func() { p.failing = nil })
			back := time.Now()
			for p.alive.Load() == 0 && time.Since(back) < time.Minute {
				time.Sleep(ms)
			}
			if took := time.Since(back); took > 70*ms || call() != nil {
				t.Errorf("found %v after it was back (%d ms); want at most %v", took, phase, 70*ms)
			}
			p.become(func() { p.failing = notSent("away again") })
			p.opened()[0].Close()
			time.Sleep(10 * ms)
			_ = call()
			dials := p.dials.Load()
			time.Sleep(time.Minute)
			if more := p.dials.Load() - dials; more > 17 {
				t.Errorf("%d dials for one call; want at most 17", more)
			}
			p.become(func() { p.failing = nil })
			if err := call(); err != nil {
				t.Errorf("the first call after a pause failed: %v", err)
			}
			l.close()
		})
	}
}

// After a failover the new master is dialed at once, although the old one could not be reached.
func TestANewMasterIsDialedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peers{failing: notSent("away"), reply: echoed}
		l, n := p.sender(t)
		start(l, limited(1)).fails(t, 0, backend.ErrNotTaken)
		p.become(func() { p.failing = nil })
		start(l, limited(1)).fails(t, 0, backend.ErrNotTaken)
		n.wire.(*wire).renew()
		start(l, limited(1)).is(t, 0)
		l.close()
	})
}

// The deadlines with which go-redis logs in must not end a connection that the wire uses later.
func TestAConnectionOutlivesTheDeadlinesOfItsLogin(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	o := goredis.Options{Addr: redistest.Start(t).Addr, Protocol: 2, DisableIdentity: true, DialTimeout: timeout}
	o.Dialer = newDialer(&o)
	nc, release, err := dialWire(o)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	time.Sleep(timeout + 100*time.Millisecond)
	answer := make([]byte, len("+PONG\r\n"))
	if _, err = nc.Write([]byte("PING\r\n")); err == nil {
		_, err = io.ReadFull(nc, answer)
	}
	if err != nil || string(answer) != "+PONG\r\n" {
		t.Errorf("got %q, %v; want PONG", answer, err)
	}
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
