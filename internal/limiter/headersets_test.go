package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// The fixtures of package config have lists with mistakes.
func TestParseHeaderSets(t *testing.T) {
	if got, err := limiter.ParseHeaderSets([]string{"none"}); got != (limiter.HeaderSets{NoRetryAfter: true}) || err != nil {
		t.Errorf("none: got %+v, %v", got, err)
	}
	for word, want := range map[string]limiter.HeaderSets{"ietf": {IETF: true}, "x": {X: true}, "openai": {OpenAI: true}} {
		for _, words := range [][]string{{word}, {word, "retry_after"}} {
			want.NoRetryAfter = len(words) == 1
			if got, err := limiter.ParseHeaderSets(words); got != want || err != nil {
				t.Errorf("%s: got %+v, %v; want %+v", words, got, err, want)
			}
		}
	}
}
