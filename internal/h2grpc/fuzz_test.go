package h2grpc

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzFrames requires that the server neither panics nor hangs, and sends only valid HTTP/2, whatever bytes
// follow the preface.
func FuzzFrames(f *testing.F) {
	c := client{to: http2.NewFramer(nil, nil)}
	c.to = http2.NewFramer(&c.out, nil)
	c.to.AllowIllegalWrites = true
	c.encoder = hpack.NewEncoder(&c.block)
	c.next = 1
	_ = c.to.WriteSettings()
	c.send("m")
	c.send("hold")
	c.send("long 20000", "grpc-timeout", "1m")
	_ = c.to.WriteRSTStream(3, http2.ErrCodeCancel)
	_ = c.to.WriteWindowUpdate(5, 1000)
	_ = c.to.WritePing(false, [8]byte{})
	f.Add(append([]byte(nil), c.out.Bytes()...), false)
	f.Add(append([]byte(nil), c.out.Bytes()...), true)
	f.Fuzz(func(t *testing.T, frames []byte, queued bool) {
		synctest.Test(t, func(t *testing.T) {
			m := &echo{}
			if queued {
				m.store = inTime(newSlowStore(time.Millisecond), 5*time.Millisecond, time.Millisecond)
			}
			l := serve(t, m)
			nc, err := l.Dial()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			defer func() { <-done }()
			go func() {
				defer close(done)
				_, _ = nc.Write(append([]byte(http2.ClientPreface), frames...))
				time.Sleep(time.Second)
				nc.Close()
			}()
			from := http2.NewFramer(nil, nc)
			for {
				if _, err := from.ReadFrame(); err != nil {
					if _, is := err.(http2.ConnectionError); is { //nolint:errorlint // ReadFrame does not wrap it
						t.Errorf("the server sent an invalid frame: %v", err)
					}
					return
				}
			}
		})
	})
}

// FuzzHeads checks that header blocks have the same meaning with and without the cache of the last block.
func FuzzHeads(f *testing.F) {
	var c client
	c.encoder = hpack.NewEncoder(&c.block)
	first, again := c.fields(), c.fields()
	f.Add(first, again, c.fields("grpc-timeout", "1S"), again)
	f.Add(first, again, c.encode("x-trailer", "1"), again)
	f.Add(first, []byte{0x20}, again, append([]byte{0x3f, 0xe1, 0x1f}, again...))
	c.notIndexed = ":path"
	first, again = c.fields(), c.fields()
	f.Add(first, again, c.fields("x-new", "y"), again)
	f.Add(first, again, slices.Concat(again, []byte{0x10, 0x05, 'x'}), slices.Concat(again, []byte{0x0f, 0x80, 0x80, 0x01, 0x00}))
	f.Add(c.encode(":method", "POST", "x", strings.Repeat("y", 4000)), c.encode("x", strings.Repeat("y", 4000)), again, first)
	f.Fuzz(func(t *testing.T, b0, b1, b2, b3 []byte) {
		caching, fresh := newHeadReader(&Config{Path: path}), newHeadReader(&Config{Path: path})
		for i, block := range [][]byte{b0, b1, b1, b2, b3, b1, b1, b0, b3, b3} {
			for _, trailers := range []bool{false, i%3 == 0} {
				fresh.known = nil
				have, err := caching.read(block, trailers)
				want, wantErr := fresh.read(block, trailers)
				if (err == nil) != (wantErr == nil) || err == nil && *have != *want {
					t.Fatalf("block %d: %+v %v, want %+v %v", i, have, err, want, wantErr)
				}
				if err != nil {
					return
				}
			}
		}
	})
}

// script is a byte string that selects the actions of a client.
type script []byte

func (s *script) next() int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b)
}

// one returns the argument that the next byte of the script selects.
func one[T any](s *script, of ...T) T { return of[s.next()%len(of)] }

// step executes the next step of s. If pause is not 0, the caller must send everything, and then wait that long.
func (c *client) step(s *script) (pause time.Duration) {
	stream := func() uint32 { return 1 + 2*uint32(s.next())%(c.next+2) }
	end := func() bool { return s.next()%2 == 0 }
	switch s.next() % 11 {
	case 0:
		c.send(one(s, "m", "", "hold", "fail", "long 20000", "long 300000"), one(s, nil, []string{"grpc-timeout", "9m"}, []string{"x-new", "y"})...)
	case 1:
		c.open(c.fields(one(s, nil, []string{":path", "/other"}, []string{"content-length", "6"}, []string{"te", "x"})...))
	case 2:
		c.open(c.encode(":method", one(s, "POST", "GET", "HEAD"), ":scheme", "http", ":path", one(s, path, "/other"), ":authority", "a",
			"content-type", one(s, "application/grpc", "text/plain", "application/grpc+proto")))
	case 3:
		_ = c.to.WriteDataPadded(stream(), end(), one(s, framed("m"), nil, framed("m")[:3], make([]byte, 16_000)), one(s, nil, make([]byte, 9)))
	case 4:
		_ = c.to.WriteRSTStream(stream(), http2.ErrCodeCancel)
	case 5:
		n := one(s, uint32(1), 100, 70_000, 1<<24)
		c.granted += int64(n)
		_ = c.to.WriteWindowUpdate(0, n)
	case 6:
		_ = c.to.WriteWindowUpdate(stream(), one(s, uint32(0), 1, 100, 70_000, 1<<24))
	case 7:
		_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: one(s, uint32(0), 1, 65_535, 1<<20)})
	case 8:
		_ = c.to.WritePing(end(), [8]byte{})
	case 9:
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: stream(), BlockFragment: c.encode("x-sum", "1"), EndHeaders: true, EndStream: end()})
	case 10:
		return one(s, time.Nanosecond, time.Millisecond, 20*time.Millisecond, time.Second, 2*time.Minute)
	}
	return 0
}

// FuzzClients runs clients that send valid frames, but at any time, in any order and on any stream. They must
// receive valid HTTP/2 within their windows. When they have disconnected, the server must have released
// everything.
func FuzzClients(f *testing.F) {
	f.Add([]byte{0, 0, 0, 10, 0, 0, 4, 0, 10, 3}, false)
	f.Add([]byte{7, 0, 0, 4, 0, 5, 3, 10, 1, 7, 3, 10, 1}, true)
	f.Add([]byte{2, 0, 1, 0, 3, 0, 1, 3, 0, 10, 2, 3, 0, 0, 0, 0, 1, 1, 10, 4}, true)
	f.Fuzz(func(t *testing.T, steps []byte, queued bool) {
		synctest.Test(t, func(t *testing.T) {
			m := &echo{}
			if queued {
				m.store = inTime(newSlowStore(3*time.Millisecond), 5*time.Millisecond, time.Millisecond)
			}
			s, l := start(t, m, func(c *Config) { c.SubmitTimeout = 5 * ms })
			c := dial(t, l)
			synctest.Wait()
			conn := s.openConns()[0]
			done := make(chan struct{})
			go func() {
				defer close(done)
				script := script(steps)
				for len(script) > 0 {
					if pause := c.step(&script); pause > 0 {
						_ = c.write()
						time.Sleep(pause)
					}
				}
				_ = c.write()
				time.Sleep(time.Hour) // waits until everything is answered or has timed out
				conn.checkCounters(t)
				c.nc.Close()
			}()
			received := int64(0)
			for {
				frame, err := c.read()
				if err != nil {
					if _, is := err.(http2.ConnectionError); is { //nolint:errorlint // ReadFrame does not wrap it
						t.Errorf("the server sent an invalid frame: %v", err)
					}
					break
				}
				if r := c.reply(frame.Header().StreamID); r.over {
					if _, reset := frame.(*http2.RSTStreamFrame); !reset {
						t.Errorf("%v arrived after the end of its stream; want no frame but RST_STREAM", frame)
					}
				} else if r.ended || r.reset != nil {
					r.over = true
				}
				received += int64(len(c.reply(frame.Header().StreamID).data))
				c.reply(frame.Header().StreamID).data = nil
			}
			<-done
			if received > 65_535+c.granted {
				t.Errorf("%d bytes arrived; want at most the %d of the first window and of updates", received, 65_535+c.granted)
			}
			s.Stop(t.Context())
			conn.checkCounters(t)
			if conn.open.count+conn.stuck+conn.resetInStore+conn.others+conn.handed+conn.operations+conn.share.weight+s.outstanding.weight > 0 || m.room.Waiting() > 0 {
				t.Errorf("after the end of all requests their counters are not 0: %+v", conn)
			}
		})
	})
}

func (c *conn) checkCounters(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var buffered, stuckBytes, queued int
	for _, s := range c.open.all() {
		buffered += s.buffered
		if s.state == stuck {
			stuckBytes += len(s.rest) + streamBytes
		}
		if s.queued {
			queued++
		}
	}
	if c.buffered != buffered || c.stuck != stuckBytes || len(c.stalled) != queued || c.submitted != 0 {
		t.Errorf("buffered %d, stuck %d, %d streams stalled, submitted %d; want %d, %d, %d and 0, as the streams have",
			c.buffered, c.stuck, len(c.stalled), c.submitted, buffered, stuckBytes, queued)
	}
}
