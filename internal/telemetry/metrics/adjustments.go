package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// AdjustmentStats describes the adjustments of this process.
type AdjustmentStats struct {
	// Applied is the number of adjustments that change a limit. Ignored is the number of those that do not,
	// because their limit is not configured or cannot have their numbers.
	Applied, Ignored int
	Version          uint64
	// Age is the time since the store of adjustments last answered.
	Age        time.Duration
	PollErrors uint64
	// Rewritten counts changes that Redis had lost and that this process has stored again. Lost is the number
	// of adjustments that an operator must make again.
	Rewritten uint64
	Lost      int
}

// WatchAdjustments adds the metrics of adjustments. Call it once.
func (m *Metrics) WatchAdjustments(stats func() AdjustmentStats) {
	gauge := func(name, help string, constant prometheus.Labels, value func(AdjustmentStats) float64) prometheus.Collector {
		o := prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: constant}
		return prometheus.NewGaugeFunc(o, func() float64 { return value(stats()) })
	}
	const adjustments, help = "rlsidecar_adjustments", "Adjustments in force: applied, or ignored because they change no limit of this configuration."
	m.registry.MustRegister(
		gauge(adjustments, help, prometheus.Labels{"state": "applied"}, func(s AdjustmentStats) float64 { return float64(s.Applied) }),
		gauge(adjustments, help, prometheus.Labels{"state": "ignored"}, func(s AdjustmentStats) float64 { return float64(s.Ignored) }),
		gauge("rlsidecar_adjustments_version", "Number of changes of adjustments that this process knows.", nil,
			func(s AdjustmentStats) float64 { return float64(s.Version) }),
		gauge("rlsidecar_adjustments_age_seconds", "Time since the store of adjustments last answered.", nil,
			func(s AdjustmentStats) float64 { return s.Age.Seconds() }),
		gauge("rlsidecar_adjustments_lost", "Adjustments that Redis has lost, for example in a failover, and that an operator must set or delete again.", nil,
			func(s AdjustmentStats) float64 { return float64(s.Lost) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "rlsidecar_adjustments_rewritten_total", Help: "Changes of adjustments that Redis had lost, for example in a failover, and that this process wrote again.",
		}, func() float64 { return float64(stats().Rewritten) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "rlsidecar_adjustments_poll_errors_total", Help: "Failed polls for new adjustments.",
		}, func() float64 { return float64(stats().PollErrors) }),
	)
}
