package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func TestCostsOfSeveralKindsAreWeighted(t *testing.T) {
	tokens := ratelimit.TokenBucket(1000, time.Minute)
	tokens.Weights = map[string]string{"input": "1", "cached": "1/10", "output": "4"}
	l := made(t, ratelimit.Config{
		Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{"tokens": tokens, "calls": ratelimit.TokenBucket(10, time.Minute)},
	})
	cost, err := l.Cost("tokens", map[string]int64{"input": 100, "cached": 1, "output": 25})
	if err != nil || cost != 201 {
		t.Fatalf("%d, %v; want 201: 200.1 rounded up", cost, err)
	}
	if r, err := l.AllowN(t.Context(), cost, "tokens", "bob"); err != nil || r.Remaining != 799 {
		t.Errorf("%+v, %v; want 799 left", r, err)
	}
	if _, err := l.Cost("tokens", map[string]int64{"outputs": 1}); err == nil || !strings.Contains(err.Error(), `"outputs" has no weight`) {
		t.Errorf("got %v; want an error that contains %q", err, `"outputs" has no weight`)
	}
	if _, err := l.Cost("calls", map[string]int64{"input": 1}); !errors.Is(err, ratelimit.ErrNoWeights) {
		t.Errorf("got %v; want the error ratelimit.ErrNoWeights", err)
	}
	if _, err := l.Cost("call", nil); !errors.Is(err, ratelimit.ErrUnknown) {
		t.Errorf("got %v; want the error ratelimit.ErrUnknown", err)
	}
	tokens.Weights = map[string]string{"input": "-1"}
	if _, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{"tokens": tokens}}); err == nil {
		t.Error("a negative weight is accepted")
	}
}
