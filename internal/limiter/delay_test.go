package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

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

func TestADelayBeyondTheListenersBoundIsDenied(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 20, max_delay: 10s}}
`)
	send := func(maxDelay algorithms.Micros) *limiter.Call {
		r := callOf("a").Request
		r.MaxDelay = maxDelay
		return b.check(t, r)
	}
	for i, want := range []algorithms.Micros{0, algorithms.Second} {
		if c := send(algorithms.Second); c.Denied || c.Verdict.Delay != want {
			t.Errorf("turn %d: denied %v, delayed by %d, want %d", i, c.Denied, c.Verdict.Delay, want)
		}
	}
	if c := send(algorithms.Second); !c.Denied || c.RetryAfter != algorithms.Second {
		t.Errorf("its turn is in two seconds: %+v; want denied and retry after %v", c.Verdict, algorithms.Second)
	}
	if c := send(20 * algorithms.Second); c.Denied || c.Verdict.Delay != 2*algorithms.Second {
		t.Errorf("another listener can delay its answer: %+v; want allowed and a delay of %v", c.Verdict, 2*algorithms.Second)
	}
}
