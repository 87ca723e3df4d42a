package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// The fixtures of package config have lists with mistakes.
func TestParseHeaderSets(t *testing.T) {
	for word, want := range map[string]limiter.HeaderSets{"ietf": {IETF: true}, "x": {X: true}, "openai": {OpenAI: true}} {
		if got, err := limiter.ParseHeaderSets([]string{word, "retry_after"}); got != want || err != nil {
			t.Errorf("%s: got %+v, %v; want %+v", word, got, err, want)
		}
	}
}
