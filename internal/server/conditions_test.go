package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func (x *instance) conditions(tb testing.TB) string {
	tb.Helper()
	var answer struct {
		Conditions []struct {
			Name, Severity, Summary, Remedy string
			Since                           time.Time
		}
	}
	if err := json.NewDecoder(get(tb, x.Admin, "/api/conditions").Body).Decode(&answer); err != nil {
		tb.Fatal(err)
	}
	var b strings.Builder
	for _, c := range answer.Conditions {
		if c.Since.IsZero() || c.Remedy == "" {
			tb.Errorf("%s has no time or no remedy; want both", c.Name)
		}
		fmt.Fprintf(&b, "%s %s: %s\n", c.Severity, c.Name, c.Summary)
	}
	return b.String()
}

// Redis is late now and then, but its circuit breaker stays closed.
func TestASlowRedisIsACondition(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	x := start(t, policies, onRedis("redis://"+redis.Addr), func(c *Config) { c.Redis.Timeout = 300 * time.Millisecond })
	eventually(t, "the condition is reported", func() bool {
		redis.Pause()
		x.send(t, "deny=1") // one late answer does not open the circuit breaker
		redis.Resume()
		redis.Wait()
		x.send(t, "deny=1")
		got := x.conditions(t)
		return strings.Contains(got, "degraded redis-slow: Redis could not decide") && strings.Contains(got, "deny (2 limits)")
	})
}

func TestMetricsThatOverflowAreACondition(t *testing.T) {
	t.Parallel()
	const limits = 10_001
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range limits {
		fmt.Fprintf(&b, "  - {key: k, value: v%d, rate_limit: {unit: year, requests_per_unit: 5}}\n", i)
	}
	x := start(t, b.String())
	for first := 0; first < limits; first += 100 {
		if got := x.conditions(t); first < limits-100 && got != "" {
			t.Fatalf("after %d limits got the conditions %s; want none", first, got)
		}
		var texts []string
		for i := first; i < min(first+100, limits); i++ {
			texts = append(texts, fmt.Sprintf("k=v%d", i))
		}
		x.send(t, texts...)
	}
	eventually(t, "the condition is reported", func() bool {
		return strings.HasPrefix(x.conditions(t), "warning metrics-overflow: More than 10,000 limits")
	})
}

// Half of the memory is divided among the limits with buckets, which are send and path. Each has 3 of 12 buckets, and the
// flooded one also uses the other half.
func TestAFloodOfOneLimitLeavesRoomForTheOthers(t *testing.T) {
	x := start(t, `domain: d
limits:
  send: {algorithm: token_bucket, rate: 1, period: 365d}
descriptors:
  - {key: user, limit: send}
  - {key: sender, limit: send}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
`, func(c *Config) { c.MemoryMaxKeys = 12 })
	allowed := map[string]int{}
	for i := range 20 {
		for _, key := range []string{"user", "path"} {
			if text := fmt.Sprintf("%s=%d", key, i); (key == "user" || i >= 17) && x.send(t, text).OverallCode == ok {
				allowed[key]++
			}
		}
	}
	if allowed["user"] != 9 || allowed["path"] != 3 {
		t.Errorf("allowed %v keys; want 9 of the flooded limit, and 3 of the other one", allowed)
	}
}
