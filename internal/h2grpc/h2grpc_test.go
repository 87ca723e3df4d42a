package h2grpc

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"pgregory.net/rapid"
)

func TestManyRequestsInOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &echo{}
		c := dial(t, serve(t, m))
		for round := range 3 {
			var ids []uint32
			for i := range 3 * maxBatch {
				ids = append(ids, c.send(fmt.Sprint(round, "/", i)))
			}
			done := make(chan error)
			go func() { done <- c.write() }()
			for i, id := range ids {
				r := c.answer(id)
				if r.message() != fmt.Sprint(round, "/", i) || r.fields[":status"] != "200" || r.fields["grpc-status"] != "0" || r.fields["content-type"] != "application/grpc" {
					t.Fatalf("request %d: got %+v; want the message \"%d/%d\", status 200 and grpc-status 0", i, r, round, i)
				}
				delete(c.answers, id)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestStatusesArePercentEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		id := c.send("fail")
		c.flush()
		if r := c.answer(id); r.fields["grpc-status"] != "2" || r.fields["grpc-message"] != "50%25 of Zo%C3%AB" || r.fields[":status"] != "200" {
			t.Errorf("got %+v; want grpc-status 2 with the escaped message", r)
		}
		c.must("still", "still")
	})
	for text, want := range map[string]string{ // bytes that are not UTF-8 become U+FFFD, as in grpc-go
		"": "", " ~": " ~", "\x1f\x7f": "%1F%7F", "a\xffb": "a%EF%BF%BDb",
	} {
		if got := percentEncode(text); got != want {
			t.Errorf("%q: got %q; want %q", text, got, want)
		}
	}
}

// The server must accept a request that is divided into any frames, with padding, priorities and trailers, and into any
// writes.
func TestARequestMayBeDividedAnywhere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}))
			_ = c.to.WriteWindowUpdate(0, 1<<20)
			want := map[uint32]string{}
			for range rapid.IntRange(1, 4).Draw(rt, "requests") {
				message := strings.Repeat("m", rapid.SampledFrom([]int{0, 1, 50, 20_000}).Draw(rt, "length"))
				var more []string
				if rapid.Bool().Draw(rt, "more") {
					more = []string{"x-more", fmt.Sprint(len(want)), "grpc-timeout", "5S", "content-length", fmt.Sprint(len(message) + prefixLen)}
				}
				want[c.cut(rt, message, more)] = message
			}
			var writes [][]byte
			for rest := c.out.Bytes(); len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(rt, "write")
				writes, rest = append(writes, rest[:n]), rest[n:]
			}
			go func() {
				for _, b := range writes {
					if _, err := c.nc.Write(b); err != nil {
						return
					}
				}
			}()
			for id, message := range want {
				if r := c.answer(id); r.message() != message || r.fields["grpc-status"] != "0" {
					rt.Fatalf("stream %d: got %+v; want a message of %d bytes and grpc-status 0", id, r, len(message))
				}
			}
		})
	})
}

func (c *client) cut(rt *rapid.T, message string, more []string) uint32 {
	id := c.next
	c.next += 2
	block := c.fields(more...)
	pad := func() uint8 { return rapid.SampledFrom([]uint8{0, 0, 1, 255}).Draw(rt, "pad") }
	n := rapid.IntRange(0, len(block)).Draw(rt, "block")
	p := http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block), PadLength: pad()}
	if rapid.Bool().Draw(rt, "priority") {
		p.Priority = http2.PriorityParam{StreamDep: 0, Weight: 7}
	}
	_ = c.to.WriteHeaders(p)
	for block = block[n:]; !p.EndHeaders; block = block[n:] {
		n = rapid.IntRange(0, len(block)).Draw(rt, "block")
		p.EndHeaders = n == len(block)
		_ = c.to.WriteContinuation(id, p.EndHeaders, block[:n])
	}
	for data, end := framed(message), false; !end; {
		n := min(len(data), rapid.SampledFrom([]int{1, 5, 100, 16_000}).Draw(rt, "data"))
		end = n == len(data) && rapid.Bool().Draw(rt, "end")
		trailers := end && rapid.Bool().Draw(rt, "trailers")
		_ = c.to.WriteDataPadded(id, end && !trailers, data[:n], make([]byte, pad()))
		if data = data[n:]; trailers {
			_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.encode("x-sum", "1"), EndHeaders: true, EndStream: true})
		}
	}
	return id
}

func TestTheClientsTableMayChange(t *testing.T) {
	for _, first := range []string{"fail", "m"} { // the first answer with the table's new size
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}), http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
			c.decoder = hpack.NewDecoder(0, nil)
			for _, size := range []uint32{0, 4096, 300, 100, 256, 1 << 20, 0, 4096} {
				_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
				c.decoder.SetAllowedMaxDynamicTableSize(size)
				c.flush()
				id := c.send(first)
				c.flush()
				if r := c.answer(id); r.fields["grpc-status"] == "" || r.fields[":status"] != "200" {
					t.Errorf("table of %d, first answer %q: got %+v; want status 200 and a grpc-status", size, first, r)
				}
				for range 3 {
					c.must("m", "m")
				}
			}
		})
	}
}

// The first answer adds two fields to the client's table, and later ones refer to them. A smaller table is reported
// to the client. If it is too small for the fields, it is not used at all.
func TestTheTableIsUsedWithinItsSize(t *testing.T) {
	c := table{size: 4096}
	for i, step := range []struct {
		size uint32 // the client's setting
		want string // the update of the size
		next *blocks
	}{
		{4096, "", &firstBlocks},
		{1 << 20, "", &laterBlocks},
		{256, "3fe101", &laterBlocks},
		{4096, "", &laterBlocks}, // the table stays at its size
		{255, "20", &plainBlocks},
		{4096, "", &plainBlocks},
	} {
		c.resize(step.size)
		if update := fmt.Sprintf("%x", c.appendSize(nil)); update != step.want {
			t.Errorf("step %d, a table of %d: got the update %s; want %s", i, step.size, update, step.want)
		}
		if next := c.next(); next != step.next {
			t.Errorf("step %d, a table of %d: got the blocks %x; want %x", i, step.size, *next, *step.next)
		}
	}
}

// A decoder must read the strings of appendField and the table sizes of appendSize. The lengths and sizes here are
// those around which the encoding becomes a byte longer.
func TestLengthsAreEncodedAsHPACK(t *testing.T) {
	for _, n := range []int{0, 1, 126, 127, 128, 253, 254, 255, 256, 16_510, 16_511, 100_000} {
		var got []hpack.HeaderField
		decoder := hpack.NewDecoder(4096, func(f hpack.HeaderField) { got = append(got, f) })
		value := strings.Repeat("v", n)
		if _, err := decoder.Write(appendField(nil, "name", value)); err != nil || decoder.Close() != nil || len(got) != 1 || got[0].Name != "name" || got[0].Value != value {
			t.Errorf("a value of %d bytes: got %d fields, %v; want the value", n, len(got), err)
		}
	}
	for _, size := range []uint32{0, 30, 31, 158, 159, 160, 256, 300, 4095, 16_414, 16_415, 1 << 20} {
		fields := 0
		decoder := hpack.NewDecoder(1<<20, func(hpack.HeaderField) { fields++ })
		decoder.SetAllowedMaxDynamicTableSize(size) // a larger size is an error
		c := table{size: size, report: true}
		block := append(c.appendSize(nil), 0x88)
		if _, err := decoder.Write(block); err != nil || fields != 1 || c.report {
			t.Errorf("a table of %d bytes: %x is %d fields, %v; want 1", size, block, fields, err)
		}
		if size > 0 {
			decoder.SetAllowedMaxDynamicTableSize(size - 1)
			c.report = true
			if _, err := decoder.Write(c.appendSize(nil)); err == nil {
				t.Errorf("a table of %d bytes: its size is accepted by a decoder with a smaller table; want an error", size)
			}
		}
		if again := c.appendSize(nil); len(again) != 0 {
			t.Errorf("a table of %d bytes: %x is sent again; want nothing", size, again)
		}
	}
}

// The meaning of a block is cached only if the block leaves the table unchanged. leavesTable must find the end of each
// field, whatever its length.
func TestBlocksThatChangeTheTable(t *testing.T) {
	for _, n := range []int{0, 1, 126, 127, 128, 254, 255, 256, 16_511} {
		value := strings.Repeat("~", n) // the Huffman code of ~ is not shorter, so the encoder does not use it
		for _, name := range []string{"content-type", "x-" + value} {
			for _, added := range []bool{false, true} {
				var block bytes.Buffer
				e := hpack.NewEncoder(&block)
				_ = e.WriteField(hpack.HeaderField{Name: ":method", Value: "POST"})
				_ = e.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: true})
				_ = e.WriteField(hpack.HeaderField{Name: "y", Value: "b", Sensitive: !added})
				_ = e.WriteField(hpack.HeaderField{Name: ":scheme", Value: "http"})
				if got := leavesTable(block.Bytes()); got == added {
					t.Errorf("%.12s: %d bytes, and a field that is added to the table: %t; leavesTable returned %t, want %t", name, n, added, got, !added)
				}
			}
		}
	}
	for n := range uint64(1000) { // an integer's encoding, as RFC 7541 describes it
		for _, bits := range []int{4, 7} {
			most := uint64(1)<<bits - 1
			text := []byte{byte(min(n, most))}
			if n >= most {
				rest := n - most
				for ; rest >= 128; rest >>= 7 {
					text = append(text, byte(rest&127)|128)
				}
				text = append(text, byte(rest))
			}
			if got, rest := integer(append(text, 'r'), bits); got != n || string(rest) != "r" {
				t.Fatalf("%d in %d bits (%x): got %d and the rest %q; want the rest \"r\"", n, bits, text, got, rest)
			}
		}
	}
}

// A stream whose request arrives in several writes ends with its answer, even if the answer is an error. The stream then
// no longer counts for maxStreams, and is not reset.
func TestAnAnswerEndsItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		_ = c.to.WriteWindowUpdate(0, 1<<20)
		for i := range maxStreams + 10 {
			message := "m"
			if i%2 == 0 {
				message = "fail"
			}
			id := c.open(c.fields())
			c.flush()
			synctest.Wait()
			_ = c.to.WriteData(id, true, framed(message))
			c.flush()
			if r := c.answer(id); !r.ended || r.reset != nil {
				t.Fatalf("request %d, %s: got %+v; want an answer without a reset", i, message, r)
			}
			c.must("next", "next") // reads all frames of the previous stream
			if r := c.answers[id]; r.reset != nil {
				t.Fatalf("request %d, %s: the stream was reset with %v after its answer; want no reset", i, message, *r.reset)
			}
		}
		time.Sleep(2 * wholeTimeout) // a stream that is still open is reset meanwhile
		c.must("last", "last")
		for id, r := range c.answers {
			if r.reset != nil {
				t.Errorf("stream %d was reset with %v long after its answer; want no reset", id, *r.reset)
			}
		}
	})
}

// A request that is not gRPC must be refused when all of it has arrived. The Method serves all content types of gRPC.
func TestOtherRequestsThanGRPCAreRefused(t *testing.T) {
	fields := []string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "a", "content-type", "application/grpc"}
	with := func(name, value string) []string {
		list := slices.Clone(fields)
		list[slices.Index(list, name)+1] = value
		return list
	}
	for want, fields := range map[string][]string{
		"405 13":   with(":method", "GET"),
		" 405 13":  {":method", "CONNECT", ":authority", "a", "content-type", "application/grpc"},
		"415 3":    with("content-type", "application/json"),
		" 415 3":   with("content-type", "application/grpcx"),
		"  415 3":  fields[:8],
		"400 13":   append(slices.Clone(fields[:6]), "content-type", "application/grpc+proto"),
		"431 8":    append(with(":path", "/other"), "x-long", strings.Repeat("x", maxHeaders)),
		"200 0":    with("content-type", "application/grpc+proto"),
		" 200 0":   with("content-type", "Application/gRPC;charset=utf-8"),
		"200 0 ":   with("content-type", "application/grpc+json"),
		" 200 0 ":  with("content-type", "application/grpc+"),
		"  200 0":  append(slices.Clone(fields[:6]), "host", "a", "content-type", "application/grpc"),
		"   200 0": with(":path", "/other"),
	} {
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, serve(t, &echo{}))
			id := c.open(c.encode(fields...))
			_ = c.to.WriteData(id, false, framed("m"))
			c.flush()
			synctest.Wait()
			_ = c.to.WriteData(id, true, nil)
			c.flush()
			r := c.answer(id)
			if got := r.fields[":status"] + " " + r.fields["grpc-status"]; got != strings.TrimSpace(want) || r.reset != nil {
				t.Errorf("%v: got %+v; want the status and the grpc-status %s", fields, r, want)
			}
			if r.fields[":status"] == "200" && !slices.Contains(fields, "/other") && (r.message() != "m" || r.fields["content-type"] != "application/grpc") {
				t.Errorf("%v: got %+v; want the message \"m\" of the Method as application/grpc", fields, r)
			}
		})
	}
}

func TestTimeouts(t *testing.T) {
	for text, want := range map[string]int64{ // -1 means invalid
		"1n": 1, "0m": 1, "20m": 20e6, "99999999H": math.MaxInt64, "1S": 1e9, "2M": 120e9, "7u": 7000,
		"": -1, "m": -1, "1": -1, "-1m": -1, "123456789m": -1, "1x": -1, "+1m": -1,
	} {
		d, ok := parseTimeout(text)
		if want < 0 && ok || want >= 0 && (!ok || int64(d) != want) {
			t.Errorf("%q: got %v %v; want %d", text, d, ok, want)
		}
	}
}

func TestALongAnswerLeavesTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		for _, size := range []int{maxFrame - prefixLen, maxFrame - prefixLen + 1, maxFrame, 3 * maxFrame} {
			_ = c.to.WriteWindowUpdate(0, 1<<16)
			c.must("m", "m")
			c.must("long "+strconv.Itoa(size), string(bytes.Repeat([]byte("x"), size)))
			c.must("m", "m")
		}
	})
}
