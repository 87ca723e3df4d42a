package grpcapi

import (
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// exchange is one decoded RateLimitRequest, with the buffers for its answer. The strings in call point into
// wire, so nothing may keep them after free or Batch.Reset.
type exchange struct {
	call   limiter.Call
	wire   []byte
	limits []descriptorFields // one for each descriptor in call.Descriptors
	// hits is the hits_addend of the request.
	hits   uint32
	bounds Bounds
	// excess is the bound that the request exceeds, or "". The part beyond the bound was not decoded.
	excess     string
	entryCount int
}

// message is one RateLimitRequest that is not decoded yet. Messages may wait at the gate. Decoded requests
// (exchanges) may not, because they need more memory.
type message struct {
	wire      []byte
	pass      pass // valid if the message was admitted
	gateState gateState
}

type gateState uint8

const (
	outside     gateState = iota
	inside                // the gate has admitted the message
	notAdmitted           // the message was not admitted in time, or too many bytes wait; it must not wait for the store either
)

var messages = sync.Pool{New: func() any { return &message{} }}

func (m *message) free() {
	const large = 16 << 10
	if cap(m.wire) <= large {
		messages.Put(m)
	}
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

var exchanges = sync.Pool{New: func() any { return &exchange{} }}

func (x *exchange) reset() {
	x.call.Reset()
	x.limits = x.limits[:0]
	x.hits, x.excess, x.entryCount = 0, "", 0
}

// free returns x to the pool, unless it keeps too much memory. The gate bounds the number of exchanges.
func (x *exchange) free() {
	const manyDescriptors, manyEntries, manyBytes = 128, 2048, 256 << 10
	if !x.exceeds(manyDescriptors, manyEntries, manyBytes) {
		exchanges.Put(x)
	}
}

// large reports whether x keeps more memory than most requests need. A Batch keeps at most 256 exchanges.
func (x *exchange) large() bool {
	const manyDescriptors, manyEntries, manyBytes = 32, 256, 32 << 10
	return x.exceeds(manyDescriptors, manyEntries, manyBytes)
}

func (x *exchange) exceeds(descriptors, entries, bytes int) bool {
	return len(x.call.Descriptors) > descriptors || x.entryCount > entries || len(x.wire) > bytes || x.call.BufferBytes() > bytes
}

func (x *exchange) addDescriptor() (*limiter.Descriptor, *descriptorFields) {
	x.limits = append(x.limits, descriptorFields{})
	return x.call.AddDescriptor(), &x.limits[len(x.limits)-1]
}

// answer is an encoded RateLimitResponse, with the list of buffers that gRPC requires. Most answers need one
// allocation.
type answer struct {
	buffers [1]mem.Buffer
	data    mem.SliceBuffer
	room    [112]byte
	denied  bool
}

func newAnswer() *answer {
	a := &answer{}
	a.data = a.room[:0]
	return a
}
