package h2grpc

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
)

func gzipped(message []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(message)
	_ = w.Close()
	return append(binary.BigEndian.AppendUint32([]byte{1}, uint32(b.Len())), b.Bytes()...)
}

func TestCompressedMessagesAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &echo{}
		c := dial(t, serve(t, m))
		long := strings.Repeat("x", 20_000)
		for _, test := range []struct {
			encoding, flagged string // flagged is the body
			message, status   string
		}{
			{"gzip", string(gzipped([]byte("m"))), "m", "0"},
			{"gzip", string(gzipped([]byte(long))), long, "0"},
			{"gzip", string(gzipped(nil)), "", "0"},
			{"gzip", string(framed("not compressed")), "not compressed", "0"},
			{"identity", string(framed("m")), "m", "0"},
			{"gzip", "\x01\x00\x00\x00\x02ab", "", "13"},
			{"gzip", string(gzipped([]byte(long))[:20]), "", "13"}, // shorter than its prefix says
			{"deflate", string(gzipped([]byte("m"))), "", "12"},
			{"identity", string(gzipped([]byte("m"))), "", "12"},
			{"gzip", string(gzipped(make([]byte, maxMessage+1))), "denied", "0"},
		} {
			for range 2 { // the second block of fields is known
				id := c.open(c.fields("grpc-encoding", test.encoding))
				_ = c.to.WriteData(id, true, []byte(test.flagged)[:min(len(test.flagged), maxFrame)])
				c.must("another request", "another request")
				if r := c.answer(id); r.message() != test.message || r.fields["grpc-status"] != test.status {
					t.Errorf("%s, %.20q: got %.40q with grpc-status %s; want %.40q with %s", test.encoding, test.flagged, r.message(), r.fields["grpc-status"], test.message, test.status)
				}
			}
		}
		if n := m.oversized.Load(); n != 2 {
			t.Errorf("%d requests were too long; want 2", n)
		}
	})
}

// A connection with much outstanding weight waits for its turn with a compressed message. Others must not wait with it.
func TestCompressedMessagesOfOthersDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		l := serve(t, &echo{store: store})
		much, little := dial(t, l), dial(t, l)
		sendMany(much, maxOutstanding, "much")
		for i, c := range []*client{much, little} {
			id := c.open(c.fields("grpc-encoding", "gzip"))
			_ = c.to.WriteData(id, true, gzipped([]byte("m")))
			c.flush()
			synctest.Wait()
			if n := store.requests(); n != maxOutstanding+i {
				t.Errorf("connection %d: %d requests are submitted; want %d", i, n, maxOutstanding+i)
			}
		}
		store.complete()
		synctest.Wait()
		store.complete()
	})
}

// A body that is not one message is answered with an error. So is a timeout that cannot be read.
func TestRequestsThatCannotBeReadAreErrors(t *testing.T) {
	for name, test := range map[string]struct {
		body   []byte
		fields []string
		status string
	}{
		"an unknown flag":               {[]byte{2, 0, 0, 0, 2, 'a', 'b'}, nil, "13"},
		"an incomplete prefix":          {[]byte{0, 0, 0}, nil, "13"},
		"shorter than its prefix says":  {[]byte{0, 0, 0, 0, 9, 'a', 'b', 'c'}, nil, "13"},
		"two messages":                  {append(framed("a"), framed("b")...), nil, "13"},
		"no message":                    {nil, nil, "13"},
		"no number in the timeout":      {framed("a"), []string{"grpc-timeout", "m"}, "13"},
		"nine digits in the timeout":    {framed("a"), []string{"grpc-timeout", "123456789m"}, "13"},
		"an unknown unit in the timout": {framed("a"), []string{"grpc-timeout", "1x"}, "13"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}))
			if test.body == nil { // the request may end with its fields
				_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true, BlockFragment: c.fields()})
				c.next = 3
				c.must("m", "m")
				if r := c.answer(1); r.fields["grpc-status"] != test.status {
					t.Errorf("%s, and no DATA: got %+v; want grpc-status %s", name, r, test.status)
				}
			}
			for _, parts := range []int{1, 2} {
				id := c.open(c.fields(test.fields...))
				at := len(test.body) / parts
				if parts == 2 {
					_ = c.to.WriteData(id, false, test.body[:len(test.body)-at])
					c.flush()
					synctest.Wait()
				}
				_ = c.to.WriteData(id, true, test.body[len(test.body)-at:])
				c.flush()
				if r := c.answer(id); r.fields["grpc-status"] != test.status {
					t.Errorf("%s, in %d parts: got %+v; want grpc-status %s", name, parts, r, test.status)
				}
				c.must("m", "m")
			}
		})
	}
}

// A few bytes decompress to more memory than a message may have. One such message is decompressed at a time, and no
// more of it than the bound.
func TestABombIsNotDecompressed(t *testing.T) {
	bomb := gzipped(make([]byte, 1<<30/16))
	message, err := gunzip(bomb[prefixLen:])
	if err != nil || len(message) != maxMessage+1 || cap(message) > 2*maxMessage {
		t.Errorf("got %d bytes in %d, %v; want %d bytes and no error", len(message), cap(message), err, maxMessage+1)
	}
}
