package grpcapi

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Batch decides many requests in one backend.Batch.
// Listeners reuse a Batch, so that a request causes no allocation. Requests are numbered from 0 in the
// order of Add.
//
// Call Reset, Add for each request, Submit once, then Answer for each request: after done, or after Submit for requests
// that are Known. A caller that recovers from a panic in Add or Answer denies that request, and can continue with the
// others. After a panic in Submit it must not use the Batch any more.
type Batch struct {
	server   *Server
	checks   *limiter.Batch
	listener limiter.Listener
	requests []*batched
	used     int
	known    knownLimits
	weight   int
}

type batched struct {
	exchange
	state  batchState
	weight int
	span   tracing.Span
	err    error // a gRPC status if the state is failed
}

type batchState uint8

const (
	toFinish batchState = iota
	answered
	refused // denied without a verdict, because it exceeds a bound
	failed
)

// NewBatch makes an empty Batch.
func (s *Server) NewBatch() *Batch { return &Batch{server: s, checks: s.limiter.NewBatch()} }

func (s *Server) newBatched() *batched {
	return &batched{exchange: exchange{bounds: s.options.Bounds}}
}

// IDHeader is the header field with the id of the reservation that a call settles. Its value is "-" in a call that settles
// none, because Envoy formats a value that is not there yet in this way.
const IDHeader = "x-rlsidecar-id"

// identified is the result of Server.Caller for a call with an id.
type identified struct {
	id    string
	trace any
}

// Caller returns what Batch.Add needs of the header fields of a call. field returns the value of one, or "".
func (s *Server) Caller(field func(name string) string) (caller any) {
	if s.options.Tracing != nil {
		caller = s.options.Tracing.Caller(field)
	}
	if id := field(IDHeader); id != "" && id != "-" {
		return &identified{id, caller}
	}
	return caller
}

func reservationOf(caller any) (id string, trace any) {
	if with, ok := caller.(*identified); ok {
		return with.id, with.trace
	}
	return "", caller
}

// Reset empties b. The messages that were added may change from then on. Reset releases the memory of large requests.
func (b *Batch) Reset() {
	for i, r := range b.requests[:b.used] {
		if r.large() {
			b.requests[i] = b.server.newBatched()
		}
	}
	b.used, b.weight = 0, 0
	b.checks.Reset()
}

// Add adds a RateLimitRequest, which must stay unchanged until Reset. left is the time until the caller's
// deadline; 0 means no deadline, and a negative value that it has passed. If canceled is not nil, it
// becomes true when the caller cancels the request. caller is the result of Server.Caller, or nil.
//
// Add returns the weight of the batch: the sum over its requests of the number of charges or the number of descriptors,
// whichever is larger. Each unit of weight needs at most about 2 KiB of memory beside its key, if a descriptor may have
// 16 entries.
func (b *Batch) Add(message []byte, arrived time.Time, left time.Duration, canceled *atomic.Bool, caller any) (weight int) {
	if b.used == len(b.requests) {
		b.requests = append(b.requests, b.server.newBatched())
	}
	r := b.requests[b.used]
	b.used++
	r.reservation, caller = reservationOf(caller)
	r.state, r.err, r.wire = refused, nil, message // refused until planned, for a caller that recovers from a panic
	r.span = b.server.options.Tracing.Start(caller, arrived)
	charges := b.checks.Charges()
	b.plan(r, arrived, left, canceled)
	r.weight = max(len(r.limits), b.checks.Charges()-charges)
	b.weight += r.weight
	return b.weight
}

// plan decodes r and adds it to the checks, unless it can be answered without a decision. left and the other
// arguments are those of Add.
func (b *Batch) plan(r *batched, arrived time.Time, left time.Duration, canceled *atomic.Bool) {
	if err := r.decode(); err != nil {
		b.server.observer.Refused(Malformed)
		r.fail(grpcstatus.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err)) // the same text as in grpc-go
		return
	}
	r.call.Request.ID = r.reservation
	if is, err := b.server.refuse(&r.exchange); is {
		r.fail(err)
		return
	}
	if left < 0 && !b.server.limiter.OnlySettles(&r.call.Request) { // the deadline has passed, so nothing is charged
		r.fail(grpcstatus.FromContextError(context.DeadlineExceeded).Err())
		return
	}
	r.call.Request.MaxDelay, r.call.Arrived, r.call.Canceled = b.server.delays.LongestFor(left), arrived, canceled
	r.call.Listener = b.listener
	planned, err := b.checks.Add(&r.call)
	if r.state = toFinish; !planned {
		r.answered(b.server, err)
	}
}

func (r *batched) fail(err error) {
	if r.state, r.err = failed, err; err == nil {
		r.state = refused
	}
	r.span.End(&r.call, r.state == refused, err)
}

func (r *batched) answered(s *Server, err error) {
	r.state = answered
	if err := s.failure(&r.call, err); err != nil {
		r.fail(err)
		return
	}
	r.span.End(&r.call, r.call.Denied, nil)
}

// Submit starts to decide all requests, by deadline unless that is zero. It calls done exactly once, from
// any goroutine, possibly before Submit returns. done must not block, and must not acquire a lock that is
// held around Submit.
func (b *Batch) Submit(deadline time.Time, source *backend.Source, done func()) {
	b.checks.Submit(deadline, source, done)
}

// Known reports whether request i can be answered before done is called. Call it after Submit.
func (b *Batch) Known(i int) bool {
	r := b.requests[i]
	return r.state != toFinish || b.checks.Known(&r.call)
}

// Answer computes the answer to request i from its decisions, and appends the RateLimitResponse to to. If it returns an
// error, which is a gRPC status, it has appended nothing. Call it once.
func (b *Batch) Answer(to []byte, i int) ([]byte, error) {
	r := b.requests[i]
	if r.state == toFinish {
		b.checks.Finish(&r.call)
		r.answered(b.server, nil)
	}
	switch {
	case r.state == failed:
		return to, r.err
	case r.state == refused:
		return appendCode(to, responseCode, true), nil
	case r.call.HasSlots():
		r.id = r.call.AppendID(r.id)
	}
	return b.server.appendReply(to, &r.exchange, &b.known), nil
}

// Delay returns how long the answer to request i must be delayed; 0 means not at all.
func (b *Batch) Delay(i int) algorithms.Micros {
	if r := b.requests[i]; r.state == answered {
		return r.call.Verdict.Delay
	}
	return 0
}

// Slots returns the id of the slots that request i has taken, or "" if it has none. Call it after Answer.
func (b *Batch) Slots(i int) string { return string(b.requests[i].id) }

// Unused returns the slots of an answer that its client does not use.
func (s *Server) Unused(id string) { s.limiter.ReturnSlots(id, limiter.ReporterReset) }

// Denial returns a RateLimitResponse for a request without a verdict.
func (s *Server) Denial() []byte { return appendCode(nil, responseCode, true) }

// Oversized counts a request that exceeds the bounds of its listener.
func (s *Server) Oversized() { s.tooLarge(BoundBytes) }

// Later calls answer after d, unless stop is called before.
func (s *Server) Later(d algorithms.Micros, answer func()) (stop func()) {
	return s.delays.Later(d, answer)
}
