package limiter_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestErrorsOfInlineLimits(t *testing.T) {
	d := &limiter.Domain{Name: "d", Named: map[string]*limiter.Policy{"configured": {}}}
	one := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": d}}
	two := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": d, "e": {Name: "e"}}}
	if got, err := two.InlineDomain("", "x"); err == nil {
		t.Errorf("of two domains, %s was chosen; want an error", got.Name)
	}
	if got, err := two.InlineDomain("d", "x"); got != d || err != nil {
		t.Errorf("got %v, %v; want the named domain", got, err)
	}
	for _, c := range []struct{ domain, name, want string }{
		{"d", "x", ""}, {"", "x", ""}, {"none", "x", "is not configured"}, {"d", "configured", "is in the configuration"}, {"", "configured", "is in the configuration"},
	} {
		got, err := one.InlineDomain(c.domain, c.name)
		if c.want == "" && (err != nil || got != d) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s of %q: got %v, %v; want the error %q", c.name, c.domain, got, err, c.want)
		}
	}
	b := newBench(t, adjustable)
	c := &limiter.Call{Request: limiter.Request{Limits: []limiter.NamedCharge{{Name: "x", Inline: &limiter.Policy{Domain: "removed"}}}}}
	var problem *limiter.RequestError
	if err := b.Check(t.Context(), c); !errors.As(err, &problem) || !problem.Missing {
		t.Errorf("a limit of a domain that was removed: got the error %v, want a missing domain", err)
	}
}

func TestCostsAreWeighted(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 100, period: 1d, weights: {in: 1, out: 5}}
  plain: {algorithm: token_bucket, rate: 100, period: 1d}
`)
	c := b.together(t, "bob", limiter.NamedCharge{Name: "tokens", Costs: map[string]int64{"in": 10, "out": 4}, Reserve: true})
	b.remains(t, "bob", map[string]int64{"tokens": 70})
	part, _ := c.Part(0, "")
	r := &limiter.Reserved{ID: [16]byte{1}, Domain: limiter.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}
	var problem *limiter.RequestError
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Costs: map[string]int64{"on": 1}}); !errors.As(err, &problem) {
		t.Errorf("a settlement with an unknown kind: got the error %v, want a *RequestError", err)
	}
	b.remains(t, "bob", map[string]int64{"tokens": 70})
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Costs: map[string]int64{"in": 5, "out": 1}}); err != nil {
		t.Error(err)
	}
	b.remains(t, "bob", map[string]int64{"tokens": 90})
	for text, limit := range map[string]limiter.NamedCharge{
		`limit "tokens": costs: `: {Name: "tokens", Costs: map[string]int64{"on": 1}}, `limit "plain" has no weights`: {Name: "plain", Costs: map[string]int64{"in": 1}},
	} {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{limit}}}
		if err := b.Check(t.Context(), c); !errors.As(err, &problem) || !strings.Contains(problem.Problem, text) {
			t.Errorf("got the error %v, want a *RequestError with %q", err, text)
		}
	}
}
