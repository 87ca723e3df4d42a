package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The store cannot decide, so the local bucket does. Its queue is not that of the limit, so no answer is delayed.
func TestAnAnswerOfTheLocalBucketIsNotDelayed(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: leaky_bucket, rate: 10, period: 1s, capacity: 20, max_delay: 10s, on_backend_failure: local, local_share: 100%}}
`)
	b.store.err = backend.ErrUnavailable
	for range 3 {
		c := callOf("a")
		c.Request.MaxDelay = 20 * sec
		if err := b.Check(t.Context(), c); err != nil || c.Denied || !c.Failed || c.Verdict.Delay != 0 {
			t.Errorf("error %v, %+v; want allowed without a delay", err, c.Verdict)
		}
	}
}

// The store decides one limit and fails for another. If the limit that it has decided denies, the request is denied: after
// an error, a proxy might allow it.
func TestADenialTakesPrecedenceOverAnError(t *testing.T) {
	const yaml = `
domain: d
consume: each
on_backend_failure: error
descriptors:
  - {key: a, rate_limit: {name: a, algorithm: token_bucket, rate: 1, period: 1h}}
  - {key: b, rate_limit: {name: b, algorithm: token_bucket, rate: 1, period: 1h}}
`
	for _, consumed := range []bool{false, true} {
		b := newBench(t, yaml)
		if consumed {
			b.send(t, 1, "a=1")
			if c := b.send(t, 1, "a=1", "b=1"); c.Consumed(&c.Results[0]) || !c.Consumed(&c.Results[1]) {
				t.Errorf("got %+v, want the unit of b consumed", c.Results)
			}
		}
		b.store.err, b.store.limit = backend.ErrUnavailable, b.Current().Policies[1].Owner
		if c := b.send(t, 1, "a=1", "b=1"); !c.Denied || (c.Err == nil) != consumed {
			t.Errorf("a denies: %t; got denied %t, error %v; want denied, and no error only if a denies", consumed, c.Denied, c.Err)
		}
	}
}

func TestACostThatNeverFitsNeedsNoStore(t *testing.T) {
	b := newBench(t, adjustable)
	b.store.err = backend.ErrUnavailable
	if c := b.named(t, "calls", 21, "bob"); !c.Denied || !c.Never || c.Failed || c.Results[0].Decision.Err != nil {
		t.Errorf("got %+v; want denied for good, without a failure", c.Verdict)
	}
}

func TestTheLocalBucketDecidesWhatTheStoreDoesNot(t *testing.T) {
	b := newBench(t, `
domain: d
consume: each
on_backend_failure: local
local_share: 100%
descriptors:
  - {key: a, rate_limit: {name: a, algorithm: token_bucket, rate: 10, period: 1h}}
  - {key: b, rate_limit: {name: b, algorithm: token_bucket, rate: 10, period: 1h}}
`)
	b.send(t, 4, "a=1")
	b.store.err, b.store.limit = backend.ErrUnavailable, b.Current().Policies[1].Owner
	c := b.send(t, 1, "a=1", "b=1")
	if a := &c.Results[0]; a.Outcome != limiter.Allowed || a.Decision.Remaining != 5 {
		t.Errorf("the limit that the store decided: %+v; want allowed, with 5 remaining", a)
	}
	if other := &c.Results[1]; other.Outcome != limiter.FailedAllowed || other.Decision.Remaining != 9 {
		t.Errorf("the other limit: %+v; want allowed by the local bucket, with 9 remaining", other)
	}
}

// An override and its bound, max_override, are charged together. While the store fails, on_backend_failure denies
// the request, because an override without on_backend_failure local has no local bucket.
func TestAnOverrideWithoutALocalBucketIsDenied(t *testing.T) {
	b := newBench(t, "domain: d\nmax_override: {unit: day, requests_per_unit: 50}\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}\n  - {key: above, descriptors: [{key: below, rate_limit: {unit: hour, requests_per_unit: 1}}]}\n")
	usual := limiter.Override{Rate: 6, Period: minute}
	if c := b.override(t, "unknown=1", usual); c.Denied || len(c.Results) != 2 {
		t.Errorf("an unknown descriptor: %+v; want allowed by the override and its bound", c.Verdict)
	}
	if c := b.override(t, "above=1", limiter.Override{Rate: 6}); !c.Denied || !c.Never {
		t.Errorf("an override that cannot be read, of a descriptor without a limit: %+v; want denied", c.Verdict)
	}
	b.store.err = backend.ErrUnavailable
	if c := b.override(t, "a=1", usual); !c.Denied || !c.Failed || c.Results[0].Decision.Err == nil {
		t.Errorf("while the store fails: got %+v; want denied with its error", c.Verdict)
	}
}

func TestAnOverrideHasALocalBucket(t *testing.T) {
	b := newBench(t, "domain: d\non_backend_failure: local\nlocal_share: 50%\ndescriptors: []\n")
	b.store.err = backend.ErrUnavailable
	for _, denied := range []bool{false, false, false, true} {
		if c := b.override(t, "a=1", limiter.Override{Rate: 6, Period: minute}); c.Denied != denied || !c.Failed || !c.Results[0].Policy.Reference {
			t.Errorf("got %+v, want half of 6", c.Verdict)
		}
	}
	b.swap(t, "domain: d\non_backend_failure: allow\ndescriptors: []\n")
	if c := b.override(t, "a=1", limiter.Override{Rate: 6, Period: minute}); c.Denied || !c.Failed || c.Results[0].Outcome != limiter.FailedAllowed {
		t.Errorf("got %+v, want allowed", c.Verdict)
	}
}

func TestALocalBucketOfALimitInShadowModeDeniesNothing(t *testing.T) {
	for key, want := range map[string]limiter.Outcome{"a": limiter.FailedDenied, "s": limiter.FailedAllowed} {
		b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 2, on_backend_failure: local, local_share: 50%}}
  - {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 2, on_backend_failure: local, local_share: 50%}}
`)
		b.store.err = backend.ErrUnavailable
		b.send(t, 1, key+"=1")
		if c := b.send(t, 1, key+"=1"); c.Results[0].Outcome != want || !c.Failed || c.Denied != (key == "a") {
			t.Errorf("%s: outcome %v, %+v; want %v and failed", key, c.Results[0].Outcome, c.Verdict, want)
		}
	}
}
