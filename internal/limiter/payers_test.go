package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func (b *bench) together(tb testing.TB, key string, counts ...limiter.NamedCharge) *limiter.Call {
	tb.Helper()
	return b.check(tb, keyed(key, counts))
}

func keyed(key string, counts []limiter.NamedCharge) limiter.Request {
	r := limiter.Request{Domain: "d"}
	for _, n := range counts {
		n.Key = []string{key}
		r.Limits = append(r.Limits, n)
	}
	return r
}

func (b *bench) remains(tb testing.TB, key string, want map[string]int64) {
	tb.Helper()
	for name, n := range want {
		if got := b.named(tb, name, 0, key).Results[0].Decision.Remaining; got != n {
			tb.Errorf("%s of %s has %d left, want %d", name, key, got, n)
		}
	}
}

func TestPlansWithDifferentPayersArePaidByEach(t *testing.T) {
	b := newBench(t, `
domain: d
hash_tag: domain
limits:
  calls: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  bytes: {algorithm: token_bucket, rate: 10, period: 1m, then: volume}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
  volume: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
`)
	for _, step := range []struct {
		calls, bytes int64
		payers       [2]string
		left         map[string]int64
	}{
		{11, 12, [2]string{"credits", "volume"}, map[string]int64{"calls": 10, "bytes": 10, "credits": 9, "volume": 8}},
		{3, 8, [2]string{"calls", "bytes"}, map[string]int64{"calls": 7, "bytes": 2, "credits": 9, "volume": 8}},
		{3, 8, [2]string{"calls", "volume"}, map[string]int64{"calls": 4, "bytes": 2, "credits": 9, "volume": 0}},
	} {
		c := b.together(t, "bob", limiter.NamedCharge{Name: "calls", Count: step.calls}, limiter.NamedCharge{Name: "bytes", Count: step.bytes})
		if got := [2]string{c.Results[0].Policy.Name, c.Results[1].Policy.Name}; c.Denied || got != step.payers {
			t.Errorf("%+v: paid by %v, %+v; want allowed and %v", step, got, c.Verdict, step.payers)
		}
		b.remains(t, "bob", step.left)
	}
}

func TestThePayerHasTheKeyAndTheSlotOfItsPlan(t *testing.T) {
	b := newBench(t, plans)
	rec := &recorded{Store: b.store.Store}
	b.store.Store = rec
	b.send(t, 11, "user=bob", "user=eve")
	b.named(t, "per_minute", 11, "joe")
	slots := map[string][]backend.Charge{}
	for _, c := range rec.charges {
		name := map[bool]string{true: "plan", false: "credits"}[c.Then]
		slots[name] = append(slots[name], c)
	}
	if len(slots["plan"]) != 3 || len(slots["credits"]) != 3 {
		t.Fatalf("got %+v; want 3 elements and 3 elements", rec.charges)
	}
	for i, plan := range slots["plan"] {
		payer := slots["credits"][i]
		if plan.Slot == 0 || plan.Slot != payer.Slot || i > 0 && plan.Slot == slots["plan"][i-1].Slot {
			t.Errorf("%q is in slot %x, and its payer %q in slot %x; want the same slot for both, and another for each key", plan.Key, plan.Slot, payer.Key, payer.Slot)
		}
	}
	for _, key := range []string{"bob", "eve", "joe"} {
		b.remains(t, key, map[string]int64{"credits": 9, "per_minute": 10})
	}
}

type recorded struct {
	backend.Store

	charges []backend.Charge
}

func (r *recorded) Submit(b *backend.Batch) {
	r.charges = append(r.charges, b.Charges...)
	r.Store.Submit(b)
}

const settledPlans = `
domain: d
hash_tag: domain
limits:
  plan: {algorithm: fixed_window, rate: 100, period: 1d, max_reserved: 0, settle: {estimate: 30}, then: prepaid}
  prepaid: {algorithm: fixed_window, rate: 500, period: 1d, settle: {estimate: 30}}
`
