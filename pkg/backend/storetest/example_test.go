package storetest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// A test of a Store decides at exact times, to the microsecond.
func ExampleClock() {
	var clock storetest.Clock
	limiter, err := ratelimit.New(ratelimit.Config{
		Store:  memory.New(memory.Config{Clock: storetest.Times(clock.Now)}),
		Limits: ratelimit.Limits{"send": ratelimit.TokenBucket(1, time.Minute)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, at := range []algorithms.Micros{0, 60*algorithms.Second - 1, 60 * algorithms.Second} {
		clock.Set(storetest.Start + at)
		result, _ := limiter.Allow(context.Background(), "send")
		fmt.Println(result.Allowed, result.RetryAfter)
	}
	// Output:
	// true 0s
	// false 1µs
	// true 0s
}
