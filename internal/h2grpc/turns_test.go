package h2grpc

import (
	"bytes"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
)

// A few bytes of a header block can refer to long fields of the table. A connection must yield after it has decoded
// turnWork, and then continue with the bytes that it has read already.
func TestAConnectionYieldsAfterMuchWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 100
		m := &echo{}
		s := New(Config{Path: path, Method: m, Inline: true})
		defer s.Stop(t.Context())
		nc, c := startTape(t, s)
		attacked, former := s.openConns()[0], yield
		defer func() { yield = former }()
		var turns []int // the size of the fields that were decoded in each turn
		yield = func() { turns = append(turns, attacked.heads.work) }
		c.send("m", "x-long", strings.Repeat("x", 2000))
		nc.in <- bytes.Clone(c.out.Bytes())
		c.out.Reset()
		reference := c.encode("x-long", strings.Repeat("x", 2000))
		for i := range requests { // each block differs from the last one, so that it is decoded
			id := c.open(append(c.fields(), bytes.Repeat(reference, 100+i%2)...))
			_ = c.to.WriteData(id, true, framed("m"))
		}
		if c.out.Len() > readBuffer {
			t.Fatalf("the requests have %d bytes; want at most those of one read", c.out.Len())
		}
		nc.in <- c.out.Bytes()
		synctest.Wait()
		if n := m.finished.Load(); n != requests+1 {
			t.Errorf("%d requests were answered; want %d", n, requests+1)
		}
		if least := requests * 100 * 2000 / turnWork / 2; len(turns) < least {
			t.Errorf("the connection yielded %d times; want at least %d times", len(turns), least)
		}
		for _, work := range turns {
			if work > turnWork+maxHeaders {
				t.Errorf("a turn decoded %d bytes; want at most %d", work, turnWork+maxHeaders)
			}
		}
		close(nc.in)
	})
}

// A connection with many requests must yield after its share of one call of the Store, or the requests of others would
// wait for its whole read buffer at each goroutine that they pass.
func TestAConnectionYieldsAfterItsShareOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former := yield
		defer func() { yield = former }()
		var yields atomic.Int64
		yield = func() { yields.Add(1) }
		store := &pendingStore{}
		l := serve(t, &echo{store: store})
		for range 2 { // so that a share is leastTurn
			other := dial(t, l)
			other.send("other")
			other.flush()
		}
		c := dial(t, l)
		for range 4 * leastTurn {
			c.send("m")
		}
		c.flush()
		synctest.Wait()
		if n := yields.Load(); n < 3 || n > 4 {
			t.Errorf("the connection yielded %d times for %d requests; want 3 or 4 times", n, 4*leastTurn)
		}
		store.complete()
	})
}

// The goroutines of many streams of the other handler must not be made, or ended, at once.
func TestAConnectionYieldsBetweenStreamsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former := yield
		defer func() { yield = former }()
		var yields atomic.Int64
		yield = func() { yields.Add(1) }
		c := dial(t, serve(t, &echo{}, withOthers(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })))
		for range maxOthers {
			c.open(c.fields(":path", "/other"))
		}
		c.flush()
		synctest.Wait()
		if n := yields.Swap(0); n < maxOthers/othersPerTurn {
			t.Errorf("the connection yielded %d times for %d streams; want at least %d times", n, maxOthers, maxOthers/othersPerTurn)
		}
		c.nc.Close()
		synctest.Wait()
		if n := yields.Load(); n < maxOthers/othersPerTurn {
			t.Errorf("the connection yielded %d times at its end; want at least %d times", n, maxOthers/othersPerTurn)
		}
	})
}

// Each byte of a header block can be a field. A block with many more fields than maxHeaders permits ends the connection,
// because decoding them would take long.
func TestABlockOfTooManyFieldsEndsTheConnection(t *testing.T) {
	literal := []byte{0x00, 1, 'x', 0}          // not added to the table
	added := []byte{0x40, 1, 'x', 1, 'y'}       // added to it
	huffman := []byte{0x00, 0x81, 0x8f, 1, 'y'} // with a compressed name
	for name, field := range map[string][]byte{"references": {0x82}, "literals": literal, "additions": added, "compressed": huffman} {
		for n, want := range map[int]http2.ErrCode{maxFields - 100: http2.ErrCodeNo, maxFields + 1: http2.ErrCodeEnhanceYourCalm} {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, serve(t, &echo{}))
				id := c.open(append(c.fields(), bytes.Repeat(field, n)...))
				_ = c.to.WriteData(id, true, framed("m"))
				c.flush()
				if want == http2.ErrCodeNo {
					c.answer(id)
					return
				}
				if code := c.readToEnd(); code != want {
					t.Errorf("%d %s: got %v; want %v", n, name, code, want)
				}
			})
		}
	}
}
