package clientreply

import (
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

type headerNames struct{ limit, remaining, reset string }

var unitHeaders = [...]struct {
	unit limiter.Unit
	headerNames
}{
	{limiter.Requests, headerNames{"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"}},
	{limiter.Tokens, headerNames{"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"}},
}

// longestWait is the longest time, in seconds, that the client library openai obeys in retry-after-ms. For a longer
// time, old versions of openai would call again within seconds, and the client library anthropic would sleep for the
// whole time.
const longestWait = 120

// MaxHeaders is the largest number of calls of add that OpenAIHeaders makes.
const MaxHeaders = 3*len(unitHeaders) + 2

// OpenAIHeaders calls add with each header of the header set openai for v. For each unit it adds the headers of the
// most restrictive limit with that unit. For a denial it adds retry-after-ms, unless no retry can succeed or
// noRetryAfter is true. If no retry can succeed, or none within longestWait, it also adds x-should-retry: false. The
// slice value is valid only during the call of add.
func OpenAIHeaders(v *limiter.Verdict, noRetryAfter bool, add func(name string, value []byte)) {
	var room [32]byte
	for i := range unitHeaders {
		u := &unitHeaders[i]
		at := mostRestrictive(v, func(r *limiter.Result) bool { return r.Policy.Extra().Unit == u.unit })
		if at < 0 {
			continue
		}
		r := &v.Results[at]
		add(u.limit, strconv.AppendInt(room[:0], Limit(r).Capacity, 10))
		add(u.remaining, strconv.AppendInt(room[:0], max(0, r.Decision.Remaining), 10))
		if Limit(r).Kind == algorithms.Concurrency {
			continue
		}
		reset := (r.Decision.ResetAfter + 999) / 1000
		add(u.reset, appendSpan(room[:0], time.Duration(reset)*time.Millisecond))
	}
	if !v.Denied {
		return
	}
	if !v.Never && !v.Busy && !noRetryAfter {
		wait := (v.RetryAfter + 999) / 1000
		if wait == 0 { // the store could not decide, so that no retry time is known
			wait = 1000
		}
		add("retry-after-ms", strconv.AppendInt(room[:0], int64(wait), 10))
	}
	if v.Never || RetryAfter(v) > longestWait {
		add("x-should-retry", append(room[:0], "false"...))
	}
}
