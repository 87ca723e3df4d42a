package metrics

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Tally is what one limit decided since the program started, wherever it is used.
type Tally struct {
	// Shadowed is how often shadow mode allowed what the limit would have denied. Allowed does not contain it.
	Allowed, Denied, Shadowed uint64
}

// Sum is how often the limit decided.
func (t Tally) Sum() uint64 { return t.Allowed + t.Denied + t.Shadowed }

// tally adds the counters of l.
func (l *limitCounts) tally() (t Tally) {
	t.Denied = l.blockedSum()
	for o := range outcomeCount {
		switch n := l.sum(int(o)); {
		case limiter.Outcome(o) == limiter.Shadowed:
			t.Shadowed += n
		case o == never || limiter.Outcome(o).Denies():
			t.Denied += n
		default:
			t.Allowed += n
		}
	}
	return t
}

// Tally returns the Tally of the limit that p stands for.
func (m *Metrics) Tally(p *descriptors.Policy) Tally {
	m.mu.Lock()
	l := m.limits[[2]string{p.Domain, p.Name}]
	m.mu.Unlock()
	if l == nil {
		return Tally{}
	}
	return l.tally()
}

// Tallies calls visit for each limit that decided something. It must be quick: a reload waits for it.
func (m *Metrics) Tallies(visit func(domain, limit string, t Tally)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, l := range m.limits {
		visit(key[0], key[1], l.tally())
	}
}

// Requests returns how many requests were allowed and denied since the program started; failed ones count as denied.
func (m *Metrics) Requests() (allowed, denied uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	allowed = m.domainNotFound.sum(0)
	for _, d := range m.domains {
		allowed += d.sum(requestOK)
		denied += d.sum(requestOver) + d.sum(requestError)
	}
	return allowed, denied
}
