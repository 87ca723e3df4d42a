package stores

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// deniedTokens returns the denial of 5 units of an empty bucket, to which 10 units flow in each second. The group was
// submitted at start, and its decision arrived 20 ms later.
func deniedTokens(t *testing.T, start time.Time) (d *denial, charge backend.Charge) {
	t.Helper()
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second})
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New(memory.Config{Clock: func() time.Time { return start }})
	charge = backend.Charge{Key: []byte("a"), Limit: &limit, Terms: algorithms.Charge{Cost: 10}}
	decisions := make([]backend.Decision, 1)
	backend.Take(t.Context(), store, []backend.Charge{charge}, decisions)
	charge.Terms.Cost, decisions[0] = 5, backend.Decision{}
	backend.Take(t.Context(), store, []backend.Charge{charge}, decisions)
	return denialOf([]backend.Charge{charge}, decisions, start, start.Add(20*time.Millisecond), time.Second), charge
}

// unchanged returns unknown for a rate of 0. It also returns unknown for a decision that differs from the one computed
// from Decision.Value and the limit, because Value is then not the whole state of the bucket.
func TestADecisionOfAnUnknownStateIsNotComputed(t *testing.T) {
	never := &algorithms.Limit{Kind: algorithms.TokenBucket}
	if got := unchanged(&backend.Charge{Limit: never}, &backend.Decision{}); got != unknown {
		t.Errorf("a rate of 0: got %d, want unknown", got)
	}
	d, charge := deniedTokens(t, time.Unix(1_767_225_600, 0))
	for name, change := range map[string]func(*backend.Decision){
		"as decided": func(*backend.Decision) {}, "more remaining": func(d *backend.Decision) { d.Remaining++ },
		"another reset time": func(d *backend.Decision) { d.ResetAfter++ }, "another retry time": func(d *backend.Decision) { d.RetryAfter++ },
	} {
		decision := d.decisions[0]
		change(&decision)
		if got := unchanged(&charge, &decision); (got == unknown) != (name != "as decided") {
			t.Errorf("%s: got %d; want unknown, %d, unless the decision is as decided", name, got, unknown)
		}
	}
}

// For a plan and its payer, the shorter of their retry times counts. For several plans with one payer, the longest
// retry time of the plans is compared with that of the payer. For several such pairs, the longest result counts.
func TestADenialLastsUntilARetryCanSucceed(t *testing.T) {
	limit, start := &algorithms.Limit{}, time.Unix(1_767_225_600, 0)
	denied := func(retry algorithms.Micros) backend.Decision {
		return backend.Decision{Decision: algorithms.Decision{RetryAfter: retry}}
	}
	never, allowed := backend.Decision{Decision: algorithms.Decision{Never: true}}, backend.Decision{Decision: algorithms.Decision{Allowed: true}}
	plan := backend.Charge{Limit: limit, Terms: algorithms.Charge{Cost: 1}, Then: true}
	last := backend.Charge{Limit: limit, Terms: algorithms.Charge{Cost: 1}}
	refund := backend.Charge{Limit: limit, Terms: algorithms.Charge{Cost: -1}}
	for name, test := range map[string]struct {
		charges   []backend.Charge
		decisions []backend.Decision
		want      time.Duration // 0 means that the denial is not cached
	}{
		"one":                         {[]backend.Charge{last}, []backend.Decision{denied(5)}, 5},
		"two":                         {[]backend.Charge{last, last}, []backend.Decision{denied(5), denied(3)}, 5},
		"never":                       {[]backend.Charge{last, last}, []backend.Decision{denied(5), never}, 0},
		"with a refund":               {[]backend.Charge{refund, last}, []backend.Decision{allowed, denied(5)}, 0},
		"the plan is first":           {[]backend.Charge{plan, plan, last}, []backend.Decision{denied(5), denied(3), denied(10)}, 5},
		"the payer is first":          {[]backend.Charge{plan, last}, []backend.Decision{denied(10), denied(4)}, 4},
		"two plans":                   {[]backend.Charge{plan, last, plan, last}, []backend.Decision{denied(10), denied(9), denied(2), denied(20)}, 9},
		"the second plan is the last": {[]backend.Charge{plan, last, plan, last}, []backend.Decision{denied(4), denied(9), denied(7), denied(20)}, 7},
	} {
		d := denialOf(test.charges, test.decisions, start, start, time.Second)
		if got := time.Duration(0); d != nil {
			got = d.retryAt.Sub(start) / time.Microsecond
			if got != test.want {
				t.Errorf("%s: lasts %d us, want %d us", name, got, test.want)
			}
		} else if test.want != 0 {
			t.Errorf("%s: not cached, want %d us", name, test.want)
		}
	}
}
