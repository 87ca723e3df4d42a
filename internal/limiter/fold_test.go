package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestARequestThatNeverFitsHasNoRetryTime(t *testing.T) {
	for _, order := range []string{"[never, later]", "[later, never]"} {
		b := newBench(t, `
domain: d
limits:
  never: {algorithm: token_bucket, rate: 1, period: 1s}
  later: {algorithm: token_bucket, rate: 2, period: 1h}
descriptors:
  - {key: a, limit: `+order+`}
`)
		b.send(t, 1, "a=1")
		if c := b.send(t, 2, "a=1"); !c.Denied || !c.Never || c.RetryAfter != 0 {
			t.Errorf("%s: got %+v; want denied, never and retry after 0", order, c.Verdict)
		}
	}
}

const quotas = `
domain: d
descriptors:
  - {key: q, quota_mode: true, rate_limit: {name: q, unit: hour, requests_per_unit: 1}}
  - {key: r, quota_mode: true, rate_limit: {name: r, unit: hour, requests_per_unit: 9}}
  - {key: plain, rate_limit: {name: plain, unit: hour, requests_per_unit: 1}}
  - {key: vip, rate_limit: {name: vip, unit: hour, requests_per_unit: 9, replaces: [{name: r}]}}
`

func TestALimitDeniesOnlyIfTheRequestIsDenied(t *testing.T) {
	b := newBench(t, quotas)
	if c := b.send(t, 1, "q=1", "r=1"); c.Denied || c.Verdict.Denies(&c.Results[0]) {
		t.Errorf("got %+v, want allowed", c.Verdict)
	}
	if c := b.send(t, 1, "q=1", "r=1"); c.Denied || c.Results[0].Outcome != limiter.Denied || c.Verdict.Denies(&c.Results[0]) {
		t.Errorf("one of two quota limits denies: %+v; want allowed", c.Verdict)
	}
	if c := b.send(t, 1, "q=1"); !c.Denied || !c.Verdict.Denies(&c.Results[0]) || c.RetryAfter == 0 {
		t.Errorf("all quota limits deny: %+v; want denied by the result", c.Verdict)
	}
	if c := b.send(t, 1, "q=1", "r=1", "vip=1"); !c.Denied {
		t.Errorf("the only quota limit that is not replaced denies: %+v; want denied", c.Verdict)
	}
	b.send(t, 1, "plain=1")
	if c := b.send(t, 1, "q=1", "r=2", "plain=1"); !c.Denied || c.Results[0].Outcome != limiter.Denied || c.Verdict.Denies(&c.Results[0]) || !c.Verdict.Denies(&c.Results[2]) {
		t.Errorf("another limit denies, and one of two quota limits would: %+v", c.Verdict)
	}
	b = newBench(t, quotas, limiter.Modes{Shadow: true})
	b.send(t, 1, "q=1")
	if c := b.send(t, 1, "q=1"); c.Denied || c.Verdict.Denies(&c.Results[0]) || !c.WouldDeny {
		t.Errorf("in shadow mode: %+v; want allowed", c.Verdict)
	}
}
