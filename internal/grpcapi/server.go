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

// Server implements ShouldRateLimit.
type Server struct {
	limiter  *limiter.Limiter
	observer Observer
	options  Options
	panics   *zap.Logger // writes at most one line a second
	delays   delay.Room
	large    chan struct{} // has an element for each large request in JSON that is being decided
}

// New makes a Server. It returns an error if a header name in o is invalid.
func New(l *limiter.Limiter, observer Observer, o Options, log *zap.Logger) (*Server, error) {
	if o.Headers != nil {
		h, err := o.Headers.check()
		if err != nil {
			return nil, err
		}
		o.Headers = &h
	}
	o.Bounds = o.Bounds.withDefaults()
	return &Server{
		limiter: l, observer: observer, options: o, panics: logthrottle.Log(log, time.Second), large: make(chan struct{}, mostLarge),
	}, nil
}

// Register adds the service to g, so that the reflection service of g lists it. Calls of ShouldRateLimit must not reach
// g: they are answered with an error.
func Register(g grpc.ServiceRegistrar) {
	unserved := func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		return nil, grpcstatus.Error(codes.Internal, "this call must not reach the gRPC library")
	}
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: unserved}},
		Metadata:    "envoy/service/ratelimit/v3/rls.proto",
	}, nil)
}

// Panicked records a panic during a request, which is then denied.
func (s *Server) Panicked(p any) {
	s.panics.Error("panic while answering; the request is denied", zap.Any("panic", p), zap.Stack("stack"))
	s.observer.Refused(Panicked)
}

// The texts are those of the reference server.
var (
	errNoDomain      = grpcstatus.Error(codes.Unknown, "rate limit domain must not be empty")
	errNoDescriptors = grpcstatus.Error(codes.Unknown, "rate limit descriptor list must not be empty")
)

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
	case err != nil:
		if errors.Is(err, limiter.ErrNoConfig) {
			s.observer.Refused(NoConfig)
		}
		return grpcstatus.Error(codes.Unknown, err.Error())
	case c.Failed && c.IsDone():
		return grpcstatus.Error(codes.Unavailable, "the store did not settle in time; repeat the call")
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
		b = appendMetadata(b, x, s.options.DeniedBy)
	case x.call.Started():
		b = appendSettle(b, x)
	}
	return b
}
