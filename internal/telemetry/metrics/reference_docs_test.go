package metrics

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/test/docgen"
)

// TestReference sets a value for every metric, and compares the list of metrics with
// docs/reference/metrics.md.
func TestReference(t *testing.T) {
	m := New("v1", "rev")
	store := memory.New(memory.Config{})
	m.WatchMemory(store.Stats)
	m.WatchLeases(func() stores.CacheStats { return stores.CacheStats{} })
	m.WatchUndos(func() int64 { return 0 })
	m.WatchSlots(func() (n limiter.SlotCounts) { return n })
	m.WatchAdjustments(func() AdjustmentStats { return AdjustmentStats{} })
	opened, _ := m.WatchBreakers()
	opened("127.0.0.1:6379")
	m.Examined("redis:6379", "eviction", false)
	m.WatchConnections("grpc", func() ConnectionStats { return ConnectionStats{} })
	m.WatchControlPlane()(true)
	m.WatchConditions(func() []conditions.Condition { return []conditions.Condition{{Name: "redis-away/server"}} })
	m.Loaded(true, time.Unix(1, 0))
	m.Refused("malformed")
	m.TooLarge("entries")
	l := limiter.New(m.Backend(store, time.Second, func(time.Duration) {}, func(error) {}), limiter.Config{Observer: m})
	configured := snapshot(&limiter.Policy{Name: "plain", Limit: limit(t, 2)}, &limiter.Policy{Name: "shadow", Limit: limit(t, 1), Shadow: true})
	configured.Domains["strict"] = &limiter.Domain{Name: "strict", Tree: &limiter.Tree{}, Require: []limiter.Requirement{{"user"}}}
	l.Swap(configured)
	send(t, l, "d", "plain", "v", 1)
	send(t, l, "d", "shadow", "v", 1)
	send(t, l, "elsewhere", "plain", "v", 1)
	send(t, l, "strict", "plain", "v", 1)
	m.Observe(&limiter.Call{Request: limiter.Request{Arrived: time.Now()}, Verdict: limiter.Verdict{Snapshot: configured}})
	settling(t, m, configured)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text, err := docgen.Metrics(w.Body.String())
	if err != nil {
		t.Fatal(err)
	}
	docgen.Check(t, "../../..", "reference/metrics.md", text)

	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range regexp.MustCompile(`"((?:rlsidecar|ratelimit_service)_[a-z_]*[a-z])"`).FindAllStringSubmatch(string(source), -1) {
			if !strings.Contains(text, metric[1]) {
				t.Errorf("%s: %s is not set here", name, metric[1])
			}
		}
	}
}
