package h2grpc

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// start is like serve, for tests that stop the server themselves.
func start(t *testing.T, edit ...func(*Config)) (*Server, *bufconn.Listener) {
	t.Helper()
	c := Config{Path: path, Method: &echo{}, Others: http.HandlerFunc(others), Inline: true}
	for _, e := range edit {
		e(&c)
	}
	s, l := New(c), bufconn.Listen(1<<20)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, l
}

func TestStopWaitsForRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := start(t)
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

// broken is a listener whose Accept returns the errors, and a connection for each nil.
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
		if r := c.answer(id); r.message() != "hold" {
			t.Errorf("got %+v; want the message \"hold\"", r)
		}
		synctest.Wait()
		if !nc.closed.Load() {
			t.Error("the write side was not closed after the last answer")
		}
		c.nc.Close()
	})
}

func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := start(t)
		c := dial(t, l)
		c.open(c.fields()) // requests that are never complete
		c.flush()
		other := c.open(c.encode(":method", "POST", ":scheme", "http", ":path", "/other", ":authority", "a", "content-type", "application/grpc"))
		c.flush()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		s.Stop(ctx)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("Stop took %v; want 3 s", took)
		}
		c.readToEnd()
		if c.reply(other).ended {
			t.Error("an incomplete request was answered")
		}
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

// The grace period starts with GOAWAY. Streams in flight may take that long.
func TestTheGraceOfOldConnectionsStartsWithGOAWAY(t *testing.T) {
	const grace = 30 * time.Second
	for range 5 { // the age varies by a tenth
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}, func(c *Config) {
				c.MaxConnectionAge, c.MaxConnectionGrace = time.Hour, grace
				c.Others = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			}))
			c.open(c.fields("grpc-encoding", "gzip"))
			c.flush()
			var going time.Time
			for {
				f, err := c.read()
				if err != nil {
					break
				}
				if _, ok := f.(*http2.GoAwayFrame); ok && going.IsZero() {
					going = time.Now()
				}
			}
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
		busy.open(busy.fields("grpc-encoding", "gzip"))
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

func TestResetsFreeHeldMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &echo{}
		c := dial(t, serve(t, m))
		id := c.send("hold")
		c.flush()
		synctest.Wait()
		if m.room.Waiting() != 1 {
			t.Errorf("%d answers are held; want 1", m.room.Waiting())
		}
		_ = c.to.WriteRSTStream(id, http2.ErrCodeCancel)
		c.flush()
		c.must("m", "m")
		if m.room.Waiting() != 0 {
			t.Errorf("%d answers are held after the reset; want 0", m.room.Waiting())
		}
		other := c.send("hold")
		c.flush()
		synctest.Wait()
		c.nc.Close()
		synctest.Wait()
		if m.room.Waiting() != 0 || c.reply(other).ended {
			t.Errorf("%d answers are held after the connection has ended; want 0", m.room.Waiting())
		}
	})
}

const ms = time.Millisecond

// slow runs test with a server whose Store takes 3 ms. Requests may wait for 10 ms. The last 2 ms before the
// caller's deadline are reserved for the answer.
func slow(t *testing.T, test func(*testing.T, *echo, *slowStore, *client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSlowStore(3 * ms)
		defer s.drain()
		m := &echo{store: inTime(s, 10*ms, 2*ms)}
		test(t, m, s, dial(t, serve(t, m, func(c *Config) { c.SubmitTimeout = 10 * ms })))
	})
}

func TestKnownAnswersLeaveAtOnce(t *testing.T) {
	slow(t, func(t *testing.T, m *echo, _ *slowStore, c *client) { //nolint:thelper // it is the test
		start := time.Now()
		var slow, now []uint32
		for i := range 3 { // in one write
			slow = append(slow, c.send(fmt.Sprint("slow ", i)))
			now = append(now, c.send(fmt.Sprint("now ", i)))
		}
		c.flush()
		for i, id := range now {
			if r := c.answer(id); r.message() != fmt.Sprint("now ", i) || time.Since(start) > 0 {
				t.Errorf("now %d: got %+v after %v; want the message, at once", i, r, time.Since(start))
			}
		}
		for i, id := range slow {
			if r := c.answer(id); r.message() != fmt.Sprint("slow ", i) || time.Since(start) != 3*ms {
				t.Errorf("slow %d: got %+v after %v; want the message after 3 ms", i, r, time.Since(start))
			}
		}
		// A client that resets a request just before its answer must get neither that answer nor the answer to
		// another request.
		id := c.send("now gone")
		_ = c.to.WriteRSTStream(id, http2.ErrCodeCancel)
		c.must("now after it", "now after it")
		c.must("then", "then")
		if n := m.batchSizes(); !slices.Equal(n, []int{3, 1}) {
			t.Errorf("batches of %v requests were submitted; want [3 1]", n)
		}
	})
}

// The requests of one read that have the same deadline must form one batch, up to a bound.
func TestOneReadIsOneBatch(t *testing.T) {
	slow(t, func(t *testing.T, m *echo, _ *slowStore, c *client) { //nolint:thelper // it is the test
		var ids []uint32
		want := map[uint32]string{}
		for i := range 20 {
			timeout := []string{"20m", "30m"}[i%2]
			id := c.send(fmt.Sprint(i), "grpc-timeout", timeout)
			ids, want[id] = append(ids, id), fmt.Sprint(i)
		}
		c.flush()
		for _, id := range ids {
			if r := c.answer(id); r.message() != want[id] {
				t.Errorf("got %+v; want the message %q", r, want[id])
			}
		}
		if n := m.batchSizes(); !slices.Equal(n, []int{10, 10}) {
			t.Errorf("batches of %v requests were submitted; want [10 10]", n)
		}
		for range 3 * maxBatch {
			c.send("m")
		}
		done := make(chan error)
		go func() { done <- c.write() }()
		defer func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		for id := c.next - 2; !c.reply(id).ended; {
			if _, err := c.read(); err != nil {
				t.Fatal(err)
			}
		}
		if most := slices.Max(m.batchSizes()); most != maxBatch {
			t.Errorf("the largest batch has %d requests; want %d", most, maxBatch)
		}
	})
}

// Answers must arrive by the timeout, or by the caller's deadline, whether the request was sent to the Store
// or waits.
func TestAnswersAreInTime(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) { //nolint:thelper // it is the test
		s.delay.Store(int64(time.Hour))
		for _, test := range []struct {
			timeout string
			want    time.Duration
		}{{"1H", 10 * ms}, {"8m", 6 * ms}, {"2m", 0}, {"12m", 10 * ms}, {"11m", 9 * ms}} { // the store is busy from the third request on
			id := c.send("m", "grpc-timeout", test.timeout)
			c.flush()
			began := time.Now()
			if r := c.answer(id); r.message() != "late" {
				t.Errorf("%s: got %+v; want the message \"late\"", test.timeout, r)
			}
			if took := time.Since(began); took != test.want {
				t.Errorf("%s: answered after %v; want %v", test.timeout, took, test.want)
			}
		}
		if !slices.Equal(s.batchSizes(), []int{1, 1}) {
			t.Errorf("got %v; want two batches of one request", s.batchSizes())
		}
		s.delay.Store(0)
		gone := c.send("m", "grpc-timeout", "1n")
		c.flush()
		if r := c.answer(gone); r.message() != "late" && r.fields["grpc-status"] != "4" {
			t.Errorf("got %+v; want the message \"late\" or grpc-status 4", r)
		}
	})
}

func TestADeadlineCountsFromTheHeaders(t *testing.T) {
	send := func(c *client, timeout string, slowly time.Duration) *reply {
		id := c.open(c.fields("grpc-timeout", timeout))
		_ = c.to.WriteData(id, false, framed("m")[:3])
		c.flush()
		time.Sleep(slowly)
		_ = c.to.WriteData(id, true, framed("m")[3:])
		c.flush()
		return c.answer(id)
	}
	slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) { //nolint:thelper // it is the test
		s.delay.Store(int64(time.Second))
		began := time.Now()
		if r := send(c, "9m", 4*ms); r.message() != "late" || time.Since(began) != 7*ms { // 2 ms are reserved for the answer
			t.Errorf("got %+v after %v; want the message \"late\" after 7 ms", r, time.Since(began))
		}
		if n := len(s.batchSizes()); n != 1 {
			t.Errorf("%d requests reached the store; want 1", n)
		}
		if r := send(c, "9m", 8*ms); r.message() != "late" || len(s.batchSizes()) != 1 {
			t.Errorf("no time is left: got %+v, and batches of %v requests; want the message \"late\" and [1]", r, s.batchSizes())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		if r := send(c, "50m", 49*ms); r.message() != "m" {
			t.Errorf("in time: got %+v; want the message \"m\"", r)
		}
		if r := send(c, "50m", 51*ms); r.fields["grpc-status"] != "4" {
			t.Errorf("late: got %+v; want grpc-status 4", r)
		}
	})
	synctest.Test(t, func(t *testing.T) { // Config.Others serves these requests
		var reported []string
		c := dial(t, serve(t, &echo{}, func(c *Config) {
			c.Others = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				reported = append(reported, r.Header.Get("Grpc-Timeout"))
				others(w, r)
			})
		}))
		for _, slowly := range []time.Duration{0, 30 * ms, 60 * ms} {
			id := c.open(c.fields("grpc-timeout", "50m"))
			c.flush()
			time.Sleep(slowly)
			_ = c.to.WriteData(id, true, []byte("\x01unusual"))
			c.flush()
			c.answer(id)
		}
		if want := []string{"51m", "21m", "1m"}; !slices.Equal(reported, want) {
			t.Errorf("passed to Config.Others with the timeouts %v; want %v", reported, want)
		}
	})
}

func TestAShortDeadlineAffectsOneRequestOnly(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, _ *slowStore, c *client) { //nolint:thelper // it is the test
		short, long := c.send("short", "grpc-timeout", "3m"), c.send("long")
		c.flush()
		if r := c.answer(short); r.message() != "late" {
			t.Errorf("got %+v; want the message \"late\"", r)
		}
		if r := c.answer(long); r.message() != "long" {
			t.Errorf("got %+v; want the message \"long\"", r)
		}
	})
}

func TestResetsOfSubmittedRequests(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, _ *slowStore, c *client) { //nolint:thelper // it is the test
		for range 5 * maxStreams / 1000 { // in total five times as many requests as may be in flight
			for range 1000 {
				_ = c.to.WriteRSTStream(c.send("m"), http2.ErrCodeCancel)
			}
			done := make(chan error)
			go func() { done <- c.write() }()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		c.must("still", "still")
		for id, r := range c.answers {
			if id != c.next-2 && (r.ended || r.reset != nil) {
				t.Errorf("%d: got %+v; want an open stream", id, r)
			}
		}
		c.send("m")
		c.flush()
		c.nc.Close() // the client no longer waits for the answer
	})
}

// Completing a request must not wait for the client. The client must get all answers when it reads.
func TestCompletingDoesNotWaitForTheClient(t *testing.T) {
	store := newSlowStore(1)
	m := &echo{store: store}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Path: path, Method: m, Others: http.HandlerFunc(others)})
	go s.Serve(nonblock.Listener(l)) //nolint:errcheck // Stop ends it
	t.Cleanup(func() { s.Stop(t.Context()) })
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := handshake(t, nc, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 24})
	_ = c.to.WriteWindowUpdate(0, 1<<30)
	var ids []uint32
	for range 60 { // the kernel buffers fewer bytes
		ids = append(ids, c.send("long 200000"))
		c.flush()
		time.Sleep(ms)
	}
	settled := func() bool { return len(m.batchSizes()) > 1 && int(store.ended.Load()) == len(m.batchSizes()) }
	for end := time.Now().Add(time.Minute); !settled() && time.Now().Before(end); {
		time.Sleep(ms)
	}
	if !settled() {
		t.Errorf("%d of %d batches have ended; want all, and more than one", store.ended.Load(), len(m.batchSizes()))
	}
	for i, id := range ids {
		if n := len(c.answer(id).message()); n != 200_000 {
			t.Errorf("answer %d has %d bytes; want 200000", i, n)
		}
	}
}
