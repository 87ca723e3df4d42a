package metrics

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// A limit gets its counters at its first decision, so that a configuration of 100,000 limits costs only as
// much as the limits in use.

const (
	// maxLimits bounds the numbers of limits, of domains and of series of hits that have counters of their
	// own. Further ones count as overflow. 10,000 limits produce 70,000 lines of metrics.
	maxLimits = 10_000
	overflow  = "(overflow)"
)

var foldedDesc = prometheus.NewDesc("rlsidecar_metrics_folded",
	"Limits and domains that are counted together as (overflow), because 10,000 others have series of their own. The label what is limits (each descriptor that uses a limit), hits (series of ratelimit_service_rate_limit_*), or domains.",
	[]string{"what"}, nil)

// table maps the domains of a Snapshot to their counters. It is immutable, except that counters are added.
type table struct {
	domains map[*limiter.Domain]*domainTable
	byName  map[string]*domainTable
	first   *domainTable // one of domains, often the only one; comparing pointers takes less time than a lookup
}

func (t *table) of(d *limiter.Domain) *domainTable {
	if t.first != nil && t.first.domain == d {
		return t.first
	}
	return t.domains[d]
}

// domainTable maps the policies of a compiled domain to their counters. Snapshots that share the domain share
// its table.
type domainTable struct {
	domain    *limiter.Domain
	counts    atomic.Pointer[domainCounts] // nil until the first request
	overrides atomic.Pointer[counted]
	policies  []atomic.Pointer[counted] // by Policy.Index; nil until the first decision. A table for one Call has none
}

type counted struct {
	*limitCounts
	hits *series
}

// next returns the table of s, and removes the counters of the limits and domains that s does not have. The caller
// holds m.mu.
func (m *Metrics) next(s *limiter.Snapshot) *table {
	before := m.current.Load()
	t := &table{domains: make(map[*limiter.Domain]*domainTable, len(s.Domains)), byName: make(map[string]*domainTable, len(s.Domains))}
	kept := map[[2]string]bool{m.limits.overflow: true}
	for name, d := range s.Domains {
		of := before.domains[d]
		if of == nil {
			of = m.inherit(d, before.byName[name], kept)
		}
		t.domains[d], t.byName[name], t.first = of, of, of
	}
	for key, l := range m.limits.all {
		if of := t.byName[key[0]]; kept[key] || of != nil && before.domains[of.domain] != nil {
			continue
		}
		if l.settle.Swap(unseen()) != nil {
			m.settle.ratio.DeleteLabelValues(l.domain, l.limit)
		}
		delete(m.limits.all, key)
	}
	for name := range m.domains.all {
		if t.byName[name] == nil && name != overflow {
			delete(m.domains.all, name)
		}
	}
	m.series.keep(t.series(), s.Policies)
	return t
}

// inherit returns a table of d with the counters that its limits and descriptors had before. It adds the limits that have
// counters to kept. before is the former table of the domain with this name, or nil. The caller holds m.mu.
func (m *Metrics) inherit(d *limiter.Domain, before *domainTable, kept map[[2]string]bool) *domainTable {
	t := &domainTable{domain: d, policies: make([]atomic.Pointer[counted], len(d.Policies))}
	if before != nil {
		t.overrides.Store(before.overrides.Load())
	}
	kept[[2]string{d.Name, "override"}] = true
	for i, p := range d.Policies {
		limit := m.limits.all[[2]string{p.Domain, p.Name}]
		if limit == nil {
			continue
		}
		kept[[2]string{p.Domain, p.Name}] = true
		if hits := m.series.find(p.StatKey); hits != nil {
			t.policies[i].Store(&counted{limit, hits})
		}
	}
	return t
}

func (t *table) series() map[*series]bool {
	used := map[*series]bool{}
	for _, d := range t.byName {
		d.each(func(c *counted) { used[c.hits] = true })
	}
	return used
}

func (t *domainTable) each(visit func(*counted)) {
	if c := t.overrides.Load(); c != nil {
		visit(c)
	}
	for i := range t.policies {
		if c := t.policies[i].Load(); c != nil {
			visit(c)
		}
	}
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
	switch current := m.current.Load(); {
	case p == nil || p.Index < 0:
		name := t.domain.Name
		c.limitCounts = m.limit(name, "override")
		c.hits = m.series.static(name+".override", labels{label(name), "override", ""})
	case current.domains[t.domain] != t && !m.has(current.byName[p.Domain], p):
		return nil
	default:
		c.limitCounts = m.limit(p.Domain, p.Name)
		c.hits = m.series.static(p.StatKey, labelsOf(p))
	}
	place.Store(c)
	return c
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
		return &limitCounts{counter: newCounter(m.stripes), domain: label(key[0]), limit: label(key[1])}
	})
}

func (m *Metrics) firstOfDomain(t *domainTable) *domainCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.domains.of(t.domain.Name, m.most, func(name string) *domainCounts {
		return &domainCounts{counter: newCounter(m.stripes), domain: label(name)}
	})
	t.counts.Store(d)
	return d
}

// has reports whether t contains the limit of p. t may be nil. The caller holds m.mu.
func (m *Metrics) has(t *domainTable, p *limiter.Policy) bool {
	return t != nil && (m.limits.all[[2]string{p.Domain, p.Name}] != nil || // usually true, and takes less time than the search below
		slices.ContainsFunc(t.domain.Policies, func(other *limiter.Policy) bool { return other.Name == p.Name }))
}

// Folding reports whether a limit or domain has been counted as overflow since the start.
func (m *Metrics) Folding() bool { return m.folding.Load() }

// folded returns the current numbers of limits, domains and series of hits that count as overflow. The caller
// holds m.mu.
func (m *Metrics) folded() (limits, domains, hits uint64) {
	if !m.Folding() {
		return 0, 0, 0
	}
	for _, d := range m.current.Load().byName {
		if c := d.counts.Load(); c != nil && c == m.domains.all[overflow] {
			domains++
		}
		d.each(func(c *counted) {
			if c.limitCounts == m.limits.all[m.limits.overflow] {
				limits++
			}
			if c.hits.labels[0] == overflow {
				hits++
			}
		})
	}
	return limits, domains, hits
}
