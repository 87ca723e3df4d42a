package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// SettleTally has the numbers of a limit's reservations since the program started. It is zero for a limit without
// reservations, and for a limit beyond the bound of the metrics, because such limits share counters.
type SettleTally struct {
	// Starts counts reservations. Settled, Unknown and Late count settlements. Repeated and Failed count attempts that
	// settled nothing.
	Starts, Settled, Unknown, Late, Repeated, Failed uint64
	// Reserved, Real and Lost are numbers of units.
	Reserved, Real, Lost uint64
}

// SettleTally returns the SettleTally of the limit to which p belongs.
func (m *Metrics) SettleTally(p *limiter.Policy) SettleTally {
	m.settle.mu.Lock()
	s := m.settle.used[[2]string{label(p.Domain), label(p.Name)}]
	m.settle.mu.Unlock()
	if s == nil {
		return SettleTally{}
	}
	return SettleTally{
		Starts: read(s.starts), Settled: read(s.settled), Unknown: read(s.unknown), Late: read(s.late),
		Repeated: read(s.repeated), Failed: read(s.failed),
		Reserved: read(s.reserved), Real: read(s.real), Lost: read(s.lost),
	}
}

func read(c prometheus.Counter) uint64 {
	var d dto.Metric
	if err := c.Write(&d); err != nil {
		return 0
	}
	return uint64(d.GetCounter().GetValue())
}
