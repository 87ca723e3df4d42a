package h2grpc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

func withOthers(f http.HandlerFunc) func(*Config) { return func(c *Config) { c.Others = f } }

// Config.Others receives each request with all its fields, also when a client repeats the request and only refers to
// its table of fields. The client receives the fields and trailers of the answer.
func TestOthersReceiveAndAnswerAllFields(t *testing.T) {
	for name, test := range map[string]struct {
		fields []string
		host   string
	}{
		"authority":          {[]string{":authority", "one"}, "one"},
		"host":               {[]string{"host", "two"}, "two"},
		"authority and host": {[]string{":authority", "one", "host", "two"}, "one"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got *http.Request
			c := dial(t, serve(t, &echo{}, withOthers(func(w http.ResponseWriter, r *http.Request) {
				got = r
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("X-Field", "field")
				w.Header().Set("Trailer", "Grpc-Status")
				w.WriteHeader(http.StatusAccepted)
				w.Header().Set("Grpc-Status", "7")
				w.Header().Set(http.TrailerPrefix+"X-Trailer", "trailer")
				w.Header().Set("X-Late", "neither a field nor a trailer")
			})))
			for i := range 5 {
				list := append([]string{":method", "POST", ":scheme", "http", ":path", "/a/b"}, test.fields...)
				id := c.open(c.encode(append(list, "content-type", "application/grpc", "x-more", "more")...))
				_ = c.to.WriteData(id, true, framed("m"))
				c.flush()
				r := c.answer(id)
				want := map[string]string{":status": "202", "content-type": "application/grpc", "x-field": "field", "grpc-status": "7", "x-trailer": "trailer"}
				if !maps.Equal(r.fields, want) {
					t.Errorf("%s, %d: got the fields %v; want %v", name, i, r.fields, want)
				}
				if got.Method != "POST" || got.URL.Path != "/a/b" || got.Host != test.host || got.Header.Get("X-More") != "more" || got.Header.Get("Content-Type") != "application/grpc" {
					t.Errorf("%s, %d: got %+v; want POST /a/b of the host %s with the header fields", name, i, got, test.host)
				}
				if i < 3 { // without a request to the Method in between, the next header block equals this one
					continue
				}
				c.must("m", "m")
				if r.reset != nil {
					t.Errorf("%s, %d: the stream was reset with %v after its end; want no reset", name, i, *r.reset)
				}
			}
		})
	}
}

// The answers of the Method and of Config.Others obey both windows of the client, to the byte. SETTINGS may open a window
// too.
func TestAnswersObeyTheWindows(t *testing.T) {
	for _, at := range []string{path, "/other"} {
		t.Run(at, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { obeysTheWindows(t, at) }) })
	}
}

func obeysTheWindows(t *testing.T, at string) {
	t.Helper()
	const size = 70_000 // more than the first window of the connection
	c := dial(t, serve(t, &echo{}, withOthers(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), size))
	})), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	id := c.send(fmt.Sprint("long ", size-prefixLen), ":path", at)
	r := c.reply(id)
	for _, step := range []struct {
		open func()
		want int
	}{
		{func() {}, 0},
		{func() { _ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}) }, 1000},
		{func() { _ = c.to.WriteWindowUpdate(id, 500) }, 1500},
		{func() { _ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 400}) }, 1500},
		{func() { _ = c.to.WriteWindowUpdate(id, 700) }, 1600},
		{func() { _ = c.to.WriteWindowUpdate(id, 1<<20) }, 65_535},
		{func() { _ = c.to.WriteWindowUpdate(0, 65) }, 65_600},
		{func() { _ = c.to.WriteWindowUpdate(0, 1<<20) }, size},
	} {
		step.open()
		c.flush()
		_ = c.nc.SetReadDeadline(time.Now().Add(time.Second)) // any surplus bytes arrive before then
		for _, err := c.read(); err == nil; _, err = c.read() {
		}
		_ = c.nc.SetReadDeadline(time.Time{})
		if len(r.data) != step.want {
			t.Fatalf("%d bytes arrived; want %d", len(r.data), step.want)
		}
	}
	if !r.ended {
		t.Error("the stream has not ended after all bytes")
	}
}

// When Stop closes a connection, a handler that waits for the client's window must end. Otherwise Stop would not
// return.
func TestAHandlerWithoutAWindowEndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 100)
		s, l := start(t, &echo{}, withOthers(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write([]byte("x"))
			ended <- err
		}))
		for range cap(ended) {
			c := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			c.open(c.fields(":path", "/other"))
			c.flush()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.Stop(ctx)
		for range cap(ended) {
			if err := <-ended; err == nil {
				t.Error("Write returned no error; want one")
			}
		}
	})
}

// The windows of a stream and of its connection are returned while its handler reads, so that a body may have any length.
// No byte more is returned than was read.
func TestTheWindowsAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serve(t, &echo{})
		c := dial(t, l)
		id := c.open(c.fields(":path", "/other"))
		c.flush()
		synctest.Wait()
		conn := serverOf(l).openConns()[0]
		granted, sent := map[uint32]int{id: streamWindow, 0: 65_535}, 0
		for sent < max(2*streamWindow, connWindow+connWindow/4) {
			_ = c.to.WriteData(id, false, make([]byte, min(granted[id]-sent, granted[0]-sent, maxFrame)))
			sent += min(granted[id]-sent, granted[0]-sent, maxFrame)
			c.flush()
			_ = c.nc.SetReadDeadline(time.Now().Add(time.Millisecond)) // all updates arrive before then
			for f, err := c.read(); err == nil; f, err = c.read() {
				if w, ok := f.(*http2.WindowUpdateFrame); ok {
					granted[w.StreamID] += int(w.Increment)
				}
			}
			conn.mu.Lock()
			unread, received := int(conn.open.find(id).unread), conn.received // the bytes whose windows are returned later
			conn.mu.Unlock()
			if granted[id] != sent+streamWindow-unread || granted[0] != sent+connWindow-received {
				t.Fatalf("%v bytes were granted after %d were sent; want %d and %d more, less %d and %d", granted, sent, streamWindow, connWindow, unread, received)
			}
		}
		_ = c.nc.SetReadDeadline(time.Time{})
		_ = c.to.WriteData(id, true, nil)
		c.flush()
		if r := c.answer(id); !strings.HasPrefix(string(r.data), "POST ") {
			t.Errorf("got %+v; want an answer", r)
		}
	})
}

// Config.Others serves a bounded number of streams. Further streams are refused, and the client may send them
// again when there is room. A client that continues to open streams is disconnected, because each of them is
// expensive.
func TestTheStreamsOfOthersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := func(c *client) uint32 { return c.open(c.fields(":path", "/other")) }
		c := dial(t, serve(t, &echo{}))
		var ids []uint32
		for range maxOthers {
			ids = append(ids, send(c))
		}
		over := send(c)
		c.flush()
		c.wasReset(over, http2.ErrCodeRefusedStream)
		for _, id := range ids {
			if r := c.reply(id); r.ended || r.reset != nil {
				t.Errorf("%d: got %+v; want an open stream", id, r)
			}
		}
		_ = c.to.WriteData(ids[0], true, nil)
		c.flush()
		c.answer(ids[0])
		synctest.Wait()
		again := send(c)
		_ = c.to.WriteData(again, true, nil)
		c.flush()
		if r := c.answer(again); r.reset != nil {
			t.Errorf("with room: got %+v; want an answer", r)
		}
		for range maxOthers/2 + framesPerTick/otherReset {
			send(c)
		}
		go func() { _ = c.write() }()
		began := time.Now()
		if code := c.readToEnd(); code != http2.ErrCodeEnhanceYourCalm || time.Since(began) > 2*time.Second {
			t.Errorf("ended with %v after %v; want ENHANCE_YOUR_CALM within 2 s", code, time.Since(began))
		}
	})
}

// A handler may answer before it has read the request. Then the client need not send the rest, the context of the
// handler ends, and the stream does not keep a connection open that is drained.
func TestAnAnswerOfOthersEndsItsStream(t *testing.T) {
	for name, trailers := range map[string]bool{"with trailers": true, "without": false} {
		synctest.Test(t, func(t *testing.T) {
			var ctx context.Context
			s, l := start(t, &echo{}, withOthers(func(w http.ResponseWriter, r *http.Request) {
				ctx = r.Context()
				if trailers {
					w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
				}
			}))
			c := dial(t, l)
			for _, whole := range []bool{false, true} {
				id := c.open(c.fields(":path", "/other"))
				if whole {
					_ = c.to.WriteData(id, true, nil)
				}
				c.flush()
				c.answer(id)
				synctest.Wait()
				c.must("m", "m")
				if r := c.reply(id); !r.ended || !whole && (r.reset == nil || *r.reset != http2.ErrCodeNo) || whole && r.reset != nil {
					t.Errorf("%s, whole request: %t: got %+v; want the end of the stream, and a reset with NO_ERROR only if the request is incomplete", name, whole, r)
				}
				if ctx.Err() == nil {
					t.Errorf("%s: the context of the handler has not ended", name)
				}
			}
			go c.readToEnd()
			began := time.Now()
			s.Stop(context.Background())
			if took := time.Since(began); took > drainAnswer+5*time.Second {
				t.Errorf("%s: Stop took %v; want about %v", name, took, drainAnswer)
			}
		})
	}
}
