package metrics

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// settleMetrics holds the metrics of limits with settle. Their labels come from the configuration. Their
// number is bounded: limits beyond mostSettling share a series.
type settleMetrics struct {
	ignored *prometheus.CounterVec
	ratio   *prometheus.HistogramVec

	limits sync.Map // maps *limiter.Policy to *settleSeries

	mu   sync.Mutex
	used map[[2]string]*settleSeries // by domain and limit; guarded by mu
}

const (
	mostSettling  = 1000
	otherSettling = "(others)"
)

type settleSeries struct {
	SettleTally
	ratio prometheus.Observer
}

// SettleTally has the numbers of a limit's reservations since the program started. It is zero for a limit without
// reservations, and for a limit beyond the bound of the metrics, because such limits share counters.
type SettleTally struct {
	// Starts counts reservations. Settled, Unknown and Late count settlements. Repeated and Failed count attempts that
	// settled nothing.
	Starts, Settled, Unknown, Late, Repeated, Failed uint64
	// Reserved, Real and Lost are numbers of units.
	Reserved, Real, Lost uint64
}

var (
	startsDesc = prometheus.NewDesc("rlsidecar_settle_starts_total", "Reservations that requests made of limits with settle.", []string{"domain", "limit"}, nil)
	unitsDesc  = prometheus.NewDesc("rlsidecar_settle_units_total",
		"Units of limits with settle, by kind. reserved: by requests. real: real costs that were settled. lost: not charged, because the debt would have exceeded max_debt.",
		[]string{"domain", "limit", "kind"}, nil)
	settlementsDesc = prometheus.NewDesc("rlsidecar_settlements_total",
		"Settlements by result. settled: with the real cost. unknown: without it. late: after the ttl. repeated: the reservation was settled before, so nothing changed. failed: the store failed.",
		[]string{"domain", "limit", "result"}, nil)
)

func newSettleMetrics() *settleMetrics {
	return &settleMetrics{
		ignored: counterVec("rlsidecar_settle_ignored_total",
			"Ids of reservations that settled nothing, by reason. none: nothing was reserved. forged: the signature is wrong. foreign: the id is of another domain. changed: the limit was removed, no longer has settle, or has another algorithm. expired: the reservation of an application has expired.",
			"domain", "reason"),
		ratio: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rlsidecar_settle_cost_ratio", Help: "Real cost of a request divided by what it reserved. Above 1, the estimate was too low.",
			Buckets: []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 10},
		}, []string{"domain", "limit"}),
		used: map[[2]string]*settleSeries{},
	}
}

func (s *settleMetrics) collect(send func(*prometheus.Desc, uint64, ...string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, series := range s.used {
		t := series.read()
		send(startsDesc, t.Starts, of[0], of[1])
		for kind, n := range map[string]uint64{"reserved": t.Reserved, "real": t.Real, "lost": t.Lost} {
			send(unitsDesc, n, of[0], of[1], kind)
		}
		for result, n := range map[string]uint64{"settled": t.Settled, "unknown": t.Unknown, "late": t.Late, "repeated": t.Repeated, "failed": t.Failed} {
			send(settlementsDesc, n, of[0], of[1], result)
		}
	}
}

// swapped removes the series of limits that are no longer in the configuration.
func (s *settleMetrics) swapped(next *limiter.Snapshot) {
	s.limits.Clear()
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[[2]string]bool{}
	for _, d := range next.Domains {
		for _, p := range d.Settling {
			kept[[2]string{p.Domain, p.Name}] = true
		}
	}
	for of := range s.used {
		if !kept[of] && of[1] != otherSettling {
			delete(s.used, of)
			s.ratio.DeleteLabelValues(of[0], of[1])
		}
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
	of := [2]string{p.Domain, p.Name}
	series := s.used[of]
	if series == nil && len(s.used) >= mostSettling {
		of = [2]string{"", otherSettling}
		series = s.used[of]
	}
	if series == nil {
		series = &settleSeries{ratio: s.ratio.WithLabelValues(of[0], of[1])}
		s.used[of] = series
	}
	if p.Adjusted == nil { // a policy of the configuration; the number of these is bounded
		s.limits.Store(p, series)
	}
	return series
}

func (s *settleMetrics) observe(c *limiter.Call) {
	for i := range c.Results {
		if r := &c.Results[i]; r.Policy != nil && c.Reserves(r) {
			series := s.of(r.Policy)
			atomic.AddUint64(&series.Starts, 1)
			atomic.AddUint64(&series.Reserved, uint64(r.Cost))
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
	result := &s.Settled
	switch {
	case one.Failed():
		atomic.AddUint64(&s.Failed, 1)
		return
	case one.Repeated:
		atomic.AddUint64(&s.Repeated, 1)
		return
	case one.Late:
		result = &s.Late
	case one.Unknown:
		result = &s.Unknown
	}
	atomic.AddUint64(result, 1)
	atomic.AddUint64(&s.Real, uint64(one.Real))
	atomic.AddUint64(&s.Lost, uint64(one.Decision.Lost))
	if !one.Unknown && one.Reserved > 0 {
		s.ratio.Observe(float64(one.Real) / float64(one.Reserved))
	}
}

func (s *settleSeries) read() (t SettleTally) {
	t.Starts, t.Reserved = atomic.LoadUint64(&s.Starts), atomic.LoadUint64(&s.Reserved)
	t.Settled, t.Unknown, t.Late = atomic.LoadUint64(&s.Settled), atomic.LoadUint64(&s.Unknown), atomic.LoadUint64(&s.Late)
	t.Repeated, t.Failed = atomic.LoadUint64(&s.Repeated), atomic.LoadUint64(&s.Failed)
	t.Real, t.Lost = atomic.LoadUint64(&s.Real), atomic.LoadUint64(&s.Lost)
	return t
}

// SettleTally returns the SettleTally of the limit to which p belongs.
func (m *Metrics) SettleTally(p *limiter.Policy) SettleTally {
	m.settle.mu.Lock()
	defer m.settle.mu.Unlock()
	if s := m.settle.used[[2]string{p.Domain, p.Name}]; s != nil {
		return s.read()
	}
	return SettleTally{}
}
