package metrics

import (
	"math/rand/v2"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// outcomes number the counters of a limit: limiter.Outcome, and never for a denial for good. What a
// penalty denies is counted apart: a stripe has no more room.
type outcomes uint8

const (
	never        = outcomes(limiter.FailedDenied) + 1
	outcomeCount = never + 1
)

var outcomeNames = [outcomeCount]string{
	limiter.Allowed:       "allowed",
	limiter.Denied:        "denied",
	limiter.Shadowed:      "shadowed",
	limiter.Unlimited:     "unlimited",
	limiter.Replaced:      "replaced",
	limiter.FailedAllowed: "failed_allowed",
	limiter.FailedDenied:  "failed_denied",
	never:                 "never",
}

// The counters of a domain.
const (
	requestOK = iota
	requestOver
	requestError
)

var requestCodes = [...]string{requestOK: "ok", requestOver: "over_limit", requestError: "error"}

// limitCounts are the decisions of one limit. They outlive reloads that keep its domain and name.
type limitCounts struct {
	counter
	blocked       counter // of which only the first is used
	domain, limit string
	hits          *series
	of            *domainCounts // whose limit it is; nil: it is not known
}

// domainCounts are the requests of one domain, and what its overrides decided.
type domainCounts struct {
	counter
	domain    string
	overrides *limitCounts
}

// table finds the counters of one Snapshot. It is never edited.
type table struct {
	snapshot *limiter.Snapshot
	policies map[*descriptors.Policy]*limitCounts
	domains  map[*limiter.Domain]*domainCounts
}

// Swapped implements limiter.Observer: it makes the counters of s, and drops those of limits that
// s has not.
func (m *Metrics) Swapped(s *limiter.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &table{snapshot: s, policies: make(map[*descriptors.Policy]*limitCounts, len(s.Policies)), domains: make(map[*limiter.Domain]*domainCounts, len(s.Domains))}
	limits := make(map[[2]string]*limitCounts, len(s.Policies))
	use := func(domain, name string) *limitCounts {
		key := [2]string{domain, name}
		l := limits[key]
		if l == nil {
			if l = m.limits[key]; l == nil {
				l = &limitCounts{counter: newCounter(m.stripes), blocked: newCounter(m.stripes), domain: label(domain), limit: label(name)}
			}
			limits[key] = l
		}
		return l
	}
	static, statKeys := map[string]bool{}, map[string]bool{}
	domains := make(map[string]*domainCounts, len(s.Domains))
	for name, d := range s.Domains {
		c := m.domains[name]
		if c == nil {
			c = &domainCounts{counter: newCounter(m.stripes), domain: label(name)}
		}
		l := *use(name, "override")
		l.hits = m.series.static(name+".override", labels{label(name), "override", ""}, static)
		c = &domainCounts{counter: c.counter, domain: c.domain, overrides: &l}
		domains[name], t.domains[d] = c, c
	}
	for _, p := range s.Policies {
		l := *use(p.Domain, p.Name) // the same counters, but hits go by the place of use
		l.hits, l.of = m.series.static(p.StatKey, labelsOf(p), static), domains[p.Domain]
		t.policies[p] = &l
		statKeys[p.StatKey] = true
	}
	m.series.keep(static, statKeys)
	m.limits, m.domains = limits, domains
	m.current.Store(t)
}

// Observe implements limiter.Observer. It allocates nothing.
func (m *Metrics) Observe(c *limiter.Call) {
	// Which stripe does not matter, only that it is seldom another processor's: a random one does
	// as well as the processor's own, which Go does not tell.
	at := int(rand.Uint32()) & (m.stripes - 1)
	if c.Snapshot == nil { // answered before there was one
		m.Refused("no_config")
		return
	}
	m.service.observe(c)
	if c.Verdict.Domain == nil {
		m.domainNotFound[at][0].Add(1)
		return
	}
	t := m.current.Load()
	if t.snapshot != c.Snapshot {
		t = m.late(c)
	}
	domain := t.domain(c)
	if domain == nil {
		return
	}
	switch {
	case c.Err != nil:
		domain.counter[at][requestError].Add(1)
	case c.Denied:
		domain.counter[at][requestOver].Add(1)
	default:
		domain.counter[at][requestOK].Add(1)
	}
	for i := range c.Results {
		r := &c.Results[i]
		l := domain.overrides // also of one that could not be read, which has no policy
		if r.Policy != nil && r.Policy.Index >= 0 {
			l = t.policies[r.Policy]
		}
		if l != nil {
			m.count(at, l, c, r)
		}
	}
}

// domain is that of c, which a limit tells without looking for it; nil: it is not there.
func (t *table) domain(c *limiter.Call) *domainCounts {
	if len(c.Results) > 0 {
		if p := c.Results[0].Policy; p != nil && p.Index >= 0 {
			if l := t.policies[p]; l != nil && l.of != nil {
				return l.of
			}
		}
	}
	return t.domains[c.Verdict.Domain]
}

func (m *Metrics) count(at int, l *limitCounts, c *limiter.Call, r *limiter.Result) {
	o := outcomes(r.Outcome)
	if r.Outcome == limiter.Denied && r.Decision.Never {
		o = never
	}
	if r.Outcome == limiter.Denied && r.Decision.Blocked > 0 {
		l.blocked[at][0].Add(1)
	} else {
		l.counter[at][o].Add(1)
	}
	if r.Policy == nil || r.Cost <= 0 || c.Look {
		return
	}
	hits := l.hits
	if r.Policy.Detailed || len(r.Policy.Extra().StatValues) > 0 {
		hits = m.series.of(r.Policy, entries(c, r), hits)
	}
	hits.add(at, r, m.nearRatio)
}

// late finds the counters for c, which was under way when the configuration changed. What is not
// there any more is missing.
func (m *Metrics) late(c *limiter.Call) *table {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &table{policies: map[*descriptors.Policy]*limitCounts{}}
	if d := m.domains[c.Verdict.Domain.Name]; d != nil {
		t.domains = map[*limiter.Domain]*domainCounts{c.Verdict.Domain: d}
	}
	for i := range c.Results {
		p := c.Results[i].Policy
		if p == nil || p.Index < 0 {
			continue
		}
		if l := m.limits[[2]string{p.Domain, p.Name}]; l != nil {
			found := *l
			found.hits, found.of = m.series.static(p.StatKey, labelsOf(p), nil), m.domains[p.Domain]
			t.policies[p] = &found
		}
	}
	return t
}

// entries are those of r's descriptor; nil where the limit was asked for by its name.
func entries(c *limiter.Call, r *limiter.Result) []descriptors.Entry {
	if r.Descriptor >= len(c.Descriptors) {
		return nil
	}
	return c.Descriptors[r.Descriptor].Entries
}

var (
	decisionsDesc = prometheus.NewDesc("rlsidecar_decisions_total",
		"What each limit decided. Only denied, never, blocked and failed_denied stand against a request.",
		[]string{"domain", "limit", "outcome"}, nil)
	requestsDesc = prometheus.NewDesc("rlsidecar_requests_total",
		"Requests answered, by the answer.", []string{"domain", "code"}, nil)
	notFoundDesc = prometheus.NewDesc("rlsidecar_domain_not_found_total",
		"Requests for a domain that is not configured; they are allowed.", nil, nil)
)

// Describe implements prometheus.Collector: as what there is changes with the configuration, it
// names nothing.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	send(notFoundDesc, m.domainNotFound.sum(0))
	m.service.collect(send)
	for _, d := range m.domains {
		for code, name := range requestCodes {
			send(requestsDesc, d.sum(code), d.domain, name)
		}
	}
	for _, l := range m.limits {
		for o, name := range outcomeNames {
			// The two that alerts are made of are there from the start, the others once they happen.
			if n := l.sum(o); n > 0 || o == int(limiter.Allowed) || o == int(limiter.Denied) {
				send(decisionsDesc, n, l.domain, l.limit, name)
			}
		}
		if n := l.blocked.sum(0); n > 0 {
			send(decisionsDesc, n, l.domain, l.limit, "blocked")
		}
	}
	m.series.collect(send)
}
