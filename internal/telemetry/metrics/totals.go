package metrics

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// Tally has the numbers of one limit's decisions since the program started, at all places that use the limit.
type Tally struct {
	// Shadowed is the number of requests that shadow mode allowed although the limit was reached. Allowed does not
	// include them.
	Allowed, Denied, Shadowed uint64
}

// Sum returns the number of all decisions.
func (t Tally) Sum() uint64 { return t.Allowed + t.Denied + t.Shadowed }

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

// Tally returns the Tally of the limit to which p belongs. It is zero for a limit that has decided nothing, and for one
// that is counted as overflow.
func (m *Metrics) Tally(p *limiter.Policy) Tally {
	m.mu.Lock()
	l := m.limits[[2]string{p.Domain, p.Name}]
	m.mu.Unlock()
	if l == nil {
		return Tally{}
	}
	return l.tally()
}

// Tallies calls visit for each limit that has decided a request. visit must return quickly, because a reload
// waits for it.
func (m *Metrics) Tallies(visit func(domain, limit string, t Tally)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, l := range m.limits {
		visit(key[0], key[1], l.tally())
	}
}

// Requests returns the numbers of requests that were allowed and denied since the program started. Requests that
// were answered with an error count as denied. Requests that Refused counted are not included.
func (m *Metrics) Requests() (allowed, denied uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests()
}

// requests is Requests for a caller that holds m.mu.
func (m *Metrics) requests() (allowed, denied uint64) {
	allowed = m.domainNotFound.sum(0)
	for _, d := range m.domains {
		allowed += d.sum(requestOK)
		denied += d.sum(requestOver) + d.sum(requestError)
	}
	return allowed, denied
}
