package httpapi

import (
	"net/http"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// HeaderSets are the headers that tell of limits, where a domain does not say. X-RateLimit-Reason is
// sent in any case.
type HeaderSets = limiter.HeaderSets

// Why a decision is what it is.
const (
	reasonLimit   = "limit"
	reasonFailure = "backend-failure"
	reasonNoRoute = "no-route"
	reasonNever   = "never"
	reasonPanic   = "internal-error"
	// reasonRepeated: a header or cookie that decides which limits apply was there twice.
	reasonRepeated = "repeated"
)

const (
	// maxShown bounds the policies in one header.
	maxShown = 8
	// maxName bounds a name in a header.
	maxName = 128
	// maxInteger is the largest integer of a structured field (RFC 9651).
	maxInteger = 999_999_999_999_999
)

const retryAfter = "Retry-After"

// lines gathers headers: their values in one text, so that all of them cost two allocations.
type lines struct {
	text  []byte
	names [8]string
	ends  [8]int
	n     int
	// noRetryAfter: it is left out.
	noRetryAfter bool
}

// end ends the value of a header.
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

// write puts the headers into h, spelled as they are written here.
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

// verdict adds the headers that tell of v. Nothing of it comes from the client.
func (l *lines) verdict(s HeaderSets, v *limiter.Verdict) {
	if v.Domain != nil && v.Domain.Headers != nil {
		s = *v.Domain.Headers
	}
	l.noRetryAfter = s.NoRetryAfter
	tightest := tightest(v)
	if tightest < 0 {
		return
	}
	r := &v.Results[tightest]
	limit := shownLimit(r)
	left, reset := clamp(r.Decision.Remaining), int64(-1)
	switch {
	case !r.Outcome.Denies():
		reset = wholeSeconds(r.Decision.ResetAfter)
	case !r.Decision.Never:
		reset = max(1, wholeSeconds(r.Decision.RetryAfter))
	}
	if s.IETF {
		l.policies(v, tightest)
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

// policies adds RateLimit-Policy: the tightest first, then the others.
func (l *lines) policies(v *limiter.Verdict, tightest int) {
	l.policy(&v.Results[tightest])
	shown := 1
	for i := range v.Results {
		if r := &v.Results[i]; shown < maxShown && speaks(r) && !shownBefore(v, i, tightest) {
			l.text = append(l.text, ", "...)
			l.policy(r)
			shown++
		}
	}
	l.end("RateLimit-Policy")
}

// shownBefore tells whether the limit of Result i is the tightest, or that of an earlier Result.
func shownBefore(v *limiter.Verdict, i, tightest int) bool {
	owner := v.Results[i].Policy.Owner
	if owner == v.Results[tightest].Policy.Owner {
		return true
	}
	for j := range i {
		if r := &v.Results[j]; speaks(r) && r.Policy.Owner == owner {
			return true
		}
	}
	return false
}

func (l *lines) policy(r *limiter.Result) {
	l.name(r.Policy)
	units, window := limiter.Shown(shownLimit(r))
	l.parameter("q", clamp(units))
	if window > 0 {
		l.parameter("w", clamp(window))
	}
}

func (l *lines) parameter(name string, n int64) {
	l.text = append(append(append(l.text, ';'), name...), '=')
	l.text = strconv.AppendInt(l.text, n, 10)
}

// name adds the name of p's limit as a String, which JSON reads as well. Limits without a name have
// a number: their path in the configuration has the keys of descriptors in it.
func (l *lines) name(p *descriptors.Policy) {
	l.text = append(l.text, '"')
	if p.RateName == "" {
		l.text = strconv.AppendInt(append(l.text, "limit-"...), int64(p.Index)+1, 10)
	}
	for i := 0; i < min(len(p.RateName), maxName); i++ {
		switch c := p.RateName[i]; {
		case c < ' ' || c > '~':
			l.text = append(l.text, '_')
		case c == '"' || c == '\\':
			l.text = append(l.text, '\\', c)
		default:
			l.text = append(l.text, c)
		}
	}
	l.text = append(l.text, '"')
}

// speaks tells whether something is to be told of r: not of what is in shadow, or is not known.
func speaks(r *limiter.Result) bool {
	return r.Policy != nil && !r.Policy.Shadow && r.Outcome != limiter.Shadowed && !r.Policy.Unlimited && r.Outcome != limiter.Replaced && r.Decision.Err == nil
}

// shownLimit is the limit that r's numbers are of.
func shownLimit(r *limiter.Result) *algorithms.Limit {
	if p := r.Policy; p.Extra().Local != nil && (r.Outcome == limiter.FailedAllowed || r.Outcome == limiter.FailedDenied) {
		return p.Extra().Local
	}
	return r.Policy.Limit
}

// tightest is the Result that speaks for v: of those that deny, the one for good, or the longest;
// else the one with the least left. -1: none.
func tightest(v *limiter.Verdict) int {
	best, bestDenies := -1, false
	for i := range v.Results {
		r := &v.Results[i]
		if !speaks(r) {
			continue
		}
		denies := v.Denies(r)
		better := best < 0
		if !better {
			was := &v.Results[best]
			switch {
			case denies != bestDenies:
				better = denies
			case denies:
				better = !was.Decision.Never && (r.Decision.Never || r.Decision.RetryAfter > was.Decision.RetryAfter)
			default:
				better = r.Decision.Remaining < was.Decision.Remaining
			}
		}
		if better {
			best, bestDenies = i, denies
		}
	}
	return best
}

// wholeSeconds is d in whole seconds, rounded up.
func wholeSeconds(d algorithms.Micros) int64 {
	return clamp(int64((d-1)/algorithms.Second) + 1)
}

func clamp(n int64) int64 { return max(0, min(n, maxInteger)) }
