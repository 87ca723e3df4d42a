package limiter

import (
	"fmt"
	"slices"
	"strings"
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
