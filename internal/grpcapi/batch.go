package grpcapi

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Batch answers many requests with one Batch of the store, each as ShouldRateLimit over gRPC would be.
// It is for listeners that have several at hand, and is used again and again so that a request costs no
// allocation. Requests are numbered from 0 in the order of Add.
//
// Reset, Add, Submit, then Finish and Append for each: after done, or after Submit for those that are Known.
type Batch struct {
	server   *Server
	limiter  *limiter.Limiter
	checks   *limiter.Batch
	requests []*batched
	used     int
	panicked any // the value with which Submit panicked
	known    knownLimits
	weight   int
}

// batched is a request in a Batch.
type batched struct {
	exchange
	state  batchState
	weight int
	err    error // a gRPC status, where the state is failed
}

type batchState uint8

const (
	toFinish batchState = iota
	answered
	refused // is denied without having been looked at
	failed
)

// NewBatch makes an empty Batch, whose requests are put to l.
func (s *Server) NewBatch(l *limiter.Limiter) *Batch {
	return &Batch{server: s, limiter: l, checks: l.NewBatch()}
}

func (s *Server) newBatched() *batched {
	return &batched{exchange: exchange{bounds: s.options.Bounds}}
}

// Reset empties b. Messages that were added are not looked at again.
func (b *Batch) Reset() {
	if b.panicked != nil { // the store may still hold parts of it
		*b = *b.server.NewBatch(b.limiter)
		return
	}
	for i, r := range b.requests[:b.used] {
		if r.large() {
			b.requests[i] = b.server.newBatched()
		}
	}
	b.used, b.weight = 0, 0
	b.checks.Reset()
}

// Len is how many requests there are.
func (b *Batch) Len() int { return b.used }

// Add adds a RateLimitRequest, which must stay unchanged until Reset. It arrived at some time, and the caller waits
// for as long as left; 0: for ever, negative: no longer. canceled, where it is not nil, becomes true when the caller
// has gone.
func (b *Batch) Add(message []byte, arrived time.Time, left time.Duration, canceled *atomic.Bool) {
	if b.used == len(b.requests) {
		b.requests = append(b.requests, b.server.newBatched())
	}
	r := b.requests[b.used]
	b.used++
	r.state, r.err, r.wire, r.weight = answered, nil, message, 0
	defer b.weigh(r, b.checks.Charges())
	defer b.deny(r)
	if err := r.decode(); err != nil {
		b.server.observer.Refused(Malformed)
		r.fail(grpcstatus.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err)) // gRPC's own words
		return
	}
	if is, err := b.server.refuse(&r.exchange); is {
		r.fail(err)
		return
	}
	if left < 0 { // nobody waits for the answer, so nothing is charged for it
		r.fail(grpcstatus.FromContextError(context.DeadlineExceeded).Err())
		return
	}
	r.call.Request.Hold, r.call.Arrived, r.call.Canceled = b.server.held.LongestFor(left), arrived, canceled
	planned, err := b.checks.Add(&r.call)
	if !planned {
		r.answered(b.server, err)
		return
	}
	r.state = toFinish
}

// weigh counts r, which was added when there were so many charges.
func (b *Batch) weigh(r *batched, charges int) {
	r.weight = max(len(r.asks), b.checks.Charges()-charges)
	b.weight += r.weight
}

// Weight is how much was added: a charge, and a descriptor without one, weighs 1. Each is at most some 2 KiB in
// memory, its key aside, where a descriptor may have 16 entries.
func (b *Batch) Weight() int { return b.weight }

// fail makes err the answer, or a denial where there is none.
func (r *batched) fail(err error) {
	if r.state, r.err = failed, err; err == nil {
		r.state = refused
	}
}

// answered makes what the limiter said the answer.
func (r *batched) answered(s *Server, err error) {
	r.state = answered
	if err := s.failure(&r.call, err); err != nil {
		r.fail(err)
	}
}

// deny is deferred where r is worked at: it is denied if that panics.
func (b *Batch) deny(r *batched) {
	if p := recover(); p != nil {
		b.server.panicked(p)
		r.fail(nil)
	}
}

// Submit has the store decide all requests, by deadline where it is not zero. done is called once, from any goroutine,
// and possibly before Submit returns. It must not block, or acquire a lock that is held around Submit.
func (b *Batch) Submit(deadline time.Time, source *backend.Source, done func()) {
	defer func() {
		if p := recover(); p != nil {
			b.panicked = p
		}
	}()
	b.checks.Submit(deadline, source, done)
}

// Known reports whether request i can be finished before done. It may be called after Submit.
func (b *Batch) Known(i int) bool {
	r := b.requests[i]
	return r.state != toFinish || b.panicked != nil || b.checks.Known(&r.call)
}

// Finish answers request i from what the store has decided.
func (b *Batch) Finish(i int) {
	r := b.requests[i]
	if r.state != toFinish {
		return
	}
	if b.panicked != nil {
		b.server.panicked(b.panicked)
		r.fail(nil)
		return
	}
	defer b.deny(r)
	b.checks.Finish(&r.call)
	r.answered(b.server, nil)
}

// Append appends the RateLimitResponse to request i. Where there is none err is a gRPC status.
func (b *Batch) Append(to []byte, i int) (_ []byte, err error) {
	r := b.requests[i]
	switch r.state {
	case failed:
		return to, r.err
	case answered:
		return b.server.appendReply(to, &r.exchange, &b.known), nil
	case toFinish, refused:
	}
	return appendCode(to, responseCode, true), nil
}

// Hold is how long the answer to request i is to be held back.
func (b *Batch) Hold(i int) algorithms.Micros {
	if r := b.requests[i]; r.state == answered {
		return r.call.Verdict.Hold
	}
	return 0
}

// Denial is the RateLimitResponse to a request that has too many bytes to be read. It counts the request.
func (s *Server) Denial() []byte {
	s.tooLarge(BoundBytes)
	return denial().data
}

// Later calls answer after d, unless it is stopped before.
func (s *Server) Later(d algorithms.Micros, answer func()) (stop func()) {
	return s.held.Later(d, answer)
}

// Answered counts an answer to a request that arrived then, where anybody asks.
func (s *Server) Answered(arrived time.Time) {
	if s.options.Answered != nil {
		s.options.Answered(time.Since(arrived))
	}
}
