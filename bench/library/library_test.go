package library

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

const (
	// plenty is a rate per second that no benchmark reaches.
	plenty = 1_000_000_000
	keys   = 10_000
)

var names = func() (list [keys]string) {
	for i := range list {
		list[i] = fmt.Sprint("user-", i)
	}
	return list
}()

// Each make returns a function that consumes one unit of a key and reports whether it was allowed. If open is
// true, the limit is plenty per second, otherwise one per day.
var makers = []struct {
	name string
	make func(b *testing.B, open bool) func(key string) bool
}{
	{"rlsidecar", func(b *testing.B, open bool) func(string) bool {
		l := ratelimit.TokenBucket(1, 24*time.Hour)
		if open {
			l = ratelimit.TokenBucket(plenty, time.Second)
		}
		limiter, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{"requests": l}})
		if err != nil {
			b.Fatal(err)
		}
		ctx := context.Background()
		return func(key string) bool { _, err := limiter.Allow(ctx, "requests", key); return err == nil }
	}},
	{"x/time/rate", func(_ *testing.B, open bool) func(string) bool {
		// A rate.Limiter is one bucket, so programs use a map with a lock. This map never deletes a bucket.
		var mu sync.Mutex
		buckets := map[string]*rate.Limiter{}
		return func(key string) bool {
			mu.Lock()
			l := buckets[key]
			if l == nil {
				if l = rate.NewLimiter(rate.Every(24*time.Hour), 1); open {
					l = rate.NewLimiter(plenty, plenty)
				}
				buckets[key] = l
			}
			mu.Unlock()
			return l.Allow()
		}
	}},
	{"sethvargo/go-limiter", func(b *testing.B, open bool) func(string) bool {
		c := &memorystore.Config{Tokens: 1, Interval: 24 * time.Hour}
		if open {
			c = &memorystore.Config{Tokens: plenty, Interval: time.Second}
		}
		var store limiter.Store
		store, err := memorystore.New(c)
		if err != nil {
			b.Fatal(err)
		}
		ctx := context.Background()
		b.Cleanup(func() { store.Close(ctx) })
		return func(key string) bool { _, _, _, ok, _ := store.Take(ctx, key); return ok }
	}},
	{"throttled", func(b *testing.B, open bool) func(string) bool {
		store, err := memstore.NewCtx(0)
		if err != nil {
			b.Fatal(err)
		}
		quota := throttled.RateQuota{MaxRate: throttled.PerDay(1)}
		if open {
			quota = throttled.RateQuota{MaxRate: throttled.PerSec(plenty), MaxBurst: 1000}
		}
		l, err := throttled.NewGCRARateLimiterCtx(store, quota)
		if err != nil {
			b.Fatal(err)
		}
		ctx := context.Background()
		return func(key string) bool { limited, _, err := l.RateLimitCtx(ctx, key, 1); return err == nil && !limited }
	}},
}

func BenchmarkLibraries(b *testing.B) {
	for _, m := range makers {
		for _, c := range []struct {
			name string
			open bool
			keys int
		}{{"allowed", true, 1}, {"denied", false, 1}, {"allowed,10000keys", true, keys}} {
			b.Run(m.name+"/"+c.name, func(b *testing.B) {
				allow := m.make(b, c.open)
				for i := range c.keys {
					allow(names[i])
				}
				if got := allow(names[0]); got != c.open {
					b.Fatalf("allowed: %t, want %t", got, c.open)
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					allow(names[i])
					if i++; i == c.keys {
						i = 0
					}
				}
			})
		}
	}
}
