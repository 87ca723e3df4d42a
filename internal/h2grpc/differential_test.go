package h2grpc

import (
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"
)

// outcome is what a client saw of a connection until the server objected to a frame.
type outcome struct {
	streams map[uint32]string
	frames  int
	end     rejection
}

// rejection is the reaction of a server to an invalid frame: it resets a stream, answers with 400, or ends
// the connection. The zero rejection means that there was none.
type rejection struct {
	how  string
	code http2.ErrCode
}

// accepted lists pairs of different objections to one frame, of this package and of the library, that the test
// accepts. The values are the reasons.
var accepted = map[[2]rejection]string{
	{{"GOAWAY", http2.ErrCodeProtocol}, {"reset", http2.ErrCodeProtocol}}:      "a frame on a stream that is idle or not a client's, or too much padding: the library is more patient than RFC 9113, 5.1 and 6.2",
	{{"reset", http2.ErrCodeProtocol}, {"status 400", 0}}:                      "a field that HTTP/2 does not have: RFC 9113, 8.1.1 has a stream error",
	{{"GOAWAY", http2.ErrCodeProtocol}, {"GOAWAY", http2.ErrCodeFrameSize}}:    "a frame with a wrong length on a wrong stream has two mistakes",
	{{"reset", http2.ErrCodeFrameSize}, {"GOAWAY", http2.ErrCodeFrameSize}}:    "PRIORITY of a wrong length: RFC 9113, 6.3 has a stream error",
	{{"GOAWAY", http2.ErrCodeStreamClosed}, {"GOAWAY", http2.ErrCodeProtocol}}: "HEADERS on a stream that is over: RFC 9113, 5.1 has STREAM_CLOSED",
	{{"reset", http2.ErrCodeStreamClosed}, {"GOAWAY", http2.ErrCodeProtocol}}:  "DATA on a stream that a later one has closed: RFC 9113, 5.1 has STREAM_CLOSED",
	{{"GOAWAY", http2.ErrCodeProtocol}, {"GOAWAY", http2.ErrCodeCompression}}:  "a header block that cannot be read, on a wrong stream, has two mistakes",
	{{"GOAWAY", http2.ErrCodeFrameSize}, {"reset", http2.ErrCodeProtocol}}:     "a frame with two mistakes",
	{{"reset", http2.ErrCodeProtocol}, {"status 200 without an answer", 0}}:    "a body that is not as long as content-length: RFC 9113, 8.1.1 has a stream error; the library reports it only to the handler",
}

// exchange sends the frames of a script to a server, one by one. After each frame it waits until the server
// has reacted completely. It ends after the first frame to which the server objects, or at the end of the
// script, and returns what the client received.
func exchange(t *testing.T, nc net.Conn, steps []byte) outcome {
	t.Helper()
	o := outcome{streams: map[uint32]string{}}
	var mu sync.Mutex // guards o
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		from, decoder := http2.NewFramer(nil, nc), hpack.NewDecoder(4096, nil)
		from.SetMaxReadFrameSize(1 << 20)
		for {
			frame, err := from.ReadFrame()
			mu.Lock()
			if err == nil {
				err = o.record(frame, decoder)
			} else {
				o.reject("closed", http2.ErrCodeNo)
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	c := newClient(t, nc)
	script := script(steps)
	rejected := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return o.end != rejection{}
	}
	for !rejected() {
		if c.write() != nil {
			break
		}
		time.Sleep(time.Millisecond) // in a synctest bubble: waits until all goroutines are blocked
		if len(script) == 0 {
			break
		}
		o.frames++
		c.invalidStep(&script)
	}
	mu.Lock()
	seen := o
	mu.Unlock()
	nc.Close()
	<-ended
	return seen
}

func (o *outcome) reject(how string, code http2.ErrCode) {
	if (o.end == rejection{}) {
		o.end = rejection{how, code}
	}
}

func (o *outcome) record(frame http2.Frame, decoder *hpack.Decoder) error {
	if (o.end != rejection{}) {
		return nil
	}
	id := frame.Header().StreamID
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		fields, err := decoder.DecodeFull(f.HeaderBlockFragment())
		if err != nil {
			return err
		}
		for _, field := range fields {
			switch {
			case field.Name == ":status" && field.Value == "400":
				o.reject("status 400", 0)
			case field.Name == ":status" && f.StreamEnded():
				o.reject("status 200 without an answer", 0)
			case field.Name == ":status", field.Name == "grpc-status":
				o.streams[id] += field.Name + "=" + field.Value + " "
			}
		}
	case *http2.DataFrame:
		o.streams[id] += string(f.Data()) + " "
	case *http2.RSTStreamFrame:
		o.reject("reset", f.ErrCode)
	case *http2.GoAwayFrame:
		o.reject("GOAWAY", f.ErrCode)
	}
	if (o.end == rejection{}) && (frame.Header().Type == http2.FrameData || frame.Header().Type == http2.FrameHeaders) && frame.Header().Flags.Has(http2.FlagDataEndStream) {
		o.streams[id] += "end "
	}
	return nil
}

func (c *client) invalidStep(s *script) {
	stream := func() uint32 { return one(s, 1, 1, 3, 3, 5, c.next, c.next, c.next+2, 0, 2) }
	end := func() bool { return s.next()%2 == 0 }
	request := func(more ...string) []byte {
		return c.encode(append([]string{":method", "POST", ":scheme", "http", ":path", "/other", ":authority", "a",
			"content-type", "application/grpc"}, more...)...)
	}
	headers := func(id uint32, block []byte, end bool) {
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: end})
		if id >= c.next {
			c.next = id + 2
		}
	}
	switch s.next() % 16 {
	case 0:
		headers(c.next, request(), true)
	case 1:
		headers(c.next, request(one(s, nil, []string{"content-length", "6"}, []string{"x-a", "b"}, []string{"connection", "close"}, []string{"te", "x"},
			[]string{"X-Upper", "b"}, []string{":path", "/again"}, []string{":odd", "x"}, []string{"x-a", "b\x00"}, []string{"x a", "b"},
			[]string{"host", "a", "host", "b"})...), end())
	case 2:
		headers(c.next, c.encode(one(s, []string{":method", "GET"}, []string{":method", "GET", ":scheme", "http"}, []string{"x", "y"},
			[]string{"x", "y", ":method", "GET", ":scheme", "http", ":path", "/other"}, []string{":status", "200"}, nil,
			[]string{":method", "GET", ":scheme", "http", ":path", "/other\n"}, []string{":method", "GET", ":scheme", "", ":path", "/other"},
			[]string{":method", "GET", ":method", "GET", ":scheme", "http", ":path", "/other"}, []string{":method", "CONNECT", ":scheme", "http", ":authority", "a"},
			[]string{":method", "GET", ":scheme", "http", ":scheme", "http", ":path", "/other"},
			[]string{":odd", "GET", ":scheme", "http", ":path", "/other"})...), end())
	case 3:
		_ = c.to.WriteDataPadded(stream(), end(), one(s, nil, []byte("x"), []byte("sixbyt"), make([]byte, 1000)), one(s, nil, make([]byte, 9)))
	case 4:
		_ = c.to.WriteRSTStream(stream(), http2.ErrCodeCancel)
	case 5:
		id, n := stream(), one(s, uint32(0), 1, 100, 1<<31-1)
		if n == 0 { // on a stream that has ended, a server may ignore the frame or object to it
			id = 0
		}
		_ = c.to.WriteWindowUpdate(id, n)
	case 6:
		_ = c.to.WriteSettings(http2.Setting{ID: one(s, http2.SettingInitialWindowSize, http2.SettingMaxFrameSize, http2.SettingEnablePush, http2.SettingHeaderTableSize, 99),
			Val: one(s, uint32(0), 1, 2, 65_535, 1<<14, 1<<31-1, 1<<31)})
	case 7:
		_ = c.to.WriteRawFrame(http2.FrameSettings, one(s, http2.Flags(0), 1), one(s, uint32(0), 1), make([]byte, one(s, 0, 5, 6)))
	case 8:
		_ = c.to.WriteRawFrame(http2.FramePing, one(s, http2.Flags(0), 1), one(s, uint32(0), 1), make([]byte, one(s, 8, 8, 7)))
	case 9:
		headers(stream(), c.encode(one(s, []string{"x-sum", "1"}, []string{":method", "GET"}, []string{"X-Sum", "1"})...), end())
	case 10:
		_ = c.to.WriteContinuation(stream(), end(), c.encode("x", "y"))
	case 11:
		_ = c.to.WriteRawFrame(http2.FramePriority, 0, stream(), append([]byte{0, 0, 0, byte(one(s, 0, 1, 3))}, make([]byte, one(s, 1, 1, 0))...))
	case 12:
		_ = c.to.WriteRawFrame(one(s, http2.FramePushPromise, 0x20), 0, one(s, uint32(0), 1), make([]byte, one(s, 8, 4, 12)))
	case 13:
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: request(), EndStream: true})
		_ = c.to.WriteContinuation(c.next+2*uint32(s.next()%2), true, nil)
		c.next += 2
	case 14:
		_ = c.to.WriteRawFrame(one(s, http2.FrameHeaders, http2.FrameData), one(s, http2.Flags(0x0c), 0x2c), stream(), []byte{byte(one(s, 0, 1, 200)), 0, 0, 0, 0, 1})
	case 15:
		_ = c.to.WriteRawFrame(one(s, http2.FrameRSTStream, http2.FrameWindowUpdate), 0, stream(), make([]byte, one(s, 3, 5)))
	}
}

// emptyPools empties the pools of the library. They contain channels, which must not move from one synctest
// bubble to the next.
func emptyPools() {
	runtime.GC()
	runtime.GC()
}

func ofThisPackage(t *testing.T, steps []byte) outcome {
	t.Helper()
	nc, err := serve(t, &echo{}).Dial()
	if err != nil {
		t.Fatal(err)
	}
	return exchange(t, nc, steps)
}

func ofTheLibrary(t *testing.T, steps []byte) outcome {
	l := bufconn.Listen(1 << 20)
	defer l.Close()
	served := make(chan struct{})
	defer func() { <-served }()
	go func() {
		defer close(served)
		if nc, err := l.Accept(); err == nil {
			quiet := &http.Server{ErrorLog: log.New(io.Discard, "", 0)}
			(&http2.Server{}).ServeConn(nc, &http2.ServeConnOpts{Handler: http.HandlerFunc(others), BaseConfig: quiet})
		}
	}()
	nc, err := l.Dial()
	if err != nil {
		t.Fatal(err)
	}
	return exchange(t, nc, steps)
}

// FuzzAgainstTheLibrary sends the same frames to this package and to golang.org/x/net/http2, with the same
// handler. Both must answer the same streams in the same way, and object to the same frame, with the same
// rejection or with a pair of rejections that the map accepted contains.
func FuzzAgainstTheLibrary(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 3, 0, 0, 2, 0, 0})
	for i := range byte(13) { // each of the requests that HTTP/2 forbids
		f.Add([]byte{1, i, 1})
		f.Add([]byte{2, i, 1})
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		steps := make([]byte, 1+random.IntN(20))
		for i := range steps {
			steps[i] = byte(random.IntN(256))
		}
		f.Add(steps)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 60 {
			return
		}
		emptyPools()
		synctest.Test(t, func(t *testing.T) {
			own, library := ofThisPackage(t, steps), ofTheLibrary(t, steps)
			same := own.end == library.end || accepted[[2]rejection{own.end, library.end}] != ""
			if own.frames != library.frames || !maps.Equal(own.streams, library.streams) || !same {
				t.Errorf("%v\n    this package: %+v\n    the library:  %+v", steps, own, library)
			}
		})
	})
}
