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
		{"Reserved", fmt.Sprintf("%s, %s", units(t.Reserved), times(t.Starts, "request"))},
		{"Settled with the real cost", times(t.Settled, "time")},
		{"Settled without one (unknown_cost)", times(t.Unknown, "time")},
		{"Settled late (after " + duration.Format(s.TTL) + ")", times(t.Late, "time")},
		{"Real costs", units(t.Real)},
		{"Lost beyond max_debt", units(t.Lost)},
	}
	if ended := t.Settled + t.Unknown + t.Late; t.Starts > ended {
		list = append(list, fact{"Not settled by this sidecar", times(t.Starts-ended, "request") + ": still running, settled by another sidecar, or never settled"})
	}
	return list
}

func (p *pages) reserves(l *limiter.Policy) string {
	s := l.Extra().Settle
	if s == nil || p.EstimateNow == nil {
		return ""
	}
	n, learned := p.EstimateNow(l)
	text := units(uint64(max(0, n))) + " until its real cost is known"
	switch {
	case learned:
		return text + " (learned from real costs)"
	case s.Learn != nil:
		return text + " (the first estimate: too few real costs are known)"
	default:
		return text
	}
}

func units(n uint64) string { return times(n, "unit") }

func times(n uint64, what string) string {
	if n != 1 {
		what += "s"
	}
	return count(n) + " " + what
}
