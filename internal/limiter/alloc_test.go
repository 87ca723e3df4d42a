//go:build !race

package limiter_test

import (
	"context"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// TestCheckAllocatesNothing is skipped under the race detector, which drops pooled objects.
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
			t.Fatal(err, c.Denied)
		}
	}
	check()
	if n := testing.AllocsPerRun(1000, check); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}
