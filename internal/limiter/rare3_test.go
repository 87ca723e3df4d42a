package limiter_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// Of two denials, the one that can never become an allowance is more restrictive, in any order.
func TestADenialForeverIsReportedFirst(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  small: {algorithm: fixed_window, rate: 1, period: 1d}
  large: {algorithm: fixed_window, rate: 3, period: 1d}
descriptors:
  - {key: a, limit: [small, large]}
  - {key: b, limit: [large, small]}
`)
	for key, want := range map[string]int{"a": 0, "b": 1} {
		b.send(t, 1, key+"=1")
		if c := b.send(t, 3, key+"=1"); !c.Denied || c.Statuses[0].Result != want {
			t.Errorf("%s: result %d is reported, %+v; want %d", key, c.Statuses[0].Result, c.Verdict, want)
		}
	}
}

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

// The Observer gets each answer that a client gets: also one by on_backend_failure after the deadline. It gets no
// repeated answers, and no answers to an operator.
func TestWhatIsObserved(t *testing.T) {
	store, o := &faulty{Store: memory.New(memory.Config{})}, &counts{}
	l := newLimiterOn(t, store, o)
	check := func(ctx context.Context, c *limiter.Call) int {
		was := o.calls
		if err := l.Check(ctx, c); err != nil {
			t.Fatal(err)
		}
		return o.calls - was
	}
	inspection := callOf("a")
	inspection.Inspect = true
	if n := check(t.Context(), inspection); n != 0 {
		t.Errorf("an operator's call was observed %d times, want 0", n)
	}
	l.Swap(withLimit(t))
	for i, want := range []int{1, 0} {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", IdempotencyKey: limiter.IdempotencyKey{ID: "1", Lifetime: minute}, Limits: []limiter.NamedCharge{{Name: "calls", Count: 1}}}}
		if n := check(t.Context(), c); n != want {
			t.Errorf("call %d with the same idempotency key was observed %d times, want %d", i, n, want)
		}
	}
	store.err = backend.ErrUnavailable
	ended, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if n := check(ended, callOf("user")); n != 1 {
		t.Errorf("an answer by policy after the deadline was observed %d times, want 1", n)
	}
	if n := check(canceled, callOf("user")); n != 0 {
		t.Errorf("an answer by policy to no client was observed %d times, want 0", n)
	}
}

func withLimit(t *testing.T) *limiter.Snapshot {
	t.Helper()
	return newBench(t, "domain: d\nlimits:\n  calls: {algorithm: token_bucket, rate: 10, period: 1m, on_backend_failure: allow}\ndescriptors:\n  - {key: user, limit: calls}\n").Current()
}

// A domain without a valid configuration has its own on_backend_failure. Settlements get an error instead, because
// they can be repeated.
func TestRequestsWithoutAConfiguration(t *testing.T) {
	deny, now := descriptors.Deny, func() algorithms.Micros { return 1 }
	broken := &limiter.Domain{Name: "d", Tree: &descriptors.Tree{}, Broken: true, OnFailure: descriptors.Allow}
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{NoConfig: &deny, Now: now})
	settle := limiter.Settle{Reserved: &limiter.Reserved{Domain: descriptors.PrefixNumber("d")}}
	if err := l.Settle(t.Context(), &limiter.Call{}, settle); !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("a settlement: got %v, want %v", err, limiter.ErrNoConfig)
	}
	if c := callOf("a"); l.Check(t.Context(), c) != nil || !c.Denied || !c.Failed || c.WouldDeny {
		t.Errorf("before a configuration: got %+v, want denied", c.Verdict)
	}
	l.Swap(&limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": broken}})
	if c := callOf("a"); l.Check(t.Context(), c) != nil || c.Denied || !c.Failed || c.WouldDeny {
		t.Errorf("of a broken domain: got %+v, want allowed", c.Verdict)
	}
	shadow := limiter.New(memory.New(memory.Config{}), limiter.Config{NoConfig: &deny, Modes: limiter.Modes{Shadow: true}})
	if c := callOf("a"); shadow.Check(t.Context(), c) != nil || c.Denied || !c.WouldDeny {
		t.Errorf("in shadow mode: got %+v, want allowed", c.Verdict)
	}
}
