// Package grpclimit has gRPC server interceptors that apply a limit of package ratelimit to each call.
//
//	unary, stream, err := grpclimit.New(limiter, grpclimit.Config{
//		Limit: "calls",
//		Key:   grpclimit.By(grpclimit.ByMetadata("user"), grpclimit.ByMethod),
//	})
//	…
//	server := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
//
// A denied call fails with RESOURCE_EXHAUSTED. Its status has the details google.rpc.RetryInfo. Its trailer
// grpc-retry-pushback-ms is the time that clients with a retry policy wait, in milliseconds. If the Store
// cannot decide, calls fail with UNAVAILABLE, unless Config.FailOpen is set.
//
// Each call consumes one unit. A stream consumes it when it is opened, whatever the number of its messages.
//
// With a limit of units in flight (ratelimit.Concurrency), the interceptors release the slot of a call when its handler
// returns or panics. A denied call has neither RetryInfo nor a pushback.
//
// With a leaky bucket, the interceptors wait for the turn of a call before they call the handler. If the
// context of the call ends before, the handler is not called; the units stay consumed.
package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rlsidecar/rlsidecar/internal/clientip"
	"github.com/rlsidecar/rlsidecar/internal/delay"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// Config configures the interceptors. Its functions must be safe for concurrent use.
type Config struct {
	// Limit is the name of the limit.
	Limit string
	// Key returns the key of the bucket for a call. See ByPeer, ByMetadata, ByMethod and By. With a nil Key
	// all calls share one bucket.
	Key KeyFunc
	// FailOpen allows calls that the Store cannot decide (ErrUnavailable, ErrFull). The default is to deny
	// them. Calls fail in any case after other errors, such as those of Key.
	FailOpen bool
	// OnError, if not nil, is called with errors other than ErrDenied, for logging.
	OnError func(ctx context.Context, err error)
}

// ErrNoKey means that a call has no usable key. It fails with INVALID_ARGUMENT.
var ErrNoKey = errors.New("the call has no key for the rate limit")

// KeyFunc appends the key of a call's bucket to key and returns it. method is the full name: /package.Service/Method.
// If the error is ErrNoKey, the call fails with INVALID_ARGUMENT; after other errors it fails with UNAVAILABLE.
type KeyFunc func(ctx context.Context, method string, key []string) ([]string, error)

// By combines KeyFuncs: the key has the values of all of them.
func By(parts ...KeyFunc) KeyFunc {
	return func(ctx context.Context, method string, key []string) ([]string, error) {
		for _, part := range parts {
			var err error
			if key, err = part(ctx, method, key); err != nil {
				return nil, err
			}
		}
		return key, nil
	}
}

// ByMethod is a KeyFunc. The key is the method's full name.
func ByMethod(_ context.Context, method string, key []string) ([]string, error) {
	return append(key, method), nil
}

// ByMetadata returns a KeyFunc whose key is a metadata value. The value must be present exactly once and
// not be empty. Clients choose their metadata, so use it only for values that a proxy sets, or that are
// verified.
func ByMetadata(name string) KeyFunc {
	return func(ctx context.Context, _ string, key []string) ([]string, error) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		if len(values) != 1 || values[0] == "" {
			return nil, ErrNoKey
		}
		return append(key, values[0]), nil
	}
}

// ByPeer is a KeyFunc. The key is the address of the connection, with IPv6 addresses reduced to their /64
// network. Behind a proxy it is the address of the proxy.
func ByPeer(ctx context.Context, _ string, key []string) ([]string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, ErrNoKey
	}
	addr, _ := clientip.Peer(p.Addr.String())
	client, ok := clientip.Key(addr, 64)
	if !ok {
		return nil, ErrNoKey
	}
	return append(key, client), nil
}

// New returns interceptors that apply a limit of limiter. It returns an error if the limiter has no such limit.
func New(limiter *ratelimit.Limiter, c Config) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor, error) {
	if !limiter.Has(c.Limit) {
		return nil, nil, fmt.Errorf("grpclimit: %w: %q", ratelimit.ErrUnknown, c.Limit)
	}
	unary := func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		slot, pushback, err := c.decide(ctx, limiter, info.FullMethod)
		if slot != nil {
			defer slot.Release()
		}
		if err != nil {
			_ = grpc.SetTrailer(ctx, pushback) // it fails only outside of a call
			return nil, err
		}
		return handle(ctx, request)
	}
	stream := func(server any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		slot, pushback, err := c.decide(s.Context(), limiter, info.FullMethod)
		if slot != nil {
			defer slot.Release()
		}
		if err != nil {
			s.SetTrailer(pushback)
			return err
		}
		return handle(server, s)
	}
	return unary, stream, nil
}

// decide returns nil for a call that is allowed, after it has waited for the turn of the call in a leaky bucket. For
// other calls it returns the status, as an error, and the trailer, which may be nil. slot is nil if the call has taken none.
func (c *Config) decide(ctx context.Context, limiter *ratelimit.Limiter, method string) (slot *ratelimit.Slot, trailer metadata.MD, err error) {
	var values [4]string
	key := values[:0]
	if c.Key != nil {
		key, err = c.Key(ctx, method, key)
	}
	var result ratelimit.Result
	switch {
	case err != nil:
	case limiter.Acquires(c.Limit):
		slot, err = limiter.Acquire(ctx, c.Limit, key...)
	default:
		result, err = limiter.Allow(ctx, c.Limit, key...)
	}
	switch {
	case err == nil && result.Wait > 0:
		return nil, nil, status.FromContextError(delay.For(ctx, result.Wait)).Err() // nil after the wait
	case err == nil:
		return slot, nil, nil
	case errors.Is(err, ratelimit.ErrDenied) && limiter.Acquires(c.Limit):
		return nil, nil, status.Error(codes.ResourceExhausted, "too many calls are in flight")
	case errors.Is(err, ratelimit.ErrDenied):
		trailer, err = denied(result.RetryAfter)
		return nil, trailer, err
	}
	return nil, nil, c.failed(ctx, err)
}

// failed returns the status of a call that was not decided, or nil if it is allowed nevertheless.
func (c *Config) failed(ctx context.Context, err error) error {
	if c.OnError != nil {
		c.OnError(ctx, err)
	}
	switch {
	case errors.Is(err, ErrNoKey):
		return status.Error(codes.InvalidArgument, "a value that the rate limit needs is missing or repeated")
	case errors.Is(err, ratelimit.ErrNeverFits):
		return status.Error(codes.ResourceExhausted, "the rate limit allows no calls")
	case c.FailOpen && (errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, ratelimit.ErrFull)):
		return nil
	default:
		return status.Error(codes.Unavailable, "the rate limit could not be decided")
	}
}

func denied(after time.Duration) (metadata.MD, error) {
	s := status.New(codes.ResourceExhausted, "the rate limit was reached")
	if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil {
		s = with
	}
	ms := int64((after + time.Millisecond - 1) / time.Millisecond)
	return metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(ms, 10)), s.Err()
}
