package limiter_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A Batch calls done when the store has decided, and not when Submit returns. After Reset, it has no decisions of
// its former calls.
func TestABatchEndsWithItsStore(t *testing.T) {
	store := &pendingStore{}
	batch := newLimiterOn(t, store, nil).NewBatch()
	for range 2 {
		batch.Reset()
		c, done := callOf("a"), 0
		if planned, err := batch.Add(c); !planned || err != nil {
			t.Fatalf("planned %v, error %v", planned, err)
		}
		batch.Submit(time.Time{}, nil, func() { done++ })
		if done != 0 || batch.Known(c) {
			t.Errorf("done was called %d times, known %v, before the store has decided", done, batch.Known(c))
		}
		b := store.batches[len(store.batches)-1]
		b.Decisions[0].Allowed = true
		b.SetKnown(0, 1)
		if b.Finish(); done != 1 {
			t.Errorf("done was called %d times, want 1", done)
		}
		batch.Finish(c)
	}
}

// A store that panics may never call Done.
func TestAStoreThatPanicsAndForgetsTheBatchHasEndedIt(t *testing.T) {
	batch, done := newLimiterOn(t, panics{&pendingStore{}}, nil).NewBatch(), 0
	if _, err := batch.Add(callOf("a")); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		batch.Submit(time.Time{}, nil, func() { done++ })
	}()
	if done != 1 {
		t.Errorf("done was called %d times, want 1", done)
	}
}

func TestADescriptorThatIsUsedAgainIsEmpty(t *testing.T) {
	c := callOf("a")
	d := &c.Descriptors[0]
	d.Cost, d.Explicit, d.Declared, d.HasOverride, d.Override = 7, true, true, true, limiter.Override{Rate: 1, Period: 1}
	c.Reset()
	if d := c.AddDescriptor(); len(d.Entries) != 0 || d.Cost != 0 || d.Explicit || d.Declared || d.HasOverride || d.Override != (limiter.Override{}) {
		t.Errorf("got %+v, want an empty descriptor", d)
	}
}

func TestValuesOfABucket(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: minute, requests_per_unit: 3}}\n  - {key: u, rate_limit: {unlimited: true}}\n")
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for range 3 {
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: "a", Value: "1"}}, 1
	}
	c.Descriptors[1].HasOverride, c.Descriptors[1].Override = true, limiter.Override{Rate: 5, Period: minute}
	c.Descriptors[2].HasOverride = true // its numbers describe no window
	c.Descriptors[2].Entries = []descriptors.Entry{{Key: "unknown", Value: "1"}}
	if err := b.Check(t.Context(), c); err != nil || len(c.Results) != 3 {
		t.Fatalf("error %v, %d results; want 3", err, len(c.Results))
	}
	for i, want := range [][]string{{"1"}, {"a", "1"}, nil} { // the values, the whole descriptor, no bucket
		if got := c.AppendValues(nil, &c.Results[i]); !slices.Equal(got, want) {
			t.Errorf("result %d: got %q, want %q", i, got, want)
		}
	}
}

const quotas = `
domain: d
descriptors:
  - {key: q, quota_mode: true, rate_limit: {name: q, unit: hour, requests_per_unit: 1}}
  - {key: r, quota_mode: true, rate_limit: {name: r, unit: hour, requests_per_unit: 9}}
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
	b = newBench(t, quotas, limiter.Modes{Shadow: true})
	b.send(t, 1, "q=1")
	if c := b.send(t, 1, "q=1"); c.Denied || c.Verdict.Denies(&c.Results[0]) || !c.WouldDeny {
		t.Errorf("in shadow mode: %+v; want allowed", c.Verdict)
	}
}

func TestADirectChargeHasTheLeaseOfItsLimit(t *testing.T) {
	limit := algorithms.Limit{}
	p := &descriptors.Policy{Limit: &limit, Extras: &descriptors.Extras{Lease: &algorithms.Lease{Most: 5, For: 1}}}
	var d limiter.Direct
	d.Add(p, []string{"bob"}, algorithms.Charge{Cost: 1})
	if _, charge := d.Decision(0); charge.Lease != p.Extras.Lease {
		t.Errorf("got the lease %v, want %v", charge.Lease, p.Extras.Lease)
	}
}

func TestPartsOfAnIdempotencyIDAreSeparate(t *testing.T) {
	if limiter.IdempotencyID("a", "bc") == limiter.IdempotencyID("ab", "c") || limiter.IdempotencyID("a", "b") == limiter.IdempotencyID("a", "b", "") {
		t.Error("different parts have the same ID")
	}
	if limiter.IdempotencyID("a", "\x00b") == limiter.IdempotencyID("a\x00", "b") {
		t.Error("parts that a zero byte could separate have the same ID")
	}
	if limiter.IdempotencyID("a", "b") != limiter.IdempotencyID("a", "b") {
		t.Error("equal parts have different IDs")
	}
}

func TestABlockIsNotShownIfTheStoreFails(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
	b.store.err = backend.ErrUnavailable
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}}}}}
	if err := b.Check(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if d := c.Results[0].Decision; d.Err == nil || d.Blocked != 0 || d.RetryAfter != 0 {
		t.Errorf("got %+v, want an error and no other field", d)
	}
}

func TestAnOperatorMayInspectWithoutTheRequiredEntries(t *testing.T) {
	b := newBench(t, "domain: d\nrequire: [user]\ndescriptors:\n  - {key: a, rate_limit: {unit: minute, requests_per_unit: 3}}\n")
	c := callOf("a")
	if c.Inspect = true; b.Check(t.Context(), c) != nil || c.Denied {
		t.Errorf("got %+v, want the state of the bucket", c.Verdict)
	}
	if c = callOf("a"); b.Check(t.Context(), c) != nil || !c.Denied || !c.Never {
		t.Errorf("got %+v, want a denial", c.Verdict)
	}
}

func TestShadowModeHasNoErrors(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		b := newBench(t, batched, limiter.Modes{Shadow: shadow})
		b.store.err = backend.ErrUnavailable
		if c := b.send(t, 1, "e=1"); (c.Err == nil) != shadow || c.Denied == shadow {
			t.Errorf("shadow %v: error %v, denied %v", shadow, c.Err, c.Denied)
		}
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
