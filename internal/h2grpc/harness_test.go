package h2grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rlsidecar/rlsidecar/internal/delay"
	"github.com/rlsidecar/rlsidecar/internal/nonblock"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const path = "/echo.Echo/Echo"

// echo is a Method that answers with the message. A message may select another behavior: "fail", "hold"
// at its end (for a second, or ten with "long hold"), "long N" (N bytes), or "panic in F" (where F is Add, Submit or Finish). The answer to a
// message that contains "slot" has slots, and their id is the message. A request that
// the Store could not decide is answered "late".
type echo struct {
	room  delay.Room
	store backend.Store // decides all requests except those that start with "now"; if nil, all requests are known at once

	finished  atomic.Int64
	oversized atomic.Int64

	mu       sync.Mutex
	batches  []int // the number of requests of each batch
	panicked []any
	unused   []string
}

func (m *echo) Panicked(value any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.panicked = append(m.panicked, value)
}

func (m *echo) batchSizes() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.batches)
}

func (m *echo) Unused(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unused = append(m.unused, id)
}

func (m *echo) NewBatch() Batch { return newEchoBatch(m) }
func (m *echo) Denial() []byte  { return []byte("denied") }
func (m *echo) Oversized()      { m.oversized.Add(1) }
func (m *echo) Later(d algorithms.Micros, answer func()) func() {
	return m.room.Later(d, answer)
}

type echoBatch struct {
	method   *echo
	messages [][]byte
	late     []error
	of       []int // the index of the charge of each request; -1 means that the request has no charge
	inner    backend.Batch
	done     func()
}

func newEchoBatch(m *echo) *echoBatch {
	b := &echoBatch{method: m}
	b.inner.Done = func(*backend.Batch) { b.done() }
	return b
}

func (b *echoBatch) Reset() {
	b.messages, b.late, b.of = b.messages[:0], b.late[:0], b.of[:0]
	b.inner.Charges = b.inner.Charges[:0]
}

func (b *echoBatch) Add(message []byte, _ time.Time, left time.Duration, canceled *atomic.Bool, _ any) (weight int) {
	var late error
	if left < 0 && string(message) != "settles" {
		late = context.DeadlineExceeded
	}
	of := -1
	if late == nil && !bytes.HasPrefix(message, []byte("now")) {
		of = len(b.inner.Charges)
		b.inner.Charges = append(b.inner.Charges, backend.Charge{Key: message, Group: of, Terms: algorithms.Charge{Cost: 1}, Canceled: canceled})
	}
	b.messages, b.late, b.of = append(b.messages, message), append(b.late, late), append(b.of, of)
	b.panicIn("Add", len(b.messages)-1)
	return len(b.messages)
}

func (b *echoBatch) Submit(deadline time.Time, source *backend.Source, done func()) {
	for i := range b.messages {
		b.panicIn("Submit", i)
	}
	n := len(b.inner.Charges)
	if n == 0 || b.method.store == nil {
		b.inner.Decisions = nil
		done()
		return
	}
	b.method.mu.Lock()
	b.method.batches = append(b.method.batches, n)
	b.method.mu.Unlock()
	b.done = done
	b.inner.Decisions = slices.Grow(b.inner.Decisions[:0], n)[:n]
	clear(b.inner.Decisions)
	b.inner.Known = slices.Grow(b.inner.Known[:0], n)[:n]
	clear(b.inner.Known)
	b.inner.Deadline, b.inner.Source = deadline, source
	b.method.store.Submit(&b.inner)
}

func (b *echoBatch) Known(i int) bool { return b.of[i] < 0 || b.inner.Known[b.of[i]].Load() }

func (b *echoBatch) panicIn(f string, i int) {
	if string(b.messages[i]) == "panic in "+f {
		panic(f)
	}
}

func (b *echoBatch) Finish(to []byte, i int) ([]byte, Answer) {
	b.panicIn("Finish", i)
	b.method.finished.Add(1)
	if of := b.of[i]; of >= 0 && b.inner.Decisions != nil {
		d := &b.inner.Decisions[of]
		if b.late[i] = d.Err; d.Remaining != 0 && d.Remaining != nameOf(b.messages[i]) {
			b.late[i] = errOther
		}
	}
	message, answer := b.messages[i], Answer{}
	if bytes.HasSuffix(message, []byte("hold")) {
		if answer.Delay = algorithms.Second; bytes.HasSuffix(message, []byte("long hold")) {
			answer.Delay *= 10
		}
	}
	n, long := bytes.CutPrefix(message, []byte("long "))
	switch {
	case string(message) == "panic in Add":
		return append(to, "denied"...), Answer{}
	case errors.Is(b.late[i], backend.ErrUnavailable):
		return append(to, "late"...), answer
	case b.late[i] != nil:
		answer.Status = &Status{4, b.late[i].Error()}
		return to, answer
	case string(message) == "fail":
		answer.Status = &Status{2, "50% of Zoë"}
		return to, answer
	case long:
		size, _ := strconv.Atoi(string(n))
		return append(to, bytes.Repeat([]byte("x"), size)...), answer
	case bytes.Contains(message, []byte("slot")):
		answer.Slots = string(message)
	}
	return append(to, message...), answer
}

// others is the handler of Config.Others. It answers with the method, the path and the length of the body, after it
// has read the whole request.
func others(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	w.Header().Set("Trailer", "Grpc-Status")
	_, _ = w.Write([]byte(r.Method + " " + r.URL.Path + " " + strconv.FormatInt(n, 10)))
	w.Header().Set("Grpc-Status", "0")
}

var servers sync.Map

func serverOf(l *bufconn.Listener) *Server {
	s, _ := servers.Load(l)
	return s.(*Server)
}

func serve(tb testing.TB, m *echo, edit ...func(*Config)) *bufconn.Listener {
	tb.Helper()
	c := Config{Path: path, Method: m, Others: http.HandlerFunc(others)}
	for _, e := range edit {
		e(&c)
	}
	c.Inline = m.store == nil
	s, l := New(c), bufconn.Listen(1<<20)
	servers.Store(l, s)
	serveOn(tb, s, l)
	return l
}

// start is serve for tests that also need the server.
func start(tb testing.TB, m *echo, edit ...func(*Config)) (*Server, *bufconn.Listener) {
	tb.Helper()
	l := serve(tb, m, edit...)
	return serverOf(l), l
}

// serveOn serves until the end of the test.
func serveOn(tb testing.TB, s *Server, l net.Listener) {
	tb.Helper()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	tb.Cleanup(func() {
		s.Stop(canceled())
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
}

// serveTCP serves on a real socket until the end of the test. The function that it returns connects to it.
func serveTCP(tb testing.TB, m *echo, tick time.Duration, wrap func(net.Listener) net.Listener) (*Server, func() *net.TCPConn) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := New(Config{Path: path, Method: m, Others: http.HandlerFunc(others), Inline: m.store == nil, Tick: tick})
	serveOn(tb, s, nonblock.Listener(wrap(l)))
	return s, func() *net.TCPConn {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { nc.Close() })
		_ = nc.SetDeadline(time.Now().Add(time.Minute))
		return nc.(*net.TCPConn)
	}
}

// plain does not wrap a listener.
func plain(l net.Listener) net.Listener { return l }

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

type client struct {
	t          testing.TB
	nc         net.Conn
	to         *http2.Framer // writes to out
	out        bytes.Buffer
	from       *http2.Framer
	encoder    *hpack.Encoder
	notIndexed string // the name of a field that the encoder adds to no table
	block      bytes.Buffer
	decoder    *hpack.Decoder
	next       uint32
	answers    map[uint32]*reply
	granted    int64 // bytes of the connection's window, if the test counts them
}

type reply struct {
	fields map[string]string
	data   []byte
	ended  bool
	reset  *http2.ErrCode
	over   bool // nothing more may arrive
}

func (r *reply) message() string {
	if len(r.data) < prefixLen {
		return ""
	}
	return string(r.data[prefixLen:])
}

func dial(tb testing.TB, l *bufconn.Listener, settings ...http2.Setting) *client {
	tb.Helper()
	nc, err := l.Dial()
	if err != nil {
		tb.Fatal(err)
	}
	return handshake(tb, nc, settings...)
}

func handshake(tb testing.TB, nc net.Conn, settings ...http2.Setting) *client {
	tb.Helper()
	tb.Cleanup(func() { nc.Close() })
	c := newClient(tb, nc, settings...)
	c.flush()
	return c
}

// newClient returns a client whose preface is not flushed yet.
func newClient(tb testing.TB, nc net.Conn, settings ...http2.Setting) *client {
	tb.Helper()
	c := &client{t: tb, nc: nc, next: 1, answers: map[uint32]*reply{}}
	c.to, c.from = http2.NewFramer(&c.out, nil), http2.NewFramer(nil, nc)
	c.to.AllowIllegalWrites = true
	c.from.SetMaxReadFrameSize(maxFrame) // reading a longer frame fails
	c.encoder = hpack.NewEncoder(&c.block)
	c.decoder = hpack.NewDecoder(4096, nil)
	c.out.WriteString(http2.ClientPreface)
	_ = c.to.WriteSettings(settings...)
	return c
}

func (c *client) flush() {
	c.t.Helper()
	if err := c.write(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) write() error {
	_, err := c.nc.Write(c.out.Bytes())
	c.out.Reset()
	return err
}

// fields encodes the usual header fields and those in more, in which names and values alternate. If more begins with a
// path, it is the path of the request.
func (c *client) fields(more ...string) []byte {
	at := path
	if len(more) > 0 && more[0] == ":path" {
		at, more = more[1], more[2:]
	}
	list := append([]string{":method", "POST", ":scheme", "http", ":path", at, ":authority", "test",
		"content-type", "application/grpc", "te", "trailers"}, more...)
	return c.encode(list...)
}

func (c *client) encode(list ...string) []byte {
	c.block.Reset()
	for i := 0; i < len(list); i += 2 {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: list[i], Value: list[i+1], Sensitive: list[i] == c.notIndexed})
	}
	return bytes.Clone(c.block.Bytes())
}

func (c *client) open(block []byte) uint32 {
	id := c.next
	c.next += 2
	n := min(len(block), maxFrame)
	_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block)})
	for block = block[n:]; len(block) > 0; block = block[n:] {
		n = min(len(block), maxFrame)
		_ = c.to.WriteContinuation(id, n == len(block), block[:n])
	}
	return id
}

func framed(message string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// send appends a request; flush sends it.
func (c *client) send(message string, more ...string) uint32 {
	id := c.open(c.fields(more...))
	_ = c.to.WriteData(id, true, framed(message))
	return id
}

func (c *client) reply(id uint32) *reply {
	if c.answers[id] == nil {
		c.answers[id] = &reply{fields: map[string]string{}}
	}
	return c.answers[id]
}

func (c *client) read() (http2.Frame, error) {
	f, err := c.from.ReadFrame()
	if err != nil {
		return nil, err
	}
	r := c.reply(f.Header().StreamID)
	switch f := f.(type) {
	case *http2.HeadersFrame:
		fields, err := c.decoder.DecodeFull(f.HeaderBlockFragment())
		if err != nil {
			c.t.Fatalf("header block of an answer: %v", err)
		}
		for _, field := range fields {
			r.fields[field.Name] = field.Value
		}
		r.ended = r.ended || f.StreamEnded()
	case *http2.DataFrame:
		r.data = append(r.data, f.Data()...)
		r.ended = r.ended || f.StreamEnded()
	case *http2.RSTStreamFrame:
		code := f.ErrCode
		r.reset = &code
	}
	return f, nil
}

// answer reads until stream id has ended or was reset.
func (c *client) answer(id uint32) *reply {
	c.t.Helper()
	r := c.reply(id)
	for !r.ended && r.reset == nil {
		f, err := c.read()
		if err != nil {
			c.t.Fatalf("stream %d: %v", id, err)
		}
		if g, ok := f.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
			c.t.Fatalf("stream %d: GOAWAY %v %s", id, g.ErrCode, g.DebugData())
		}
	}
	return r
}

// answered checks the message of the answer to stream id.
func (c *client) answered(id uint32, message string) {
	c.t.Helper()
	if r := c.answer(id); r.message() != message {
		c.t.Errorf("stream %d: got %.500v; want the message %.100q", id, r, message)
	}
}

// wasReset checks that the server resets stream id with this code.
func (c *client) wasReset(id uint32, code http2.ErrCode) {
	c.t.Helper()
	if r := c.answer(id); r.reset == nil || *r.reset != code {
		c.t.Errorf("stream %d: got %+v; want a reset with %v", id, r, code)
	}
}

// discard reads and discards all frames, in a goroutine.
func (c *client) discard() { go func() { _, _ = io.Copy(io.Discard, c.nc) }() }

// goesAway reads until a GOAWAY arrives, and returns its code.
func (c *client) goesAway() http2.ErrCode {
	c.t.Helper()
	for {
		f, err := c.read()
		if err != nil {
			c.t.Fatalf("no GOAWAY: %v", err)
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			return g.ErrCode
		}
	}
}

func (c *client) must(message, want string) {
	c.t.Helper()
	id := c.send(message)
	c.flush()
	if r := c.answer(id); r.message() != want || r.fields["grpc-status"] != "0" || r.fields["content-type"] != "application/grpc" {
		c.t.Fatalf("%q: got %+v; want the message %q, grpc-status 0 and content-type application/grpc", message, r, want)
	}
}

// readToEnd reads until the connection ends, and returns the code of the GOAWAY, or ErrCodeNo if there was none.
func (c *client) readToEnd() http2.ErrCode {
	c.t.Helper()
	code := http2.ErrCodeNo
	for {
		f, err := c.read()
		if err != nil {
			return code
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			code = g.ErrCode
		}
	}
}
