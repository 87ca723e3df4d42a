package h2grpc

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// An answer is reset because too many bytes wait for the client's window. It must no longer count as a
// request in flight.
func TestAnswersWithoutRoomAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{store: newSlowStore(0)}),
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for range 2 { // the sizes of these answers add up to maxStalled
			c.send("long " + strconv.Itoa(maxStalled/2-prefixLen))
			c.flush()
			synctest.Wait()
		}
		for range maxStreams / 1024 {
			var last uint32
			for range 1024 {
				last = c.send("m")
			}
			go func() { _ = c.write() }()
			for id := last - 2*1023; id <= last; id += 2 {
				if r := c.answer(id); r.reset == nil || *r.reset != http2.ErrCodeEnhanceYourCalm {
					t.Fatalf("%d: got %+v; want a reset with ENHANCE_YOUR_CALM", id, r)
				}
			}
			synctest.Wait()
		}
		_ = c.to.WriteRSTStream(1, http2.ErrCodeCancel)
		_ = c.to.WriteWindowUpdate(0, 1<<30)
		_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		c.flush()
		c.must("m", "m")
	})
}

// Too many pings must end the connection, whether or not the client reads the answers to them. An answer to a
// request in between allows more pings.
func TestTooManyPingsEndTheConnection(t *testing.T) {
	for name, wait := range map[string]bool{"one after the other": true, "together": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, serve(t, &echo{}))
				c.must("m", "m")
				c.ping(0) // allowed, because it follows an answer
				c.ping(0) // the first early ping
				for range maxEarlyPings {
					if wait {
						c.ping(0)
					} else {
						_ = c.to.WritePing(false, [8]byte{})
					}
				}
				_ = c.to.WritePing(false, [8]byte{})
				c.flush()
				if code := c.readToEnd(); code != http2.ErrCodeEnhanceYourCalm {
					t.Errorf("got %v; want ENHANCE_YOUR_CALM", code)
				}
			})
		})
	}
}

// RFC 9113, 6.8: a GOAWAY must not raise the last stream, because the client has already sent later
// requests elsewhere.
func TestGOAWAYNeverRaisesTheLastStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := start(t)
		c := dial(t, l)
		half := c.open(c.fields())
		c.flush()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { s.Stop(context.Background()); close(stopped) }()
		var last []uint32
		for {
			f, err := c.read()
			if err != nil {
				break
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				_ = c.to.WritePing(true, f.Data)
				c.send("ignored")
				_ = c.to.WriteData(0, false, nil) // this frame ends the connection with an error
				c.flush()
			case *http2.GoAwayFrame:
				last = append(last, f.LastStreamID)
			}
		}
		if len(last) != 3 || last[0] != 1<<31-1 || last[1] != half || last[2] != half {
			t.Errorf("got %v; want GOAWAY with the last streams 2^31-1, %d, %d", last, half, half)
		}
		<-stopped
	})
}

// A panic must deny the request that caused it, and affect neither other requests nor the connection. A panic
// in Submit must deny all requests of its batch.
func TestAPanicDeniesOneRequest(t *testing.T) {
	for name, store := range map[string]func() backend.Store{
		"answered at once": func() backend.Store { return nil },
		"submitted":        func() backend.Store { return newSlowStore(ms) },
	} {
		for _, f := range []string{"Submit", "Finish", "Delay", "Append"} {
			t.Run(name+", "+f, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := &echo{}
					m.store = store()
					c := dial(t, serve(t, m))
					for range 5 {
						before, bad, after := c.send("before"), c.send("panic in "+f), c.send("after")
						c.flush()
						for id, want := range map[uint32]string{before: "before", bad: "denied", after: "after"} {
							if f == "Submit" {
								want = "denied"
							}
							if r := c.answer(id); r.message() != want || r.fields["grpc-status"] != "0" {
								t.Errorf("got %+v; want the message %q and grpc-status 0", r, want)
							}
						}
						c.must("next", "next")
					}
					if want := []any{f, f, f, f, f}; !slices.Equal(m.panicked, want) {
						t.Errorf("panics reported: %v; want %v", m.panicked, want)
					}
				})
			})
		}
	}
}

func TestAPanicAboutALateRequestDenies(t *testing.T) {
	slow(t, func(t *testing.T, m *echo, s *slowStore, c *client) { //nolint:thelper // it is the test
		s.delay.Store(int64(20 * ms))
		for range 4 { // two batches are in flight, two wait
			bad, late := c.send("panic in Finish"), c.send("late")
			c.flush()
			synctest.Wait()
			defer func() {
				if r := c.answer(bad); r.message() != "denied" {
					t.Errorf("got %+v; want the message \"denied\"", r)
				}
				if r := c.answer(late); r.message() != "late" {
					t.Errorf("got %+v; want the message \"late\"", r)
				}
			}()
		}
	})
}

func TestAPanicInAHandlerResetsItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &echo{}
		c := dial(t, serve(t, m, func(c *Config) {
			c.Others = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("in the handler") })
		}))
		for range maxOthers + 1 {
			id := c.open(c.fields("grpc-encoding", "gzip"))
			c.flush()
			if r := c.answer(id); r.reset == nil || *r.reset != http2.ErrCodeInternal {
				t.Fatalf("got %+v; want a reset with INTERNAL_ERROR", r)
			}
		}
		c.must("m", "m")
		if len(m.panicked) != maxOthers+1 || m.panicked[0] != "in the handler" {
			t.Errorf("%d panics reported: %v; want %d of the handler", len(m.panicked), m.panicked, maxOthers+1)
		}
	})
}
