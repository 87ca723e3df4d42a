package h2grpc

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// These are the header blocks of answers. The first answer adds content-type and grpc-status to the
// client's dynamic table, so later blocks have one or two bytes. No other field is ever added, so the
// positions of these two never change.

type blocks struct{ headers, trailers []byte }

var (
	plainBlocks  = encodeBlocks(false) // without the table
	firstBlocks  = encodeBlocks(true)  // add both fields to the table
	laterBlocks  = blocks{[]byte{0x88, 0xbf}, []byte{0xbe}}
	typeField    = hpack.HeaderField{Name: "content-type", Value: "application/grpc"}
	statusField  = hpack.HeaderField{Name: "grpc-status", Value: "0"}
	okField      = hpack.HeaderField{Name: ":status", Value: "200"}
	smallestSize = uint32(256) // in bytes; smaller tables are not used. content-type and grpc-status need 104 bytes
)

func encodeBlocks(indexed bool) blocks {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	if !indexed {
		e.SetMaxDynamicTableSizeLimit(0)
		_ = e.WriteField(okField) // writes the size update, once
		b.Reset()
	}
	_ = e.WriteField(okField)
	_ = e.WriteField(typeField)
	headers := bytes.Clone(b.Bytes())
	b.Reset()
	_ = e.WriteField(statusField)
	return blocks{headers, bytes.Clone(b.Bytes())}
}

// table is the state of a client's dynamic table.
type table struct {
	size   uint32
	filled bool
	// report means that the next block must begin with an update of the table's size.
	report bool
}

// resize handles SETTINGS_HEADER_TABLE_SIZE. It ignores a size that is not smaller than the present one, because
// content-type and grpc-status need no more room. So t.size never grows, and the next block reports the smallest of
// several sizes, as RFC 7541, 4.2 requires.
func (t *table) resize(size uint32) {
	if size >= t.size {
		return
	}
	t.size, t.report = size, true
	if size < smallestSize {
		t.size, t.filled = 0, false
	}
}

// appendSize begins a block: it appends an update of the table's size if one is due.
func (t *table) appendSize(b []byte) []byte {
	if !t.report {
		return b
	}
	t.report = false
	if t.size < 31 { // RFC 7541, 6.3
		return append(b, 0x20|byte(t.size))
	}
	b = append(b, 0x3f)
	n := t.size - 31
	for ; n >= 1<<7; n >>= 7 {
		b = append(b, byte(n)|1<<7)
	}
	return append(b, byte(n))
}

// next returns the blocks for the next answer. The caller sends both, with no other block in between, or
// restores t.filled.
func (t *table) next() *blocks {
	switch {
	case t.filled:
		return &laterBlocks
	case t.size == 0:
		return &plainBlocks
	default:
		t.filled = true
		return &firstBlocks
	}
}

// appendField appends a literal that is not added to the table.
func appendField(b []byte, name, value string) []byte {
	b = append(b, 0)
	b = appendString(b, name)
	return appendString(b, value)
}

func appendString(b []byte, s string) []byte {
	n := uint64(len(s))
	if n < 127 {
		b = append(b, byte(n))
	} else {
		b = append(b, 127)
		for n -= 127; n >= 1<<7; n >>= 7 {
			b = append(b, byte(n)|1<<7)
		}
		b = append(b, byte(n))
	}
	return append(b, s...)
}

func appendHeaders(b []byte, stream uint32, end bool, block []byte) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		n := min(len(block), maxFrame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendFrame(b, n, kind, flags, stream), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return b
		}
		kind, flags = http2.FrameContinuation, 0
	}
}

// appendFailure appends an answer that has only a status.
func (t *table) appendFailure(b []byte, stream uint32, httpStatus int, s *Status) []byte {
	block := t.appendSize(nil)
	block = appendField(block, ":status", strconv.Itoa(httpStatus))
	block = appendField(block, typeField.Name, typeField.Value)
	block = appendField(block, statusField.Name, strconv.Itoa(int(s.Code)))
	if s.Message != "" {
		block = appendField(block, "grpc-message", percentEncode(s.Message))
	}
	return appendHeaders(b, stream, true, block)
}

// percentEncode encodes a status message as gRPC does: printable ASCII other than % stays unchanged.
func percentEncode(s string) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			const hex = "0123456789ABCDEF"
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
