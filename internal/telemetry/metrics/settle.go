package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// settleMetrics holds the metrics of reservations that are not counters of one limit.
type settleMetrics struct {
	ignored *prometheus.CounterVec
	ratio   *prometheus.HistogramVec
}

// settleCounts has the counters of the reservations of one limit.
type settleCounts struct {
	SettleTally
	ratio prometheus.Observer
}

// SettleTally has the numbers of a limit's reservations since the program started. It is zero for a limit without
// reservations, and for one that is counted as overflow.
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

func newSettleMetrics() settleMetrics {
	return settleMetrics{
		ignored: counterVec("rlsidecar_settle_ignored_total",
			"Ids of reservations that settled nothing, by reason. none: nothing was reserved. forged: the signature is wrong. foreign: the id is of another domain. changed: the limit was removed, no longer has settle, or has another algorithm. expired: the reservation of an application has expired.",
			"domain", "reason"),
		ratio: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rlsidecar_settle_cost_ratio", Help: "Real cost of a request divided by what it reserved. Above 1, the estimate was too low.",
			Buckets: []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 10},
		}, []string{"domain", "limit"}),
	}
}

// settlements returns the counters of the reservations of l. It creates them at the first reservation.
func (m *Metrics) settlements(l *limitCounts) *settleCounts {
	if s := l.settle.Load(); s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.settle.Load() == nil {
		l.settle.Store(&settleCounts{ratio: m.settle.ratio.WithLabelValues(l.domain, l.limit)})
	}
	return l.settle.Load()
}

// unseen returns counters for the reservations of a removed limit, which have no series.
func unseen() *settleCounts {
	return &settleCounts{ratio: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "unseen"})}
}

// observeSettlements counts what c reserves and settles.
func (m *Metrics) observeSettlements(t *domainTable, c *limiter.Call) {
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || !c.Reserves(r) {
			continue
		}
		if one := m.countedBy(t, r.Policy); one != nil {
			s := m.settlements(one.limitCounts)
			atomic.AddUint64(&s.Starts, 1)
			atomic.AddUint64(&s.Reserved, uint64(r.Cost))
		}
	}
	for i := range c.Settlements {
		s := &c.Settlements[i]
		if s.Policy == nil {
			m.settle.ignored.WithLabelValues(label(c.Verdict.Domain.Name), s.Reason.String()).Inc()
		} else if one := m.countedBy(t, s.Policy); one != nil {
			m.settlements(one.limitCounts).settle(s)
		}
	}
}

func (s *settleCounts) settle(one *limiter.Settlement) {
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

func (s *settleCounts) read() (t SettleTally) {
	t.Starts, t.Reserved = atomic.LoadUint64(&s.Starts), atomic.LoadUint64(&s.Reserved)
	t.Settled, t.Unknown, t.Late = atomic.LoadUint64(&s.Settled), atomic.LoadUint64(&s.Unknown), atomic.LoadUint64(&s.Late)
	t.Repeated, t.Failed = atomic.LoadUint64(&s.Repeated), atomic.LoadUint64(&s.Failed)
	t.Real, t.Lost = atomic.LoadUint64(&s.Real), atomic.LoadUint64(&s.Lost)
	return t
}

func (s *settleCounts) collect(send func(*prometheus.Desc, uint64, ...string), l *limitCounts) {
	t := s.read()
	send(startsDesc, t.Starts, l.domain, l.limit)
	for kind, n := range map[string]uint64{"reserved": t.Reserved, "real": t.Real, "lost": t.Lost} {
		send(unitsDesc, n, l.domain, l.limit, kind)
	}
	for result, n := range map[string]uint64{"settled": t.Settled, "unknown": t.Unknown, "late": t.Late, "repeated": t.Repeated, "failed": t.Failed} {
		send(settlementsDesc, n, l.domain, l.limit, result)
	}
}

// SettleTally returns the SettleTally of the limit to which p belongs.
func (m *Metrics) SettleTally(p *limiter.Policy) SettleTally {
	if l := m.countsOf(p); l != nil {
		if s := l.settle.Load(); s != nil {
			return s.read()
		}
	}
	return SettleTally{}
}
