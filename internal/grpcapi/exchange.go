package grpcapi

import (
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// exchange is one RateLimitRequest, decoded, with the room its answer needs. The strings in call
// point into wire, so nothing may keep them once the exchange is put back.
type exchange struct {
	call limiter.Call
	wire []byte
	asks []ask // one for each of call.Descriptors
	// hits is the request's own hits_addend.
	hits   uint32
	bounds Bounds
	// excess is the bound that the request exceeds, "" where it exceeds none. What exceeds it was not decoded.
	excess string
	// entries of all descriptors.
	entries int
}

// message is one RateLimitRequest that is not decoded: so it may wait at the gate, and an exchange may not.
type message struct {
	wire   []byte
	pass   pass // where it is inside
	inside insideGate
}

type insideGate uint8

const (
	outside insideGate = iota
	inside             // it has a pass
	late               // it was not let in: its limits answer as for a store that failed
)

var messages = sync.Pool{New: func() any { return &message{} }}

// free puts m back for the next request.
func (m *message) free() {
	const large = 16 << 10
	if cap(m.wire) <= large {
		messages.Put(m)
	}
}

// ask is what a descriptor says beside its entries, as it stands on the wire.
type ask struct {
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
	x.asks = x.asks[:0]
	x.hits, x.excess, x.entries = 0, "", 0
}

// free puts x back for the next request, unless one request made it so large that keeping it
// would keep memory for nothing. There are no more of them than the gate lets in.
func (x *exchange) free() {
	const manyDescriptors, manyEntries, manyBytes = 128, 2048, 256 << 10
	if x.wire = nil; !x.exceeds(manyDescriptors, manyEntries, manyBytes) {
		exchanges.Put(x)
	}
}

// large tells whether x has grown more than most requests of a Batch need, which keeps 256 of them.
func (x *exchange) large() bool {
	const manyDescriptors, manyEntries, manyBytes = 32, 256, 32 << 10
	return x.exceeds(manyDescriptors, manyEntries, manyBytes)
}

func (x *exchange) exceeds(descriptors, entries, bytes int) bool {
	return len(x.call.Descriptors) > descriptors || x.entries > entries || x.call.Held() > bytes
}

// addDescriptor returns room for one more descriptor.
func (x *exchange) addDescriptor() (*limiter.Descriptor, *ask) {
	x.asks = append(x.asks, ask{})
	return x.call.AddDescriptor(), &x.asks[len(x.asks)-1]
}

// answer is an encoded RateLimitResponse, and the list of buffers that gRPC wants of it: one
// allocation for most answers.
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
