package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

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
	startsDesc = newDesc("rlsidecar_settle_starts_total{domain,limit}", "Reservations that requests made of limits with settle.")
	unitsDesc  = newDesc("rlsidecar_settle_units_total{domain,limit,kind}",
		"Units of limits with settle, by kind. reserved: by requests. real: real costs that were settled. lost: not charged, because the debt would have exceeded max_debt.")
	settlementsDesc = newDesc("rlsidecar_settlements_total{domain,limit,result}",
		"Settlements by result. settled: with the real cost. unknown: without it. late: after the ttl. repeated: the reservation was settled before, so nothing changed. failed: the store failed.")
)

func newSettleRatio(l *limitCounts) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "rlsidecar_settle_cost_ratio", Help: "Real cost of a request divided by what it reserved. Above 1, the estimate was too low.",
		Buckets:     []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 10},
		ConstLabels: prometheus.Labels{"domain": l.domain, "limit": l.limit},
	})
}

// observeSettlements counts what c reserves and settles.
func (m *Metrics) observeSettlements(t *domainTable, c *limiter.Call) {
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || !c.Reserves(r) {
			continue
		}
		if one := m.countedBy(t, r.Policy); one != nil {
			s := &one.rarely().settle
			atomic.AddUint64(&s.Starts, 1)
			atomic.AddUint64(&s.Reserved, uint64(r.Cost))
		}
	}
	for i := range c.Settlements {
		s := &c.Settlements[i]
		if s.Policy == nil {
			m.ignored.WithLabelValues(label(c.Verdict.Domain.Name), s.Reason.String()).Inc()
		} else if one := m.countedBy(t, s.Policy); one != nil {
			one.rarely().settled(s)
		}
	}
}

func (r *rareCounts) settled(one *limiter.Settlement) {
	s, result := &r.settle, &r.settle.Settled
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
		r.ratio.Observe(float64(one.Real) / float64(one.Reserved))
	}
}

func (l *limitCounts) tally() (t SettleTally) {
	r := l.rare.Load()
	if r == nil {
		return t
	}
	s := &r.settle
	t.Starts, t.Reserved = atomic.LoadUint64(&s.Starts), atomic.LoadUint64(&s.Reserved)
	t.Settled, t.Unknown, t.Late = atomic.LoadUint64(&s.Settled), atomic.LoadUint64(&s.Unknown), atomic.LoadUint64(&s.Late)
	t.Repeated, t.Failed = atomic.LoadUint64(&s.Repeated), atomic.LoadUint64(&s.Failed)
	t.Real, t.Lost = atomic.LoadUint64(&s.Real), atomic.LoadUint64(&s.Lost)
	return t
}

// collectSettlements sends nothing if the limit has neither reserved nor settled anything.
func (l *limitCounts) collectSettlements(out chan<- prometheus.Metric, send func(*prometheus.Desc, uint64, ...string)) {
	t := l.tally()
	if t == (SettleTally{}) {
		return
	}
	send(startsDesc, t.Starts, l.domain, l.limit)
	for kind, n := range map[string]uint64{"reserved": t.Reserved, "real": t.Real, "lost": t.Lost} {
		send(unitsDesc, n, l.domain, l.limit, kind)
	}
	for result, n := range map[string]uint64{"settled": t.Settled, "unknown": t.Unknown, "late": t.Late, "repeated": t.Repeated, "failed": t.Failed} {
		send(settlementsDesc, n, l.domain, l.limit, result)
	}
	out <- l.rare.Load().ratio
}

// SettleTally returns the SettleTally of the limit to which p belongs.
func (m *Metrics) SettleTally(p *limiter.Policy) (t SettleTally) {
	if l := m.countsOf(p); l != nil {
		t = l.tally()
	}
	return t
}
