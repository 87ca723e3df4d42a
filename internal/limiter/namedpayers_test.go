package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const planAndCredits = `
domain: d
hash_tag: domain
limits:
  plan: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  pace: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1000, initial: 0}
`

// A request may name a limit and its payer. The bucket of the payer is then charged once: what the request names, and
// what the payer pays.
func TestAPlanAndItsCreditsInOneRequest(t *testing.T) {
	charge := func(name string, cost int64) limiter.NamedCharge { return limiter.NamedCharge{Name: name, Count: cost} }
	const never = -1
	for name, test := range map[string]struct {
		plan, credits int64 // units before the request
		request       []limiter.NamedCharge
		after         [2]int64          // units of the plan and of the credits
		retry         algorithms.Micros // of a denial; 0: allowed
		costs         []int64           // of the Results; nil: not checked
		policies      []string          // of the Results; nil: not checked
	}{
		"the plan has enough":                     {plan: 10, credits: 15, request: []limiter.NamedCharge{charge("plan", 10), charge("credits", 10)}, after: [2]int64{0, 5}},
		"the credits first":                       {plan: 10, credits: 15, request: []limiter.NamedCharge{charge("credits", 10), charge("plan", 10)}, after: [2]int64{0, 5}},
		"the credits lack what they would pay":    {plan: 0, credits: 15, request: []limiter.NamedCharge{charge("plan", 10), charge("credits", 10)}, after: [2]int64{0, 15}, retry: minute},
		"the credits pay both":                    {plan: 0, credits: 20, request: []limiter.NamedCharge{charge("plan", 10), charge("credits", 10)}, after: [2]int64{0, 0}, costs: []int64{10, 10}, policies: []string{"credits", "credits"}},
		"the credits lack their own cost":         {plan: 10, credits: 9, request: []limiter.NamedCharge{charge("plan", 10), charge("credits", 10)}, after: [2]int64{10, 9}, retry: 60 * minute},
		"the credits have enough before the plan": {plan: 9, credits: 1, request: []limiter.NamedCharge{charge("plan", 10), charge("credits", 2)}, after: [2]int64{9, 1}, retry: 60 * minute},
		"the plan has enough before the credits":  {plan: 9, credits: 5, request: []limiter.NamedCharge{charge("plan", 10), charge("credits", 2)}, after: [2]int64{9, 5}, retry: minute / 10},
		"neither can ever pay":                    {plan: 10, credits: 10, request: []limiter.NamedCharge{charge("plan", 11), charge("credits", 990)}, after: [2]int64{10, 10}, retry: never},
		"a top-up":                                {plan: 10, credits: 5, request: []limiter.NamedCharge{charge("plan", 5), charge("credits", -900)}, after: [2]int64{5, 905}},
		"a top-up that pays":                      {plan: 0, credits: 0, request: []limiter.NamedCharge{charge("plan", 5), charge("credits", -900)}, after: [2]int64{0, 895}},
		"a top-up that pays a part":               {plan: 0, credits: 1, request: []limiter.NamedCharge{charge("plan", 5), charge("credits", -3)}, after: [2]int64{0, 1}, retry: minute / 2},
		"a charge and its refund":                 {plan: 0, credits: 7, request: []limiter.NamedCharge{charge("plan", 5), charge("plan", -5)}, after: [2]int64{0, 7}},
		"a charge and a larger refund":            {plan: 3, credits: 7, request: []limiter.NamedCharge{charge("plan", 5), charge("plan", -7)}, after: [2]int64{5, 7}},
		"a charge and a smaller refund":           {plan: 1, credits: 7, request: []limiter.NamedCharge{charge("plan", -2), charge("plan", 5)}, after: [2]int64{1, 4}},
		"the credits twice":                       {plan: 0, credits: 7, request: []limiter.NamedCharge{charge("credits", 3), charge("plan", 2), charge("credits", -1)}, after: [2]int64{0, 3}},
		"the credits for nothing":                 {plan: 10, credits: 0, request: []limiter.NamedCharge{charge("plan", 2), charge("credits", 0)}, after: [2]int64{8, 0}},
		"another limit between":                   {plan: 0, credits: 20, request: []limiter.NamedCharge{charge("credits", 10), charge("pace", 2), charge("plan", 10)}, after: [2]int64{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, planAndCredits)
			b.together(t, "bob", charge("plan", 10-test.plan))
			b.together(t, "bob", charge("credits", -test.credits))
			check := limiter.Call{Request: limiter.Request{Domain: "d", DryRun: true}}
			for _, n := range test.request {
				n.Key = []string{"bob"}
				check.Limits = append(check.Limits, n)
			}
			if err := b.Check(t.Context(), &check); err != nil {
				t.Fatal(err)
			}
			c := b.together(t, "bob", test.request...)
			if check.Denied != c.Denied || check.RetryAfter != c.RetryAfter || check.Never != c.Never {
				t.Errorf("a dry run: denied %t, retry after %d, never %t; the request: %t, %d, %t", check.Denied, check.RetryAfter, check.Never, c.Denied, c.RetryAfter, c.Never)
			}
			if c.Denied != (test.retry != 0) || c.RetryAfter != max(0, test.retry) || c.Never != (test.retry == never) {
				t.Errorf("denied %t, retry after %d, never %t; want retry after %d", c.Denied, c.RetryAfter, c.Never, test.retry)
			}
			for i := range test.costs {
				if r := &c.Results[i]; r.Cost != test.costs[i] || r.Policy.Name != test.policies[i] {
					t.Errorf("result %d: %d units of %s, want %d of %s", i, r.Cost, r.Policy.Name, test.costs[i], test.policies[i])
				}
			}
			b.remains(t, "bob", map[string]int64{"plan": test.after[0], "credits": test.after[1]})
		})
	}
}
