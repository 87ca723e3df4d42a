package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func TestConfig(t *testing.T) {
	server := redistest.Start(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store, err := redis.Open(redis.Config{
		URL: "redis://" + server.Addr, Timeout: 10 * time.Second, KeyPrefix: "test:", Clock: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := store.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{Store: store, Limits: ratelimit.Limits{"send": ratelimit.TokenBucket(1, time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after time.Duration
		err   error
		retry time.Duration
	}{{0, nil, 0}, {59 * time.Minute, ratelimit.ErrDenied, time.Minute}, {time.Minute, nil, 0}} {
		now = now.Add(step.after)
		if r, err := limiter.Allow(ctx, "send", "bob"); !errors.Is(err, step.err) || r.RetryAfter != step.retry {
			t.Errorf("at %v: %v, %v; want the error %v and retry after %v", now, r, err, step.err, step.retry)
		}
	}
	if all, ours := server.Do("KEYS", "*"), server.Do("KEYS", "test:*"); ours == "[]" || all != ours {
		t.Errorf("keys %s, of which with the prefix: %s; want all, and at least one", all, ours)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if _, err := limiter.Allow(ctx, "send", "bob"); !errors.Is(err, ratelimit.ErrUnavailable) {
		t.Errorf("after Close: %v; want the error ratelimit.ErrUnavailable", err)
	}
}

func TestOnBreaker(t *testing.T) {
	server := redistest.Start(t)
	var isOpen atomic.Bool
	store, err := redis.Open(redis.Config{URL: "redis://" + server.Addr, OnBreaker: func(_ string, open bool) { isOpen.Store(open) }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limiter, err := ratelimit.New(ratelimit.Config{Store: store, Limits: ratelimit.Limits{"send": ratelimit.TokenBucket(1, time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	is := func(open bool) func() bool {
		return func() bool {
			_, _ = limiter.Allow(context.Background(), "send", "bob")
			return isOpen.Load() == open
		}
	}
	server.Pause()
	redistest.Eventually(t, "the breaker opens", is(true))
	server.Resume()
	redistest.Eventually(t, "the breaker closes", is(false))
}
