package grpcapi

import "github.com/rlsidecar/rlsidecar/internal/limiter"

// exchange is one decoded RateLimitRequest, with the buffers for its answer. The strings in call point into
// wire, so nothing may keep them after Batch.Reset.
type exchange struct {
	call   limiter.Call
	wire   []byte
	limits []descriptorFields // one for each descriptor in call.Descriptors
	id     []byte             // the id of the slots that the call has taken; empty if it has none
	// reservation is the id in the header field IDHeader, or "".
	reservation string
	// hits is the hits_addend of the request.
	hits   uint32
	bounds Bounds
	// excess is the bound that the request exceeds, or "". The part beyond the bound was not decoded.
	excess     string
	entryCount int
}

type descriptorFields struct {
	hits     uint64
	hasHits  bool
	negative bool

	hasLimit   bool
	requests   uint32
	unit       int32
	multiplier uint32
}

func (x *exchange) reset() {
	x.call.Reset()
	x.call.Returns = true
	x.limits = x.limits[:0]
	x.hits, x.excess, x.entryCount = 0, "", 0
	x.id = x.id[:0]
}

// appendID appends the id of what the call has reserved.
func (x *exchange) appendID(b []byte) []byte {
	if len(x.id) > 0 {
		return append(b, x.id...)
	}
	return x.call.AppendID(b)
}

// large reports whether x keeps more memory than most requests need. A Batch keeps at most 256 exchanges.
func (x *exchange) large() bool {
	const manyDescriptors, manyEntries, manyBytes = 32, 256, 32 << 10
	return len(x.call.Descriptors) > manyDescriptors || x.entryCount > manyEntries || len(x.wire) > manyBytes || x.call.BufferBytes() > manyBytes
}

func (x *exchange) addDescriptor() (*limiter.Descriptor, *descriptorFields) {
	x.limits = append(x.limits, descriptorFields{})
	return x.call.AddDescriptor(), &x.limits[len(x.limits)-1]
}
