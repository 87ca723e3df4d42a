package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestLimitsInWords(t *testing.T) {
	const second, minute, hour = algorithms.Second, 60 * algorithms.Second, 3600 * algorithms.Second
	at := func(m algorithms.Micros) *algorithms.Micros { return &m }
	for want, spec := range map[string]algorithms.Spec{
		"allows nothing": {Kind: algorithms.TokenBucket, Period: second},
		"token bucket: 5 per 1s, up to 5 at once":                                          {Kind: algorithms.TokenBucket, Rate: 5, Period: second},
		"token bucket: 5 per 1s, up to 20 at once; starts with 2":                          {Kind: algorithms.TokenBucket, Rate: 5, Period: second, Capacity: number(20), Initial: number(2)},
		"token bucket: 5 per 1s, up to 5 at once; reservations up to 7 ahead":              {Kind: algorithms.TokenBucket, Rate: 5, Period: second, MaxReserved: number(7)},
		"token bucket: 6 per 2s guaranteed, and a bank of up to 20 that fills at 1 per 1s": {Kind: algorithms.TokenBucket, Rate: 1, Period: second, Capacity: number(20), Minimum: &algorithms.Rate{Units: 6, Period: 2 * second}},
		"token bucket: 5 per 1s, up to 5 at once; overdraw: consumes every cost, and denies while in debt": {
			Kind: algorithms.TokenBucket, Rate: 5, Period: second, Overdraw: true},
		"token bucket: 5 per 1s, up to 5 at once; penalty: after 3 denied within 1s a bucket is blocked for 1s, twice as long each time, up to 1m": {
			Kind: algorithms.TokenBucket, Rate: 5, Period: second, Penalty: &algorithms.Penalty{After: 3, For: second, Max: minute}},
		"token bucket: 5 per 1s, up to 5 at once; penalty: after 3 denied within 1s a bucket is blocked for 1s": {
			Kind: algorithms.TokenBucket, Rate: 5, Period: second, Penalty: &algorithms.Penalty{After: 3, For: second, Max: second}},
		"fixed window: 5 in each 1h, starting with the clock (UTC)":                                     {Kind: algorithms.FixedWindow, Rate: 5, Period: hour, Start: at(0)},
		"fixed window: 5 in each 1d, starting 8h after the clock's (UTC)":                               {Kind: algorithms.FixedWindow, Rate: 5, Period: algorithms.Day, Start: at(8 * hour)},
		"fixed window: 5 in each 7d, saved up to 9, each key's windows starting at a moment of its own": {Kind: algorithms.FixedWindow, Rate: 5, Period: 7 * algorithms.Day, Capacity: number(9)},
		"fixed window: 5 in each month, by the calendar of Europe/Berlin": {
			Kind: algorithms.FixedWindow, Rate: 5, Calendar: &algorithms.Calendar{Unit: "month", Zone: "Europe/Berlin", Usual: 30 * algorithms.Day, Longest: 31 * algorithms.Day}},
		"sliding window: 5 in any 1m30s, the last window weighted by how much of it is still covered": {Kind: algorithms.SlidingWindow, Rate: 5, Period: 90 * second},
		"sliding log: 5 in any 200ms, exactly":                                                        {Kind: algorithms.SlidingLog, Rate: 5, Period: 200_000},
		"leaky bucket: one at a time, 5 per 1m, no queue":                                             {Kind: algorithms.LeakyBucket, Rate: 5, Period: minute},
	} {
		if got := (&Policy{Limit: limitOf(t, spec)}).Words(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	queue := Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: second, Capacity: number(3)}), Extras: &Extras{MaxDelay: 2 * second}}
	for want, p := range map[string]*Policy{
		"leaky bucket: one at a time, 5 per 1s, a queue of 3; held for up to 2s": &queue, "unlimited": {Unlimited: true}, "unknown algorithm": {Limit: &algorithms.Limit{Kind: 99, Rate: 1}},
	} {
		if got := p.Words(); got != want {
			t.Errorf("got %q, want %q", got, want)
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
}
