package h2grpc

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A panic must deny the request that caused it, and affect neither other requests nor the connection. A panic
// in Submit must deny all requests of its batch.
func TestAPanicDeniesOneRequest(t *testing.T) {
	for name, store := range map[string]func() backend.Store{
		"answered at once": func() backend.Store { return nil },
		"submitted":        func() backend.Store { return newSlowStore(ms) },
	} {
		for _, f := range []string{"Add", "Submit", "Finish"} {
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
					if n := m.oversized.Load(); n != 0 {
						t.Errorf("%d requests were counted as too large; want 0", n)
					}
				})
			})
		}
	}
}

func TestAPanicDeniesALateRequest(t *testing.T) {
	slow(t, func(t *testing.T, m *echo, s *slowStore, c *client) {
		s.delay.Store(int64(20 * ms))
		for range 4 { // two batches are in flight, two wait
			bad, late := c.send("panic in Finish"), c.send("late")
			c.flush()
			synctest.Wait()
			defer func() {
				c.answered(bad, "denied")
				c.answered(late, "late")
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
			id := c.open(c.fields(":path", "/other"))
			c.flush()
			c.wasReset(id, http2.ErrCodeInternal)
		}
		c.must("m", "m")
		if len(m.panicked) != maxOthers+1 || m.panicked[0] != "in the handler" {
			t.Errorf("%d panics reported: %v; want %d of the handler", len(m.panicked), m.panicked, maxOthers+1)
		}
	})
}
