package redis

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

type peer struct {
	net.Conn // the server's end of the connection

	reply func(args []string) string
	calls atomic.Int64
}

func (p *peer) serve() {
	for r := bufio.NewReader(p.Conn); ; {
		args, err := readCommand(r)
		if err != nil {
			return
		}
		p.calls.Add(1)
		if text := p.reply(args); text != "" {
			_, _ = io.WriteString(p.Conn, text)
		}
	}
}

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

// wired returns a sender whose calls go to fallback, and a connection to a peer, which setWire can make the wire of the
// sender.
func wired(fallback *server, reply func(args []string) string) (*sender, *peer, net.Conn) {
	l := newSender(10*ms, fallback.decide)
	near, far := net.Pipe()
	p := &peer{Conn: far, reply: reply}
	go p.serve()
	return l, p, near
}

func (l *sender) setWire(conn net.Conn) {
	l.wire = &wire{node: newNode(nil, keys{prefix: "rl:"}, nil), sender: l, conn: conn, dialed: time.Now().Add(time.Hour)}
	go l.wire.read(conn, conn)
}

func limited(sizes ...int) *backend.Batch {
	b, limit := batchOf(sizes...), limitOf(1000)
	for i := range b.Charges {
		b.Charges[i].Limit = limit
	}
	return b
}

// slowWrites returns from Write some time after the other end has received the bytes. It records whether
// two writes overlap.
type slowWrites struct {
	net.Conn

	inside, overlaps atomic.Int64
}

func (s *slowWrites) Write(b []byte) (int, error) {
	if s.inside.Add(1) > 1 {
		s.overlaps.Add(1)
	}
	defer s.inside.Add(-1)
	n, err := s.Conn.Write(b)
	time.Sleep(ms)
	return n, err
}

// An answer arrives before the Write of its call has returned. The next call waits until the connection can
// be written again.
func TestAnAnswerBeforeItsWriteReturns(t *testing.T) {
	l, _, conn := wired(&server{}, echoed)
	l.timeout = time.Minute
	slow := &slowWrites{Conn: conn}
	l.setWire(slow)
	for range 20 {
		b := limited(1)
		if <-start(l, b).done; b.Decisions[0].Err != nil {
			t.Errorf("got %v; want no error", b.Decisions[0].Err)
		}
	}
	if n := slow.overlaps.Load(); n > 0 {
		t.Errorf("%d writes started during another; want 0", n)
	}
	l.close()
}

// The call fails at its timeout, and the next call uses go-redis.
func TestASilentServerEndsTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{latency: ms}
		l, p, conn := wired(fallback, func([]string) string { return "" })
		l.setWire(conn)
		start(l, limited(1)).fails(t, 10*ms, backend.ErrUnavailable)
		synctest.Wait()
		start(l, limited(1)).is(t, ms)
		if n := p.calls.Load(); n != 1 {
			t.Errorf("the silent server got %d calls; want 1", n)
		}
		l.close()
	})
}

// If the server does not read, the wire ends at the timeout of the call, even if an earlier call set the
// deadlines of the connection.
func TestAServerThatDoesNotReadEndsTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{latency: ms}
		l := newSender(10*ms, fallback.decide)
		near, far := net.Pipe()
		l.setWire(near)
		go func() {
			args, _ := readCommand(bufio.NewReader(far))
			_, _ = io.WriteString(far, echoed(args))
		}()
		start(l, limited(1)).is(t, 0)
		time.Sleep(6 * ms)
		start(l, limited(1)).fails(t, 10*ms, backend.ErrUnavailable)
		synctest.Wait()
		start(l, limited(1)).is(t, ms)
		l.close()
	})
}

// The deadline of an earlier call ends neither a later call nor the wire while no call is in flight.
func TestTheWireStaysUsableAfterACallIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{}
		l, p, conn := wired(fallback, func(args []string) string { time.Sleep(6 * ms); return echoed(args) })
		l.setWire(conn)
		for _, pause := range []time.Duration{0, ms, 3 * ms, 4 * ms, 20 * ms, time.Second} {
			time.Sleep(pause)
			start(l, limited(1)).is(t, 6*ms)
		}
		if calls, others := p.calls.Load(), fallback.called.Load(); calls != 6 || others != 0 {
			t.Errorf("%d calls by the wire and %d others; want 6 and 0", calls, others)
		}
		l.close()
	})
}

// The connection ends after the wire was reserved, and before the call is written. go-redis makes the call. The wire
// stays reserved until then, even if it gets a new connection.
func TestAWireThatEndsBeforeItsCallIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, conn := wired(&server{}, echoed)
		l.setWire(conn)
		if !l.wire.reserve() {
			t.Fatal("the wire cannot be reserved")
		}
		p.Close()
		synctest.Wait()
		near, _ := net.Pipe()
		l.wire.mu.Lock()
		again := l.wire.conn
		l.wire.conn = near
		l.wire.mu.Unlock()
		if again != nil || l.wire.reserve() {
			t.Errorf("the wire still has the connection that has ended (%v), or was reserved twice", again)
		}
		l.wire.conn = nil
		if c := (&call{charges: 1, runs: []run{{limited(1), 0, 1}}}); l.wire.send(c, time.Now()) {
			t.Error("a call was written to no connection")
		}
		l.wire.release()
	})
}

// The wire of this test has no reader that could notice the end of the connection.
func TestAConnectionThatTheServerHasClosedIsNotWritten(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(&line{}, near, 0)
	if c.check.ended == nil {
		t.Skip("on this system only the reader notices the end")
	}
	w := &wire{sender: newSender(ms, nil), node: newNode(nil, keys{prefix: "rl:"}, nil), conn: c}
	send := func() bool {
		return w.reserve() && w.send(&call{charges: 1, runs: []run{{limited(1), 0, 1}}}, time.Now().Add(time.Minute))
	}
	if !send() {
		t.Error("an open connection is not used")
	}
	w.busy = false
	far.Close()
	redistest.Eventually(t, "the end of the connection arrives", c.ended)
	if send() {
		t.Error("a call was written to a connection that the server has closed")
	}
}

// Large calls are made by go-redis, because the write of one could wait for a server that does not read.
func TestGoRedisMakesLargeCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fallback := &server{}
		l, p, conn := wired(fallback, echoed)
		l.setWire(conn)
		b := limited(1)
		b.Charges[0].Key = make([]byte, maxFrame)
		start(l, b).is(t, 0)
		if calls, others := p.calls.Load(), fallback.called.Load(); calls != 0 || others != 1 {
			t.Errorf("%d calls by the wire and %d others; want 0 and 1", calls, others)
		}
		p.Close()
	})
}

// If an error reply means that the server lacks the script or does not serve a slot, go-redis sends the call again.
// Other error replies are final answers, even if the call has certainly not run.
func TestGoRedisRepeatsCallsThatHaveNotRun(t *testing.T) {
	for text, again := range map[string]bool{
		"NOSCRIPT No matching script": true, "MOVED 1 127.0.0.1:7001": true, "TRYAGAIN later": true,
		"ERR Script attempted to access a non local key": true,
		"OOM no memory": false, "BUSY a script runs": false,
	} {
		synctest.Test(t, func(t *testing.T) {
			fallback := &server{latency: ms}
			l, p, conn := wired(fallback, func([]string) string { return "-" + text + "\r\n" })
			l.setWire(conn)
			if a := start(l, limited(1, 1)); again {
				a.is(t, ms)
			} else {
				a.fails(t, 0, backend.ErrNotTaken)
			}
			if calls, others := p.calls.Load(), fallback.called.Load(); calls != 1 || again != (others == 1) {
				t.Errorf("%s: %d calls by the wire and %d others; want 1 by the wire, and another one: %v", text, calls, others, again)
			}
			l.close()
		})
	}
}

func TestRepliesInPieces(t *testing.T) {
	for whole, want := range map[string]string{"$5\r\nab\r\nc\r\n": "ab\r\nc", "-ERR no\r\n": "ERR no", "$0\r\n\r\n": ""} {
		for n := range len(whole) + 1 {
			text, refused, done, err := parseReply([]byte(whole[:n]))
			if err != nil || done != (n == len(whole)) || done && (string(text) != want || refused != (whole[0] == '-')) {
				t.Errorf("%q: got %q, refused %v, whole %v, %v; want %q only if nothing is missing", whole[:n], text, refused, done, err, want)
			}
		}
		if _, _, _, err := parseReply([]byte(whole + "+")); err == nil {
			t.Errorf("%q and one more byte: no error, want one", whole)
		}
	}
	for _, text := range []string{"+OK\r\n", ":1\r\n", "$-1\r\n", "$x\r\n", "\r\n", "*1\r\n"} {
		if _, _, _, err := parseReply([]byte(text)); err == nil {
			t.Errorf("%q: want an error", text)
		}
	}
}

// After the server has closed all connections, usual calls use a new wire, and no call is lost.
func TestUsualCallsUseTheWire(t *testing.T) {
	r := redistest.Start(t)
	s := open(t, Config{URL: "redis://" + r.Addr, Timeout: 5 * time.Second})
	w := s.sendersByServer[r.Addr].usual.wire
	conn := func() net.Conn {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.conn
	}
	decide := func() {
		t.Helper()
		b := limited(1)
		<-start(s, b).done
		if d := b.Decisions[0]; d.Err != nil {
			t.Fatalf("got %v; want no error", d.Err)
		}
	}
	for range 3 {
		for conn() == nil {
			decide()
			time.Sleep(ms)
		}
		before := s.client.PoolStats().Hits
		for range 100 {
			decide()
		}
		if got := s.client.PoolStats().Hits; got != before {
			t.Errorf("%d of 100 calls used the pool; want none", got-before)
		}
		was := conn()
		closeUsed(r)
		decide() // the closed connection must not be used; a new one may exist already
		redistest.Eventually(t, "the connection is dropped", func() bool { return conn() != was })
	}
}
