package metrics

import (
	"maps"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

func TestConditionsAreCountedByName(t *testing.T) {
	m, registry := New("v", "r"), conditions.New(time.Now)
	m.WatchConditions(registry.List)
	if got := scrape(t, m, "rlsidecar_conditions"); len(got) != 0 {
		t.Errorf("without conditions: %v; want no series", got)
	}
	registry.Set(conditions.Condition{Name: "redis-away/10.0.0.1:6379", Severity: conditions.Critical})
	registry.Set(conditions.Condition{Name: "redis-away/10.0.0.2:6379", Severity: conditions.Critical})
	registry.Set(conditions.Condition{Name: "configuration-refused", Severity: conditions.Degraded})
	want := map[string]string{
		`rlsidecar_conditions{condition="redis-away",severity="critical"}`:            "2",
		`rlsidecar_conditions{condition="configuration-refused",severity="degraded"}`: "1",
	}
	if got := scrape(t, m, "rlsidecar_conditions"); !maps.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
	registry.Clear("redis-away/10.0.0.1:6379")
	registry.Clear("redis-away/10.0.0.2:6379")
	delete(want, `rlsidecar_conditions{condition="redis-away",severity="critical"}`)
	if got := scrape(t, m, "rlsidecar_conditions"); !maps.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}
