// Package grpcapi implements Envoy's RateLimitService v3, over gRPC and as JSON. Only this package knows
// rls.proto.
//
// It encodes and decodes messages by hand, for two reasons. The protobuf library rejects strings that are
// not UTF-8, but Envoy copies such strings from its clients, and allows a request after an error. And the
// library would be the larger part of the cost of a call.
//
// Because Envoy allows requests after an error, nearly all requests get an answer. Errors are returned only
// for requests that no proxy sends, for limits whose on_backend_failure is error, for callers that no longer
// wait, and while no configuration is loaded.
package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/delay"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/logthrottle"
)

// ServiceName is the full name of the gRPC service.
const ServiceName = "envoy.service.ratelimit.v3.RateLimitService"

// These are the reasons for which a request gets no verdict from the limiter. TooMuch and Panicked are answered
// with OVER_LIMIT, the others with an error.
const (
	Malformed     = "malformed"
	NoDomain      = "no_domain"
	NoDescriptors = "no_descriptors"
	NoConfig      = "no_config"
	TooMuch       = "too_much"
	Untrusted     = "untrusted" // a refund sent to /json without the token
	Panicked      = "panic"
)

// Observer receives events about requests that get no verdict from the limiter.
type Observer interface {
	// Refused is called with one of the reasons, such as Malformed or TooMuch.
	Refused(reason string)
	// TooLarge is called after Refused(TooMuch), with the bound that the request exceeds.
	TooLarge(bound string)
}

// Checker is implemented by limiter.Limiter.
type Checker interface {
	Check(context.Context, *limiter.Call) error
}

// Server implements ShouldRateLimit.
type Server struct {
	limiter  Checker
	observer Observer
	options  Options
	panics   *zap.Logger // writes at most one line a second
	delays   delay.Room
	gate     gate
}

// New makes a Server. It returns an error if a header name in o is invalid.
func New(l Checker, observer Observer, o Options, log *zap.Logger) (*Server, error) {
	if o.Headers != nil {
		h, err := o.Headers.check()
		if err != nil {
			return nil, err
		}
		o.Headers = &h
	}
	o.Bounds = o.Bounds.withDefaults()
	o.QueueTimeout = cmp.Or(o.QueueTimeout, defaultQueueTimeout)
	s := &Server{limiter: l, observer: observer, options: o, panics: logthrottle.Log(log, time.Second)}
	s.gate.overflow = make(chan struct{}, gateOverflow)
	return s, nil
}

// Register adds the service to g, which must use Codec. Interceptors of g are not called for this service,
// because its messages do not belong to the protobuf library.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
		Metadata:    "envoy/service/ratelimit/v3/rls.proto",
	}, s)
}

func shouldRateLimit(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	a, err := srv.(*Server).serve(ctx, decode)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// serve answers one request. read must copy the request to the wire field of its argument, a *message.
func (s *Server) serve(ctx context.Context, read func(any) error) (a *answer, err error) {
	if s.options.Answered != nil {
		start := time.Now()
		defer func() { s.options.Answered(time.Since(start)) }()
	}
	m := messages.Get().(*message)
	m.gateState = outside
	defer func() {
		s.leave(m)
		if p := recover(); p != nil { // objects that are still in use are not returned to their pools
			s.panicked(p)
			a, err = denial(), nil
			return
		}
		m.free()
	}()
	if err := read(m); err != nil {
		reason := Malformed
		if refused, is := errors.AsType[*refusedJSON](err); is {
			reason = refused.reason
		}
		s.observer.Refused(reason)
		return nil, err
	}
	s.enter(ctx, m, m.estimateWeight(s.options.Bounds.Descriptors), len(m.wire))
	x := exchanges.Get().(*exchange)
	x.bounds, x.wire = s.options.Bounds, m.wire
	if err = x.decode(); err != nil {
		s.observer.Refused(Malformed)
		err = grpcstatus.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err) // the same text as in grpc-go
	} else {
		a, err = s.answer(ctx, m, x)
	}
	x.free()
	return a, err
}

// enter waits until the gate admits m. If that takes too long, it sets m.gateState to notAdmitted. It does nothing if
// m has been at the gate before.
func (s *Server) enter(ctx context.Context, m *message, weight, bytes int) {
	if m.gateState != outside {
		return
	}
	var ok bool
	if m.pass, ok = s.gate.enter(ctx, s.options.QueueTimeout, weight, bytes); ok {
		m.gateState = inside
		return
	}
	m.gateState = notAdmitted
	s.gate.overflow <- struct{}{}
}

// leave releases what m occupies at the gate, if anything. A second call has no effect.
func (s *Server) leave(m *message) {
	switch m.gateState {
	case inside:
		s.gate.leave(m.pass)
	case notAdmitted:
		<-s.gate.overflow
	case outside:
	}
	m.gateState = outside
}

// Panicked records a panic during a request, which is then denied.
func (s *Server) Panicked(p any) { s.panicked(p) }

func (s *Server) panicked(p any) {
	s.panics.Error("panic while answering; the request is denied", zap.Any("panic", p), zap.Stack("stack"))
	s.observer.Refused(Panicked)
}

// The texts are those of the reference server.
var (
	errNoDomain      = grpcstatus.Error(codes.Unknown, "rate limit domain must not be empty")
	errNoDescriptors = grpcstatus.Error(codes.Unknown, "rate limit descriptor list must not be empty")
)

// ended is a context whose deadline has passed. With it, a store that would have to wait fails at once. It is not
// canceled, because the limiter does not report the failures of canceled requests.
var ended = func() context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	cancel()
	return ctx
}()

func (s *Server) answer(ctx context.Context, m *message, x *exchange) (*answer, error) {
	if refused, err := s.refuse(x); refused {
		if err != nil {
			return nil, err
		}
		return denial(), nil
	}
	if ctx.Err() != nil { // the caller no longer waits, so nothing is charged
		return nil, grpcstatus.FromContextError(ctx.Err()).Err()
	}
	c := &x.call
	c.Request.MaxDelay = s.delays.Longest(ctx)
	checkCtx := ctx
	if m.gateState == notAdmitted {
		checkCtx = ended
	}
	if err := s.failure(c, s.limiter.Check(checkCtx, c)); err != nil {
		return nil, err
	}
	s.leave(m) // a delayed answer does not count at the gate
	if c.Verdict.Delay > 0 {
		if err := s.delays.Wait(ctx, c.Verdict.Delay); err != nil {
			return nil, grpcstatus.FromContextError(err).Err()
		}
	}
	a := newAnswer()
	a.denied = c.Denied
	a.data = s.appendReply(a.data, x, nil)
	return a, nil
}

// refuse reports whether x must not be passed to the limiter. The answer is then err, or a denial if err is
// nil.
func (s *Server) refuse(x *exchange) (refused bool, err error) {
	switch {
	case x.excess != "": // checked first, because the answer is a denial, while the other cases are errors
		s.tooLarge(x.excess)
		return true, nil
	case x.call.Request.Domain == "":
		s.observer.Refused(NoDomain)
		return true, errNoDomain
	case len(x.call.Descriptors) == 0:
		s.observer.Refused(NoDescriptors)
		return true, errNoDescriptors
	}
	return false, nil
}

func (s *Server) tooLarge(bound string) {
	s.observer.Refused(TooMuch)
	s.observer.TooLarge(bound)
}

// failure returns the gRPC status for err, the limiter's error. nil means that there is a verdict.
func (s *Server) failure(c *limiter.Call, err error) error {
	switch {
	case errors.Is(err, limiter.ErrNoConfig):
		s.observer.Refused(NoConfig)
		return grpcstatus.Error(codes.Unknown, err.Error())
	case err != nil:
		return grpcstatus.Error(codes.Unknown, err.Error())
	case c.Err != nil:
		return grpcstatus.Error(codes.Unavailable, c.Err.Error())
	}
	return nil
}

// appendReply appends the RateLimitResponse for x. known may be nil.
func (s *Server) appendReply(b []byte, x *exchange, known *knownLimits) []byte {
	b = appendVerdict(b, &x.call.Verdict, known)
	if s.options.Headers != nil {
		b = s.options.Headers.append(b, &x.call.Verdict)
	}
	b = appendForClient(b, &x.call.Verdict)
	switch {
	case s.options.Metadata:
		b = appendMetadata(b, x)
	case x.call.Started():
		b = appendSettle(b, &x.call)
	}
	return b
}
