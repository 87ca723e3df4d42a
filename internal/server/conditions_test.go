package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// conditions returns severities, names and summaries of /api/conditions, one per line.
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
			tb.Errorf("%s has no time or no remedy", c.Name)
		}
		fmt.Fprintf(&b, "%s %s: %s\n", c.Severity, c.Name, c.Summary)
	}
	return b.String()
}

func TestARefusedConfigurationIsACondition(t *testing.T) {
	x := start(t, shared)
	if got := x.conditions(t); got != "" {
		t.Fatalf("a condition without a reason: %s", got)
	}
	x.write(t, "domain: d\ndescriptors: [{key: a, rate_limit: {}}]\n")
	x.reload(t)
	if got := x.conditions(t); !strings.HasPrefix(got, "degraded configuration-refused: ") || !strings.Contains(got, "limits.yaml:2:") {
		t.Errorf("after a mistake: %q", got)
	}
	x.write(t, shared)
	x.reload(t)
	if got := x.conditions(t); got != "" {
		t.Errorf("after it was corrected: %s", got)
	}
}

func TestAStaleDomainIsACondition(t *testing.T) {
	x := start(t, shared, func(c *Config) { c.Isolate = true })
	x.write(t, "domain: d\ndescriptors: [{key: a, rate_limit: {}}]\n")
	x.reload(t)
	if got := x.conditions(t); !strings.HasPrefix(got, "degraded configuration-stale: ") || !strings.Contains(got, "domains d,") {
		t.Errorf("%q", got)
	}
}

func TestAnOpenBreakerIsACondition(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	x := start(t, policies, onRedis("redis://"+redis.Addr))
	x.ask(t, "deny=1")
	redis.Kill()
	eventually(t, "the condition is reported", func() bool {
		x.ask(t, "deny=1")
		got := x.conditions(t)
		return strings.Contains(got, "critical redis-breaker-open/"+redis.Addr) &&
			strings.Contains(got, "deny (2 limits), allow (1 limit), local (1 limit), error (1 limit)")
	})
	redis.Restart()
	eventually(t, "the condition is over", func() bool {
		x.ask(t, "deny=1")
		return x.conditions(t) == ""
	})
}
