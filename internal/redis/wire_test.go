package redis

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func readCommand(r *bufio.Reader) (args []string, err error) {
	size := func() (n int, err error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := size()
	for range n {
		length, err := size()
		if err != nil {
			return nil, err
		}
		text := make([]byte, length+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, err
		}
		args = append(args, string(text[:length]))
	}
	return args, err
}

// echoed returns the answer of a script that decides like echo.
func echoed(args []string) string {
	declared, _ := strconv.Atoi(args[2])
	charges := args[3+declared+2]
	text := doubles(nil, 1)
	for ; len(charges) > 16; charges = charges[32:] {
		cost := int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(charges[16:24]))))
		text = encode(text, &backend.Decision{Decision: algorithms.Decision{Allowed: true, Remaining: cost}})
	}
	return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
}

// nodeTo returns a node with its own connections to the server of client.
func nodeTo(tb testing.TB, client *goredis.Client) *node {
	tb.Helper()
	n := newNode(newWire(client.Options(), func() {}), newKeys("rl:"), nil)
	tb.Cleanup(n.wire.close)
	return n
}

func limited(sizes ...int) *backend.Batch {
	b, limit := batchOf(sizes...), limitOf(1000)
	for i := range b.Charges {
		b.Charges[i].Limit = limit
	}
	return b
}

// peers are the servers that a wire connects to, one after the other.
type peers struct {
	reply    func(args []string) string   // "" means that no reply is sent
	wrap     func(conn net.Conn) net.Conn // may replace the wire's end of a connection
	at       func(addr string) *node      // node.at
	dialing  time.Duration
	failing  error // the error of a dial, or nil
	deaf     bool  // the server does not read
	dials    atomic.Int64
	commands atomic.Int64
	alive    atomic.Int64

	mu   sync.Mutex // guards all but the counters, once the wire is used
	ends []net.Conn
}

func (p *peers) become(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *peers) opened() []net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

func (p *peers) dial() (net.Conn, func(), error) {
	p.dials.Add(1)
	p.mu.Lock()
	dialing := p.dialing
	p.mu.Unlock()
	time.Sleep(dialing)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing != nil {
		return nil, func() {}, p.failing
	}
	near, far := net.Pipe()
	p.ends = append(p.ends, far)
	if !p.deaf {
		go p.serve(far)
	}
	if p.wrap != nil {
		near = p.wrap(near)
	}
	return near, func() {}, nil
}

func (p *peers) serve(conn net.Conn) {
	for r := bufio.NewReader(conn); ; {
		args, err := readCommand(r)
		if err != nil {
			return
		}
		p.commands.Add(1)
		p.mu.Lock()
		reply := p.reply
		p.mu.Unlock()
		if text := reply(args); text != "" {
			_, _ = io.WriteString(conn, text)
		}
	}
}

// sender returns a sender whose timeout is 10 ms, and the node that makes its calls.
func (p *peers) sender(t *testing.T) (*sender, *node) {
	t.Helper()
	w := &wire{dial: p.dial, alive: func() { p.alive.Add(1) }}
	n := newNode(w, newKeys("rl:"), nil)
	n.at = p.at
	l := newSender(10*ms, n.start)
	l.end = w.close
	t.Cleanup(l.close)
	return l, n
}

// replies returns a function that returns these replies one after the other, and then those of echoed.
func replies(first ...string) func(args []string) string {
	return func(args []string) string {
		if len(first) == 0 {
			return echoed(args)
		}
		text := first[0]
		first = first[1:]
		return text
	}
}

var errWrite = errors.New("connection reset")

// badWrites is a connection whose first Write fails.
type badWrites struct {
	net.Conn

	err   error
	sends bool // the other end has received everything 1 ms before the error
}

func (b *badWrites) Write(text []byte) (int, error) {
	err := b.err
	if b.err = nil; err != nil && !b.sends {
		return 0, err
	}
	n, failed := b.Conn.Write(text)
	if err != nil {
		time.Sleep(ms)
	}
	return n, cmp.Or(err, failed)
}

// Each failure of a server or of the network ends a call in time. The error says whether the call can have run. Nothing is
// sent twice, and the next call succeeds.
func TestACallThatFails(t *testing.T) {
	const unknown, never = "unknown", "never"
	for name, test := range map[string]struct {
		peers    *peers
		after    time.Duration
		outcome  string // "" means an answer
		commands int64
		alive    int64
	}{
		"no reply": {&peers{reply: replies("")}, 10 * ms, unknown, 1, 0},
		"a late reply": {&peers{reply: func() func([]string) string {
			late := replies("")
			return func(args []string) string {
				if text := late(args); text != "" {
					return text
				}
				time.Sleep(12 * ms)
				return ":1\r\n"
			}
		}()}, 10 * ms, unknown, 1, 1},
		"the server does not read":        {&peers{deaf: true}, 10 * ms, unknown, 0, 0},
		"refused":                         {&peers{failing: notSent("refused")}, 0, never, 0, 0},
		"the login fails":                 {&peers{failing: io.EOF}, 0, never, 0, 0},
		"the dial takes long":             {&peers{dialing: 30 * ms, reply: echoed}, 10 * ms, never, 0, 0},
		"the dial takes a while":          {&peers{dialing: 3 * ms, reply: echoed}, 3 * ms, "", 1, 0},
		"the write fails":                 {&peers{wrap: func(c net.Conn) net.Conn { return &badWrites{c, errWrite, false} }}, 0, unknown, 0, 0},
		"the write fails later":           {&peers{reply: replies(""), wrap: func(c net.Conn) net.Conn { return &badWrites{c, errWrite, true} }}, ms, unknown, 1, 0},
		"the write fails after a reply":   {&peers{reply: echoed, wrap: func(c net.Conn) net.Conn { return &badWrites{c, errWrite, true} }}, 0, "", 1, 0},
		"not written":                     {&peers{wrap: func(c net.Conn) net.Conn { return &badWrites{c, errOutdated, false} }}, 0, never, 0, 0},
		"another protocol":                {&peers{reply: replies("HTTP/1.1 400\r\n")}, 0, unknown, 1, 0},
		"another kind of reply":           {&peers{reply: replies("+OK\r\n")}, 0, unknown, 1, 0},
		"null":                            {&peers{reply: replies("$-1\r\n")}, 0, unknown, 1, 0},
		"a length that is none":           {&peers{reply: replies("$x\r\n")}, 0, unknown, 1, 0},
		"an array":                        {&peers{reply: replies("*1\r\n")}, 0, unknown, 1, 0},
		"too long":                        {&peers{reply: replies("$999999\r\n")}, 0, unknown, 1, 0},
		"too short":                       {&peers{reply: replies("$3\r\nabc\r\n")}, 0, unknown, 1, 0},
		"without a meaning":               {&peers{reply: replies(bulks(string(append(doubles(nil, 1), 255))))}, 0, unknown, 1, 0},
		"two replies":                     {&peers{reply: replies("$1\r\nx\r\n$1\r\ny\r\n")}, 0, unknown, 1, 0},
		"out of memory":                   {&peers{reply: replies("-OOM no memory\r\n")}, 0, never, 1, 0},
		"busy":                            {&peers{reply: replies("-BUSY a script runs\r\n")}, 0, never, 1, 0},
		"another error":                   {&peers{reply: replies("-ERR no\r\n")}, 0, unknown, 1, 0},
		"not of a Cluster":                {&peers{reply: replies("-MOVED 1 127.0.0.1:1\r\n")}, 0, never, 1, 0},
		"a slot is moving":                {&peers{at: func(string) *node { return nil }, reply: replies("-TRYAGAIN later\r\n", "-TRYAGAIN later\r\n")}, 6 * ms, "", 3, 0},
		"the script is missing":           {&peers{reply: replies("-NOSCRIPT missing\r\n")}, 0, "", 2, 0},
		"the script is missing always":    {&peers{reply: replies(slices.Repeat([]string{"-NOSCRIPT missing\r\n"}, 6)...)}, 0, never, 6, 0},
		"without shebangs":                {&peers{reply: replies("-ERR Error compiling script\r\n")}, 0, "", 2, 0},
		"the script cannot be compiled":   {&peers{reply: replies("-ERR Error compiling script\r\n", "-ERR Error compiling script\r\n")}, 0, unknown, 2, 0},
		"all calendar windows have ended": {&peers{reply: replies(bulks(string(doubles(nil, 1))))}, 0, "", 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := test.peers
				l, _ := p.sender(t)
				a := start(l, limited(1))
				<-a.done
				err := a.Decisions[0].Err
				got := map[bool]string{true: never, false: unknown}[errors.Is(err, backend.ErrNotTaken)]
				if err == nil {
					got = ""
				}
				if err != nil && a.Decisions[0].Decision != (algorithms.Decision{}) {
					t.Errorf("got %+v; want a failure, not a denial", a.Decisions[0])
				}
				if a.after != test.after || got != test.outcome || p.commands.Load() != test.commands || err != nil && !errors.Is(err, backend.ErrUnavailable) {
					t.Errorf("%v after %v, outcome %q, %d commands; want outcome %q after %v, %d commands", err, a.after, got, p.commands.Load(), test.outcome, test.after, test.commands)
				}
				time.Sleep(3 * time.Second)
				if late := p.alive.Load() - int64(len(p.opened())); late != test.alive {
					t.Errorf("%d signs of life beside those of connections; want %d", late, test.alive)
				}
				p.become(func() { p.failing, p.dialing, p.deaf, p.reply, p.wrap = nil, 0, false, echoed, nil })
				start(l, limited(1)).is(t, 0)
				l.close()
			})
		})
	}
}

// Several calls are in flight. Each gets its own reply, and a late one does not end the others.
func TestCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		due := make(chan string, 10)
		p := &peers{}
		p.reply = func(args []string) string { due <- echoed(args); return "" }
		l, n := p.sender(t)
		n.wire.(*wire).warm()
		synctest.Wait()
		l.queue.maxBatch = 1
		l.queue.maxCalls = 4
		var all []*answer
		for i := range 4 {
			b := limited(1)
			b.Charges[0].Terms.Cost = int64(i)
			all = append(all, start(l, b))
			time.Sleep(3 * ms)
		}
		synctest.Wait()
		for range 4 {
			_, _ = io.WriteString(p.opened()[0], <-due)
		}
		all[0].fails(t, 10*ms, backend.ErrUnavailable)
		for i, a := range all[1:] {
			a.is(t, 12*ms-time.Duration(i+1)*3*ms)
		}
		if p.dials.Load() != 1 || p.alive.Load() != 2 {
			t.Errorf("%d dials, %d signs of life; want one dial, and a sign of life for it and for the late reply", p.dials.Load(), p.alive.Load())
		}
		p.become(func() { p.reply = echoed })
		start(l, limited(1)).is(t, 0)
		if p.dials.Load() != 2 {
			t.Errorf("%d dials after a late reply; want 2", p.dials.Load())
		}
		l.close()
	})
}

// A call that is too large for the buffer of a socket is written on another goroutine, so that Submit does not wait for a
// server that does not read. The same applies to calls behind it.
func TestSubmitDoesNotWaitForTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peers{deaf: true}
		l, n := p.sender(t)
		n.wire.(*wire).warm()
		synctest.Wait()
		large := limited(1)
		large.Charges[0].Key = make([]byte, maxFrame)
		l.queue.maxBatch = 1
		l.spawn = func(f func()) { f() }
		began := time.Now()
		first := start(l, large)
		synctest.Wait()
		second := start(l, limited(1))
		if took := time.Since(began); took > 0 {
			t.Errorf("Submit took %v; want 0", took)
		}
		first.fails(t, 10*ms, backend.ErrUnavailable)
		second.fails(t, 10*ms, backend.ErrNotTaken)
		l.close()
	})
}

// close waits for the calls in flight, and then closes the connection. If it stayed open, its reader would not end, and
// synctest would report a deadlock.
func TestClosingWaitsForTheCallsInFlight(t *testing.T) {
	for _, dialing := range []time.Duration{0, 2 * ms} {
		synctest.Test(t, func(t *testing.T) {
			p := &peers{dialing: dialing, reply: func(args []string) string { time.Sleep(3 * ms); return echoed(args) }}
			l, _ := p.sender(t)
			a := start(l, limited(1))
			time.Sleep(ms)
			l.close()
			a.is(t, dialing+3*ms)
			synctest.Wait()
			if _, err := p.opened()[0].Read(make([]byte, 1)); err == nil {
				t.Error("the connection is open")
			}
			start(l, limited(1)).fails(t, 0, backend.ErrNotTaken)
		})
	}
}

// A panic while a call is encoded ends this call alone.
func TestACallThatCannotBeEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peers{reply: echoed}
		l, n := p.sender(t)
		panics := 0
		n.panicked = func(any) { panics++ }
		bad := limited(1)
		bad.Charges[0].Limit = nil
		start(l, bad).fails(t, 0, backend.ErrUnavailable)
		start(l, limited(1)).is(t, 0)
		if panics != 1 {
			t.Errorf("%d panics reported; want 1", panics)
		}
		w := n.wire.(*wire)
		func() {
			defer func() { recover() }()
			w.start(&exchange{commands: [][]any{{"get", struct{}{}}}, until: time.Now().Add(ms)})
		}()
		if !w.mu.TryLock() {
			t.Error("the wire is locked after a panic")
		}
		w.mu.Unlock()
		start(l, limited(1)).is(t, 0)
		l.close()
	})
}

// A call has ended before its commands are written, or before the goroutine that waits for it begins to read. Then this
// goroutine waits no longer. In the first case the connection is used again. In the second it does not stay open for ever.
func TestACallThatEndsBeforeItsCallerReads(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	released := make(chan struct{})
	w := &wire{alive: func() {}, dial: func() (net.Conn, func(), error) {
		nc, err := net.Dial("tcp", listener.Addr().String())
		return newConn(nc, new(atomic.Uint32), 0), func() { close(released) }, err
	}}
	call := func(until time.Duration, lead func()) error {
		done := make(chan struct{})
		x := &exchange{commands: [][]any{{"get", "x"}}, until: time.Now().Add(until), leads: true, done: func() { close(done) }}
		w.start(x)
		lead()
		<-done
		return x.err
	}
	w.warm()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	answers := 3
	go func() {
		for commands := bufio.NewReader(server); answers > 0; answers-- {
			_, _ = readCommand(commands)
			_, _ = io.WriteString(server, ":1\r\n")
		}
	}()
	for range 2 { // the first one has to wait for the connection, so its caller does not read
		if err := call(time.Minute, w.lead); err != nil {
			t.Fatal(err)
		}
	}
	isUsed := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.pipes[0].reading || w.pipes[0].writing
	}
	redistest.Eventually(t, "no goroutine reads or writes", func() bool { return !isUsed() })
	othersWrite := func(is bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pipes[0].writing = is
	}
	othersWrite(true)
	if err := call(ms, w.lead); err != errNoConn {
		t.Errorf("never written: got %v; want not sent", err)
	}
	othersWrite(false)
	if err := call(5*time.Second, w.lead); err != nil {
		t.Errorf("after a call that was never written: %v", err)
	}
	if err := call(ms, func() {}); !errors.Is(err, errNoReply) {
		t.Errorf("got %v; want no reply", err)
	}
	if !isUsed() {
		t.Fatal("no goroutine reads; want one, that waits for the late reply")
	}
	server.Close()
	<-released
}

func TestRepliesInPieces(t *testing.T) {
	for whole, want := range map[string]string{"$5\r\nab\r\nc\r\n": "ab\r\nc", "-ERR no\r\n": "ERR no", "$0\r\n\r\n": "", ":12\r\n": "12"} {
		for n := range len(whole) + 1 {
			r, size, err := parseReply([]byte(whole[:n]))
			if n < len(whole) && size > 0 || n == len(whole) && (size != n || r.text != want || r.kind != whole[0]) || err != nil {
				t.Errorf("%q: got %+v of %d bytes, %v; want %q only if nothing is missing", whole[:n], r, size, err, want)
			}
		}
	}
}

// A caller that waits reads the reply itself. It does not wait longer than for a call if there is none, and its goroutine
// does not read the replies to others.
func TestAWaitingCallerReadsItsReply(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: 300 * ms})
	w := s.store.(*serverSenders).wires[len(s.store.(*serverSenders).wires)-1]
	readers := func() (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, p := range w.pipes {
			if p.reading {
				n++
			}
		}
		return n
	}
	decide := func(waits bool) {
		t.Helper()
		b := limited(1)
		if waits {
			backend.Take(t.Context(), s, b.Charges, b.Decisions)
		} else {
			<-start(s, b).done
		}
		if d := b.Decisions[0]; d.Err != nil || !d.Allowed {
			t.Fatalf("waits %v: got %+v; want allowed", waits, d)
		}
	}
	for range 3 {
		decide(false)
		if n := readers(); n != 1 {
			t.Errorf("%d goroutines read; want 1", n)
		}
		redistest.Eventually(t, "no goroutine reads", func() bool { // a call that starts before the one before it has ended does not read itself
			decide(true)
			return readers() == 0
		})
	}
	server.Pause()
	began := time.Now()
	if d := takeAll(s, limited(1).Charges)[0]; !errors.Is(d.Err, backend.ErrUnavailable) {
		t.Errorf("got %+v; want an ErrUnavailable", d)
	}
	if took := time.Since(began); took < 290*ms {
		t.Errorf("a silent server: failed after %v; want the timeout of 300 ms", took)
	}
	server.Resume()
	redistest.Eventually(t, "calls are decided again", func() bool { return takeAll(s, limited(1).Charges)[0].Err == nil })
}

func TestSizesOfArguments(t *testing.T) {
	for n := range 1100 {
		text := strings.Repeat("x", n)
		if got, want := string(appendCommand(nil, []any{text})), fmt.Sprintf("*1\r\n$%d\r\n%s\r\n", n, text); got != want {
			t.Fatalf("%d bytes: got %q, want %q", n, got, want)
		}
	}
}
