package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func TestInvalidSettlesAreErrorsOfNew(t *testing.T) {
	debt, two := int64(1), int64(2)
	for want, limit := range map[string]ratelimit.Limit{
		"max_debt": {Algorithm: ratelimit.TokenBucket(1, time.Second).Algorithm, Rate: 1, Period: time.Second, MaxDebt: &debt},
		"settle":   {Algorithm: ratelimit.FixedWindow(1, time.Second).Algorithm, Rate: 1, Period: time.Second, Capacity: &two, Settles: true},
	} {
		if _, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{"a": limit}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	l, _ := limiterWith(t, ratelimit.Limits{}, 0, unchanged)
	own := ratelimit.TokenBucket(10, time.Minute)
	own.Weights = map[string]string{"output": "4"}
	requests := []ratelimit.Request{{Name: "own", Costs: map[string]int64{"output": 2}, Limit: &own}}
	if err := l.AllowAll(t.Context(), requests); err != nil || requests[0].N != 8 || requests[0].Result.Remaining != 2 {
		t.Errorf("weights of a limit that comes with the request: %+v %v; want no error, N 8 and 2 remaining", requests[0], err)
	}
	requests[0].Costs = map[string]int64{"outputs": 2}
	if err := l.AllowAll(t.Context(), requests); err == nil || !strings.Contains(err.Error(), `"outputs" has no weight`) {
		t.Errorf("got %v; want an error that contains %q", err, `"outputs" has no weight`)
	}
	own.Weights = nil
	if err := l.AllowAll(t.Context(), requests); !errors.Is(err, ratelimit.ErrNoWeights) {
		t.Errorf("got %v; want the error ratelimit.ErrNoWeights", err)
	}
	own.Settles = true
	if err := l.AllowAll(t.Context(), requests); err == nil || !strings.Contains(err.Error(), "cannot come with a request") {
		t.Errorf("got %v; want an error that contains %q", err, "cannot come with a request")
	}
}
