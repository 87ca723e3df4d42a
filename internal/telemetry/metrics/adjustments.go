package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// AdjustmentStats describes the adjustments of this process.
type AdjustmentStats struct {
	limiter.Adjusted
	adjust.Status
	Version uint64
}

// WatchAdjustments adds the metrics of adjustments. Call it once.
func (m *Metrics) WatchAdjustments(stats func() AdjustmentStats) {
	for name, value := range map[string]func(AdjustmentStats) float64{
		"applied": func(s AdjustmentStats) float64 { return float64(s.InForce) },
		"ignored": func(s AdjustmentStats) float64 { return float64(s.Ignored) },
	} {
		watcher[AdjustmentStats]{m, stats, prometheus.Labels{"state": name}}.gauge("rlsidecar_adjustments",
			"Adjustments in force: applied, or ignored because they change no limit of this configuration.", value)
	}
	w := watcher[AdjustmentStats]{m, stats, nil}
	w.gauge("rlsidecar_adjustments_version", "Number of changes of adjustments that this process knows.", func(s AdjustmentStats) float64 { return float64(s.Version) })
	w.gauge("rlsidecar_adjustments_age_seconds", "Time since the store of adjustments last answered.", func(s AdjustmentStats) float64 {
		if s.Seen.IsZero() {
			return 0
		}
		return time.Since(s.Seen).Seconds()
	})
	w.gauge("rlsidecar_adjustments_lost", "Adjustments that Redis has lost, for example in a failover, and that an operator must set or delete again.",
		func(s AdjustmentStats) float64 { return float64(len(s.Lost)) })
	w.total("rlsidecar_adjustments_rewritten_total", "Changes of adjustments that Redis had lost, for example in a failover, and that this process wrote again.",
		func(s AdjustmentStats) float64 { return float64(s.Rewritten) })
	w.total("rlsidecar_adjustments_poll_errors_total", "Failed polls for new adjustments.", func(s AdjustmentStats) float64 { return float64(s.Errors) })
}
