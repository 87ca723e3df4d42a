package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// badWrites is a connection whose first Write fails. If sends is false, nothing was written. If it is true, the other end
// has received everything 1 ms before the error.
type badWrites struct {
	net.Conn

	err    error
	sends  bool
	writes atomic.Int64
}

func (b *badWrites) Write(text []byte) (int, error) {
	if b.writes.Add(1) > 1 {
		return b.Conn.Write(text)
	}
	if b.sends {
		if _, err := b.Conn.Write(text); err != nil {
			return 0, err
		}
		time.Sleep(ms)
	}
	return 0, b.err
}

// When a Write fails, its call is answered at once. go-redis sends the call again only if the server has
// certainly not run it and has not answered it. The next call uses go-redis.
func TestAFailedWriteEndsTheWire(t *testing.T) {
	notSent := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for name, test := range map[string]struct {
		conn  *badWrites
		after time.Duration
		fails error
		again int64 // the calls that go-redis sends
	}{
		"perhaps run":     {conn: &badWrites{err: errors.New("connection reset")}, fails: backend.ErrUnavailable},
		"never run":       {conn: &badWrites{err: notSent}, after: ms, again: 1},
		"answered before": {conn: &badWrites{err: notSent, sends: true}},
	} {
		synctest.Test(t, func(t *testing.T) {
			fallback := &server{latency: ms}
			l, _, conn := wired(fallback, echoed)
			test.conn.Conn = conn
			l.setWire(test.conn)
			if a := start(l, limited(1)); test.fails != nil {
				a.fails(t, 0, test.fails)
				for _, d := range a.Decisions {
					if errors.Is(d.Err, backend.ErrNotTaken) {
						t.Errorf("%s: reported as certainly not run: %v; want an ErrUnavailable that is not an ErrNotTaken", name, d.Err)
					}
				}
			} else {
				a.is(t, test.after)
			}
			time.Sleep(2 * ms)
			if n := fallback.called.Load(); n != test.again {
				t.Errorf("%s: %d calls were made by go-redis, want %d", name, n, test.again)
			}
			start(l, limited(1)).is(t, ms)
			if n := fallback.called.Load(); n != test.again+1 {
				t.Errorf("%s: go-redis made %d calls; want %d, because the wire has ended", name, n, test.again+1)
			}
			l.close()
		})
	}
}

// A probe may take longer than a usual call.
func TestGoRedisMakesTheProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{latency: ms}
		l, p, conn := wired(fallback, echoed)
		l.setWire(conn)
		l.circuit = circuit{open: true, misses: breakerCalls, probeAt: time.Now()}
		start(l, limited(1)).is(t, ms)
		start(l, limited(1)).is(t, 0)
		if calls, others := p.calls.Load(), fallback.called.Load(); calls != 1 || others != 1 {
			t.Errorf("%d calls by the wire and %d others; want the probe by go-redis, and the call after it by the wire", calls, others)
		}
		l.close()
	})
}

// Resets, and calls that cannot be encoded, are made by go-redis. The calls after them use the wire.
func TestGoRedisMakesCallsThatTheWireCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{}
		l, p, conn := wired(fallback, echoed)
		l.setWire(conn)
		reset := limited(1, 1)
		reset.Charges[0].Reset = true
		broken := limited(1)
		broken.Charges[0].Limit = nil
		for _, b := range []*backend.Batch{reset, broken} {
			start(l, b).is(t, 0)
		}
		if calls, others := p.calls.Load(), fallback.called.Load(); calls != 0 || others != 2 {
			t.Errorf("%d calls by the wire and %d others; want 0 and 2", calls, others)
		}
		for range 5 {
			start(l, limited(1)).is(t, 0)
		}
		if calls, others := p.calls.Load(), fallback.called.Load(); calls != 5 || others != 2 {
			t.Errorf("then %d calls by the wire and %d others; want 5 and 2", calls, others)
		}
		l.close()
	})
}

func TestAnAnswerLargerThanTheBufferIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{}
		l, p, conn := wired(fallback, echoed)
		l.setWire(conn)
		for _, n := range []int{200, 1, 250} { // answers of 41 bytes each; the buffer has 4096
			start(l, limited(ones(n)...)).is(t, 0)
		}
		if calls := p.calls.Load(); calls != 3 {
			t.Errorf("%d calls by the wire; want 3", calls)
		}
		l.close()
	})
}

// Answers that cannot be parsed end their call at once, count as failures for the circuit breaker, and
// affect no other call.
func TestAnswersThatCannotBeReadAreFailures(t *testing.T) {
	for name, test := range map[string]struct {
		reply string
		ends  bool // whether the wire ends
	}{
		"another protocol":  {"+OK\r\n", true},
		"null":              {"$-1\r\n", true},
		"two answers":       {"$1\r\nx\r\n$1\r\ny\r\n", true},
		"too short":         {"$3\r\nabc\r\n", false},
		"without a meaning": {bulk(append(doubles(nil, 1), 255)), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			fallback := &server{latency: ms}
			var bad atomic.Bool
			l, _, conn := wired(fallback, func(args []string) string {
				if bad.Load() {
					return test.reply
				}
				return echoed(args)
			})
			l.setWire(conn)
			start(l, limited(1)).is(t, 0)
			bad.Store(true)
			start(l, limited(1)).fails(t, 0, backend.ErrUnavailable)
			l.mu.Lock()
			if l.circuit.misses != 1 {
				t.Errorf("%s: %d failures count; want 1", name, l.circuit.misses)
			}
			l.mu.Unlock()
			bad.Store(false)
			synctest.Wait()
			after := map[bool]time.Duration{true: ms, false: 0}[test.ends]
			start(l, limited(1)).is(t, after)
			l.close()
		})
	}
}

func bulk(text []byte) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// If all windows of a calendar in the call have ended, the script answers only with its time. go-redis then
// sends the call again with other windows.
func TestACalendarThatEndedIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{latency: ms}
		l, p, conn := wired(fallback, func([]string) string { return bulk(doubles(nil, 1)) })
		l.setWire(conn)
		start(l, limited(1)).is(t, ms)
		if calls, others := p.calls.Load(), fallback.called.Load(); calls != 1 || others != 1 {
			t.Errorf("%d calls by the wire and %d others; want 1 and 1", calls, others)
		}
		l.close()
	})
}

// close waits for the call in flight, and then closes the connection. If the connection stayed open, its reader would
// not end, and synctest would report a deadlock.
func TestClosingWaitsForTheCallInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, conn := wired(&server{}, func(args []string) string { time.Sleep(3 * ms); return echoed(args) })
		l.setWire(conn)
		began := time.Now()
		a := start(l, limited(1))
		time.Sleep(ms)
		l.close()
		a.is(t, 3*ms)
		if _, err := p.Read(make([]byte, 1)); err == nil || time.Since(began) != 3*ms {
			t.Errorf("the connection ended %v after its call began, with %v; want an error after %v", time.Since(began), err, 3*ms)
		}
	})
}

type deadlines struct {
	net.Conn

	read time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = t
	return nil
}

func TestTheStatesOfAWire(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		wire     *wire // nil means a new wire
		err      error
		goesOn   bool // the reader continues, until the call in flight is late if there is one
		reusable bool // the wire can be reserved afterwards
		answered bool // the call in flight gets its answer
	}{
		"idle, an old deadline":          {err: os.ErrDeadlineExceeded, goesOn: true, reusable: true},
		"idle, ended":                    {err: net.ErrClosed},
		"reserved, an old deadline":      {wire: &wire{busy: true}, err: os.ErrDeadlineExceeded, goesOn: true},
		"in flight, an old deadline":     {wire: &wire{busy: true, call: &call{}, until: now.Add(time.Hour)}, err: os.ErrDeadlineExceeded, goesOn: true, answered: true},
		"in flight, late":                {wire: &wire{busy: true, call: &call{}, until: now}, err: os.ErrDeadlineExceeded, answered: true},
		"in flight, ended":               {wire: &wire{busy: true, call: &call{}, until: now.Add(time.Hour)}, err: net.ErrClosed, answered: true},
		"idle, closed":                   {wire: &wire{closed: true}, err: os.ErrDeadlineExceeded},
		"in flight, closed":              {wire: &wire{closed: true, busy: true, call: &call{}, until: now.Add(time.Hour)}, err: os.ErrDeadlineExceeded, goesOn: true, answered: true},
		"broken by a write, not yet due": {wire: &wire{busy: true, call: &call{}, until: now.Add(time.Hour), broken: net.ErrClosed}, err: os.ErrDeadlineExceeded, answered: true},
	} {
		t.Run(name, func(t *testing.T) {
			conn, w := &deadlines{read: now.Add(-time.Hour)}, cmp.Or(test.wire, &wire{})
			w.conn = conn
			if w.goesOn(conn, test.err) != test.goesOn || test.goesOn && !conn.read.Equal(w.until) {
				t.Errorf("the reader continues, or its deadline is %v; want it to continue: %t, until %v", conn.read, test.goesOn, w.until)
			}
			if !test.goesOn && w.broken == nil {
				t.Error("the wire ended without an error")
			}
			if w.reserve() != test.reusable {
				t.Errorf("the wire can be reserved: %t; want %v", !test.reusable, test.reusable)
			}
			c, _ := w.answered()
			if (c != nil) != test.answered || c == nil && (w.broken == nil || w.reserve()) {
				t.Errorf("answered %v, broken by %v; want a call in flight: %t, and otherwise a broken wire", c, w.broken, test.answered)
			}
		})
	}
	w := &wire{node: newNode(nil, keys{prefix: "rl:"}, nil), conn: &deadlines{}, broken: net.ErrClosed}
	if w.send(&call{charges: 1, runs: []run{{limited(1), 0, 1}}}, now) {
		t.Error("a call was written to a wire that broke after it was reserved")
	}
}

type dials struct {
	addr          string
	gate          chan struct{}
	began, closed atomic.Int64
}

type countedClose struct {
	net.Conn

	d    *dials
	once sync.Once
}

func (c *countedClose) Close() error {
	c.once.Do(func() { c.d.closed.Add(1) })
	return c.Conn.Close()
}

func (d *dials) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d.began.Add(1)
	<-d.gate
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.addr)
	if err != nil {
		return nil, err
	}
	return &countedClose{Conn: nc, d: d}, nil
}

// Only one dial of the wire is in flight at a time, and it makes one connection. After a failure, the next
// dial waits for a pause. After Close there is no dial.
func TestTheWireIsDialedOnce(t *testing.T) {
	d := &dials{addr: redistest.Start(t).Addr, gate: make(chan struct{})}
	client := goredis.NewClient(&goredis.Options{Dialer: d.dial, MinIdleConns: 3, PoolSize: 5, DialerRetries: 1})
	defer client.Close()
	for range 3 {
		d.gate <- struct{}{} // the client itself dials three connections
	}
	refused := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
	unreachable := goredis.NewClient(&goredis.Options{Dialer: refused}) // go-redis repeats a failed dial by itself
	defer unreachable.Close()
	w := &wire{node: newNode(unreachable, keys{prefix: "rl:"}, nil), sender: newSender(time.Second, nil)}
	is := func(what string, connected bool) {
		t.Helper()
		redistest.Eventually(t, what, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.dialing && (w.conn != nil) == connected
		})
	}
	dials := func(since time.Duration) bool { // dials reports whether the wire is dialed if the last dial was this long ago
		w.mu.Lock()
		w.dialed = time.Now().Add(-since)
		was := w.dialed
		w.mu.Unlock()
		w.dial()
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.dialed != was
	}
	if !dials(time.Hour) {
		t.Error("a wire without a connection was not dialed")
	}
	is("it has failed", false)
	w.node = newNode(client, keys{prefix: "rl:"}, nil)
	if began := time.Now(); dials(0) && time.Since(began) < dialPause { // on a slow machine the pause may have ended already
		t.Fatal("after a failure it was dialed at once")
	}
	if !dials(2 * dialPause) {
		t.Error("after a failure it was not dialed again")
	}
	redistest.Eventually(t, "the dial begins", func() bool { return d.began.Load() == 4 })
	if dials(time.Hour) {
		t.Error("it is dialed twice at a time")
	}
	done := make(chan struct{})
	defer close(done)
	go func() { // from here on no dial waits
		for {
			select {
			case d.gate <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	tried := int64(1)
	redistest.Eventually(t, "it is connected", func() bool {
		w.mu.Lock()
		connected, again := w.conn != nil, w.conn == nil && !w.dialing // on a slow machine, the timeout of an attempt may pass
		w.mu.Unlock()
		if again && dials(time.Hour) {
			tried++
		}
		return connected
	})
	if dials(time.Hour) {
		t.Error("a wire that is connected is dialed")
	}
	w.close()
	is("it has ended", false)
	redistest.Eventually(t, "its connection is closed", func() bool { return d.closed.Load() == tried })
	if dials(time.Hour) || d.began.Load() != 3+tried {
		t.Errorf("a closed wire is dialed, or more than one connection was made at a time: %d for %d", d.began.Load()-3, tried)
	}
}

func TestAWireThatIsClosedWhileItIsDialed(t *testing.T) {
	d := &dials{addr: redistest.Start(t).Addr, gate: make(chan struct{})}
	client := goredis.NewClient(&goredis.Options{Dialer: d.dial, DialerRetries: 1})
	defer client.Close()
	w := &wire{node: newNode(client, keys{prefix: "rl:"}, nil), sender: newSender(time.Second, nil)}
	w.dial()
	redistest.Eventually(t, "the dial begins", func() bool { return d.began.Load() == 1 })
	w.close()
	d.gate <- struct{}{}
	redistest.Eventually(t, "its connection is closed", func() bool { return d.closed.Load() == 1 })
	if w.reserve() {
		t.Error("a closed wire can be reserved")
	}
}

// A sender may be added while others are being started.
func TestStartersStartEverySender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soon = time.Microsecond // the starter begins after this time, when submit has added its senders
		s := newStarter(func(f func()) { time.AfterFunc(soon, f) })
		var senders []*sender
		for range 8 {
			l := newSender(10*ms, (&server{latency: ms}).decide)
			l.start = s.add
			senders = append(senders, l)
		}
		for range 5 {
			var mu sync.Mutex
			var all []*answer // guarded by mu
			submit := func(senders []*sender) {
				for _, l := range senders {
					a := start(l, limited(1))
					mu.Lock()
					all = append(all, a)
					mu.Unlock()
				}
			}
			later := func() { submit(senders[4:]) } // called when the first of the other senders starts
			senders[0].spawn = func(f func()) {
				if later != nil {
					later()
				}
				later = nil
				go f()
			}
			submit(senders[:4])
			time.Sleep(5 * ms)
			mu.Lock()
			for _, a := range all {
				a.is(t, soon+ms)
			}
			if len(all) != len(senders) {
				t.Errorf("%d batches ended; want %v", len(all), len(senders))
			}
			mu.Unlock()
		}
	})
}

// The parts of a large batch keep its deadline, its source and Detached. The decisions of one part are
// known before the next part is sent.
func TestPartsOfALargeBatchKeepItsSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var usual, long int
		record := func(n *int) *sender {
			l := newSender(time.Minute, nil)
			l.decide = func(_ context.Context, c *call) error {
				*n += c.charges
				time.Sleep(4 * ms)
				return echo(c)
			}
			return l
		}
		w := &serverSenders{record(&usual), record(&long)}
		var flushed atomic.Int32
		source := &backend.Source{Flush: func() { flushed.Add(1) }}
		var known []string
		large := func() *backend.Batch { // parts of 3, 300, 2, 300 and 1 charges, each of which takes 4 ms
			b := limited(1, 1, 1, 300, 1, 1, 300, 1)
			b.Source, b.Known = source, make([]atomic.Bool, len(b.Charges))
			began := time.Now()
			b.OnKnown = func(from, to int) {
				if from < to {
					known = append(known, fmt.Sprint(from, "-", to, " after ", time.Since(began)))
				}
			}
			return b
		}
		b := large()
		b.Deadline = time.Now().Add(10 * ms)
		<-start(w, b).done
		synctest.Wait()
		for i, d := range b.Decisions {
			switch late := i >= 305; {
			case late && !errors.Is(d.Err, context.DeadlineExceeded):
				t.Errorf("charge %d of a part after the deadline: %+v; want the error context.DeadlineExceeded", i, d)
			case !late && d.Remaining != b.Charges[i].Terms.Cost:
				t.Errorf("charge %d: %+v; want %d remaining", i, d, b.Charges[i].Terms.Cost)
			}
		}
		if usual != 5 || long != 300 || flushed.Load() == 0 {
			t.Errorf("%d charges were sent by usual and %d by long; the source was flushed %d times; want 5, 300 and at least once", usual, long, flushed.Load())
		}
		want := []string{"0-3 after 4ms", "3-303 after 8ms", "303-305 after 12ms"}
		if len(known) < 3 || !slices.Equal(known[:3], want) {
			t.Errorf("known early: %v, want %v", known, want)
		}
		b = large()
		b.Detached = true
		<-start(w, b).done
		if usual != 5 || long != 300+606 {
			t.Errorf("Detached: %d charges were sent by usual and %d by long; want 5 and %d", usual, long, 300+606)
		}
	})
}
