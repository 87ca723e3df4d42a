package limiter_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestReplacedAndUnlimitedCostNothing(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: base, rate_limit: {unit: hour, requests_per_unit: 1, name: base}}
  - {key: vip, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: base}, {name: free}]}}
  - {key: free, rate_limit: {unlimited: true, name: free}}
`)
	for range 5 {
		c := b.send(t, 1, "base=1", "vip=1", "free=1")
		if c.Denied || c.Results[0].Outcome != limiter.Replaced || c.Results[2].Outcome != limiter.Unlimited || c.Statuses[0].Result != -1 {
			t.Fatalf("got %+v; want it allowed, the outcomes %v and %v of the first and the third result, and no result in the first status", c.Verdict, limiter.Replaced, limiter.Unlimited)
		}
	}
	if n := b.left(t, "base=1"); n != 1 {
		t.Errorf("base has %d left, want 1", n)
	}
}

func TestOfManyLimitsTheNamedOneIsReplaced(t *testing.T) {
	var yaml strings.Builder
	yaml.WriteString("domain: d\ndescriptors:\n  - {key: vip, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: n3}]}}\n  - {key: free, rate_limit: {unlimited: true, name: free}}\n")
	texts := []string{"vip=1", "free=1", "unknown=1"}
	for i := range 20 {
		fmt.Fprintf(&yaml, "  - {key: k%d, rate_limit: {unit: hour, requests_per_unit: 5, name: n%d}}\n", i, i)
		texts = append(texts, fmt.Sprintf("k%d=1", i))
	}
	r := request(t, 1, texts...)
	r.Descriptors[2].HasOverride = true
	c := newBench(t, yaml.String()).check(t, r)
	if len(c.Results) != len(texts) {
		t.Fatalf("%d results; want %d", len(c.Results), len(texts))
	}
	for i, text := range texts {
		want := map[string]limiter.Outcome{"free=1": limiter.Unlimited, "unknown=1": limiter.Denied, "k3=1": limiter.Replaced}[text]
		if got := c.Results[i].Outcome; got != want {
			t.Errorf("%s: outcome %d, want %d", text, got, want)
		}
	}
}
