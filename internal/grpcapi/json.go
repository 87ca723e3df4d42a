package grpcapi

import (
	"context"
	"errors"
	"net/http"
	"slices"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// refusedJSON is the error for a body that is not decided. reason is the argument of Observer.Refused.
type refusedJSON struct {
	code         int
	reason, text string
}

func (e *refusedJSON) Error() string { return e.text }

var deniedJSON = []byte(`{"overallCode":"OVER_LIMIT"}`)

// AnswerJSON is ShouldRateLimit in protobuf's JSON form. With code 200 or 429 the response is a
// RateLimitResponse. Otherwise it is a text: 400 if the request is invalid or no configuration is loaded, 403
// if it has a refund and is not trusted, and 503 if the RPC would fail for another reason.
func (s *Server) AnswerJSON(ctx context.Context, body []byte, trusted bool) (code int, response []byte) {
	objects := jsonObjects(body)
	if objects > s.options.Bounds.mostObjects() {
		s.tooLarge(BoundDescriptors)
		return http.StatusTooManyRequests, deniedJSON
	}
	a, err := s.serve(ctx, func(v any) (err error) {
		m := v.(*message)
		s.enter(ctx, m, max(1, objects/2), len(body)) // a descriptor with one entry weighs 1, and is two objects
		var request rls.RateLimitRequest
		if err := protojson.Unmarshal(body, &request); err != nil {
			return &refusedJSON{http.StatusBadRequest, Malformed, "not a RateLimitRequest: " + err.Error() + "\n"}
		}
		if !trusted && refunds(&request) {
			return &refusedJSON{http.StatusForbidden, Untrusted, "is_negative_hits needs the token of --api-token-file: Authorization: Bearer TOKEN\n"}
		}
		m.wire, err = (proto.MarshalOptions{}).MarshalAppend(m.wire[:0], &request)
		return err
	})
	if err == nil {
		var reply rls.RateLimitResponse
		if err = proto.Unmarshal(a.data, &reply); err == nil {
			response, err = protojson.Marshal(&reply)
		}
	}
	refused, is := errors.AsType[*refusedJSON](err)
	switch {
	case is:
		return refused.code, []byte(refused.text)
	case err == nil && a.denied:
		return http.StatusTooManyRequests, response
	case err == nil:
		return http.StatusOK, response
	case grpcstatus.Code(err) == codes.Unknown:
		return http.StatusBadRequest, []byte(grpcstatus.Convert(err).Message() + "\n")
	default:
		return http.StatusServiceUnavailable, []byte(grpcstatus.Convert(err).Message() + "\n")
	}
}

func refunds(r *rls.RateLimitRequest) bool {
	return slices.ContainsFunc(r.GetDescriptors(), func(d *ratelimit.RateLimitDescriptor) bool { return d.GetIsNegativeHits() })
}
