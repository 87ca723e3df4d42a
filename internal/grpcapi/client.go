package grpcapi

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/replies"
)

// appendForClient appends the parts of an answer that the proxy forwards to its client: the header set
// openai, and the body of a denial. Most domains configure neither.
func appendForClient(b []byte, v *limiter.Verdict) []byte {
	d := v.Domain
	if d == nil || d.Headers == nil && !v.Denied {
		return b
	}
	noRetryAfter := d.Headers != nil && d.Headers.NoRetryAfter
	if d.Headers != nil && d.Headers.OpenAI {
		replies.OpenAIHeaders(v, noRetryAfter, func(name string, value []byte) { b = appendHeader(b, name, string(value)) })
		if v.Denied && !v.Never && !v.Busy && !noRetryAfter { // Envoy itself adds Retry-After only with enable_retry_after_header
			b = appendHeader(b, "retry-after", strconv.FormatInt(replies.RetryAfter(v), 10))
		}
	}
	format := replies.Format(v)
	if format == limiter.NoBody {
		return b
	}
	b = appendHeader(b, "content-type", replies.ContentType(format))
	return protowire.AppendBytes(protowire.AppendTag(b, responseBody, protowire.BytesType), replies.AppendBody(nil, format, v, noRetryAfter))
}
