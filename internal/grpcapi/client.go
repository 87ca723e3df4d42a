package grpcapi

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlsidecar/rlsidecar/internal/clientreply"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
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
		clientreply.OpenAIHeaders(v, noRetryAfter, func(name string, value []byte) { b = appendHeader(b, name, string(value)) })
		if v.Denied && !v.Never && !v.Busy && !noRetryAfter { // Envoy itself adds Retry-After only with enable_retry_after_header
			b = appendHeader(b, "retry-after", strconv.FormatInt(clientreply.RetryAfter(v), 10))
		}
	}
	format := clientreply.Format(v)
	if format == limiter.NoBody {
		return b
	}
	b = appendHeader(b, "content-type", clientreply.ContentType(format))
	return protowire.AppendBytes(protowire.AppendTag(b, responseBody, protowire.BytesType), clientreply.AppendBody(nil, format, v, noRetryAfter))
}
