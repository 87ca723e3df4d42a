package limiter

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// HeaderSets selects the sets of rate limit headers that the HTTP listener sends.
type HeaderSets struct {
	// IETF means RateLimit-Policy and RateLimit, as in draft-ietf-httpapi-ratelimit-headers-11.
	IETF bool
	// X means X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, in seconds.
	X bool
	// OpenAI means x-ratelimit-limit-requests, x-ratelimit-limit-tokens and others, as in the OpenAI API.
	OpenAI bool
	// NoRetryAfter leaves out Retry-After.
	NoRetryAfter bool
}

var headerSetNames = []string{"ietf", "x", "openai", "retry_after"}

// ParseHeaderSets parses ietf, x, openai and retry_after, or none.
func ParseHeaderSets(words []string) (HeaderSets, error) {
	if len(words) == 1 && words[0] == "none" {
		words = nil
	} else if len(words) == 0 {
		return HeaderSets{}, fmt.Errorf("the list of header sets is empty; write %s, or none", strings.Join(headerSetNames, ", "))
	}
	for _, word := range words {
		if !slices.Contains(headerSetNames, word) {
			return HeaderSets{}, fmt.Errorf("%q is not a set of headers; write any of %s, or only none", word, strings.Join(headerSetNames, ", "))
		}
	}
	return HeaderSets{
		IETF: slices.Contains(words, "ietf"), X: slices.Contains(words, "x"), OpenAI: slices.Contains(words, "openai"),
		NoRetryAfter: !slices.Contains(words, "retry_after"),
	}, nil
}

// Shown returns a limit in the form of rate limit headers: units in a window of seconds. seconds is 0 if no
// such window describes the limit.
//
// units is the capacity, so that the remaining units never exceed it. If the capacity differs from the rate,
// the window is the time in which the capacity is filled. For example, 10 a minute with a capacity of 20 is
// reported as 20 in 2 minutes. A fixed window with a capacity below its rate keeps its period.
func Shown(l *algorithms.Limit) (units, seconds int64) {
	period := uint64(l.Period())
	switch l.Kind {
	case algorithms.TokenBucket, algorithms.LeakyBucket:
		period = fillTime(period, l.Capacity, l.Rate)
	case algorithms.FixedWindow:
		if l.Capacity > l.Rate { // a smaller capacity is still filled once in each period
			period = fillTime(period, l.Capacity, l.Rate)
		}
	case algorithms.Concurrency, algorithms.Guaranteed: // two rates at the same time cannot be shown as one window
		return l.Capacity, 0
	case algorithms.SlidingWindow, algorithms.SlidingLog:
	}
	if period%uint64(algorithms.Second) != 0 {
		return l.Capacity, 0
	}
	return l.Capacity, int64(period / uint64(algorithms.Second))
}

// fillTime returns period * capacity / rate, or 0 if that is not a whole number of microseconds or is too large. If
// rate is not positive, it returns period.
func fillTime(period uint64, capacity, rate int64) uint64 {
	if capacity == rate || rate <= 0 {
		return period
	}
	hi, lo := bits.Mul64(period, uint64(capacity))
	if hi >= uint64(rate) {
		return 0
	}
	quotient, rest := bits.Div64(hi, lo, uint64(rate))
	if rest != 0 {
		return 0
	}
	return quotient
}
