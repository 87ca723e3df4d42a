package limiter_test

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const retryYAML = `
domain: d
descriptors:
  - {key: soon, rate_limit: {algorithm: token_bucket, rate: 1, period: 10s}}
  - {key: late, rate_limit: {algorithm: token_bucket, rate: 1, period: 100s}}
  - {key: small, rate_limit: {algorithm: token_bucket, rate: 1, period: 1s}}
`

// TestTheLongestRetryTimeCounts: a client that comes back after the shorter one is denied again.
func TestTheLongestRetryTimeCounts(t *testing.T) {
	for _, order := range [][]string{{"soon=1", "late=1"}, {"late=1", "soon=1"}} {
		b := newBench(t, retryYAML)
		if c := b.ask(t, 1, order...); c.Denied {
			t.Fatalf("both are full: %+v", c.Verdict)
		}
		if c := b.ask(t, 1, order...); !c.Denied || c.RetryAfter != 100*algorithms.Second {
			t.Errorf("%v: denied %t, retry after %d us, want 100 s", order, c.Denied, c.RetryAfter)
		}
	}
}

// TestNoRetryTimeWhereACostNeverFits: another limit that denies too knows a time, but the request is denied then as well.
func TestNoRetryTimeWhereACostNeverFits(t *testing.T) {
	for _, order := range [][]string{{"soon=1", "small=1"}, {"small=1", "soon=1"}} {
		b := newBench(t, retryYAML)
		b.ask(t, 1, "soon=1")
		c := &limiter.Call{}
		c.Request.Domain = "d"
		for _, text := range order {
			d := c.AddDescriptor()
			key, value, _ := strings.Cut(text, "=")
			d.Entries = []descriptors.Entry{{Key: key, Value: value}}
			if d.Cost = 1; key == "small" {
				d.Cost = 2 // of 1
			}
		}
		if err := b.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if !c.Denied || !c.Never || c.RetryAfter != 0 {
			t.Errorf("%v: denied %t, never %t, retry after %d us", order, c.Denied, c.Never, c.RetryAfter)
		}
	}
}
