// Package clientreply creates the parts of an answer that are meant for the client behind the proxy: the limit
// that explains the answer, the body of a denial, and the headers that SDKs for language models read. These
// parts contain no bytes from clients. The package does no I/O.
package clientreply

import (
	"slices"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// MaxName bounds the bytes of a limit's name in headers and bodies.
const MaxName = 128

// Describes reports whether headers may describe r. They do not describe Results without a Policy, shadow limits,
// unlimited limits, limits that another limit replaces, and decisions with an error.
func Describes(r *limiter.Result) bool {
	return r.Policy != nil && !r.Policy.Shadow && r.Outcome != limiter.Shadowed && !r.Policy.Unlimited && r.Outcome != limiter.Replaced && r.Decision.Err == nil
}

// Limit returns the limit to which the numbers in r belong. After a failure of the store that is the local
// share of the policy's limit, if there is one.
func Limit(r *limiter.Result) *algorithms.Limit {
	if p := r.Policy; p.Extra().Local != nil && (r.Outcome == limiter.FailedAllowed || r.Outcome == limiter.FailedDenied) {
		return p.Extra().Local
	}
	return r.Policy.Limit
}

// MostRestrictive returns the index of the most restrictive Result of v for which Describes returns true, or -1.
// If limits deny, it chooses a limit that can never allow the cost, or else the one with the longest retry time.
// If none denies, it chooses the one with the fewest units left.
func MostRestrictive(v *limiter.Verdict) int {
	return mostRestrictive(v, func(*limiter.Result) bool { return true })
}

func mostRestrictive(v *limiter.Verdict, accept func(*limiter.Result) bool) int {
	best, bestDenies := -1, false
	for i := range v.Results {
		r := &v.Results[i]
		if !Describes(r) || !accept(r) {
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

// AppendName appends the name of p's limit as a String of RFC 9651, which is also valid JSON. A limit without
// a name gets a number, because its path in the configuration would reveal the keys of descriptors.
func AppendName(b []byte, p *limiter.Policy) []byte {
	b = append(b, '"')
	if p.RateName == "" {
		b = strconv.AppendInt(append(b, "limit-"...), int64(p.Index)+1, 10)
	}
	for i := 0; i < min(len(p.RateName), MaxName); i++ {
		switch c := p.RateName[i]; {
		case c < ' ' || c > '~':
			b = append(b, '_')
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// AppendDenying appends the names of the limits that deny v, separated by commas, each once and at most eight. A name is
// that of the configuration, with its path if the limit has no name of its own. It is for the log of a proxy, and not
// for clients. Bytes that are not visible ASCII, and commas, become "_".
func AppendDenying(b []byte, v *limiter.Verdict) []byte {
	const most, longest = 8, 128
	var names [most]*limiter.Policy
	n := 0
	for i := range v.Results {
		r := &v.Results[i]
		p := r.Policy
		if p == nil || !v.Denies(r) || n == most || slices.ContainsFunc(names[:n], func(other *limiter.Policy) bool { return other.Name == p.Name }) {
			continue
		}
		if names[n], n = p, n+1; n > 1 {
			b = append(b, ',')
		}
		for _, c := range []byte(p.Name[:min(len(p.Name), longest)]) {
			if c <= ' ' || c > '~' || c == ',' {
				c = '_'
			}
			b = append(b, c)
		}
	}
	return b
}

// Seconds converts d to whole seconds, rounded up.
func Seconds(d algorithms.Micros) int64 {
	return int64((d + algorithms.Second - 1) / algorithms.Second)
}

// RetryAfter returns the number of seconds after which the client of a denied request may try again. 0
// means never, or that the time is unknown (Verdict.Busy).
func RetryAfter(v *limiter.Verdict) int64 {
	if v.Never || v.Busy {
		return 0
	}
	return max(1, Seconds(v.RetryAfter))
}

// appendSpan appends d in the form of Go and OpenAI: 1s, 6m0s, 1.5s.
func appendSpan(b []byte, d time.Duration) []byte { return append(b, d.String()...) }
