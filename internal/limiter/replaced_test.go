package limiter_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
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
