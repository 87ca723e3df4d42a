//go:build !race

package limiter_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The race detector drops pooled objects, so these tests are skipped under it.
func TestCheckAllocatesNothing(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: token_bucket, rate: 1000000, period: 1s}}
`)
	c := &limiter.Call{}
	entries := []descriptors.Entry{{Key: "a", Value: "1"}}
	check := func() {
		c.Reset()
		c.Request.Domain = "d"
		d := c.AddDescriptor()
		d.Entries, d.Cost = append(d.Entries, entries...), 1
		if err := b.Check(context.Background(), c); err != nil || c.Denied {
			t.Fatalf("got %v %v; want no error and allowed", err, c.Denied)
		}
	}
	check()
	if n := testing.AllocsPerRun(1000, check); n != 0 {
		t.Errorf("%v allocations a call; want 0", n)
	}
}

func TestPlansWithCreditsAllocateNothing(t *testing.T) {
	for name, capacity := range map[string]int{"the plan pays": 100_000_000, "the credits pay": 1} {
		for _, credits := range []int{1, 100_000_000} {
			b := newBench(t, fmt.Sprintf(`
domain: d
hash_tag: entry:user
limits:
  plan: {algorithm: token_bucket, rate: 1, period: 1d, capacity: %d, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1d, capacity: %d}
descriptors:
  - {key: user, limit: plan}
`, capacity, credits))
			c := &limiter.Call{}
			check := func() {
				c.Reset()
				c.Request.Domain = "d"
				d := c.AddDescriptor()
				d.Entries, d.Cost = append(d.Entries, descriptors.Entry{Key: "user", Value: "bob"}), 2
				if err := b.Check(context.Background(), c); err != nil || c.Denied != (capacity == 1 && credits == 1) || !c.Denied && (c.Results[0].For != nil) != (capacity == 1) {
					t.Fatalf("%s, of %d: %v, denied %t, paid for %v; want a denial only if both have too few units", name, credits, err, c.Denied, c.Results[0].For)
				}
			}
			check()
			if n := testing.AllocsPerRun(1000, check); n != 0 {
				t.Errorf("%s, of %d: %v allocations a call; want 0", name, credits, n)
			}
		}
	}
}
