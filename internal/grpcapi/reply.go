package grpcapi

import (
	"encoding/binary"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlsidecar/rlsidecar/internal/clientreply"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The field numbers of envoy.service.ratelimit.v3.RateLimitResponse.
const (
	responseCode     = 1
	responseStatuses = 2
	responseHeaders  = 3
	responseBody     = 5
	responseMetadata = 6

	statusCode      = 1
	statusLimit     = 2
	statusRemaining = 3
	statusReset     = 4

	rateLimitRequests   = 1
	rateLimitUnit       = 2
	rateLimitName       = 3
	rateLimitMultiplier = 4

	durationSeconds = 1

	// longestDuration is the longest google.protobuf.Duration, in seconds: 10,000 years. JSON cannot express a longer one.
	// Credits of which one a year flows in take longer to be full.
	longestDuration = 315_576_000_000

	codeOK        = 1
	codeOverLimit = 2
)

// status has the content of a DescriptorStatus.
type status struct {
	over bool
	// policy has the name of the shown limit, and limit has its numbers. limit is nil if no limit is shown.
	policy    *limiter.Policy
	limit     *algorithms.Limit
	remaining uint32
	// reset is in seconds; 0 is omitted.
	reset int64
}

// report sets s, which must be empty, to the result of descriptor i.
func (s *status) report(v *limiter.Verdict, i int) {
	status := &v.Statuses[i]
	s.over = status.Denied
	if status.Result < 0 {
		return
	}
	r := &v.Results[status.Result]
	switch {
	case r.Outcome == limiter.Unlimited:
		s.remaining = math.MaxUint32
		return
	case r.Policy == nil || r.Decision.Err != nil:
		return // the state of the bucket is unknown, and a made-up number would appear in headers
	}
	p := r.Policy
	if v.Denied && !p.Reference && !v.Denies(r) {
		return // not shown, so that Envoy makes its headers from a limit that denies; the reference server shows every limit
	}
	limit := clientreply.Limit(r)
	s.policy, s.limit = p, limit
	if r.Outcome != limiter.Shadowed && !(v.Denied && status.Denied) {
		s.remaining = uint32(min(max(0, r.Decision.Remaining), math.MaxUint32))
	}
	switch { // the reset time is in whole seconds, rounded up, because Envoy copies it to Retry-After and drops fractions
	case p.Reference && limit.Rate == 0: // as in the reference server, although the next window allows nothing either
		s.reset = clientreply.Seconds(limit.WindowEnd(r.Decision.At, 0))
	case limit.Kind == algorithms.Concurrency: // nobody knows when slots are returned
	case !status.Denied:
		s.reset = max(1, clientreply.Seconds(r.Decision.ResetAfter))
	case v.Denied && v.Never && !p.Reference: // no wait changes the denial, whatever this limit decided
	case !r.Decision.Never:
		s.reset = max(1, clientreply.Seconds(r.Decision.RetryAfter))
	case p.Alone && p.Reference: // the reference server has no permanent denials, and reports the reset time
		s.reset = clientreply.Seconds(r.Decision.ResetAfter)
	}
	s.reset = min(s.reset, longestDuration)
}

// appendVerdict appends the RateLimitResponse for v, without headers and metadata. The overall code is
// never UNKNOWN, which Envoy treats as OK. known may be nil.
func appendVerdict(b []byte, v *limiter.Verdict, known *knownLimits) []byte {
	b = appendCode(b, responseCode, v.Denied)
	for i := range v.Statuses {
		var s status
		s.report(v, i)
		b = s.append(b, known)
	}
	return b
}

func appendCode(b []byte, field protowire.Number, over bool) []byte {
	code := uint64(codeOK)
	if over {
		code = codeOverLimit
	}
	return appendVarint(b, field, code)
}

func (s *status) append(b []byte, known *knownLimits) []byte {
	b, start := openMessage(b, responseStatuses)
	b = appendCode(b, statusCode, s.over)
	switch {
	case s.limit == nil:
	case known != nil:
		b = append(b, known.encoded(s)...)
	default:
		b = s.appendLimit(b)
	}
	b = appendVarint(b, statusRemaining, uint64(s.remaining))
	if s.reset > 0 {
		var at int
		b, at = openMessage(b, statusReset)
		b = closeMessage(appendVarint(b, durationSeconds, uint64(s.reset)), at)
	}
	return closeMessage(b, start)
}

// knownLimits caches the encoded form of a few limits.
type knownLimits [8]struct {
	policy *limiter.Policy
	limit  *algorithms.Limit
	bytes  []byte
}

func (k *knownLimits) encoded(s *status) []byte {
	e := &k[s.policy.Index&(len(k)-1)]
	if e.policy != s.policy || e.limit != s.limit {
		e.policy, e.limit, e.bytes = s.policy, s.limit, s.appendLimit(e.bytes[:0])
	}
	return e.bytes
}

func (s *status) appendLimit(b []byte) []byte {
	b, start := openMessage(b, statusLimit)
	w := windowOf(s.limit)
	b = appendVarint(b, rateLimitRequests, uint64(w.requests))
	b = appendVarint(b, rateLimitUnit, uint64(w.unit))
	if s.policy.RateName != "" {
		var at int
		b, at = openMessage(b, rateLimitName)
		b = closeMessage(appendName(b, s.policy.RateName), at)
	}
	if w.multiplier > 1 {
		var at int
		b, at = openMessage(b, rateLimitMultiplier)
		b = closeMessage(appendVarint(b, wrapperValue, uint64(w.multiplier)), at)
	}
	return closeMessage(b, start)
}

// appendName appends name. Bytes other than ASCII letters, digits, "_", ".", "-" and "/" become "_", because Envoy
// copies the name into a header without escaping it.
func appendName(b []byte, name string) []byte {
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '-', c == '/':
		default:
			c = '_'
		}
		b = append(b, c)
	}
	return b
}

// appendVarint appends a field unless it is 0, which proto3 omits. field is at most 15.
func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, byte(field)<<3|byte(protowire.VarintType)), v)
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// openMessage begins a nested message or a text. closeMessage ends it. field is at most 15. openMessage
// reserves one byte for the length.
func openMessage(b []byte, field protowire.Number) (opened []byte, start int) {
	b = append(b, byte(field)<<3|byte(protowire.BytesType), 0)
	return b, len(b)
}

// closeMessage writes the length of the message that was opened at start. It moves the message if one byte is
// not enough.
func closeMessage(b []byte, start int) []byte {
	n := len(b) - start
	if n < 1<<7 {
		b[start-1] = byte(n)
		return b
	}
	more := protowire.SizeVarint(uint64(n)) - 1
	for range more {
		b = append(b, 0)
	}
	copy(b[start+more:], b[start:start+n])
	protowire.AppendVarint(b[:start-1], uint64(n))
	return b
}

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
