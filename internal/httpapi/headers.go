package httpapi

import (
	"net/http"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/clientreply"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// HeaderSets selects the headers that describe limits. It applies to domains that do not configure headers. It
// does not affect X-RateLimit-Reason.
type HeaderSets = limiter.HeaderSets

const (
	reasonLimit   = "limit"
	reasonFailure = "backend-failure"
	reasonNoRoute = "no-route"
	reasonNever   = "never"
	reasonMissing = "missing-descriptor"
	// reasonNoReturn means that nobody could return the slot of a concurrency limit, because there is no log listener.
	reasonNoReturn = "no-return-door"
	reasonPanic    = "internal-error"
	// reasonRepeated means that a header, cookie or parameter that affects which limits apply was repeated, or that the target
	// contains "#" or an ambiguous path.
	reasonRepeated = "repeated"
)

const (
	// maxShown is the largest number of policies in one header.
	maxShown = 8
	// maxInteger is the largest integer of a structured field (RFC 9651).
	maxInteger = 999_999_999_999_999
)

const retryAfter = "Retry-After"

// lines collects headers. All values are parts of one string, so write makes two allocations for any number of
// headers.
type lines struct {
	text         []byte
	names        [9 + clientreply.MaxHeaders]string // 9 are those of this package
	ends         [9 + clientreply.MaxHeaders]int
	n            int
	noRetryAfter bool
}

func (l *lines) end(name string) {
	l.names[l.n], l.ends[l.n] = name, len(l.text)
	l.n++
}

func (l *lines) number(name string, n int64) {
	l.text = strconv.AppendInt(l.text, n, 10)
	l.end(name)
}

func (l *lines) word(name, value string) {
	l.text = append(l.text, value...)
	l.end(name)
}

// deniedBy adds a header with the limits that deny, for the log of a proxy.
func (l *lines) deniedBy(v *limiter.Verdict) {
	start := len(l.text)
	if l.text = clientreply.AppendDenying(l.text, v); len(l.text) > start {
		l.end("X-RateLimit-Denied-By")
	}
}

// write adds the headers to h without changing their spelling.
func (l *lines) write(h http.Header) {
	text, values, start := string(l.text), make([]string, l.n), 0
	for i := range l.n {
		values[i] = text[start:l.ends[i]]
		start = l.ends[i]
		if l.names[i] != retryAfter || !l.noRetryAfter {
			h[l.names[i]] = values[i : i+1 : i+1]
		}
	}
}

// verdict adds the headers for v. They contain no bytes from the client.
func (l *lines) verdict(s HeaderSets, v *limiter.Verdict) {
	if v.Domain != nil && v.Domain.Headers != nil {
		s = *v.Domain.Headers
	}
	l.noRetryAfter = s.NoRetryAfter
	if s.OpenAI {
		clientreply.OpenAIHeaders(v, s.NoRetryAfter, func(name string, value []byte) {
			l.text = append(l.text, value...)
			l.end(name)
		})
	}
	mostRestrictive := clientreply.MostRestrictive(v)
	if mostRestrictive < 0 {
		return
	}
	r := &v.Results[mostRestrictive]
	limit := clientreply.Limit(r)
	left, reset := clamp(r.Decision.Remaining), int64(-1)
	switch {
	case limit.Kind == algorithms.Concurrency: // nobody knows when slots are returned
	case !r.Outcome.Denies():
		reset = wholeSeconds(r.Decision.ResetAfter)
	case !r.Decision.Never:
		reset = max(1, wholeSeconds(r.Decision.RetryAfter))
	}
	if s.IETF {
		l.policies(v, mostRestrictive)
		l.name(r.Policy)
		l.parameter("r", left)
		if reset >= 0 {
			l.parameter("t", reset)
		}
		l.end("RateLimit")
	}
	if s.X {
		l.number("X-RateLimit-Limit", clamp(limit.Capacity))
		l.number("X-RateLimit-Remaining", left)
		if reset >= 0 {
			l.number("X-RateLimit-Reset", reset)
		}
	}
}

// policies adds RateLimit-Policy: the most restrictive limit first, then the others, at most maxShown in all.
// mostRestrictive is the index of its Result.
func (l *lines) policies(v *limiter.Verdict, mostRestrictive int) {
	l.policy(&v.Results[mostRestrictive])
	shown := 1
	for i := range v.Results {
		if r := &v.Results[i]; shown < maxShown && clientreply.Describes(r) && !shownBefore(v, i, mostRestrictive) {
			l.text = append(l.text, ", "...)
			l.policy(r)
			shown++
		}
	}
	l.end("RateLimit-Policy")
}

// shownBefore reports whether the headers already describe the limit of Result i, because it is also the
// most restrictive one or that of an earlier Result.
func shownBefore(v *limiter.Verdict, i, mostRestrictive int) bool {
	owner := v.Results[i].Policy.Owner
	if owner == v.Results[mostRestrictive].Policy.Owner {
		return true
	}
	for j := range i {
		if r := &v.Results[j]; clientreply.Describes(r) && r.Policy.Owner == owner {
			return true
		}
	}
	return false
}

func (l *lines) policy(r *limiter.Result) {
	l.name(r.Policy)
	units, window := limiter.Shown(clientreply.Limit(r))
	l.parameter("q", clamp(units))
	if window > 0 {
		l.parameter("w", clamp(window))
	}
}

func (l *lines) parameter(name string, n int64) {
	l.text = append(append(append(l.text, ';'), name...), '=')
	l.text = strconv.AppendInt(l.text, n, 10)
}

func (l *lines) name(p *limiter.Policy) { l.text = clientreply.AppendName(l.text, p) }

// wholeSeconds returns d in whole seconds, rounded up.
func wholeSeconds(d algorithms.Micros) int64 { return clamp(clientreply.Seconds(d)) }

func clamp(n int64) int64 { return max(0, min(n, maxInteger)) }
