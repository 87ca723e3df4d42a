package grpcapi

import (
	"slices"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of all other services
	"google.golang.org/grpc/mem"
)

// codec encodes and decodes the messages of this package's service by hand, and all others with the standard codec.
type codec struct {
	encoding.CodecV2
}

// Codec returns the codec that the grpc.Server passed to Server.Register must use (grpc.ForceServerCodecV2).
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*answer)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	a.buffers[0] = &a.data
	return a.buffers[:], nil
}

// Unmarshal copies data, because gRPC reuses the buffers.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	n := data.Len()
	m.wire = slices.Grow(m.wire[:0], n)[:n]
	data.CopyTo(m.wire)
	return nil // Server.serve decodes the copy
}
