package server

import (
	"context"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// metric returns the sum of all series in /metrics whose line starts with a match of pattern.
func (x *instance) metric(t *testing.T, pattern string) (sum float64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^`+pattern+` ([0-9.e+]+)$`).FindAllStringSubmatch(x.metrics(t), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

const failedOutcomes = `rlsidecar_decisions_total\{.*outcome="failed_[a-z]*".*\}`

func TestAbortedCallsAreNotCountedAsRedisFailures(t *testing.T) {
	redis := redistest.Start(t)
	x := start(t, shared, onRedis("redis://"+redis.Addr), func(c *Config) { c.Redis.Timeout = time.Minute })
	x.send(t, "all=1")
	redis.Pause()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			body := strings.NewReader(`{"domain": "d", "descriptors": [{"entries": [{"key": "all", "value": "1"}]}]}`)
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+x.HTTP.String()+"/json", body)
			if err != nil {
				t.Error(err)
				return
			}
			if answer, err := http.DefaultClient.Do(r); err == nil {
				answer.Body.Close()
			}
		})
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			_, _ = x.rls.ShouldRateLimit(ctx, request("d", "all=1"))
		})
	}
	wg.Wait()
	redis.Resume() // the clients of the waiting calls have disconnected
	eventually(t, "Redis answers", func() bool { return x.send(t, "all=1").OverallCode == rls.RateLimitResponse_OK })
	for _, pattern := range []string{"rlsidecar_backend_failures_total", failedOutcomes, `rlsidecar_backend_breaker_open\{.*\}`} {
		if n := x.metric(t, pattern); n > 0 {
			t.Errorf("%s: got %v; want 0", pattern, n)
		}
	}
}
