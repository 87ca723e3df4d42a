package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// settleMetrics holds the metrics of limits with settle. Their labels come from the configuration. Their
// number is bounded: limits beyond mostSettling share a series.
type settleMetrics struct {
	reserved    *prometheus.CounterVec
	units       *prometheus.CounterVec
	settlements *prometheus.CounterVec
	ignored     *prometheus.CounterVec
	error       *prometheus.HistogramVec

	limits sync.Map // maps *limiter.Policy to *settleSeries

	mu   sync.Mutex
	used map[[2]string]*settleSeries // by domain and limit; guarded by mu
}

const (
	mostSettling  = 1000
	otherSettling = "(others)"
)

type settleSeries struct {
	starts, reserved, real, lost             prometheus.Counter
	settled, unknown, late, repeated, failed prometheus.Counter
	error                                    prometheus.Observer
}

func newSettleMetrics() *settleMetrics {
	of := []string{"domain", "limit"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &settleMetrics{
		reserved: counter("rlsidecar_settle_starts_total", "Reservations that requests made of limits with settle.", of...),
		units: counter("rlsidecar_settle_units_total",
			"Units of limits with settle, by kind. reserved: by requests. real: real costs that were settled. lost: not charged, because the debt would have exceeded max_debt.",
			append(of, "kind")...),
		settlements: counter("rlsidecar_settlements_total",
			"Settlements by result. settled: with the real cost. unknown: without it. late: after the ttl. repeated: the reservation was settled before, so nothing changed. failed: the store failed.",
			append(of, "result")...),
		ignored: counter("rlsidecar_settle_ignored_total",
			"Ids of reservations that settled nothing, by reason. none: nothing was reserved. forged: the signature is wrong. foreign: the id is of another domain. changed: the limit was removed, no longer has settle, or has another algorithm. expired: the reservation of an application has expired.",
			"domain", "reason"),
		error: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rlsidecar_settle_cost_ratio", Help: "Real cost of a request divided by what it reserved. Above 1, the estimate was too low.",
			Buckets: []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 10},
		}, of),
		used: map[[2]string]*settleSeries{},
	}
}

func (s *settleMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{s.reserved, s.units, s.settlements, s.ignored, s.error}
}

// swapped removes the series of limits that are no longer in the configuration.
func (s *settleMetrics) swapped(next *limiter.Snapshot) {
	s.limits.Clear()
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[[2]string]bool{}
	for _, d := range next.Domains {
		for _, p := range d.Settling {
			kept[[2]string{label(p.Domain), label(p.Name)}] = true
		}
	}
	for of := range s.used {
		if kept[of] || of[1] == otherSettling {
			continue
		}
		delete(s.used, of)
		labels := prometheus.Labels{"domain": of[0], "limit": of[1]}
		s.reserved.DeletePartialMatch(labels)
		s.units.DeletePartialMatch(labels)
		s.settlements.DeletePartialMatch(labels)
		s.error.DeletePartialMatch(labels)
	}
}

// of returns the series of the limit of p, and makes them if necessary. Once mostSettling limits have series, all
// further limits share the series of otherSettling.
func (s *settleMetrics) of(p *limiter.Policy) *settleSeries {
	if have, ok := s.limits.Load(p); ok {
		return have.(*settleSeries)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := [2]string{label(p.Domain), label(p.Name)}
	series := s.used[of]
	if series == nil && len(s.used) >= mostSettling {
		of = [2]string{"", otherSettling}
		series = s.used[of]
	}
	if series == nil {
		series = s.make(of[0], of[1])
		s.used[of] = series
	}
	if p.Adjusted == nil { // a policy of the configuration; the number of these is bounded
		s.limits.Store(p, series)
	}
	return series
}

func (s *settleMetrics) make(domain, limit string) *settleSeries {
	units := func(kind string) prometheus.Counter { return s.units.WithLabelValues(domain, limit, kind) }
	result := func(name string) prometheus.Counter { return s.settlements.WithLabelValues(domain, limit, name) }
	return &settleSeries{
		starts: s.reserved.WithLabelValues(domain, limit), reserved: units("reserved"), real: units("real"), lost: units("lost"),
		settled: result("settled"), unknown: result("unknown"), late: result("late"), repeated: result("repeated"), failed: result("failed"),
		error: s.error.WithLabelValues(domain, limit),
	}
}

func (s *settleMetrics) observe(c *limiter.Call) {
	for i := range c.Results {
		if r := &c.Results[i]; r.Policy != nil && c.Reserves(r) {
			series := s.of(r.Policy)
			series.starts.Inc()
			series.reserved.Add(float64(r.Cost))
		}
	}
	for i := range c.Settlements {
		one := &c.Settlements[i]
		if one.Policy == nil {
			s.ignored.WithLabelValues(label(c.Verdict.Domain.Name), one.Reason.String()).Inc()
			continue
		}
		s.of(one.Policy).settle(one)
	}
}

func (s *settleSeries) settle(one *limiter.Settlement) {
	switch {
	case one.Failed():
		s.failed.Inc()
		return
	case one.Repeated:
		s.repeated.Inc()
		return
	case one.Late:
		s.late.Inc()
	case one.Unknown:
		s.unknown.Inc()
	default:
		s.settled.Inc()
	}
	s.real.Add(float64(one.Real))
	s.lost.Add(float64(one.Decision.Lost))
	if !one.Unknown && one.Reserved > 0 {
		s.error.Observe(float64(one.Real) / float64(one.Reserved))
	}
}
