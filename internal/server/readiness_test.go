package server

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
)

// A check counts as failed as long as it fails for one server.
func TestFindingsEndWhenTheirChecksPass(t *testing.T) {
	s := &server{log: zap.NewNop(), metrics: metrics.New("", ""), conditions: conditions.New(time.Now)}
	unfit := func() (lines []string) {
		w := httptest.NewRecorder()
		s.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for line := range strings.Lines(w.Body.String()) {
			if strings.HasPrefix(line, "rlsidecar_backend_unfit{") && strings.HasSuffix(line, " 1\n") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return lines
	}
	eviction := func(server string, severity redis.Severity) redis.Finding {
		return redis.Finding{Server: server, Severity: severity, Check: "eviction", Text: "text"}
	}
	const failed = `rlsidecar_backend_unfit{check="eviction"} 1`
	var previous map[string]redis.Finding
	for _, step := range []struct {
		name       string
		found      []redis.Finding
		conditions int
		unfit      []string
	}{
		{"both servers fail", []redis.Finding{eviction("a", redis.Warning), eviction("b", redis.Problem)}, 2, []string{failed}},
		{"one is corrected", []redis.Finding{eviction("a", redis.Fine), eviction("b", redis.Problem)}, 1, []string{failed}},
		{"one finding of a server passes", []redis.Finding{eviction("b", redis.Problem), eviction("b", redis.Fine)}, 1, []string{failed}},
		{"advice is no failure", []redis.Finding{eviction("a", redis.Fine), eviction("b", redis.Advice)}, 0, nil},
		{"the clock is wrong", []redis.Finding{{Server: "a", Severity: redis.Warning, Check: "clock"}}, 1, []string{`rlsidecar_backend_unfit{check="clock"} 1`}},
		{"only failures are reported", nil, 0, nil},
	} {
		previous = s.reportFindings(step.found, previous)
		if got := len(s.conditions.List()); got != step.conditions || !slices.Equal(unfit(), step.unfit) {
			t.Errorf("%s: got %d conditions and %q; want %d and %q", step.name, got, unfit(), step.conditions, step.unfit)
		}
	}
}
