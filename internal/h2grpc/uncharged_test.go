package h2grpc

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// A request whose deadline leaves no time for an answer of the store must not be charged, whatever arrives
// together with it.
func TestWithoutTimeNothingIsCharged(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) { //nolint:thelper // it is the test
		for _, timeout := range []string{"2m", "1m", "1u", "1n"} {
			alone := c.send("m", "grpc-timeout", timeout)
			c.flush()
			if r := c.answer(alone); r.message() != "late" {
				t.Errorf("%s: got %+v; want the message \"late\"", timeout, r)
			}
		}
		if n := s.batchSizes(); len(n) > 0 {
			t.Errorf("the store decided batches of %v charges; want none", n)
		}
		short, long := c.send("short", "grpc-timeout", "1m"), c.send("long", "grpc-timeout", "1S")
		c.flush()
		if r := c.answer(short); r.message() != "late" {
			t.Errorf("got %+v; want the message \"late\"", r)
		}
		if r := c.answer(long); r.message() != "long" {
			t.Errorf("got %+v; want the message \"long\"", r)
		}
		if n := s.batchSizes(); !slices.Equal(n, []int{1}) {
			t.Errorf("batches of the sizes %v; want one batch of one charge", n)
		}
	})
}

func TestAbandonedRequestsAreNotCharged(t *testing.T) {
	for name, leave := range map[string]func(c *client, ids []uint32){
		"reset": func(c *client, ids []uint32) {
			for _, id := range ids {
				_ = c.to.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			c.flush()
		},
		"connection ended": func(c *client, _ []uint32) { c.nc.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) { //nolint:thelper // it is the test
				send := func() (id uint32) {
					id = c.send("m")
					c.flush()
					synctest.Wait()
					return id
				}
				sent := []uint32{send(), send()}
				var waiting []uint32
				for range 2*maxBatch + 1 { // three batches
					waiting = append(waiting, c.send(fmt.Sprint("waits ", len(waiting))))
				}
				c.flush()
				synctest.Wait()
				leave(c, waiting)
				synctest.Wait()
				if name == "reset" {
					for _, id := range sent {
						c.answer(id)
					}
					c.must("m", "m")
				}
				want := map[string][]int{"reset": {1, 1, 1}, "connection ended": {1, 1}}[name]
				time.Sleep(time.Second) // waits until everything has ended
				if n := s.batchSizes(); !slices.Equal(n, want) {
					t.Errorf("the store decided batches of %v charges; want %v", n, want)
				}
			})
		})
	}
}
