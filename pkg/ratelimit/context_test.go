package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// synctest fails if a goroutine still runs at the end.
func TestALimiterStartsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := limiterWith(t, ratelimit.Limits{"l": ratelimit.TokenBucket(10, time.Minute)}, 0, unchanged)
		if _, err := l.Allow(t.Context(), "l", "bob"); err != nil {
			t.Error(err)
		}
		if _, err := l.Reserve(t.Context(), "l", "bob"); err != nil {
			t.Error(err)
		}
		if err := l.Wait(t.Context(), "l", "bob"); err != nil {
			t.Error(err)
		}
	})
}

func TestACallWithACanceledContext(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	inMemory, _ := limiterWith(t, ratelimit.Limits{"l": ratelimit.TokenBucket(10, time.Minute)}, 0, unchanged)
	if _, err := inMemory.Allow(canceled, "l", "bob"); err != nil {
		t.Errorf("in memory: %v; want a decision", err)
	}
	store, err := redis.Open(redis.Config{URL: "redis://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := made(t, ratelimit.Config{Store: store, Limits: ratelimit.Limits{"l": ratelimit.TokenBucket(10, time.Minute)}})
	if _, err := l.Allow(canceled, "l", "bob"); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("in Redis: %v; want the error %v", err, backend.ErrUnavailable)
	}
}
