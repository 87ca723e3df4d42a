package grpcapi

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// mostSmall is the number of JSON objects of a small request. Its decoded form needs less memory than a connection
	// counts for.
	mostSmall = 64
	// mostLarge is the number of larger requests in JSON that are decided at a time. The others wait in turn.
	mostLarge = 16
)

var deniedJSON = []byte(`{"overallCode":"OVER_LIMIT"}`)

// AnswerJSON is ShouldRateLimit in protobuf's JSON form. With code 200 or 429 the response is a
// RateLimitResponse. Otherwise it is a text: 400 if the request is invalid or no configuration is loaded, 403
// if it has a refund and is not trusted, and 503 if the RPC would fail for another reason. If ctx ends before the answer,
// the slots of the request are returned.
func (s *Server) AnswerJSON(ctx context.Context, body []byte, trusted bool) (code int, response []byte) {
	code, response, d := s.decideJSON(ctx, body, trusted, time.Now())
	if d.delay > 0 {
		_ = s.delays.Wait(ctx, d.delay) // the error is that of ctx
	}
	if err := ctx.Err(); err != nil {
		if d.slots != "" {
			s.Unused(d.slots)
		}
		return failedJSON(grpcstatus.FromContextError(err).Err())
	}
	return code, response
}

// decided describes an answer.
type decided struct {
	delay algorithms.Micros // see Batch.Delay
	slots string            // see Batch.Slots
}

// decideJSON returns the answer to a request.
func (s *Server) decideJSON(ctx context.Context, body []byte, trusted bool, arrived time.Time) (code int, response []byte, d decided) {
	defer func() {
		if p := recover(); p != nil {
			s.Panicked(p)
			code, response = http.StatusTooManyRequests, deniedJSON
		}
	}()
	switch objects := jsonObjects(body); {
	case objects > s.options.Bounds.mostObjects():
		s.tooLarge(BoundDescriptors)
		return http.StatusTooManyRequests, deniedJSON, d
	case objects > mostSmall:
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			code, response = failedJSON(grpcstatus.FromContextError(ctx.Err()).Err())
			return code, response, d
		}
	}
	var request rls.RateLimitRequest
	if err := protojson.Unmarshal(body, &request); err != nil {
		s.observer.Refused(Malformed)
		return http.StatusBadRequest, []byte("not a RateLimitRequest: " + err.Error() + "\n"), d
	}
	if !trusted && refunds(&request) {
		s.observer.Refused(Untrusted)
		return http.StatusForbidden, []byte("is_negative_hits needs the token of --api-token-file: Authorization: Bearer TOKEN\n"), d
	}
	wire, err := proto.Marshal(&request)
	if err != nil {
		code, response = failedJSON(err)
		return code, response, d
	}
	answer, d, err := s.decide(ctx, wire, arrived)
	code, response = inJSON(answer, err)
	return code, response, d
}

// decide decides one RateLimitRequest.
func (s *Server) decide(ctx context.Context, wire []byte, arrived time.Time) (answer []byte, d decided, err error) {
	var canceled atomic.Bool
	defer context.AfterFunc(ctx, func() { canceled.Store(true) })()
	done := make(chan struct{})
	b := s.NewBatch()
	b.listener = limiter.OverJSON
	b.Add(wire, arrived, 0, &canceled, nil)
	b.Submit(time.Time{}, nil, func() { close(done) })
	<-done
	answer, err = b.Answer(nil, 0)
	return answer, decided{b.Delay(0), b.Slots(0)}, err
}

// inJSON returns an answer of Batch.Answer in JSON.
func inJSON(answer []byte, err error) (code int, response []byte) {
	if err != nil {
		return failedJSON(err)
	}
	var reply rls.RateLimitResponse
	if err := proto.Unmarshal(answer, &reply); err != nil {
		return failedJSON(err)
	}
	if response, err = protojson.Marshal(&reply); err != nil {
		return failedJSON(err)
	}
	if reply.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		return http.StatusTooManyRequests, response
	}
	return http.StatusOK, response
}

// failedJSON returns the answer for err, a gRPC status or an error of protobuf.
func failedJSON(err error) (code int, response []byte) {
	code = http.StatusServiceUnavailable
	if s, is := grpcstatus.FromError(err); is && s.Code() == codes.Unknown {
		code = http.StatusBadRequest
	}
	return code, []byte(grpcstatus.Convert(err).Message() + "\n")
}

func refunds(r *rls.RateLimitRequest) bool {
	return slices.ContainsFunc(r.GetDescriptors(), func(d *ratelimit.RateLimitDescriptor) bool { return d.GetIsNegativeHits() })
}
