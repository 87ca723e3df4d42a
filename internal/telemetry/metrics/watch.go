package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// watcher registers metrics that read statistics of type S.
type watcher[S any] struct {
	m      *Metrics
	stats  func() S
	labels prometheus.Labels
}

func (w watcher[S]) gauge(name, help string, value func(S) float64) {
	o := prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: w.labels}
	w.m.registry.MustRegister(prometheus.NewGaugeFunc(o, func() float64 { return value(w.stats()) }))
}

func (w watcher[S]) total(name, help string, value func(S) float64) {
	o := prometheus.CounterOpts{Name: name, Help: help, ConstLabels: w.labels}
	w.m.registry.MustRegister(prometheus.NewCounterFunc(o, func() float64 { return value(w.stats()) }))
}

// WatchMemory adds the metrics of a memory store. Call it once.
func (m *Metrics) WatchMemory(stats func() memory.Stats) {
	w := watcher[memory.Stats]{m, stats, nil}
	w.gauge("rlsidecar_memory_keys", "Buckets and entries of sliding logs in memory.", func(s memory.Stats) float64 { return float64(s.Keys) })
	w.gauge("rlsidecar_memory_keys_max", "Maximum number of buckets and entries of sliding logs in memory.", func(s memory.Stats) float64 { return float64(s.MaxKeys) })
	w.total("rlsidecar_memory_full_total", "Charges refused because memory had no room for a new bucket.", func(s memory.Stats) float64 { return float64(s.Full) })
	w.total("rlsidecar_memory_swept_total", "Buckets deleted from memory because they were equal to new ones.", func(s memory.Stats) float64 { return float64(s.Swept) })
}

// WatchSlots adds the counters of the slots of concurrency limits. Call it once.
func (m *Metrics) WatchSlots(counts func() limiter.SlotCounts) {
	w := watcher[limiter.SlotCounts]{m, counts, nil}
	w.total("rlsidecar_slots_taken_total", "Slots of concurrency limits that requests took.", func(n limiter.SlotCounts) float64 { return float64(n.Taken) })
	w.total("rlsidecar_slots_expired_units_total", "Units of slots that were neither returned nor renewed within the ttl, counted when a later request found them.",
		func(n limiter.SlotCounts) float64 { return float64(n.Expired) })
	for reporter := range (limiter.SlotCounts{}).Ended {
		for outcome := range (limiter.SlotCounts{}).Ended[reporter] {
			labels := prometheus.Labels{"door": limiter.SlotReporter(reporter).String(), "outcome": limiter.SlotOutcome(outcome).String()}
			watcher[limiter.SlotCounts]{m, counts, labels}.total("rlsidecar_slots_ended_total",
				"Returns and renewals of slots, by the part of the program that noticed the end of the request. Outcomes: returned, renewed, gone (returned before, or expired), lost (a renewal that was too late), foreign (in the memory of another process), bad-id (not signed, or no slots), failed (the store did not answer), refund (a request over RPC with a negative cost, which returns nothing).",
				func(n limiter.SlotCounts) float64 { return float64(n.Ended[reporter][outcome]) })
		}
	}
}

// ConnectionStats describes the connections of a listener.
type ConnectionStats struct {
	Open, Max        int
	Evicted, Refused uint64
}

// WatchConnections adds the metrics of a listener's connections. Call it once for each listener.
func (m *Metrics) WatchConnections(listener string, stats func() ConnectionStats) {
	w := watcher[ConnectionStats]{m, stats, prometheus.Labels{"listener": listener}}
	w.gauge("rlsidecar_connections", "Open connections.", func(s ConnectionStats) float64 { return float64(s.Open) })
	w.gauge("rlsidecar_connections_max", "Maximum number of open connections.", func(s ConnectionStats) float64 { return float64(s.Max) })
	w.total("rlsidecar_connections_evicted_total", "Idle connections closed to make room for new ones.", func(s ConnectionStats) float64 { return float64(s.Evicted) })
	w.total("rlsidecar_connections_refused_total", "Connections refused because the maximum was reached.", func(s ConnectionStats) float64 { return float64(s.Refused) })
}

// WatchLeases adds the metrics of leases. Call it once.
func (m *Metrics) WatchLeases(stats func() stores.CacheStats) {
	w := watcher[stores.CacheStats]{m, stats, nil}
	w.total("rlsidecar_lease_served_total", "Charges decided from leased units, without a call to the backend.", func(s stores.CacheStats) float64 { return float64(s.Served) })
	w.total("rlsidecar_lease_borrowed_units_total", "Units leased from the store.", func(s stores.CacheStats) float64 { return float64(s.Granted) })
	w.total("rlsidecar_lease_returned_units_total", "Unused leased units that were returned to the store. Not counted: units that the bucket had refilled since the lease began.", func(s stores.CacheStats) float64 { return float64(s.Returned) })
	w.gauge("rlsidecar_lease_units", "Units that are leased to this process now.", func(s stores.CacheStats) float64 { return float64(s.Leased) })
	w.gauge("rlsidecar_lease_keys", "Keys with enough requests to have a lease.", func(s stores.CacheStats) float64 { return float64(s.Keys) })
}

// WatchUndos adds a counter of the refunds and clean-ups that were never sent to the backend. Call it once.
func (m *Metrics) WatchUndos(dropped func() int64) {
	watcher[int64]{m, dropped, nil}.total("rlsidecar_backend_undos_dropped_total",
		"Refunds, and deletions of idempotency keys, that were not sent because 1,024 were in flight. If one part of a request is denied, the other parts are refunded. A refund that is not sent makes the limit admit less, never more.",
		func(n int64) float64 { return float64(n) })
}

// WatchBreakers adds a gauge for each server of the backend. The gauge is 1 while the server's circuit
// breaker is open. Call the returned functions when a breaker opens or closes. Call WatchBreakers once.
func (m *Metrics) WatchBreakers() (opened, closed func(server string)) {
	open := gaugeVec("rlsidecar_backend_breaker_open{server}", "1 while the circuit breaker of a server of the backend is open, because the server fails.")
	m.registry.MustRegister(open)
	return func(server string) { open.WithLabelValues(server).Set(1) },
		func(server string) { open.WithLabelValues(server).Set(0) }
}

// WatchControlPlane adds a gauge that is 1 while a stream to the control plane is open. Call the returned
// function when the stream opens or ends. Call WatchControlPlane once.
func (m *Metrics) WatchControlPlane() (connected func(bool)) {
	up := newGauge("rlsidecar_xds_connected", "1 while a stream to the xDS server is open. While it is 0, the configuration does not change.", nil)
	m.registry.MustRegister(up)
	return func(is bool) {
		if is {
			up.Set(1)
		} else {
			up.Set(0)
		}
	}
}

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

// WatchConditions adds a metric of the conditions that list returns. Call it once. The part of a name after a
// slash, such as the address of a server, is omitted to bound the number of series.
func (m *Metrics) WatchConditions(list func() []conditions.Condition) {
	desc := newDesc("rlsidecar_conditions{condition,severity}",
		"Problems that exist now, as listed by /api/conditions: the number of conditions of each name, for all servers and domains.")
	m.registry.MustRegister(prometheus.CollectorFunc(func(out chan<- prometheus.Metric) {
		counts := map[[2]string]float64{}
		for _, c := range list() {
			name, _, _ := strings.Cut(c.Name, "/")
			counts[[2]string{label(name), string(c.Severity)}]++
		}
		for of, n := range counts {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, n, of[0], of[1])
		}
	}))
}
