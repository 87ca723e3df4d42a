package limiter_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/cputest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const manyYAML = `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: token_bucket, rate: 1000000, period: 1h}}
  - {key: named, rate_limit: {unit: hour, requests_per_unit: 1000000, name: one}}
  - {key: other, rate_limit: {unit: hour, requests_per_unit: 1000000, replaces: [{name: one}]}}
`

// Sixteen times as many descriptors must take less than sixty times the processor time. If each descriptor
// were compared with every other one, it would take up to 256 times as long.
func TestTimeGrowsAsTheNumberOfDescriptors(t *testing.T) {
	b := newBench(t, manyYAML)
	taken := func(c *limiter.Call, n int) time.Duration {
		c.Reset()
		c.Request.Domain = "d"
		for i := range n {
			d := c.AddDescriptor()
			key := "a"
			if i%8 == 0 {
				key = "other"
			}
			d.Entries, d.Cost = append(d.Entries, descriptors.Entry{Key: key, Value: fmt.Sprint(i)}), 0
		}
		return cputest.Time(func() {
			if err := b.Check(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	few, many := time.Duration(math.MaxInt64/120), time.Duration(math.MaxInt64)
	var one, other limiter.Call // used again, because the first use of their memory takes longer
	for range 10 {              // the shortest of several runs counts, because the garbage collector makes some runs longer
		few, many = min(few, taken(&one, 1_000)), min(many, taken(&other, 16_000))
		if many < 60*few {
			return
		}
	}
	t.Errorf("1,000 descriptors took %v, 16,000 took %v; want less than 60 times as long", few, many)
}
