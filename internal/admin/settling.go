package admin

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func (p *pages) settling(l *limiter.Policy) []fact {
	s := l.Extra().Settle
	if s == nil || p.Settling == nil {
		return nil
	}
	t := p.Settling(l)
	list := []fact{
		{"A request reserves now", p.reserves(l)},
		{"Reserved", fmt.Sprintf("%s, %s", plural(t.Reserved, "unit"), plural(t.Starts, "request"))},
		{"Settled with the real cost", plural(t.Settled, "time")},
		{"Settled without one (unknown_cost)", plural(t.Unknown, "time")},
		{"Settled late (after " + duration.Format(s.TTL) + ")", plural(t.Late, "time")},
		{"Real costs", plural(t.Real, "unit")},
		{"Lost beyond max_debt", plural(t.Lost, "unit")},
	}
	if ended := t.Settled + t.Unknown + t.Late; t.Starts > ended {
		list = append(list, fact{"Not settled by this sidecar", plural(t.Starts-ended, "request") + ": still running, settled by another sidecar, or never settled"})
	}
	return list
}

func (p *pages) reserves(l *limiter.Policy) string {
	s := l.Extra().Settle
	if s == nil {
		return ""
	}
	n, learned := p.Limiter.EstimateNow(l)
	text := plural(n, "unit") + " until its real cost is known"
	switch {
	case learned:
		return text + " (learned from real costs)"
	case s.Learn != nil:
		return text + " (the first estimate: too few real costs are known)"
	default:
		return text
	}
}
