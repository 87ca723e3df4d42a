package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestParseHeaderSets(t *testing.T) {
	for _, test := range []struct {
		words []string
		want  limiter.HeaderSets
		wrong bool
	}{
		{words: nil, wrong: true},
		{words: []string{"none"}, want: limiter.HeaderSets{NoRetryAfter: true}},
		{words: []string{"ietf"}, want: limiter.HeaderSets{IETF: true, NoRetryAfter: true}},
		{words: []string{"x", "retry_after"}, want: limiter.HeaderSets{X: true}},
		{words: []string{"openai", "ietf"}, want: limiter.HeaderSets{IETF: true, OpenAI: true, NoRetryAfter: true}},
		{words: []string{"none", "x"}, wrong: true},
		{words: []string{"y"}, wrong: true},
	} {
		if got, err := limiter.ParseHeaderSets(test.words); got != test.want || (err != nil) != test.wrong {
			t.Errorf("%q: got %+v, %v; want %+v, an error %v", test.words, got, err, test.want, test.wrong)
		}
	}
}
