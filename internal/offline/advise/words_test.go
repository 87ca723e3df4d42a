package advise

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func TestAClientIsAnOutlierFromFiveTimesTheNextNeed(t *testing.T) {
	for need, want := range map[[2]int64]bool{{25, 5}: true, {24, 5}: false, {0, 5}: true, {0, 0}: false, {25, 0}: false} {
		a := &Advice{LargestNeeds: []ClientNeed{{&Client{}, need[0]}, {&Client{}, need[1]}}}
		if o := a.Outlier(); (o != nil) != want {
			t.Errorf("needs %v: got %+v; want an outlier: %t", need, o, want)
		}
	}
}

func TestSuggestionsAreLinesOfAConfiguration(t *testing.T) {
	reference := func(spec algorithms.Spec) *limiter.Policy {
		p := policyOf(t, spec)
		p.Reference = true
		return p
	}
	month := calendar.Month.In(time.UTC)
	for _, test := range []struct {
		policy                         *limiter.Policy
		period, numbers, candidate, of string
	}{
		{reference(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute}), "1m", "requests_per_unit: 5", "requests_per_unit: 9", "{unit: minute, requests_per_unit: 9}"},
		{reference(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: 3 * minute}), "3m", "requests_per_unit: 5", "requests_per_unit: 9", "{requests_per_unit: 9}"},
		{reference(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Calendar: month}), "month", "requests_per_unit: 5", "requests_per_unit: 9", "{requests_per_unit: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Calendar: month}), "month", "rate: 5", "rate: 9", "{algorithm: fixed_window, rate: 9, period: month, time_zone: UTC, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute}), "1m", "rate: 5", "rate: 9", "{algorithm: fixed_window, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Capacity: new(int64(8)), Period: minute}), "1m", "rate: 5, capacity: 8", "rate: 9", "{algorithm: fixed_window, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: minute}), "1m", "rate: 5", "rate: 9", "{algorithm: token_bucket, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Capacity: new(int64(8)), Period: minute}), "1m", "rate: 5, capacity: 8", "rate: 9", "{algorithm: token_bucket, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Capacity: new(int64(8)), Period: minute}), "1m", "rate: 5, capacity: 8", "rate: 9", "{algorithm: leaky_bucket, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 5, Period: 90 * minute}), "1h30m", "rate: 5", "rate: 9", "{algorithm: sliding_log, rate: 9, period: 1h30m}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Capacity: new(int64(8)), Period: second, Minimum: &algorithms.Rate{Units: 2, Period: minute}}), "1s", "capacity: 8", "capacity: 9",
			"{algorithm: token_bucket, rate: 5, period: 1s, capacity: 9, guaranteed: {rate: 2, period: 1m}}"},
	} {
		a := newAdvice(test.policy)
		if a.Period != test.period || a.Numbers() != test.numbers || a.Candidate(9) != test.candidate || a.Of(9) != test.of {
			t.Errorf("period, numbers, candidate, limit: got %q, %q, %q, %q; want %q, %q, %q, %q", a.Period, a.Numbers(), a.Candidate(9), a.Of(9), test.period, test.numbers, test.candidate, test.of)
		}
	}
}

func TestOneBucket(t *testing.T) {
	for name, test := range map[string]struct {
		clients int64
		policy  limiter.Policy
		shown   string
		want    bool
	}{
		"one bucket":           {1, limiter.Policy{}, "", true},
		"two clients":          {2, limiter.Policy{}, "", false},
		"a whole descriptor":   {1, limiter.Policy{Keys: descriptors.Keys{Whole: true}}, "", false},
		"an entry":             {1, limiter.Policy{Keys: descriptors.Keys{Open: []int{0}}}, "", false},
		"the key of a request": {1, limiter.Policy{}, "bob", false},
	} {
		a := &Advice{Clients: test.clients, Policy: &test.policy, clients: []ClientNeed{{Client: &Client{Shown: test.shown}}}}
		if got := a.OneBucket(); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}
