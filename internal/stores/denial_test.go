package stores

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

const millisecond = algorithms.Micros(1000)

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

// The units in the bucket are computed from the time of the submission, and the retry times from the arrival of the
// answer. A larger cost has a later retry time.
func TestACachedDenialIsComputedForTheCurrentTime(t *testing.T) {
	start := time.Unix(1_767_225_600, 0)
	d, charge := deniedTokens(t, start)
	for _, test := range []struct {
		after, retry, reset algorithms.Micros
		cost, remaining     int64
	}{
		{after: 20 * millisecond, cost: 5, retry: 500 * millisecond, reset: 980 * millisecond},
		{after: 50 * millisecond, cost: 5, retry: 470 * millisecond, reset: 950 * millisecond},
		{after: 50 * millisecond, cost: 7, retry: 670 * millisecond, reset: 950 * millisecond},
		{after: 100*millisecond - 1, cost: 5, retry: 420*millisecond + 1, reset: 900*millisecond + 1},
		{after: 100 * millisecond, cost: 5, retry: 420 * millisecond, reset: 900 * millisecond, remaining: 1},
		{after: 250 * millisecond, cost: 10, retry: 770 * millisecond, reset: 750 * millisecond, remaining: 2},
	} {
		charge.Terms.Cost = test.cost
		got := make([]backend.Decision, 1)
		denied := d.answerGroup([]backend.Charge{charge}, got, start.Add(time.Duration(test.after)*time.Microsecond))
		if g := got[0]; !denied || g.RetryAfter != test.retry || g.ResetAfter != test.reset || g.Remaining != test.remaining {
			t.Errorf("%d units after %d us: denied %v, retry after %d, reset after %d, %d remaining; want %+v", test.cost, test.after, denied, g.RetryAfter, g.ResetAfter, g.Remaining, test)
		}
	}
	charge.Terms.Cost = 5
	if d.answerGroup([]backend.Charge{charge}, make([]backend.Decision, 1), start.Add(500*time.Millisecond)) {
		t.Error("denied at the time at which the cost is available")
	}
}

// Only decisions that contain the whole state of a bucket can be computed for a later time.
func TestUnchangedIsKnownForWholeStates(t *testing.T) {
	compiled := func(spec algorithms.Spec) *algorithms.Limit {
		spec.Rate, spec.Period = 10, algorithms.Second
		l, err := algorithms.Compile(spec)
		if err != nil {
			t.Fatal(err)
		}
		return &l
	}
	usual := compiled(algorithms.Spec{Kind: algorithms.TokenBucket})
	for name, test := range map[string]struct {
		limit  *algorithms.Limit
		shards []algorithms.Limit
		known  bool
	}{
		"token bucket":   {usual, nil, true},
		"shards":         {usual, []algorithms.Limit{*usual}, false},
		"penalty":        {compiled(algorithms.Spec{Kind: algorithms.TokenBucket, Penalty: &algorithms.Penalty{After: 5, For: algorithms.Second, Max: algorithms.Second}}), nil, false},
		"sliding window": {compiled(algorithms.Spec{Kind: algorithms.SlidingWindow}), nil, false},
		"sliding log":    {compiled(algorithms.Spec{Kind: algorithms.SlidingLog}), nil, false},
		"leaky bucket":   {compiled(algorithms.Spec{Kind: algorithms.LeakyBucket}), nil, false},
	} {
		c, d := backend.Charge{Key: []byte("a"), Limit: test.limit, Terms: algorithms.Charge{Cost: 1}}, make([]backend.Decision, 1)
		backend.Take(t.Context(), memory.New(memory.Config{}), []backend.Charge{c}, d)
		c.Shards = test.shards
		if got := unchanged(&c, &d[0]); (got != unknown) != test.known {
			t.Errorf("%s: got %d, want known %v", name, got, test.known)
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
