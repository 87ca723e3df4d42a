package h2grpc

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
)

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
		c.answered(id, "m")
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

// An answer is reset because too many bytes wait for the client's window. It must no longer count as a
// request in flight.
func TestAnAnswerThatIsResetIsNoLongerInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{store: newSlowStore(0)}),
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for range 2 { // the sizes of these answers add up to maxBuffered
			c.send("long " + strconv.Itoa(maxBuffered/2-prefixLen-streamBytes))
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
				c.wasReset(id, http2.ErrCodeEnhanceYourCalm)
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

// Answers that exceed the client's windows must be kept only up to a bound. They must be dropped when their
// stream is reset.
func TestAnswersThatWaitForWindowsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		const size = 1 << 20
		fit := maxBuffered / (size + prefixLen)
		for range fit {
			c.send("long " + strconv.Itoa(size))
		}
		over := c.send("long " + strconv.Itoa(size))
		c.flush()
		c.wasReset(over, http2.ErrCodeEnhanceYourCalm)
		_ = c.to.WriteRSTStream(1, http2.ErrCodeCancel)
		again := c.send("long " + strconv.Itoa(size))
		_ = c.to.WriteWindowUpdate(0, 1<<30)
		_ = c.to.WriteWindowUpdate(again, 1<<30)
		c.flush()
		if r := c.answer(again); len(r.message()) != size {
			t.Errorf("the answer after the reset has %d bytes; want %d", len(r.message()), size)
		}
		_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * size})
		c.flush()
		for id := uint32(3); id < over; id += 2 {
			if r := c.answer(id); len(r.message()) != size {
				t.Errorf("%d: the answer has %d bytes; want %d", id, len(r.message()), size)
			}
		}
	})
}

// A denial must wait for the window, even if the rest of the request has not arrived.
func TestADenialWaitsForTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		id := c.open(c.fields("x-long", strings.Repeat("x", maxHeaders)))
		refused := c.open(c.encode(":method", "POST", ":scheme", "http", ":path", path, ":authority", "a"))
		for range 1 + maxRefused/10_000 {
			for _, id := range []uint32{id, refused} {
				_ = c.to.WriteData(id, false, make([]byte, 10_000))
			}
		}
		c.flush()
		synctest.Wait()
		if r := c.reply(id); r.ended || r.reset != nil {
			t.Fatalf("got %+v; want an open stream", r)
		}
		_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
		c.flush()
		if r := c.answer(id); r.message() != "denied" || r.fields["grpc-status"] != "0" || !r.ended {
			t.Errorf("got %+v; want the message \"denied\", grpc-status 0 and the end of the stream", r)
		}
		if r := c.answer(refused); r.fields[":status"] != "415" || !r.ended {
			t.Errorf("got %+v; want status 415 and the end of the stream", r)
		}
		for c.reply(id).reset == nil || c.reply(refused).reset == nil { // the client need not send the rest
			if _, err := c.read(); err != nil {
				t.Fatal(err)
			}
		}
		if *c.reply(id).reset != http2.ErrCodeNo || *c.reply(refused).reset != http2.ErrCodeNo {
			t.Errorf("got %v %v; want resets with NO_ERROR", c.reply(id).reset, c.reply(refused).reset)
		}
		c.must("m", "m")
	})
}

// Data beyond the window of a stream must be refused, even if its handler does not read.
func TestDataBeyondAStreamsWindowIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}, func(c *Config) {
			c.Others = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		}))
		ids := make([]uint32, 3)
		for i := range ids {
			ids[i] = c.open(c.fields(":path", "/other"))
		}
		var sent sync.WaitGroup
		sent.Go(func() {
			for range streamWindow/maxFrame + 1 {
				for _, id := range ids {
					_ = c.to.WriteData(id, false, make([]byte, maxFrame))
				}
				if c.write() != nil {
					return
				}
			}
		})
		codes := map[http2.ErrCode]int{}
		for _, id := range ids {
			if r := c.answer(id); r.reset != nil {
				codes[*r.reset]++
			}
		}
		// The data of two streams is as much as one connection may hold.
		if codes[http2.ErrCodeFlowControl] == 0 || codes[http2.ErrCodeEnhanceYourCalm] == 0 || len(codes) > 2 {
			t.Errorf("got %v; want only FLOW_CONTROL_ERROR and ENHANCE_YOUR_CALM, and both of them", codes)
		}
		sent.Wait()
		c.must("still", "still")
	})
}

// Padding counts for the window of its stream (RFC 9113, 6.1).
func TestPaddingCountsForAStreamsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		id := c.open(c.fields())
		_ = c.to.WriteData(id, false, []byte{0, 0, 0x3f, 0xff, 0xff}) // the prefix announces nearly 4 MiB
		padding := make([]byte, 255)
		for range streamWindow/(2+len(padding)) + 1 { // a frame has a byte of data, the padding and its length
			_ = c.to.WriteDataPadded(id, false, []byte("x"), padding)
			c.flush()
		}
		c.ping(1) // its answer comes after a reset
		if r := c.reply(id); r.reset == nil || *r.reset != http2.ErrCodeFlowControl {
			t.Errorf("got %+v; want a reset with FLOW_CONTROL_ERROR", r)
		}
	})
}
