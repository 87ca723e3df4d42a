package metrics

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
)

func (l *limitCounts) totals() (t history.Totals) {
	t.Denied = l.blocked()
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

// Totals returns the numbers of decisions of the limit to which p belongs, at all places that use it. They are zero for a
// limit that has decided nothing, and for one that is counted as overflow.
func (m *Metrics) Totals(p *limiter.Policy) history.Totals {
	if l := m.countsOf(p); l != nil {
		return l.totals()
	}
	return history.Totals{}
}

// countsOf returns the counters of the limit to which p belongs, or nil if it has none of its own.
func (m *Metrics) countsOf(p *limiter.Policy) *limitCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limits.all[[2]string{p.Domain, p.Name}]
}

// EachLimit calls visit for each limit that has decided a request. visit must return quickly, because a reload waits for
// it.
func (m *Metrics) EachLimit(visit func(history.Key, history.Totals)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, l := range m.limits.all {
		visit(history.Key{Domain: key[0], Limit: key[1]}, l.totals())
	}
}

// Requests has numbers of requests since the program started. Requests that were answered with an error count as Denied.
// Undecided are those of Denied that no limit denied: a store could not decide. Requests that Refused counted are not
// included.
type Requests struct{ Allowed, Denied, Undecided uint64 }

// Requests returns the numbers of requests.
func (m *Metrics) Requests() Requests {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests()
}

// requests is Requests for a caller that holds m.mu.
func (m *Metrics) requests() (n Requests) {
	n.Allowed = m.domainNotFound.sum(0)
	for _, d := range m.domains.all {
		n.Allowed += d.sum(requestOK)
		n.Denied += d.sum(requestOver) + d.sum(requestError)
		n.Undecided += d.sum(requestUndecided)
	}
	return n
}
