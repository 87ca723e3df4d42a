package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

var benchLimits = ratelimit.Limits{
	"open":   ratelimit.TokenBucket(1_000_000_000, time.Second),
	"open2":  ratelimit.TokenBucket(1_000_000_000, time.Second),
	"closed": ratelimit.TokenBucket(1, 24*time.Hour),
}

func benchLimiter(tb testing.TB) (*ratelimit.Limiter, backend.Store) {
	tb.Helper()
	store := memory.New(memory.Config{})
	l, err := ratelimit.New(ratelimit.Config{Store: store, Limits: benchLimits})
	if err != nil {
		tb.Fatal(err)
	}
	_, _ = l.Allow(context.Background(), "closed", "bob")
	return l, store
}

// calls returns calls that must not allocate. "store" is for comparison: the Store alone.
func calls(tb testing.TB) map[string]func() {
	tb.Helper()
	l, store := benchLimiter(tb)
	ctx := context.Background()
	user := string([]byte("bob")) // the compiler cannot treat this value as a constant
	limit := limittest.Compile(tb, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1_000_000_000, Period: algorithms.Second})
	p := limiter.Policy{Limit: limit, Keys: descriptors.Keys{Prefix: descriptors.Prefix("", "limit", "bare", limit.Kind)}}
	key, hash := p.AppendKeyOf(nil, []string{"bob"})
	charges := []backend.Charge{{Key: key, Limit: limit, Terms: algorithms.Charge{Cost: 1, Hash: hash}}}
	decisions := make([]backend.Decision, 1)
	return map[string]func(){
		"store":   func() { decisions[0] = backend.Decision{}; backend.Take(ctx, store, charges, decisions) },
		"allowed": func() { _, _ = l.Allow(ctx, "open", user) },
		"denied":  func() { _, _ = l.Allow(ctx, "closed", user) },
		"peek":    func() { _, _ = l.Peek(ctx, 1, "open", user) },
		"two": func() {
			requests := [2]ratelimit.Request{{Name: "open", Key: []string{user}, N: 1}, {Name: "open2", Key: []string{user}, N: 1}}
			_ = l.AllowAll(ctx, requests[:])
		},
	}
}

func BenchmarkLimiter(b *testing.B) {
	all := calls(b)
	for _, name := range []string{"store", "allowed", "denied", "peek", "two"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				all[name]()
			}
		})
	}
}
