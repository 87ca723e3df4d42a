// Package empty is a RateLimitService that answers OK without reading the request. It works directly on
// HTTP/2 frames. An answer over gRPC can hardly cost less, so benchmarks compare rlsidecar with this package.
// One goroutine serves a connection: it reads the available bytes, answers all requests in them, and writes
// once. A request allocates nothing.
//
// Use the package for measurements only. It observes the client's window for the connection, but has no
// timeouts, and does not bound the number of connections or requests. It answers only one method, and closes
// the connection of a client that calls another method.
package empty

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Path is the path of the only method that is answered.
const Path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// Serve serves the connections of l until l is closed.
func Serve(l net.Listener) error {
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer nc.Close()
			_ = newConn(nc).serve() // the client sees only that the connection ends
		}()
	}
}

const (
	headerLen = 9
	maxFrame  = 16 << 10 // the largest frame that a peer may send by default
	// message is a RateLimitResponse with code OK, after the five bytes with which gRPC starts a message.
	message = "\x00\x00\x00\x00\x02\x08\x01"
	// window is the number of bytes that a client may send before the server must enlarge the window.
	window = 1 << 30
)

type conn struct {
	nc         net.Conn
	out        []byte
	window     int64 // number of bytes that the client accepts
	unanswered []uint32
	taken      int // number of bytes received whose window was not returned to the client yet

	decoder *hpack.Decoder
	path    string // the value of :path in the header block that is being decoded
	block   []byte
	same    bool // a block equal to block has the same meaning, because block does not change the decoder's table

	headers, trailers [2][]byte // [0] adds the fields to the client's table; [1] refers to the table
	answered          int       // index into headers and trailers: 0 for the first answer, then 1
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc, window: 65535}
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":path" {
			c.path = f.Value
		}
	})
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	encode := func(fields ...hpack.HeaderField) []byte {
		b.Reset()
		for _, f := range fields {
			_ = e.WriteField(f) // cannot fail, because it writes to memory
		}
		return bytes.Clone(b.Bytes())
	}
	for i := range c.headers {
		c.headers[i] = encode(hpack.HeaderField{Name: ":status", Value: "200"}, hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
		c.trailers[i] = encode(hpack.HeaderField{Name: "grpc-status", Value: "0"})
	}
	return c
}

func (c *conn) serve() error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.nc, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return errors.New("not HTTP/2")
	}
	c.frame(http2.FrameSettings, 0, 0, 12)
	for _, s := range [...]http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1 << 20}, {ID: http2.SettingMaxConcurrentStreams, Val: 1 << 20}} {
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(s.ID))
		c.out = binary.BigEndian.AppendUint32(c.out, s.Val)
	}
	c.restoreCredit(window - 65535)

	in, have := make([]byte, 64<<10), 0
	for {
		if len(c.out) > 0 {
			if _, err := c.nc.Write(c.out); err != nil {
				return err
			}
			c.out = c.out[:0]
		}
		n, err := c.nc.Read(in[have:])
		if err != nil {
			return err
		}
		have += n
		used, err := c.frames(in[:have])
		if err != nil {
			return err
		}
		have = copy(in, in[used:have])
		c.answer()
	}
}

func (c *conn) frames(in []byte) (used int, err error) {
	for len(in)-used >= headerLen {
		h := in[used : used+headerLen]
		length := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
		if length > maxFrame {
			return used, errors.New("frame too long")
		}
		end := used + headerLen + length
		if end > len(in) {
			break
		}
		stream := binary.BigEndian.Uint32(h[5:]) &^ (1 << 31)
		if err := c.handle(http2.FrameType(h[3]), http2.Flags(h[4]), stream, in[used+headerLen:end]); err != nil {
			return used, err
		}
		used = end
	}
	return used, nil
}

func (c *conn) handle(kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) error {
	switch kind {
	case http2.FrameHeaders:
		return c.request(flags, payload)
	case http2.FrameData:
		if c.taken += len(payload); c.taken > window/2 {
			c.restoreCredit(c.taken)
			c.taken = 0
		}
		if flags.Has(http2.FlagDataEndStream) {
			c.unanswered = append(c.unanswered, stream)
		}
	case http2.FrameWindowUpdate:
		if stream == 0 && len(payload) == 4 {
			c.window += int64(binary.BigEndian.Uint32(payload))
		}
	case http2.FrameSettings:
		if !flags.Has(http2.FlagSettingsAck) {
			c.frame(http2.FrameSettings, http2.FlagSettingsAck, 0, 0)
		}
	case http2.FramePing:
		if !flags.Has(http2.FlagPingAck) {
			c.frame(http2.FramePing, http2.FlagPingAck, 0, len(payload))
			c.out = append(c.out, payload...)
		}
	case http2.FrameContinuation:
		return errors.New("a header block in several frames is not supported")
	case http2.FramePriority, http2.FrameRSTStream, http2.FramePushPromise, http2.FrameGoAway, http2.FramePriorityUpdate:
	}
	return nil
}

// request reads the header block of a request. It decodes the block only if the block differs from the last
// one, or if the last one changed the table.
func (c *conn) request(flags http2.Flags, block []byte) error {
	if flags.Has(http2.FlagHeadersPadded) {
		if len(block) == 0 || int(block[0]) >= len(block) {
			return errors.New("padding longer than its frame")
		}
		block = block[1 : len(block)-int(block[0])]
	}
	if flags.Has(http2.FlagHeadersPriority) {
		if len(block) < 5 {
			return errors.New("a HEADERS frame is too short for its priority")
		}
		block = block[5:]
	}
	if c.same && bytes.Equal(block, c.block) {
		return nil
	}
	if !flags.Has(http2.FlagHeadersEndHeaders) {
		return errors.New("a header block in several frames is not supported")
	}
	c.path = ""
	if _, err := c.decoder.Write(block); err != nil {
		return err
	}
	if err := c.decoder.Close(); err != nil {
		return err
	}
	if c.path != Path {
		return fmt.Errorf("path %q", c.path)
	}
	c.block, c.same = append(c.block[:0], block...), true
	for _, b := range block {
		const indexed, longer = 0x80, 0xff
		if b < indexed || b == longer {
			c.same = false
		}
	}
	return nil
}

func (c *conn) answer() {
	done := 0
	for _, stream := range c.unanswered {
		if c.window < int64(len(message)) {
			break
		}
		c.window -= int64(len(message))
		done++
		headers, trailers := c.headers[c.answered], c.trailers[c.answered]
		c.answered = 1
		c.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, stream, len(headers))
		c.out = append(c.out, headers...)
		c.frame(http2.FrameData, 0, stream, len(message))
		c.out = append(c.out, message...)
		c.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, stream, len(trailers))
		c.out = append(c.out, trailers...)
	}
	c.unanswered = append(c.unanswered[:0], c.unanswered[done:]...)
}

func (c *conn) frame(kind http2.FrameType, flags http2.Flags, stream uint32, length int) {
	c.out = append(c.out, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	c.out = binary.BigEndian.AppendUint32(c.out, stream)
}

func (c *conn) restoreCredit(n int) {
	c.frame(http2.FrameWindowUpdate, 0, 0, 4)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(n))
}
