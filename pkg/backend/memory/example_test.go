package memory_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// A program's tests can set the time of a Store.
func ExampleNew() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store := memory.New(memory.Config{Clock: func() time.Time { return now }})
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: store, Limits: ratelimit.Limits{"send": ratelimit.TokenBucket(1, time.Minute)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, after := range []time.Duration{0, 59 * time.Second, time.Second} {
		now = now.Add(after)
		result, _ := limiter.Allow(context.Background(), "send")
		fmt.Println(result.Allowed, result.RetryAfter)
	}
	// Output:
	// true 0s
	// false 1s
	// true 0s
}
