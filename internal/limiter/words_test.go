package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Package config has the words of limits beside its files (testdata).
func TestSettlementsInWords(t *testing.T) {
	const second, minute = algorithms.Second, 60 * algorithms.Second
	token, window := limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: second, Settles: true, MaxDebt: number(4)}), limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 9, Period: second, Settles: true})
	usual := &SettleTerms{Estimate: 100, Most: 50, Unknown: -1, TTL: minute}
	learned := &SettleTerms{Estimate: 100, Least: 10, Most: 500, TrustDeclared: true, Unknown: 7, TTL: minute, Learn: &Learn{Quantile: 0.995, Per: []string{"model", "a\n"}}}
	for _, c := range []struct {
		s    *SettleTerms
		l    *algorithms.Limit
		i    int
		want string
	}{
		{usual, token, 0, "a request reserves 50 units, the estimate, or its declared hits if these are more; at most 50"},
		{usual, token, 1, "a settlement within 1m refunds the unused units; later, it charges only what exceeds the reservation"},
		{usual, window, 1, "a settlement within 1m and in the same window refunds the unused units; later, it charges only what exceeds the reservation"},
		{usual, token, 2, "a request whose real cost is not reported costs what it reserved"},
		{usual, token, 3, "a real cost can take the bucket down to -4; what goes beyond is lost, and counted"},
		{learned, token, 0, `a request reserves the learned estimate (p99.5 of the real costs; 100 until enough are known), one for each configured value of model and a\n, or its declared hits, even if these are fewer; at least 10 and at most 500`},
		{&SettleTerms{Most: 9, Unknown: 0}, token, 2, "a request whose real cost is not reported costs 0 units"},
		{learned, token, 2, "a request whose real cost is not reported costs 7 units"},
		{&SettleTerms{Estimate: 3, Least: 1, Most: 50, Learn: &Learn{Quantile: 0.9}}, token, 0, "a request reserves the learned estimate (p90 of the real costs; 3 until enough are known), or its declared hits if these are more; at least 1 and at most 50"},
		{&SettleTerms{Estimate: 40, Most: 50, Unknown: -1, Learn: &Learn{Quantile: 0.9, Least: 10}}, token, 0, "a request reserves the learned estimate (p90 of the real costs, at least 10; 40 until enough are known), or its declared hits if these are more; at most 50"},
		{&SettleTerms{Estimate: 40, Most: 50, Unknown: -1, Learn: &Learn{Quantile: 0.9, Least: 10}}, token, 2, "a request whose real cost is not reported costs what it reserved, but at least 40 units"},
		{&SettleTerms{Estimate: 3, Least: 20, Most: 50}, token, 0, "a request reserves 20 units, the estimate, or its declared hits if these are more; at least 20 and at most 50"},
	} {
		if got := c.s.Words(c.l)[c.i]; got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	guaranteed := limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 2, Period: minute, Capacity: number(30), Minimum: &algorithms.Rate{Units: 10, Period: second}})
	p := &Policy{Limit: guaranteed, Extras: &Extras{Slot: Slot{Fixed: 1}}}
	if got, want := p.Words(), "token bucket: 10 per 1s guaranteed, and a bank of up to 30 that fills at 2 per 1m"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if facts := p.Facts(); facts[0].Text != "limit" || facts[1].Text != "fixed, number 1" {
		t.Errorf("got %+v", facts[:2])
	}
	usually := (&Policy{Limit: guaranteed}).Facts()
	changed := &Policy{Limit: guaranteed, Shadow: true, Quota: true, Alone: true, OnFailure: Local, Extras: &Extras{
		Slot: Slot{Value: 2}, Shards: make([]algorithms.Limit, 2), Lease: &algorithms.Lease{Most: 1, For: second}, Settle: usual, Then: p, LocalShare: 0.5,
		Unit: Tokens, DenyBody: TextBody, Replaces: []string{"a"}, Metadata: map[string]any{"a": 1}, Weights: &weights.Weights{},
	}}
	for i, fact := range changed.Facts()[1:] {
		if is := usually[1+i]; !is.Default || fact.Default || is.Text == fact.Text || is.Name != fact.Name || is.Fresh != fact.Fresh || is.Fresh != (i < 2) {
			t.Errorf("got %+v and %+v, want two texts, and the first to be the default", is, fact)
		}
	}
	start := algorithms.Micros(0)
	for _, test := range []struct {
		start *algorithms.Micros
		want  string
	}{{nil, "each key's windows starting at a moment of its own"}, {&start, "starting with the clock (UTC)"}} {
		w := limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 9, Period: minute, Start: test.start})
		if got, want := (&Policy{Limit: w}).Words(), "fixed window: 9 in each 1m, "+test.want; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
