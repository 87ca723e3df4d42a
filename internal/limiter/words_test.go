package limiter

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestWordsOfSettlements(t *testing.T) {
	limit := &algorithms.Limit{}
	for _, test := range []struct {
		settle SettleTerms
		want   []string
	}{
		{SettleTerms{Most: 9, Unknown: 0, Least: 1}, []string{"is not reported costs 0 units", "; at least 1 and at most 9"}},
		{SettleTerms{Most: 9, Unknown: -1}, []string{"is not reported costs what it reserved", "; at most 9"}},
	} {
		got := strings.Join(test.settle.Words(limit), "\n")
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%+v: got %q, want %q in it", test.settle, got, want)
			}
		}
	}
}

func TestLimitsInWords(t *testing.T) {
	const second, minute = algorithms.Second, 60 * algorithms.Second
	start := algorithms.Micros(0)
	for _, c := range []struct {
		p    Policy
		want string
	}{
		{Policy{Unlimited: true}, "unlimited"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Period: second})}, "allows nothing"},
		{Policy{Limit: &algorithms.Limit{Kind: 99, Rate: 1}}, "unknown algorithm"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second})}, "token bucket: 5 per 1s, up to 5 at once"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second, Initial: number(2), MaxReserved: number(7)})}, "token bucket: 5 per 1s, up to 5 at once; starts with 2; reservations up to 7 ahead"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: second, Start: &start})}, "fixed window: 5 in each 1s, starting with the clock (UTC)"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Calendar: &algorithms.Calendar{Unit: "month", Zone: "Europe/Berlin", Usual: 30 * algorithms.Day, Longest: 31 * algorithms.Day}})}, "fixed window: 5 in each month, by the calendar of Europe/Berlin"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: second, Capacity: number(3)}), Extras: &Extras{MaxDelay: 2 * second}}, "leaky bucket: one at a time, 5 per 1s, a queue of 3; held for up to 2s"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: second})}, "leaky bucket: one at a time, 5 per 1s, no queue"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second, Penalty: &algorithms.Penalty{After: 3, For: second, Max: minute}})}, "token bucket: 5 per 1s, up to 5 at once; penalty: after 3 denied within 1s a bucket is blocked for 1s, twice as long each time, up to 1m"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second, Penalty: &algorithms.Penalty{After: 3, For: second, Max: second}})}, "token bucket: 5 per 1s, up to 5 at once; penalty: after 3 denied within 1s a bucket is blocked for 1s"},
	} {
		if got := c.p.Words(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
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
		{learned, token, 2, "a request whose real cost is not reported costs 7 units"},
		{&SettleTerms{Estimate: 3, Least: 20, Most: 50, Learn: &Learn{Quantile: 0.9}}, token, 0, "a request reserves the learned estimate (p90 of the real costs; 3 until enough are known), or its declared hits if these are more; at least 20 and at most 50"},
		{&SettleTerms{Estimate: 40, Most: 50, Unknown: -1, Learn: &Learn{Quantile: 0.9, Least: 10}}, token, 0, "a request reserves the learned estimate (p90 of the real costs, at least 10; 40 until enough are known), or its declared hits if these are more; at most 50"},
		{&SettleTerms{Estimate: 40, Most: 50, Unknown: -1, Learn: &Learn{Quantile: 0.9, Least: 10}}, token, 2, "a request whose real cost is not reported costs what it reserved, but at least 40 units"},
		{&SettleTerms{Estimate: 3, Least: 20, Most: 50}, token, 0, "a request reserves 20 units, the estimate, or its declared hits if these are more; at least 20 and at most 50"},
	} {
		if got := c.s.Words(c.l)[c.i]; got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestWords(t *testing.T) {
	at := func(m algorithms.Micros) *algorithms.Micros { return &m }
	n := func(n int64) *int64 { return &n }
	const minute = 60 * algorithms.Second
	for want, spec := range map[string]algorithms.Spec{
		"token bucket: 10 per 1m, up to 10 at once":                                        {Kind: algorithms.TokenBucket, Rate: 10, Period: minute},
		"token bucket: 10 per 1m, up to 20 at once; starts with 5":                         {Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: n(20), Initial: n(5)},
		"token bucket: 10 per 1m, up to 10 at once; reservations up to 8 ahead":            {Kind: algorithms.TokenBucket, Rate: 10, Period: minute, MaxReserved: n(8)},
		"token bucket: 6 per 2s guaranteed, and a bank of up to 20 that fills at 1 per 1s": {Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second, Capacity: n(20), Minimum: &algorithms.Rate{Units: 6, Period: 2 * algorithms.Second}},
		"token bucket: 10 per 1m, up to 10 at once; overdraw: consumes every cost, and denies while in debt": {
			Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Overdraw: true},
		"token bucket: 10 per 1m, up to 10 at once; penalty: after 3 denied within 1m a bucket is blocked for 5m, twice as long each time, up to 1h": {
			Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Penalty: &algorithms.Penalty{After: 3, For: 5 * minute, Max: 60 * minute}},
		"fixed window: 5 in each 1h, starting with the clock (UTC)":                                     {Kind: algorithms.FixedWindow, Rate: 5, Period: 60 * minute, Start: at(0)},
		"fixed window: 5 in each 1d, starting 8h after the clock's (UTC)":                               {Kind: algorithms.FixedWindow, Rate: 5, Period: algorithms.Day, Start: at(8 * 60 * minute)},
		"fixed window: 5 in each 7d, saved up to 9, each key's windows starting at a moment of its own": {Kind: algorithms.FixedWindow, Rate: 5, Period: 7 * algorithms.Day, Capacity: n(9)},
		"sliding window: 5 in any 1m30s, the last window weighted by how much of it is still covered":   {Kind: algorithms.SlidingWindow, Rate: 5, Period: 90 * algorithms.Second},
		"sliding log: 5 in any 200ms, exactly":                                                          {Kind: algorithms.SlidingLog, Rate: 5, Period: 200_000},
		"leaky bucket: one at a time, 5 per 1m, no queue":                                               {Kind: algorithms.LeakyBucket, Rate: 5, Period: minute},
		"leaky bucket: one at a time, 5 per 1m, a queue of 50":                                          {Kind: algorithms.LeakyBucket, Rate: 5, Period: minute, Capacity: n(50)},
		"allows nothing": {Kind: algorithms.FixedWindow, Rate: 0, Period: minute},
	} {
		limit, err := algorithms.Compile(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Policy{Limit: &limit}).Words(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := (&Policy{Unlimited: true}).Words(); got != "unlimited" {
		t.Errorf("got %s, want unlimited", got)
	}
}
