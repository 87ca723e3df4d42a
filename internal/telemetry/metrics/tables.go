package metrics

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
)

// A limit gets its counters at its first decision, so that a configuration of 100,000 limits costs only as
// much as the limits in use.

const (
	// maxLimits bounds the numbers of limits, of domains and of series of hits that have counters of their
	// own. Further ones count as overflow. 10,000 limits produce 70,000 lines of metrics.
	maxLimits = 10_000
	overflow  = "(overflow)"
)

var foldedDesc = newDesc("rlsidecar_metrics_folded{what}",
	"Limits and domains that are counted together as (overflow), because 10,000 others have series of their own. The label what is limits (each descriptor that uses a limit), hits (series of ratelimit_service_rate_limit_*), or domains.")

// table maps the domains of a Snapshot to their counters. It is immutable, except that counters are added.
type table struct {
	domains map[*limiter.Domain]*domainTable
	first   *domainTable // one of domains, often the only one; comparing pointers takes less time than a lookup
}

// of returns the table of d. For a domain of a former Snapshot, it returns a table for one Call if the domain still
// exists, and nil otherwise.
func (t *table) of(d *limiter.Domain) *domainTable {
	if t.first != nil && t.first.domain == d {
		return t.first
	}
	of := t.domains[d]
	if of == nil {
		for now := range t.domains {
			if now.Name == d.Name {
				return &domainTable{domain: now}
			}
		}
	}
	return of
}

// domainTable maps the policies of a compiled domain to their counters.
type domainTable struct {
	domain *limiter.Domain
	counts atomic.Pointer[domainCounts] // nil until the first request
	// limits has the counters of the policy with Index i at i+1, and at 0 those of limits that come with requests. They are
	// nil until the first decision. A table for one Call has no limits.
	limits []atomic.Pointer[counted]
}

type counted struct {
	*limitCounts
	hits *series
}

// Swapped implements limiter.Observer. It removes the counters of limits and domains that s does not have. The others
// get theirs again at their first decision.
func (m *Metrics) Swapped(s *limiter.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &table{domains: make(map[*limiter.Domain]*domainTable, len(s.Domains))}
	limits, hits := map[[2]string]bool{m.limits.overflow: true}, map[string]bool{overflow: true}
	keep := func(domain, name, statKey string) {
		if key := [2]string{domain, name}; m.limits.all[key] != nil { // few limits of a large configuration
			limits[key], hits[statName(statKey)] = true, true
		}
	}
	for name, d := range s.Domains {
		t.first = &domainTable{domain: d, limits: make([]atomic.Pointer[counted], len(d.Policies)+1)}
		t.domains[d] = t.first
		keep(name, "override", name+".override")
		for _, p := range d.Policies {
			keep(p.Domain, p.Name, p.StatKey)
		}
	}
	maps.DeleteFunc(m.limits.all, func(key [2]string, _ *limitCounts) bool { return !limits[key] })
	maps.DeleteFunc(m.domains.all, func(name string, _ *domainCounts) bool { return s.Domains[name] == nil && name != overflow })
	m.series.keep(hits, s.Policies)
	m.current.Store(t)
}

// first creates the counters for place in t, at the first decision. For an override, p is nil or has an Index below 0. It
// returns nil if the limit was removed in the meantime.
func (m *Metrics) first(t *domainTable, place *atomic.Pointer[counted], p *limiter.Policy) *counted {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := place.Load(); have != nil {
		return have
	}
	c := &counted{}
	switch {
	case p == nil || p.Index < 0:
		name := t.domain.Name
		c.limitCounts = m.limit(name, "override")
		c.hits = m.series.static(name+".override", labels{label(name), "override", ""})
	case m.current.Load().domains[t.domain] != t && !m.has(p):
		return nil
	default:
		c.limitCounts = m.limit(p.Domain, p.Name)
		c.hits = m.series.static(p.StatKey, labelsOf(p))
	}
	place.Store(c)
	return c
}

// has reports whether the present configuration has the limit of p. The caller holds m.mu.
func (m *Metrics) has(p *limiter.Policy) bool {
	if m.limits.all[[2]string{p.Domain, p.Name}] != nil { // usually, and the search below takes longer
		return true
	}
	of := m.current.Load().of(&limiter.Domain{Name: p.Domain})
	return of != nil && slices.ContainsFunc(of.domain.Policies, func(other *limiter.Policy) bool { return other.Name == p.Name })
}

// index has groups of counters by key: those of limits, of domains, or of hits.
type index[K comparable, C any] struct {
	all      map[K]*C
	overflow K            // the key of the group that keys without room share
	folding  *atomic.Bool // set when a key has no room
}

// of returns the counters of key, or those of the overflow if there are most groups. It creates them if necessary.
func (x *index[K, C]) of(key K, most int, create func(K) *C) *C {
	one := x.all[key]
	if one == nil && len(x.all) >= most {
		x.folding.Store(true)
		key = x.overflow
		one = x.all[key]
	}
	if one == nil {
		one = create(key)
		x.all[key] = one
	}
	return one
}

// limit returns the counters of a limit. The caller holds m.mu.
func (m *Metrics) limit(domain, name string) *limitCounts {
	return m.limits.of([2]string{domain, name}, m.most, func(key [2]string) *limitCounts {
		return &limitCounts{counter: newCounter(), domain: label(key[0]), limit: label(key[1])}
	})
}

func (m *Metrics) firstOfDomain(t *domainTable) *domainCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.domains.of(t.domain.Name, m.most, func(name string) *domainCounts {
		return &domainCounts{counter: newCounter(), domain: label(name)}
	})
	t.counts.Store(d)
	return d
}

// Folding reports whether a limit or domain has been counted as overflow since the start.
func (m *Metrics) Folding() bool { return m.folding.Load() }

// folded returns the current numbers of limits, domains and series of hits that count as overflow. The caller
// holds m.mu.
func (m *Metrics) folded() (limits, domains, hits uint64) {
	if !m.Folding() {
		return 0, 0, 0
	}
	for _, d := range m.current.Load().domains {
		if c := d.counts.Load(); c != nil && c == m.domains.all[overflow] {
			domains++
		}
		for i := range d.limits {
			c := d.limits[i].Load()
			if c != nil && c.limitCounts == m.limits.all[m.limits.overflow] {
				limits++
			}
			if c != nil && c.hits.labels[0] == overflow {
				hits++
			}
		}
	}
	return limits, domains, hits
}

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
func (m *Metrics) Requests() (n Requests) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n.Allowed = m.domainNotFound.sum(0)
	for _, d := range m.domains.all {
		n.Allowed += d.sum(requestOK)
		n.Denied += d.sum(requestOver) + d.sum(requestError)
		n.Undecided += d.sum(requestUndecided)
	}
	return n
}
