package h2grpc

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

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

// A client may open each window to the largest value that RFC 9113 allows, 2^31-1.
func TestTheLargestWindowIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		_ = c.to.WriteWindowUpdate(0, 1<<31-1-65_535)
		c.must("m", "m")
		id := c.open(c.fields())
		_ = c.to.WriteWindowUpdate(id, 1<<31-1-65_535)
		_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65_534}) // one byte less
		_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65_535})
		_ = c.to.WriteData(id, true, framed("m"))
		c.flush()
		if r := c.answer(id); r.message() != "m" {
			t.Errorf("got %+v; want the message \"m\"", r)
		}
	})
}

// A stream whose window becomes too wide by several updates is reset. The connection continues.
func TestAWindowOfAStreamThatIsTooWide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		id := c.open(c.fields())
		_ = c.to.WriteWindowUpdate(id, 1<<30)
		_ = c.to.WriteWindowUpdate(id, 1<<30)
		c.flush()
		if r := c.answer(id); r.reset == nil || *r.reset != http2.ErrCodeFlowControl {
			t.Errorf("got %+v; want a reset with FLOW_CONTROL_ERROR", r)
		}
		c.must("m", "m")
	})
}

// If the client resets one of the answers that wait for the connection's window, the remaining ones must arrive
// when the window opens.
func TestAResetAnswerLeavesTheOthersWaiting(t *testing.T) {
	for reset := range 4 {
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}))
			var ids []uint32
			for range 4 { // the first answer uses up the window
				ids = append(ids, c.send("long 65530"))
			}
			c.flush()
			synctest.Wait()
			_ = c.to.WriteRSTStream(ids[reset], http2.ErrCodeCancel)
			_ = c.to.WriteWindowUpdate(0, 1<<20)
			c.flush()
			for i, id := range ids {
				if i == reset && i > 0 {
					continue
				}
				if r := c.answer(id); len(r.message()) != 65_530 {
					t.Errorf("answer %d has %d bytes after a reset of answer %d; want 65530", i, len(r.message()), reset)
				}
			}
			c.must("m", "m")
			if r := c.reply(ids[reset]); reset > 0 && r.ended {
				t.Errorf("answer %d arrived; want none after its reset", reset)
			}
		})
	}
}

func TestAnEmptyAnswerNeedsNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		used := c.send("long 65530") // all of the connection's window
		c.flush()
		if r := c.answer(used); len(r.message()) != 65_530 {
			t.Errorf("the answer has %d bytes; want 65530", len(r.message()))
		}
		id := c.next
		c.next += 2
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true,
			BlockFragment: c.encode(":method", "HEAD", ":scheme", "http", ":path", path, ":authority", "a", "content-type", "application/grpc")})
		c.flush()
		if r := c.answer(id); r.fields[":status"] != "405" || !r.ended {
			t.Errorf("got %+v; want status 405 and the end of the stream", r)
		}
	})
}
