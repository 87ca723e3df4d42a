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
	pass   pass // where it is inside the gate
	inside insideGate
	// excess is the bound that the request exceeds, "" where it exceeds none. What exceeds it was not decoded.
	excess string
	// entries of all descriptors.
	entries int
}

type insideGate uint8

const (
	outside insideGate = iota
	inside             // the gate; it has a pass
	late               // it was not let in: its limits answer as for a store that failed
)

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
// would keep memory for nothing.
func (x *exchange) free() {
	const largeWire = 16 << 10
	if cap(x.wire) > largeWire || x.large() {
		return
	}
	exchanges.Put(x)
}

// large tells whether x has grown more than most requests need.
func (x *exchange) large() bool {
	const manyDescriptors, manyEntries, manyBytes = 32, 256, 32 << 10
	return len(x.call.Descriptors) > manyDescriptors || x.entries > manyEntries || x.call.Held() > manyBytes
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
