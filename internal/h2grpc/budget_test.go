package h2grpc

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// scale is a Method. The message of a request is its weight, as a decimal number. The Store decides one batch after
// the other, in the order of Submit, like a single Redis. The time for a batch is unit for each 256 of its weight.
type scale struct {
	echo
	unit time.Duration // the time that the Store needs for a weight of up to 256

	mu        sync.Mutex
	decoded   int // the weight of all requests that are decoded and not reset
	submitted int // the weight of all requests that are submitted and not done
	most      struct{ decoded, submitted, batch int }
	free      time.Time // the time at which the Store will be idle
	batches   int
}

func (m *scale) NewBatch() Batch { return &scaleBatch{echoBatch: *newEchoBatch(&m.echo), scale: m} }

type scaleBatch struct {
	echoBatch
	scale  *scale
	weight int
}

func (b *scaleBatch) Add(message []byte, arrived time.Time, left time.Duration, canceled *atomic.Bool, trace any) (weight int) {
	b.echoBatch.Add(bytes.Clone(message), arrived, left, canceled, trace)
	w, _ := strconv.Atoi(string(message))
	b.weight += w
	b.scale.mu.Lock()
	defer b.scale.mu.Unlock()
	b.scale.decoded += w
	b.scale.most.decoded = max(b.scale.most.decoded, b.scale.decoded)
	return b.weight
}

func (b *scaleBatch) Reset() {
	b.scale.mu.Lock()
	b.scale.decoded -= b.weight
	b.scale.mu.Unlock()
	b.weight = 0
	b.echoBatch.Reset()
}

func (b *scaleBatch) Submit(deadline time.Time, source *backend.Source, done func()) {
	m, w := b.scale, b.weight
	m.mu.Lock()
	m.most.batch = max(m.most.batch, w)
	m.batches++
	if late := !deadline.IsZero() && !time.Now().Before(deadline); !late { // a batch whose deadline has passed is done at once
		m.submitted += w
		m.most.submitted = max(m.most.submitted, m.submitted)
		all := done
		done = func() {
			m.mu.Lock()
			m.submitted -= w
			m.mu.Unlock()
			all()
		}
	}
	m.mu.Unlock()
	b.inner.Done = func(*backend.Batch) { b.done() }
	b.echoBatch.Submit(deadline, source, done)
}

type queue struct{ scale *scale }

func (s queue) Submit(b *backend.Batch) {
	m, w := s.scale, 0
	for i := range b.Charges {
		n, _ := strconv.Atoi(string(b.Charges[i].Key))
		w += n
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.free.Before(now) {
		m.free = now
	}
	if !b.Deadline.IsZero() && !m.free.Before(b.Deadline) { // the batch is not sent if its deadline passes before its turn
		source := b.Source
		time.AfterFunc(time.Until(b.Deadline), func() {
			b.Fail(backend.ErrNotTaken)
			source.Flush()
		})
		return
	}
	m.free = m.free.Add(time.Duration((w+255)/256) * m.unit)
	time.AfterFunc(time.Until(m.free), b.Finish)
}

func (b *scaleBatch) Finish(to []byte, i int) ([]byte, Answer) {
	b.echoBatch.Finish(nil, i)
	if errors.Is(b.late[i], backend.ErrUnavailable) {
		return append(to, "late"...), Answer{}
	}
	return append(to, "ok"...), Answer{}
}

// sendWithoutPause starts goroutines that send requests of this weight without a pause, and read all answers. It
// does not wait for them.
func sendWithoutPause(t *testing.T, c *client, weight string, requests int) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	_ = c.to.WriteWindowUpdate(0, 1<<30)
	for range requests {
		c.send(weight)
	}
	wg.Go(func() {
		if err := c.write(); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		for left := requests; left > 0; {
			f, err := c.from.ReadFrame()
			if err != nil {
				t.Errorf("%d answers are missing: %v", left, err)
				return
			}
			if f.Header().Flags.Has(http2.FlagHeadersEndStream) && f.Header().Type == http2.FrameHeaders {
				left--
			}
		}
	})
	return &wg
}

// Some connections send much more than the Store can decide. All their requests must be answered. The decoded
// and submitted weight must be bounded, and a client with small requests must get each answer in time.
func TestGreedyConnectionsHarmOnlyThemselves(t *testing.T) {
	for _, many := range []int{1, 20} {
		t.Run(strconv.Itoa(many), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const weight, requests = 100, 2000
				m := &scale{unit: 150 * time.Microsecond}
				m.store = inTime(queue{m}, 10*ms, 2*ms)
				l := serve(t, &m.echo, func(c *Config) { c.Method, c.SubmitTimeout = m, 10*ms })
				var all []*sync.WaitGroup
				for range many {
					all = append(all, sendWithoutPause(t, dial(t, l), strconv.Itoa(weight), requests))
				}
				small := dial(t, l)
				for range 100 {
					small.must("1", "ok")
					time.Sleep(ms)
				}
				for _, wg := range all {
					wg.Wait()
				}
				m.mu.Lock()
				defer m.mu.Unlock()
				if m.most.batch >= maxWeight+weight {
					t.Errorf("a batch has a weight of %d; want less than %d", m.most.batch, maxWeight+weight)
				}
				if most := maxOutstanding + ownOutstanding*(many+1); m.most.submitted > most {
					t.Errorf("a weight of %d was submitted, want at most %d", m.most.submitted, most)
				}
				// In addition to the submitted requests, each connection has one batch that waits for its
				// turn.
				if most := maxOutstanding + (many+1)*(ownOutstanding+maxWeight+weight); m.most.decoded > most {
					t.Errorf("a weight of %d was decoded, want at most %d", m.most.decoded, most)
				}
				if m.decoded != 0 || m.submitted != 0 || m.batches == 0 {
					t.Errorf("after %d batches, weights of %d decoded and %d submitted are left; want 0", m.batches, m.decoded, m.submitted)
				}
				t.Logf("most: %+v", m.most)
			})
		})
	}
}

func TestABatchInMemoryIsBounded(t *testing.T) {
	m := &scale{}
	c := dial(t, serve(t, &m.echo, func(c *Config) { c.Method = m }))
	sendWithoutPause(t, c, "100", 2000).Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.most.decoded >= maxWeight+100 || m.decoded != 0 {
		t.Errorf("weights of up to %d were decoded, and %d is left; want less than %d, and 0", m.most.decoded, m.decoded, maxWeight+100)
	}
}

// While a request is decoded, however long that takes, it must be possible to check the timeouts of the connection
// and to drain it.
func TestNothingIsDecodedUnderALock(t *testing.T) {
	for _, inline := range []bool{true, false} {
		m := &stopped{at: make(chan struct{}), on: make(chan struct{})}
		s := New(Config{Path: path, Method: m, Others: http.HandlerFunc(others), Inline: inline})
		nc, c := startTape(t, s)
		c.send("m")
		nc.in <- c.out.Bytes()
		<-m.at
		for _, conn := range s.openConns() { // if the lock were held, this would wait forever
			conn.tick(time.Now())
			conn.drain()
		}
		close(m.on)
		close(nc.in)
		s.Stop(t.Context())
	}
}

type stopped struct {
	echo
	at, on chan struct{}
}

func (m *stopped) NewBatch() Batch {
	return &stoppedBatch{echoBatch: *newEchoBatch(&m.echo), stopped: m}
}

type stoppedBatch struct {
	echoBatch
	stopped *stopped
}

func (b *stoppedBatch) Add(message []byte, arrived time.Time, left time.Duration, canceled *atomic.Bool, trace any) (weight int) {
	b.stopped.at <- struct{}{}
	<-b.stopped.on
	return b.echoBatch.Add(message, arrived, left, canceled, trace)
}

// sendIncomplete opens a connection and sends two requests on it that stay incomplete, each with the given number of
// frames of maxFrame bytes.
func sendIncomplete(t *testing.T, l *bufconn.Listener, frames int) {
	t.Helper()
	c := dial(t, l)
	_ = c.to.WriteWindowUpdate(0, 1<<30)
	c.discard()
	part := bytes.Repeat([]byte("x"), maxFrame)
	block := c.fields()
	for range 2 {
		id := c.open(block)
		_ = c.to.WriteData(id, false, []byte{0, 0, 0x3f, 0xff, 0xff}) // the prefix of a message of nearly 4 MiB
		for range frames {
			_ = c.to.WriteData(id, false, part)
		}
		c.flush()
	}
	synctest.Wait()
}

// Many connections that each stay just below their share must not exceed the bound either: the share becomes smaller
// with each connection, and a connection keeps what it has.
func TestConnectionsBelowTheirShareHoldABoundedNumberOfBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bytesInAll, connections = 8 << 20, 100
		l := serve(t, &echo{}, func(c *Config) { c.BufferedBytes = bytesInAll })
		s := serverOf(l)
		for i := range connections {
			sendIncomplete(t, l, min(250, (bytesInAll/(i+2)-maxFrame)/maxFrame/2))
		}
		if held, most := s.bufferedBytes.Load(), int64(2*bytesInAll+connections*ownBuffered); held > most || held < bytesInAll {
			t.Errorf("%d bytes are held; want %d to %d", held, bytesInAll, most)
		}
	})
}

// While a long header block is decoded, another goroutine must be able to acquire the lock. The connection must be
// busy then, because a connection that is drained ends as soon as it is not busy.
func TestALongHeaderBlockIsDecodedWithoutTheLock(t *testing.T) {
	s := New(Config{Path: path, Method: &echo{}, Others: http.HandlerFunc(others), Inline: true})
	c := newConn(s, &tape{out: make(chan int, 100)})
	free := false
	c.heads.decoder.SetEmitFunc(func(f hpack.HeaderField) {
		c.heads.field(f)
		if c.mu.TryLock() {
			free = true
			if !c.busy() {
				t.Error("the connection may end")
			}
			c.mu.Unlock()
		}
	})
	encode := newClient(t, nil)
	for _, long := range []bool{false, true} {
		more := []string(nil)
		if long {
			more = []string{"x-long", strings.Repeat("~", 2*shortBlock)}
		}
		free = false
		c.mu.Lock()
		h, err := c.readHead(encode.fields(more...), false)
		c.mu.Unlock()
		if err != nil || !h.forMethod || free != long {
			t.Errorf("long block: %v; the lock was free: %v, want %v; got %+v, %v, want a request for the Method", long, free, long, h, err)
		}
	}
	s.Stop(t.Context())
}

// Before the lock is released for a long header block, the requests that have arrived must be submitted. Otherwise
// another goroutine that resets a stream would submit them, while the reader overwrites their messages.
func TestRequestsAreSubmittedBeforeALongHeaderBlock(t *testing.T) {
	s := New(Config{Path: path, Method: &echo{}, Others: http.HandlerFunc(others), Inline: true})
	c := newConn(s, &tape{out: make(chan int, 100)})
	c.mu.Lock()
	c.arrived = append(c.arrived, arrival{id: 1, message: []byte("m")})
	c.heads.decoder.SetEmitFunc(func(f hpack.HeaderField) {
		c.heads.field(f)
		if c.mu.TryLock() {
			if len(c.arrived) != 0 || len(c.out) == 0 {
				t.Errorf("%d requests are not submitted, %d bytes are answered; want none and some", len(c.arrived), len(c.out))
			}
			c.mu.Unlock()
		} else {
			t.Error("the lock is held")
		}
	})
	_, err := c.readHead(newClient(t, nil).fields("x-long", strings.Repeat("~", 2*shortBlock)), false)
	if c.mu.Unlock(); err != nil {
		t.Error(err)
	}
	s.Stop(t.Context())
}

// While all connections together hold too much, each may hold an equal share, and always its own 64 KiB.
func TestTheShareOfAConnection(t *testing.T) {
	s := &Server{config: Config{BufferedBytes: maxTotalBuffered}}
	c := &conn{server: s}
	for _, test := range []struct{ buffered, conns, want int64 }{
		{maxTotalBuffered, 1000, maxBuffered},
		{maxTotalBuffered + 1, 0, maxTotalBuffered},
		{maxTotalBuffered + 1, 16, maxTotalBuffered / 16},
		{maxTotalBuffered + 1, 100_000, ownBuffered},
		{2*maxTotalBuffered + 1, 1, ownBuffered},
	} {
		s.bufferedBytes.Store(test.buffered)
		s.connCount.Store(test.conns)
		if got := c.allowance(); int64(got) != test.want {
			t.Errorf("%d bytes of %d connections: a connection may hold %d, want %d", test.buffered, test.conns, got, test.want)
		}
	}
}

func TestTheBytesOfAConnectionAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		l := serve(t, &echo{store: store})
		s := serverOf(l)
		counted := func(what string, least, most int) {
			t.Helper()
			synctest.Wait()
			if n := int(s.bufferedBytes.Load()); n < least || n > most {
				t.Errorf("%s: %d bytes are counted; want %d to %d", what, n, least, most)
			}
		}
		c := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		half := c.open(c.fields())
		_ = c.to.WriteData(half, false, framed(strings.Repeat("m", 10_000))[:8000])
		c.flush()
		counted("an incomplete request of 8000 bytes", 8000+streamBytes, 8000+streamBytes)
		answered := c.send("now " + strings.Repeat("m", 4000))
		c.flush()
		counted("and an answer of 4009 bytes without a window", 12_009+2*streamBytes, 12_009+2*streamBytes)
		c.send(strings.Repeat("m", 5000))
		c.flush()
		counted("and a submitted request of 5000 bytes", 17_009+2*streamBytes, 17_009+2*streamBytes+4096)
		_ = c.to.WriteRSTStream(answered, http2.ErrCodeCancel)
		_ = c.to.WriteRSTStream(half, http2.ErrCodeCancel)
		c.flush()
		counted("after the resets of two streams", 5000, 5000+4096)
		other := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		_ = other.to.WriteData(other.open(other.fields()), false, framed(strings.Repeat("m", 10_000))[:8000])
		other.send("now " + strings.Repeat("m", 4000))
		other.flush()
		counted("with another connection", 17_009+2*streamBytes, 17_009+2*streamBytes+4096)
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
		c := dial(t, serve(t, &echo{store: store}), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		_ = c.to.WriteWindowUpdate(0, 1<<30)
		c.discard()
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
		// The client blocks the handler that writes first; maxOut blocks the other handler.
		ids := []uint32{c.open(c.fields(":path", "/other")), c.open(c.fields(":path", "/other"))}
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

// lateTimer is a Method whose stop functions come too late: they do nothing.
type lateTimer struct{ *echo }

func (m lateTimer) Later(d algorithms.Micros, answer func()) func() {
	m.echo.Later(d, answer)
	return func() {}
}

// The body of a request is released when its answer is known. A delayed answer is counted in its place. It is not sent
// after a reset, even if its timer has ended at the same moment.
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
			if n := int(serverOf(l).bufferedBytes.Load()); n != 7+streamBytes {
				t.Errorf("%d bytes are counted; want %d", n, 7+streamBytes)
			}
			_ = c.to.WriteData(id, true, framed("hold")[7:])
			c.flush()
			synctest.Wait()
			if n := int(serverOf(l).bufferedBytes.Load()); n != len("hold")+streamBytes {
				t.Errorf("%d bytes are counted while the answer is delayed; want %d", n, len("hold")+streamBytes)
			}
			ids = append(ids, id)
			if len(ids) == 1 {
				_ = c.to.WriteRSTStream(id, http2.ErrCodeCancel)
			}
		}
		c.answered(ids[1], "hold")
		c.must("m", "m")
		if r := c.reply(ids[0]); len(r.fields) > 0 || r.ended {
			t.Errorf("got %+v; want nothing after the reset", r)
		}
	})
}

// An answer can be as long as its request, and delayed answers may wait for a minute. One that exceeds the bound becomes a
// denial, and its slots are returned.
func TestDelayedAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &echo{}
		l := serve(t, m, func(c *Config) { c.BufferedBytes = ownBuffered })
		c := dial(t, l)
		_ = c.to.WriteWindowUpdate(0, 1<<30)
		answer, denied := strings.Repeat("x", maxFrame-100)+" slot hold", 0
		var ids []uint32
		for range 20 {
			ids = append(ids, c.send(answer))
			c.flush()
			synctest.Wait()
		}
		if n := serverOf(l).bufferedBytes.Load(); n > 2*ownBuffered {
			t.Errorf("delayed answers hold %d bytes; want at most %d", n, 2*ownBuffered)
		}
		for _, id := range ids {
			if c.answer(id).message() == "denied" {
				denied++
			} else {
				c.answered(id, answer)
			}
		}
		if n := int(m.oversized.Load()); denied < 10 || denied > 17 || n != denied || len(m.unused) != denied {
			t.Errorf("%d of 20 were denied, %d counted, %d had slots that were returned; want that of those beyond the bound", denied, n, len(m.unused))
		}
	})
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
