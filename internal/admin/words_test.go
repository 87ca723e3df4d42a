package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestWordsAboutABucket(t *testing.T) {
	limit := compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 10 * algorithms.Second})
	plain := &limiter.Policy{Limit: limit, OnFailure: limiter.Allow}
	blocked := &limiter.Policy{Limit: limit, Adjusted: &limiter.PolicyAdjustment{Block: true}}
	free := &limiter.Policy{Limit: limit, Adjusted: &limiter.PolicyAdjustment{Unlimited: true}}
	full := fmt.Errorf("charge: %w", backend.ErrFull)
	decision := func(d algorithms.Decision) backend.Decision { return backend.Decision{Decision: d} }
	for _, test := range []struct {
		policy      *limiter.Policy
		decision    backend.Decision
		state, left string
	}{
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 10}), "allows", "10 of 10 left"},
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 10, ResetAfter: 5}), "allows", "10 of 10 left"},
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 4, ResetAfter: 6 * algorithms.Second}), "allows", "4 of 10 left, full again in 6 seconds"},
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 4}), "allows", "4 of 10 left"},
		{plain, decision(algorithms.Decision{RetryAfter: algorithms.Second}), "because it is used up", "0 of 10 left"},
		{plain, decision(algorithms.Decision{Never: true}), "for good", "0 of 10 left"},
		{plain, decision(algorithms.Decision{Blocked: 1, RetryAfter: 1}), "because a penalty blocks the key", "0 of 10 left"},
		{blocked, decision(algorithms.Decision{Blocked: 1, RetryAfter: 1}), "because an operator blocks the key", "0 of 10 left"},
		{free, decision(algorithms.Decision{}), "never denies this key", "0 of 10 left"},
		{plain, decision(algorithms.Decision{Remaining: -3, Value: -3*limit.Unit() + 1, RetryAfter: 1}), "used up", "0 of 10 left, in debt by 3"},
		{plain, backend.Decision{Err: full}, "has no room for another bucket in memory: on_backend_failure answers allow", ""},
		{plain, backend.Decision{Err: backend.ErrUnavailable}, "could not be decided by the store", ""},
	} {
		r := &limiter.Result{Policy: test.policy, Decision: test.decision}
		if state, left := stateWords(r, false, began), remainingWords(r); !strings.Contains(state, test.state) || left != test.left {
			t.Errorf("%+v: got %q, %q; want %q, %q", test.decision, state, left, test.state, test.left)
		}
	}
	if state := stateWords(&limiter.Result{Policy: plain}, true, began); !strings.HasPrefix(state, "is in shadow mode and would deny") {
		t.Errorf("the global shadow mode: got %q", state)
	}
}

func TestWordsAboutDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 seconds", 1400 * time.Microsecond: "1ms", 999 * time.Millisecond: "999ms", time.Second: "1 second", 61 * time.Second: "1 minute 1 second",
		2 * time.Minute: "2 minutes", 3601 * time.Second: "1 hour", 25 * time.Hour: "1 day 1 hour", 48*time.Hour + time.Minute: "2 days",
	} {
		if got := span(d); got != want {
			t.Errorf("%d: got %q, want %q", d, got, want)
		}
	}
}
