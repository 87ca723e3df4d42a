package h2grpc

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Frames are parsed and written here, because http2.Framer allocates each HEADERS frame that it reads.

const frameHeaderLen = 9

// frameHeader is the header of a frame (RFC 9113, 4.1).
type frameHeader struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

func readFrameHeader(b []byte) frameHeader {
	return frameHeader{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		kind:   http2.FrameType(b[3]),
		flags:  http2.Flags(b[4]),
		stream: binary.BigEndian.Uint32(b[5:]) & (1<<31 - 1),
	}
}

func appendFrame(b []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendUint32(b []byte, kind http2.FrameType, stream, value uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, kind, 0, stream), value)
}

func appendReset(b []byte, stream uint32, code http2.ErrCode) []byte {
	return appendUint32(b, http2.FrameRSTStream, stream, uint32(code))
}

func appendWindowUpdate(b []byte, stream, increment uint32) []byte {
	return appendUint32(b, http2.FrameWindowUpdate, stream, increment)
}

func appendPing(b []byte, flags http2.Flags, data [8]byte) []byte {
	return append(appendFrame(b, len(data), http2.FramePing, flags, 0), data[:]...)
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode, text string) []byte {
	b = appendFrame(b, 8+len(text), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, text...)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendFrame(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

type connError struct {
	code http2.ErrCode
	text string
}

func (e *connError) Error() string { return e.code.String() + ": " + e.text }

func protocolError(text string) *connError { return &connError{http2.ErrCodeProtocol, text} }

func sizeError(text string) *connError { return &connError{http2.ErrCodeFrameSize, text} }

// unpad removes the padding from a payload (RFC 9113, 6.1). It reports whether the padding is valid.
func unpad(flags http2.Flags, b []byte) ([]byte, bool) {
	if !flags.Has(http2.FlagDataPadded) {
		return b, true
	}
	if len(b) == 0 || int(b[0]) >= len(b) {
		return nil, false
	}
	return b[1 : len(b)-int(b[0])], true
}
