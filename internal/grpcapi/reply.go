package grpcapi

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The field numbers of envoy.service.ratelimit.v3.RateLimitResponse.
const (
	responseCode     = 1
	responseStatuses = 2
	responseHeaders  = 3
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

	codeOK        = 1
	codeOverLimit = 2
)

// status is what a DescriptorStatus says.
type status struct {
	over bool
	// limited: there is a limit to show, which is window and name.
	limited   bool
	window    window
	name      string
	remaining uint32
	// reset is in seconds; 0: not said.
	reset int64
	quota bool
}

// statusOf is the answer to descriptor i.
func statusOf(v *limiter.Verdict, i int) status {
	spoken := v.Statuses[i]
	if spoken.Result < 0 {
		return status{over: spoken.Denied}
	}
	r := &v.Results[spoken.Result]
	s := status{over: spoken.Denied}
	switch {
	case r.Outcome == limiter.Unlimited:
		s.remaining = math.MaxUint32
		return s
	case r.Policy == nil || r.Decision.Err != nil:
		return s // nothing is known of a bucket; numbers made up would become headers
	}
	p, limit := r.Policy, &r.Policy.Limit
	if p.Local != nil && (r.Outcome == limiter.FailedAllowed || r.Outcome == limiter.FailedDenied) {
		limit = p.Local // what is left is of this process's own bucket
	}
	s.limited, s.name, s.quota = true, p.RateName, p.Quota
	s.window = windowOf(limit)
	if r.Outcome != limiter.Shadowed {
		s.remaining = uint32(min(max(0, r.Decision.Remaining), math.MaxUint32))
	}
	switch {
	case p.Reference && limit.Rate == 0: // as the reference server, though the next window allows nothing either
		s.reset = seconds(limit.WindowEnd(r.Decision.At))
	case !spoken.Denied:
		s.reset = max(1, seconds(r.Decision.ResetAfter))
	case !r.Decision.Never:
		s.reset = max(1, seconds(r.Decision.RetryAfter))
	case p.Alone && p.Reference: // as the reference server, which knows no "never"
		s.reset = seconds(r.Decision.ResetAfter)
	}
	return s
}

// seconds is d in whole seconds, rounded up: Envoy makes Retry-After of it, and cuts fractions.
func seconds(d algorithms.Micros) int64 {
	return int64((d + algorithms.Second - 1) / algorithms.Second)
}

// appendVerdict appends the RateLimitResponse for v but for headers and metadata. The overall code
// is never UNKNOWN, which Envoy takes for OK.
func appendVerdict(b []byte, v *limiter.Verdict) []byte {
	b = appendCode(b, responseCode, v.Denied)
	for i := range v.Statuses {
		s := statusOf(v, i)
		b = s.append(b)
	}
	return b
}

// denial is the answer to what was not looked at.
func denial() *answer {
	a := newAnswer()
	a.denied = true
	a.data = appendCode(a.data, responseCode, true)
	return a
}

func appendCode(b []byte, field protowire.Number, over bool) []byte {
	code := uint64(codeOK)
	if over {
		code = codeOverLimit
	}
	return appendVarint(b, field, code)
}

// append appends s as one of a response's statuses.
func (s *status) append(b []byte) []byte {
	b, start := open(b, responseStatuses)
	b = appendCode(b, statusCode, s.over)
	if s.limited {
		b = s.appendLimit(b)
	}
	b = appendVarint(b, statusRemaining, uint64(s.remaining))
	if s.reset > 0 {
		var at int
		b, at = open(b, statusReset)
		b = shut(appendVarint(b, durationSeconds, uint64(s.reset)), at)
	}
	return shut(b, start)
}

func (s *status) appendLimit(b []byte) []byte {
	b, start := open(b, statusLimit)
	b = appendVarint(b, rateLimitRequests, uint64(s.window.requests))
	b = appendVarint(b, rateLimitUnit, uint64(s.window.unit))
	if s.name != "" {
		var at int
		b, at = open(b, rateLimitName)
		b = shut(appendName(b, s.name), at)
	}
	if s.window.multiplier > 1 {
		var at int
		b, at = open(b, rateLimitMultiplier)
		b = shut(appendVarint(b, wrapperValue, uint64(s.window.multiplier)), at)
	}
	return shut(b, start)
}

// appendName appends name with what Envoy does not escape in its headers replaced.
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

// appendVarint appends a field unless it is 0, which proto3 does not send.
func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	switch {
	case v == 0:
		return b
	case v < 1<<7 && field < 1<<4:
		return append(b, byte(field)<<3|byte(protowire.VarintType), byte(v))
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// open starts a nested message, or a text, that shut ends; field is up to 15. One byte is kept for its length.
func open(b []byte, field protowire.Number) (opened []byte, start int) {
	b = append(b, byte(field)<<3|byte(protowire.BytesType), 0)
	return b, len(b)
}

// shut fills in the length of what was opened at start, and moves it if one byte is too little.
func shut(b []byte, start int) []byte {
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
