package backend_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// printer is a Store that prints denials. It replaces Done to read the decisions.
type printer struct{ next backend.Store }

func (p printer) Submit(b *backend.Batch) {
	done := b.Done
	b.Done = func(b *backend.Batch) {
		for i := range b.Charges {
			if d := &b.Decisions[i]; d.Err == nil && !d.Allowed {
				fmt.Println("denied:", ratelimit.KeyText(b.Charges[i].Key))
			}
		}
		b.Done = done // the caller may submit the Batch again
		done(b)
	}
	p.next.Submit(b)
}

// A wrapper adds behavior to a Store.
func ExampleStore() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store := printer{memory.New(memory.Config{Clock: func() time.Time { return now }})}
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: store, Domain: "mail", Limits: ratelimit.Limits{"send": ratelimit.TokenBucket(1, time.Minute)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		result, err := limiter.Allow(context.Background(), "send", "bob")
		fmt.Println(result.Remaining, err)
	}
	// Output:
	// 0 <nil>
	// denied: limit send of domain mail, key bob
	// 0 the rate limit was reached
}
