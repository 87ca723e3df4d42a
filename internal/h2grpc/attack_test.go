package h2grpc

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// Too many frames without a request must end the connection.
func TestAttacks(t *testing.T) {
	for name, attack := range map[string]func(c *client){
		"pings":           func(c *client) { _ = c.to.WritePing(false, [8]byte{}) },
		"settings":        func(c *client) { _ = c.to.WriteSettings() },
		"settings acks":   func(c *client) { _ = c.to.WriteSettingsAck() },
		"ping acks":       func(c *client) { _ = c.to.WritePing(true, [8]byte{}) },
		"priorities":      func(c *client) { _ = c.to.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		"unknown frames":  func(c *client) { _ = c.to.WriteRawFrame(77, 0, 0, []byte("x")) },
		"window updates":  func(c *client) { _ = c.to.WriteWindowUpdate(0, 1) },
		"GOAWAYs":         func(c *client) { _ = c.to.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"malformed heads": func(c *client) { c.open(c.encode(":method", "POST")) },
		"refused requests": func(c *client) {
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, EndHeaders: true, EndStream: true,
				BlockFragment: c.encode(":method", "GET", ":scheme", "http", ":path", path, ":authority", "a")})
			c.next += 2
		},
		"malformed trailers": func(c *client) {
			id := c.open(c.fields())
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, BlockFragment: c.encode("x-trailer", "1")})
		},
		"trailers of a stream that was reset": func(c *client) {
			if c.next == 1 {
				c.open(c.encode(":method", "POST"))
			}
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true, BlockFragment: c.encode("x-trailer", "1")})
		},
		"trailers of a request that is complete": func(c *client) {
			id := c.send("hold")
			_ = c.write()
			synctest.Wait() // until the answer is delayed
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true, BlockFragment: c.encode("x-trailer", "1")})
		},
		"rapid reset": func(c *client) {
			_ = c.to.WriteRSTStream(c.open(c.fields()), http2.ErrCodeCancel)
		},
		"rapid reset of requests to Config.Others": func(c *client) {
			_ = c.to.WriteRSTStream(c.open(c.fields(":path", "/other")), http2.ErrCodeCancel)
		},
		"empty data": func(c *client) {
			if c.next == 1 {
				c.open(c.fields())
			}
			_ = c.to.WriteData(1, false, nil)
		},
		"padding alone": func(c *client) {
			if c.next == 1 {
				c.open(c.fields())
			}
			_ = c.to.WriteDataPadded(1, false, nil, make([]byte, 255))
		},
		"data of a stream that is over": func(c *client) {
			if c.next == 1 {
				_ = c.to.WriteRSTStream(c.open(c.fields()), http2.ErrCodeCancel)
			}
			_ = c.to.WriteData(1, false, []byte("x"))
		},
		"empty continuations": func(c *client) {
			if c.next == 1 {
				_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields()})
				c.next = 3
			}
			_ = c.to.WriteContinuation(1, false, nil)
		},
		"an endless header block": func(c *client) {
			if c.next == 1 {
				_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields()})
				c.next = 3
			}
			_ = c.to.WriteContinuation(1, false, make([]byte, 16_000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, serve(t, &echo{}))
				go func() {
					for range 3 * framesPerTick {
						attack(c)
						if c.write() != nil {
							return
						}
					}
				}()
				start := time.Now()
				if code := c.readToEnd(); code != http2.ErrCodeEnhanceYourCalm {
					t.Errorf("ended with %v; want ENHANCE_YOUR_CALM", code)
				}
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("the connection ended after %v; want at most 2 s", took)
				}
			})
		})
	}
}

// The bytes of a header block are bounded before all its frames have arrived.
func TestALongHeaderBlockEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields()})
		for range maxHeaderBlock/maxFrame - 1 {
			_ = c.to.WriteContinuation(1, false, make([]byte, maxFrame))
		}
		_ = c.to.WriteRawFrame(http2.FrameContinuation, 0, 1, make([]byte, maxFrame))
		go func() { _ = c.write() }()
		start := time.Now()
		if code := c.readToEnd(); code != http2.ErrCodeEnhanceYourCalm || time.Since(start) > time.Second {
			t.Errorf("%d bytes: ended with %v after %v; want ENHANCE_YOUR_CALM at once", maxHeaderBlock, code, time.Since(start))
		}
	})
}

// Broken frames must end the connection with the error that RFC 9113 requires. h2spec tests many more.
func TestBrokenFrames(t *testing.T) {
	for name, c := range map[string]struct {
		code  http2.ErrCode
		write func(c *client)
	}{
		"too long":       {http2.ErrCodeFrameSize, func(c *client) { _ = c.to.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, maxFrame+1)) }},
		"a broken block": {http2.ErrCodeCompression, func(c *client) { c.open([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) }},
		"an even stream": {http2.ErrCodeProtocol, func(c *client) { c.next = 2; c.open(c.fields()) }},
		"more padding than payload": {http2.ErrCodeProtocol, func(c *client) {
			c.open(c.fields())
			_ = c.to.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1})
		}},
		"padding as long as its frame": {http2.ErrCodeProtocol, func(c *client) {
			c.open(c.fields())
			_ = c.to.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{1})
		}},
		"a stream window that SETTINGS make too wide": {http2.ErrCodeFlowControl, func(c *client) {
			_ = c.to.WriteWindowUpdate(c.open(c.fields()), 1<<30)
			_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		}},
		"a window too wide":  {http2.ErrCodeFlowControl, func(c *client) { _ = c.to.WriteWindowUpdate(0, 1<<31-1) }},
		"GOAWAY on a stream": {http2.ErrCodeProtocol, func(c *client) { _ = c.to.WriteRawFrame(http2.FrameGoAway, 0, 1, make([]byte, 8)) }},
		"a broken block of 3 KB": {http2.ErrCodeCompression, func(c *client) {
			c.open(append(c.fields("x-long", strings.Repeat("~", 3<<10)), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
		}},
		"a broken block of trailers of 3 KB": {http2.ErrCodeCompression, func(c *client) {
			id := c.open(c.fields())
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true,
				BlockFragment: append(c.encode("x-long", strings.Repeat("~", 3<<10)), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)})
		}},
		"PRIORITY within the header block of its stream": {http2.ErrCodeProtocol, func(c *client) {
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: c.fields()})
			_ = c.to.WritePriority(3, http2.PriorityParam{})
		}},
		"a frame within a header block": {http2.ErrCodeProtocol, func(c *client) {
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields()})
			_ = c.to.WritePing(false, [8]byte{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := dial(t, serve(t, &echo{}))
				x.must("before", "before")
				c.write(x)
				x.flush()
				if code := x.readToEnd(); code != c.code {
					t.Errorf("ended with %v; want %v", code, c.code)
				}
			})
		})
	}
}

// The first frame of a client is SETTINGS. An acknowledgement of SETTINGS is not enough (RFC 9113, 3.4).
func TestTheFirstFrameIsSETTINGS(t *testing.T) {
	for name, write := range map[string]func(c *client){
		"PING":            func(c *client) { _ = c.to.WritePing(false, [8]byte{}) },
		"HEADERS":         func(c *client) { c.open(c.fields()) },
		"SETTINGS ack":    func(c *client) { _ = c.to.WriteSettingsAck() },
		"an unknown type": func(c *client) { _ = c.to.WriteRawFrame(77, 0, 0, nil) },
	} {
		synctest.Test(t, func(t *testing.T) {
			nc, err := serve(t, &echo{}).Dial()
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, nc)
			defer nc.Close()
			c.out.Reset()
			c.out.WriteString(http2.ClientPreface)
			write(c)
			c.flush()
			if code := c.readToEnd(); code != http2.ErrCodeProtocol {
				t.Errorf("%s: ended with %v; want PROTOCOL_ERROR", name, code)
			}
		})
	}
}

// Each byte of a header block refers to one field of 4 KB. The server must deny or refuse the request without
// keeping the 40 MB of decoded fields.
func TestAnHPACKBomb(t *testing.T) {
	for name, path := range map[string]string{"ours": path, "another": "/other"} {
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}))
			bomb := c.encode(":method", "POST", ":scheme", "http", ":path", path, ":authority", "test", "content-type", "application/grpc",
				"x-bomb", strings.Repeat("x", 4000))
			again := c.encode("x-bomb", strings.Repeat("x", 4000)) // a reference to the table
			for range 10_000 {
				bomb = append(bomb, again...)
			}
			id := c.open(bomb)
			_ = c.to.WriteData(id, true, framed("m"))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c.flush()
			r := c.answer(id)
			runtime.ReadMemStats(&after)
			if path == "/other" && r.fields[":status"] != "431" || path != "/other" && r.message() != "denied" {
				t.Errorf("%s: got %+v; want status 431 at /other, or else the message \"denied\"", name, r)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
				t.Errorf("%s: %d bytes were allocated; want at most 4 MiB", name, n)
			}
			c.must("still", "still")
		})
	}
}

// Trailers have the same bound as the fields of a request. A request that exceeds it is not decided.
func TestLongTrailersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		id := c.open(c.fields())
		block := c.encode("x-long", strings.Repeat("x", 4000))
		for range maxHeaders / 4000 {
			block = append(block, c.encode("x-long", strings.Repeat("x", 4000))...) // a reference to the table
		}
		_ = c.to.WriteData(id, false, framed("m"))
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true, BlockFragment: block})
		c.flush()
		c.wasReset(id, http2.ErrCodeProtocol)
		c.must("m", "m")
	})
}

func TestAClientThatDoesNotReadIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		sent, done := 0, make(chan struct{})
		go func() {
			defer close(done)
			for ; ; sent++ {
				c.send("long 10000")
				_ = c.to.WriteWindowUpdate(0, 20_000)
				if c.write() != nil {
					return
				}
			}
		}()
		start := time.Now()
		<-done // its writes fail once the connection is closed
		if took := time.Since(start); took < writeTimeout || took > writeTimeout+5*time.Second {
			t.Errorf("disconnected after %v; want about %v", took, writeTimeout)
		}
		// bound is more than the number of answers that fit into the pipes and the server's buffers. Further
		// requests wait there without an answer. They are much shorter than answers, so 100 times as many may fit.
		if bound := (4<<20 + maxOut) / 10_000 * 2; sent > 100*bound {
			t.Errorf("%d requests were accepted; want at most %d", sent, 100*bound)
		}
	})
}

func TestIncompleteRequestsAreReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for _, test := range []struct {
			more []string
			want time.Duration
		}{{nil, wholeTimeout}, {[]string{"grpc-timeout", "3S"}, 3 * time.Second}} {
			id := c.open(c.fields(test.more...))
			_ = c.to.WriteData(id, false, framed("half")[:6])
			c.flush()
			start := time.Now()
			c.wasReset(id, http2.ErrCodeCancel)
			if took := time.Since(start); took < test.want || took > test.want+2*time.Second {
				t.Errorf("reset after %v; want %v", took, test.want)
			}
		}
		c.must("still", "still")
	})
}

func TestTooManyStreamsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for range maxStreams {
			c.open(c.fields())
			if c.out.Len() > 1<<16 {
				c.flush()
			}
		}
		over := c.send("m")
		c.flush()
		c.wasReset(over, http2.ErrCodeRefusedStream)
		_ = c.to.WriteData(1, true, framed("first"))
		c.flush()
		c.answered(1, "first")
		c.must("room", "room")
		synctest.Wait()
		// There is room for one request. It counts until it is answered.
		last := c.send("last")
		over = c.send("m")
		c.flush()
		c.wasReset(over, http2.ErrCodeRefusedStream)
		c.answered(last, "last")
	})
}

func TestTooManyIncompleteBytesAreDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		go func() {
			for range 4 {
				id := c.open(c.fields())
				_ = c.to.WriteData(id, false, []byte{0, 0, 0x3f, 0xff, 0xff}) // the prefix announces nearly 4 MiB
				for range 250 {
					_ = c.to.WriteData(id, false, make([]byte, 16_000))
					if c.write() != nil {
						return
					}
				}
			}
		}()
		for {
			if _, err := c.read(); err != nil {
				t.Fatal(err)
			}
			for id, r := range c.answers {
				if r.ended {
					if r.message() != "denied" {
						t.Errorf("%d: got %+v; want the message \"denied\"", id, r)
					}
					return
				}
			}
		}
	})
}

// Envoy allows a request if its check ends with an error, so the answer must be a denial.
func TestAMessageThatIsTooLongIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &echo{}
		c := dial(t, serve(t, m))
		for name, last := range map[string]bool{"whole": true, "incomplete": false} {
			id := c.open(c.fields())
			_ = c.to.WriteData(id, last, append([]byte{0, 0, 0x40, 0, 1}, "abc"...)) // 4 MiB and one byte
			c.flush()
			if r := c.answer(id); r.message() != "denied" {
				t.Errorf("%s: got %+v; want the message \"denied\"", name, r)
			}
			c.must("usual", "usual")
		}
		if n := m.oversized.Load(); n != 2 {
			t.Errorf("%d requests were counted as too large; want 2", n)
		}
	})
}

// A client may still send frames of streams that the server has reset. They must not end the connection, even if
// the server has reset other streams since.
func TestFramesOfSeveralResetStreamsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		var ids []uint32
		for range 3 {
			ids = append(ids, c.open(c.encode(":method", "POST"))) // malformed: it has no path
		}
		for _, id := range ids {
			_ = c.to.WriteData(id, false, []byte("x"))
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true, BlockFragment: c.encode("x-trailer", "1")})
		}
		c.must("still", "still")
		for _, id := range ids {
			if r := c.reply(id); r.reset == nil || *r.reset != http2.ErrCodeProtocol {
				t.Errorf("%d: got %+v; want a reset with PROTOCOL_ERROR, and no other", id, r)
			}
		}
	})
}

func TestContentLengthIsVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for _, test := range []struct {
			body    []byte
			lengths []string
			valid   bool
		}{
			{framed("m"), []string{"6"}, true}, {framed("m"), []string{"6", "6"}, true},
			{framed("m"), []string{"0"}, false}, {framed("m"), []string{"5"}, false}, {framed("m"), []string{"7"}, false},
			{framed("m"), []string{"5", "6"}, false}, {framed("m"), []string{"6", "5"}, false},
			{nil, []string{"x"}, false}, {nil, []string{"-1"}, false}, {nil, []string{""}, false}, {nil, []string{"0x0"}, false},
		} {
			var more []string
			for _, length := range test.lengths {
				more = append(more, "content-length", length)
			}
			id := c.open(c.fields(more...))
			_ = c.to.WriteData(id, true, test.body)
			c.flush()
			if r := c.answer(id); test.valid != (r.message() == "m") || !test.valid && (r.reset == nil || *r.reset != http2.ErrCodeProtocol) {
				t.Errorf("content-length %q of %d bytes: got %+v; want the message, or a reset with PROTOCOL_ERROR: %t", test.lengths, len(test.body), r, test.valid)
			}
		}
	})
}

// A SETTINGS frame that changes the windows of all streams must count as more frames if more streams are open.
func TestFramesThatConcernAllStreamsCostMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for range maxStreams / 2 {
			c.open(c.fields())
			if c.out.Len() > 1<<16 {
				c.flush()
			}
		}
		c.flush()
		for i := range framesPerTick {
			_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
		}
		c.flush()
		taken := 0
		for {
			f, err := c.read()
			if err != nil {
				t.Fatalf("no GOAWAY with a reason: %v", err)
			}
			if g, ok := f.(*http2.GoAwayFrame); ok {
				if g.ErrCode != http2.ErrCodeEnhanceYourCalm {
					t.Errorf("got %v; want ENHANCE_YOUR_CALM", g.ErrCode)
				}
				break
			}
			taken++
		}
		if most := 2 * framesPerTick * streamsChecked / (maxStreams / 2); taken > most {
			t.Errorf("%d frames were accepted; want at most %d", taken, most)
		}
	})
}

// A client that sends a window update for each answer is not disconnected, however many requests it sends.
func TestEachAnswerAllowsAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for range 3 * framesPerTick / 200 {
			var id uint32
			for range 100 {
				id = c.send("m")
				_ = c.to.WriteWindowUpdate(0, 6)
			}
			c.flush()
			if r := c.answer(id); r.message() != "m" {
				t.Fatalf("%d: got %+v; want the message \"m\"", id, r)
			}
			clear(c.answers)
		}
	})
}
