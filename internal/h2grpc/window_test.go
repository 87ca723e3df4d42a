package h2grpc

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// The window of the connection must bound the answers of all streams, to the byte.
func TestNoMoreBytesThanGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		first, second := c.send("long 100000"), c.send("long 100000")
		granted := 65_535 // RFC 9113, 6.9.2
		for _, more := range []int{0, 1, 1000, 20_000} {
			if granted += more; more > 0 {
				_ = c.to.WriteWindowUpdate(0, uint32(more))
			}
			c.flush()
			have := func() int { return len(c.reply(first).data) + len(c.reply(second).data) }
			for have() < granted {
				if _, err := c.read(); err != nil {
					t.Fatal(err)
				}
			}
			_ = c.nc.SetReadDeadline(time.Now().Add(time.Second)) // any surplus bytes arrive before then
			for _, err := c.read(); err == nil; _, err = c.read() {
			}
			_ = c.nc.SetReadDeadline(time.Time{})
			if have() != granted {
				t.Fatalf("%d bytes arrived, %d were granted; want equal numbers", have(), granted)
			}
		}
	})
}

// A client may open the window of the connection to the largest value that RFC 9113 allows, 2^31-1.
func TestTheLargestWindowIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		_ = c.to.WriteWindowUpdate(0, 1<<31-1-65_535)
		c.must("m", "m")
	})
}
