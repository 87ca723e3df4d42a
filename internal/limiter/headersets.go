package limiter

import (
	"fmt"
	"slices"
	"strings"
)

// HeaderSets are the headers with which the HTTP listener describes limits.
type HeaderSets struct {
	// IETF: RateLimit-Policy and RateLimit, as draft-ietf-httpapi-ratelimit-headers-11 has them.
	IETF bool
	// X: X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, in seconds.
	X bool
	// OpenAI: x-ratelimit-limit-requests, x-ratelimit-limit-tokens and others, as the OpenAI API has them.
	OpenAI bool
	// NoRetryAfter: a denial does not tell when to come back.
	NoRetryAfter bool
}

// headerSetNames are the sets in the order in which they are listed.
var headerSetNames = []string{"ietf", "x", "openai", "retry_after"}

// ParseHeaderSets reads ietf, x, openai and retry_after, or none of them.
func ParseHeaderSets(words []string) (HeaderSets, error) {
	if len(words) == 1 && words[0] == "none" {
		words = nil
	} else if len(words) == 0 {
		return HeaderSets{}, fmt.Errorf("there are no sets of headers here; write %s, or none", strings.Join(headerSetNames, ", "))
	}
	for _, word := range words {
		if !slices.Contains(headerSetNames, word) {
			return HeaderSets{}, fmt.Errorf("%q is no set of headers; write %s, or none alone", word, strings.Join(headerSetNames, ", "))
		}
	}
	return HeaderSets{
		IETF: slices.Contains(words, "ietf"), X: slices.Contains(words, "x"), OpenAI: slices.Contains(words, "openai"),
		NoRetryAfter: !slices.Contains(words, "retry_after"),
	}, nil
}
