package ratelimit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// A limit with Overdraw is charged although another limit denies. The error tells when both allow the call again.
func TestTheRetryTimeOfAllLimitsIncludesThoseWithOverdraw(t *testing.T) {
	clock := storetest.NewClock()
	debt := ratelimit.TokenBucket(10, time.Minute)
	debt.Overdraw = true
	l := made(t, ratelimit.Config{
		Store: memory.New(memory.Config{Clock: clock.Time}), Clock: clock.Time,
		Limits: ratelimit.Limits{"debt": debt, "other": ratelimit.TokenBucket(1, time.Second)},
	})
	if _, err := l.Allow(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	both := func() error {
		return l.AllowAll(t.Context(), []ratelimit.Request{{Name: "debt", N: 8}, {Name: "other", N: 1}})
	}
	var denied *ratelimit.DeniedError
	if err := both(); !errors.As(err, &denied) || denied.Result.RetryAfter != 36*time.Second { // 2 of 10 units are left
		t.Fatalf("got %v, want a denial with a retry after 36s", err)
	}
	clock.Set(clock.Now() + 36_000_000)
	if err := both(); err != nil {
		t.Errorf("at the time of the retry: %v", err)
	}
}
