package clientreply

import (
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

type cause uint8

const (
	reached cause = iota // a limit was reached
	never                // the cost is more than a limit can ever allow
	missing              // the request lacks an entry that its domain requires
	failed               // the store could not decide
)

type denial struct {
	cause cause
	// result is the Result that explains the denial, or nil.
	result *limiter.Result
	// wait is the retry time in seconds. 0 means that the body does not state one.
	wait int64
}

// v must be a denial.
func explain(v *limiter.Verdict, noRetryAfter bool) denial {
	var d denial
	d.result = denier(v)
	switch {
	case v.Missing != nil:
		d.cause = missing
	case v.Never:
		d.cause = never
	case d.result == nil:
		d.cause = failed
	}
	if !noRetryAfter {
		d.wait = RetryAfter(v)
	}
	return d
}

// denier returns the Result that explains v: the most restrictive one of the limits that a store has decided
// and that deny the request. It returns nil if there is none, for example if the store failed.
func denier(v *limiter.Verdict) *limiter.Result {
	at := mostRestrictive(v, func(r *limiter.Result) bool { return r.Outcome == limiter.Denied && v.Denies(r) })
	if at < 0 {
		return nil
	}
	return &v.Results[at]
}

// Format returns the format of the body for v. The limit that explains the denial determines the format, or
// else the domain. Format returns NoBody if neither states a format, or if v is not a denial.
func Format(v *limiter.Verdict) limiter.Body {
	if !v.Denied || v.Domain == nil {
		return limiter.NoBody
	}
	if r := denier(v); r != nil && r.Policy.Extra().DenyBody != limiter.NoBody {
		return r.Policy.Extra().DenyBody
	}
	return v.Domain.DenyBody
}

// ContentType returns the content type of a body in format f.
func ContentType(f limiter.Body) string {
	switch f {
	case limiter.OpenAIBody, limiter.AnthropicBody:
		return "application/json"
	case limiter.ProblemBody:
		return "application/problem+json"
	case limiter.TextBody, limiter.NoBody:
	}
	return "text/plain; charset=utf-8"
}

// AppendBody appends to b the body for v in format f. v must be a denial. noRetryAfter omits the retry time.
func AppendBody(b []byte, f limiter.Body, v *limiter.Verdict, noRetryAfter bool) []byte {
	d := explain(v, noRetryAfter)
	switch f {
	case limiter.OpenAIBody:
		return d.appendOpenAI(b)
	case limiter.AnthropicBody:
		return d.appendAnthropic(b)
	case limiter.ProblemBody:
		return d.appendProblem(b, v)
	case limiter.TextBody, limiter.NoBody:
	}
	return append(d.appendMessage(b), '\n')
}

// appendMessage appends the explanation of the denial, in printable ASCII: a sentence and, unless d.wait is 0, a
// second one with the retry time.
func (d *denial) appendMessage(b []byte) []byte {
	switch d.cause {
	case missing:
		return append(b, "The request lacks a value that is required."...)
	case never:
		if d.result == nil {
			return append(b, "The request needs more than its limit ever allows."...)
		}
		b = AppendName(append(b, "The request needs more than limit "...), d.result.Policy)
		return append(b, " ever allows."...)
	case failed:
		b = append(b, "Rate limits cannot be checked at the moment."...)
	case reached:
		b = AppendName(append(b, "Rate limit reached for "...), d.result.Policy)
		b = append(b, '.')
	}
	if d.wait > 0 {
		b = appendSpan(append(b, " Please try again in "...), time.Duration(d.wait)*time.Second)
		b = append(b, '.')
	}
	return b
}

func (d *denial) appendOpenAI(b []byte) []byte {
	kind, code := "requests", "rate_limit_exceeded"
	switch d.cause {
	case missing:
		kind, code = "invalid_request_error", "missing_descriptor"
	case failed:
		kind, code = "server_error", "rate_limit_unavailable"
	case reached, never:
		if d.result != nil && d.result.Policy.Extra().Unit != limiter.NoUnit {
			kind = d.result.Policy.Extra().Unit.String()
		}
	}
	b = d.appendQuoted(append(b, `{"error":{"message":`...))
	b = append(append(b, `,"type":"`...), kind...)
	b = append(append(b, `","param":null,"code":"`...), code...)
	return append(b, `"}}`+"\n"...)
}

func (d *denial) appendAnthropic(b []byte) []byte {
	kind := "rate_limit_error"
	switch d.cause {
	case missing:
		kind = "invalid_request_error"
	case failed:
		kind = "overloaded_error"
	case reached, never:
	}
	b = append(append(b, `{"type":"error","error":{"type":"`...), kind...)
	b = d.appendQuoted(append(b, `","message":`...))
	return append(b, "}}\n"...)
}

// appendProblem appends problem details (RFC 9457). The types are those of
// draft-ietf-httpapi-ratelimit-headers, which has none for a missing descriptor.
func (d *denial) appendProblem(b []byte, v *limiter.Verdict) []byte {
	kind, title := "https://iana.org/assignments/http-problem-types#quota-exceeded", "Too Many Requests"
	switch d.cause {
	case missing:
		kind, title = "urn:rlsidecar:problem:missing-descriptor", "The request lacks a value that is required"
	case failed:
		kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	case reached, never:
	}
	b = append(append(b, `{"type":"`...), kind...)
	b = append(append(b, `","title":"`...), title...)
	b = append(b, `","status":429`...)
	if d.cause == reached || d.cause == never {
		b = append(d.appendQuoted(append(b, `,"detail":`...)), `,"violated-policies":[`...)
		first := true
		for i := range v.Results {
			r := &v.Results[i]
			if r.Policy == nil || r.Outcome != limiter.Denied || !v.Denies(r) {
				continue
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			b = AppendName(b, r.Policy)
		}
		b = append(b, ']')
	}
	return append(b, "}\n"...)
}

func (d *denial) appendQuoted(b []byte) []byte {
	var room [256]byte
	return strconv.AppendQuoteToASCII(b, string(d.appendMessage(room[:0]))) // for printable ASCII, quoting in Go and in JSON is the same
}
