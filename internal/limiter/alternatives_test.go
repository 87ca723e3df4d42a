package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const plans = `
domain: d
hash_tag: entry:user
limits:
  per_minute: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  per_day: {algorithm: fixed_window, rate: 15, period: 1d, start: 2026-01-01T00:00:00Z, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
  burst: {algorithm: token_bucket, rate: 1000, period: 1s}
descriptors:
  - key: user
    limit: per_minute
    descriptors:
      - {key: both, limit: [per_minute, per_day, burst]}
`

func (b *bench) named(tb testing.TB, limit string, cost int64, key ...string) *limiter.Call {
	tb.Helper()
	return b.check(tb, limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: limit, Key: key, Count: cost}}})
}

func TestTheAnswerNamesThePayer(t *testing.T) {
	b := newBench(t, plans)
	for i, step := range []struct {
		cost   int64
		denied bool
		payer  string
		left   int64
		retry  algorithms.Micros
	}{
		{cost: 6, payer: "per_minute", left: 4},
		{cost: 6, payer: "credits", left: 14},
		{cost: 12, payer: "credits", left: 2},
		{cost: 5, denied: true, payer: "per_minute", left: 4, retry: 6 * algorithms.Second},
		{cost: 11, denied: true, payer: "per_minute", left: 4, retry: 9 * 3600 * algorithms.Second},
	} {
		for _, c := range []*limiter.Call{b.send(t, step.cost, "user=bob"), b.named(t, "per_minute", step.cost, "eve")} {
			r := &c.Results[0]
			if c.Denied != step.denied || r.Policy.Name != step.payer || r.Decision.Remaining != step.left || c.RetryAfter != step.retry || c.Never {
				t.Errorf("step %d: denied %t by %s, %d left, retry after %d, never %t; want %+v", i, c.Denied, r.Policy.Name, r.Decision.Remaining, c.RetryAfter, c.Never, step)
			}
			if paid := step.payer == "credits"; paid != (r.For != nil) || paid && r.For.Name != "per_minute" {
				t.Errorf("step %d: paid for %v; want paid for per_minute: %t", i, r.For, paid)
			}
		}
	}
	if c := b.send(t, 21, "user=bob"); !c.Denied || !c.Never || c.RetryAfter != 0 {
		t.Errorf("neither can ever pay 21: %+v; want denied, never and retry after 0", c.Verdict)
	}
	for name, want := range map[string]int64{"per_minute": 4, "credits": 2} {
		for _, key := range []string{"bob", "eve"} {
			if got := b.named(t, name, 0, key).Results[0].Decision.Remaining; got != want {
				t.Errorf("%s of %s has %d left, want %d", name, key, got, want)
			}
		}
	}
}
