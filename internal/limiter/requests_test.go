package limiter_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// The limit vip replaces base and free, but free is unlimited, so only base is replaced. The override of the descriptor
// unknown does not compile. So it has no limit to replace, and is denied.
func TestOnlyALimitWithNumbersIsReplaced(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: base, rate_limit: {unit: hour, requests_per_unit: 5, name: base}}
  - {key: free, rate_limit: {unlimited: true, name: free}}
  - {key: vip, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: base}, {name: free}]}}
`)
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for _, key := range []string{"base", "free", "vip", "unknown"} {
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.HasOverride = []descriptors.Entry{{Key: key, Value: "1"}}, 1, key == "unknown"
	}
	if err := b.Check(t.Context(), c); err != nil || len(c.Results) != 4 {
		t.Fatalf("error %v, %d results; want 4", err, len(c.Results))
	}
	for i, want := range []limiter.Outcome{limiter.Replaced, limiter.Unlimited, limiter.Allowed, limiter.Denied} {
		if got := c.Results[i].Outcome; got != want {
			t.Errorf("result %d: outcome %d, want %d", i, got, want)
		}
	}
}

// A request whose cost a named limit can never allow is a mistake, and charges nothing. But if that limit is in shadow
// mode, the other limits are charged.
func TestAShadowLimitDoesNotMakeARequestADryRun(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  small: {algorithm: token_bucket, rate: 1, period: 1h, shadow_mode: true}
  large: {algorithm: token_bucket, rate: 10, period: 1h}
`)
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "small", Count: 5}, limiter.NamedCharge{Name: "large", Count: 3}); c.Denied {
		t.Errorf("got %+v; want allowed", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"small": 1, "large": 7})
}

func TestADirectTakesAnyNumberOfLimits(t *testing.T) {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: sec})
	if err != nil {
		t.Fatal(err)
	}
	p, store := &descriptors.Policy{Limit: &limit, Prefix: "p"}, memory.New(memory.Config{})
	var d limiter.Direct
	for n := range 70 {
		for i := range n {
			d.Add(p, []string{fmt.Sprint(n, i)}, algorithms.Charge{Cost: 1})
		}
		d.Take(t.Context(), store)
		for i := range n {
			if decision, charge := d.Decision(i); !decision.Allowed || charge.Terms.Cost != 1 {
				t.Fatalf("limit %d of %d: %+v at the cost %d; want allowed at the cost 1", i, n, decision, charge.Terms.Cost)
			}
		}
		d.Reset()
	}
}

// An operator blocks the payer credits, so per_minute has no alternative. It is charged together with burst, which denies,
// so neither is consumed.
func TestAPlanWhosePayerIsBlockedIsChargedWithTheOthers(t *testing.T) {
	b := newBench(t, plans)
	b.adjust("credits", map[string]adjust.Change{"bob": {Block: true}})
	b.together(t, "bob", limiter.NamedCharge{Name: "burst", Count: 1000})
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "per_minute", Count: 6}, limiter.NamedCharge{Name: "burst", Count: 1}); !c.Denied {
		t.Errorf("got %+v; want denied", c.Verdict)
	}
	b.now += sec
	b.remains(t, "bob", map[string]int64{"per_minute": 10, "burst": 1000})
}

func TestEachStatusOfARequestThatLacksAnEntryIsDenied(t *testing.T) {
	b := newBench(t, requiring)
	c := b.send(t, 1, "generic_key=always", "other=1")
	if !c.Denied || len(c.Statuses) != 2 || !c.Statuses[0].Denied || !c.Statuses[1].Denied {
		t.Errorf("got %+v; want two denied statuses", c.Statuses)
	}
}

func TestCostsAreWeighted(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 100, period: 1d, weights: {in: 1, out: 5}}
  plain: {algorithm: token_bucket, rate: 100, period: 1d}
`)
	b.Limiter = limiter.New(b.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"a secret"} }, nil), Now: func() algorithms.Micros { return b.now },
	})
	b.Swap(newBench(t, `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 100, period: 1d, weights: {in: 1, out: 5}}
  plain: {algorithm: token_bucket, rate: 100, period: 1d}
`).Current())
	c := b.together(t, "bob", limiter.NamedCharge{Name: "tokens", Costs: map[string]int64{"in": 10, "out": 4}, Reserve: true})
	b.remains(t, "bob", map[string]int64{"tokens": 70})
	part, _ := c.Part(0, "")
	r := &limiter.Reserved{ID: [16]byte{1}, Domain: descriptors.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}
	var problem *limiter.RequestError
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Costs: map[string]int64{"on": 1}}); !errors.As(err, &problem) {
		t.Errorf("a settlement with an unknown kind: got the error %v, want a *RequestError", err)
	}
	b.remains(t, "bob", map[string]int64{"tokens": 70})
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Costs: map[string]int64{"in": 5, "out": 1}}); err != nil {
		t.Error(err)
	}
	b.remains(t, "bob", map[string]int64{"tokens": 90})
	for name, limit := range map[string]limiter.NamedCharge{
		"an unknown kind": {Name: "tokens", Costs: map[string]int64{"on": 1}}, "no weights": {Name: "plain", Costs: map[string]int64{"in": 1}},
	} {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{limit}}}
		if err := b.Check(t.Context(), c); !errors.As(err, &problem) {
			t.Errorf("%s: got the error %v, want a *RequestError", name, err)
		}
	}
}

// In shadow mode, a request before the first configuration is allowed. WouldDeny is true only if Config.NoConfig would
// deny the request without shadow mode.
func TestShadowModeReportsNoDenialThatWouldNotBe(t *testing.T) {
	for answer, want := range map[descriptors.OnFailure]bool{descriptors.Allow: false, descriptors.Deny: true} {
		l := limiter.New(memory.New(memory.Config{}), limiter.Config{NoConfig: &answer, Modes: limiter.Modes{Shadow: true}})
		if c := callOf("a"); l.Check(t.Context(), c) != nil || c.Denied || c.WouldDeny != want {
			t.Errorf("%s: %+v; want allowed, and would deny %t", answer, c.Verdict, want)
		}
	}
}

func TestErrorsOfInlineLimits(t *testing.T) {
	d := &limiter.Domain{Name: "d", Named: map[string]*descriptors.Policy{"configured": {}}}
	one := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": d}}
	for _, c := range []struct{ domain, name, want string }{
		{"d", "x", ""}, {"", "x", ""}, {"none", "x", "is not configured"}, {"d", "configured", "is in the configuration"}, {"", "configured", "is in the configuration"},
	} {
		got, err := one.InlineDomain(c.domain, c.name)
		if c.want == "" && (err != nil || got != d) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s of %q: got %v, %v; want the error %q", c.name, c.domain, got, err, c.want)
		}
	}
	b := newBench(t, adjustable)
	c := &limiter.Call{Request: limiter.Request{Limits: []limiter.NamedCharge{{Name: "x", Inline: &descriptors.Policy{Domain: "removed"}}}}}
	var problem *limiter.RequestError
	if err := b.Check(t.Context(), c); !errors.As(err, &problem) || !problem.Missing {
		t.Errorf("a limit of a domain that was removed: got the error %v, want a missing domain", err)
	}
}

// A refund is charged together with the other limits of the request, even if its limit is a plan. Here burst denies, so
// nothing is refunded.
func TestARefundOfAPlanIsPartOfTheGroup(t *testing.T) {
	b := newBench(t, plans)
	b.named(t, "per_minute", 8, "bob")
	b.named(t, "burst", 1000, "bob")
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "per_minute", Count: -3}, limiter.NamedCharge{Name: "burst", Count: 1}); !c.Denied {
		t.Errorf("got %+v; want denied", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"per_minute": 2})
}

func TestAPlanThatOccursTwiceIsChargedTheSum(t *testing.T) {
	b := newBench(t, plans)
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "per_minute", Count: 3}, limiter.NamedCharge{Name: "per_minute", Count: 4}); c.Denied {
		t.Errorf("got %+v; want allowed", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"per_minute": 3, "credits": 20})
}

// If the credits of a plan have changed, a request with the same ID is not a repetition. So it is an error, like any
// reuse of the ID.
func TestAnIDIsOfOnePayer(t *testing.T) {
	const yaml = `
domain: d
hash_tag: domain
limits:
  calls: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
  more: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
`
	b := newBench(t, yaml)
	if _, err := b.once(t, "d", "id", limiter.NamedCharge{Name: "calls", Count: 1}); err != nil {
		t.Fatal(err)
	}
	b.swap(t, strings.Replace(yaml, "then: credits", "then: more", 1))
	if _, err := b.once(t, "d", "id", limiter.NamedCharge{Name: "calls", Count: 1}); !errors.Is(err, backend.ErrReused) {
		t.Errorf("got the error %v, want backend.ErrReused", err)
	}
}

func TestOnlyALimitWithMaxDelayDelays(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors:\n  - {key: a, rate_limit: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 20}}\n")
	for range 3 {
		c := callOf("a")
		c.Request.MaxDelay = 20 * sec
		if err := b.Check(t.Context(), c); err != nil || c.Denied || c.Verdict.Delay != 0 {
			t.Errorf("error %v, %+v; want allowed without a delay", err, c.Verdict)
		}
	}
}

func TestARequestWithoutAConfigurationIsObserved(t *testing.T) {
	seen := &counts{}
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{NoConfig: new(descriptors.Deny), Observer: seen})
	if err := l.Check(t.Context(), callOf("a")); err != nil || seen.calls != 1 {
		t.Errorf("error %v, %d calls were observed, want 1", err, seen.calls)
	}
}

func TestOfManyLimitsTheNamedOneIsReplaced(t *testing.T) {
	var yaml strings.Builder
	yaml.WriteString("domain: d\ndescriptors:\n  - {key: vip, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: n3}]}}\n  - {key: free, rate_limit: {unlimited: true, name: free}}\n")
	keys := []string{"vip", "free", "unknown"}
	for i := range 20 {
		fmt.Fprintf(&yaml, "  - {key: k%d, rate_limit: {unit: hour, requests_per_unit: 5, name: n%d}}\n", i, i)
		keys = append(keys, fmt.Sprint("k", i))
	}
	b, c := newBench(t, yaml.String()), &limiter.Call{}
	c.Request.Domain = "d"
	for _, key := range keys {
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.HasOverride = []descriptors.Entry{{Key: key, Value: "1"}}, 1, key == "unknown"
	}
	if err := b.Check(t.Context(), c); err != nil || len(c.Results) != len(keys) {
		t.Fatalf("error %v, %d results; want %d", err, len(c.Results), len(keys))
	}
	for i, key := range keys {
		want := map[string]limiter.Outcome{"free": limiter.Unlimited, "unknown": limiter.Denied, "k3": limiter.Replaced}[key]
		if got := c.Results[i].Outcome; got != want {
			t.Errorf("%s: outcome %d, want %d", key, got, want)
		}
	}
}
