package metrics

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// outcomes are the indexes of a limit's counters: the values of limiter.Outcome, and never, for a denial that
// waiting cannot change. Denials of a key that a penalty or an adjustment blocks have a separate counter,
// because a stripe has no room for another index.
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

// These are the indexes of a domain's counters.
const (
	requestOK = iota
	requestOver
	requestError
	requestUnmatched // requests that are also counted as requestOK
	requestMissing
	requestUndecided // requests that are also counted as requestOver or requestError
)

var requestCodes = [...]string{requestOK: "ok", requestOver: "over_limit", requestError: "error"}

// limitCounts has the counters of one limit. A reload keeps them if the limit's domain and name stay the
// same.
type limitCounts struct {
	counter
	rare          atomic.Pointer[rareCounts] // nil until they are needed
	domain, limit string
}

// rareCounts has the counters that few limits need. Each is one number and has no stripes: what comes before it, such as
// a settlement by the store or the lock of a blocked key's bucket, takes longer than contention here.
type rareCounts struct {
	blocked atomic.Uint64 // denials of blocked keys
	settle  SettleTally   // changed with package atomic
	ratio   prometheus.Histogram
}

func (l *limitCounts) rarely() *rareCounts {
	if r := l.rare.Load(); r != nil {
		return r
	}
	l.rare.CompareAndSwap(nil, &rareCounts{ratio: newSettleRatio(l)})
	return l.rare.Load()
}

func (l *limitCounts) blocked() uint64 {
	if r := l.rare.Load(); r != nil {
		return r.blocked.Load()
	}
	return 0
}

type domainCounts struct {
	counter
	domain string
}

// count counts the answer to c.
func (d *domainCounts) count(at int, c *limiter.Call) {
	switch {
	case c.Err != nil:
		d.counter[at][requestError].Add(1)
	case c.Denied:
		d.counter[at][requestOver].Add(1)
	default:
		d.counter[at][requestOK].Add(1)
	}
	if c.Failed && undecided(c) {
		d.counter[at][requestUndecided].Add(1)
	}
	if c.Missing != nil {
		d.counter[at][requestMissing].Add(1)
	} else if len(c.Results) == 0 && !c.Failed && !c.IsDone() {
		d.counter[at][requestUnmatched].Add(1)
	}
}

// undecided reports whether c was denied only because a store could not decide. A denial of on_backend_failure local is a
// decision.
func undecided(c *limiter.Call) bool {
	return (c.Denied || c.Err != nil) && !slices.ContainsFunc(c.Results, func(r limiter.Result) bool { return r.Outcome.Denies() && r.Decision.Err == nil })
}

// Observe implements limiter.Observer. It allocates nothing for a limit that has counters.
func (m *Metrics) Observe(c *limiter.Call) { m.ObserveAt(c, rand.Uint32()) }

// ObserveAt does what Observe does. The caller provides a random number, whose low 9 bits are used.
func (m *Metrics) ObserveAt(c *limiter.Call, random uint32) {
	// Any stripe is correct, but it should rarely be one that another CPU is using. A random stripe is as good
	// as the stripe of the current CPU, which Go does not expose.
	at := int(random) & (stripes - 1)
	if c.Snapshot == nil { // the request was answered before there was a configuration
		m.Refused("no_config")
		return
	}
	m.service.observe(c)
	m.latency.observe(c, random>>stripeBits)
	if c.Verdict.Domain == nil {
		m.domainNotFound[at][0].Add(1)
		if len(c.Limits) == 0 {
			m.domainNotFound[at][requestUnmatched].Add(1)
		}
		return
	}
	t := m.current.Load().of(c.Verdict.Domain)
	if t == nil {
		return // the domain has been removed since the call began
	}
	domain := t.counts.Load()
	if domain == nil {
		domain = m.firstOfDomain(t)
	}
	domain.count(at, c)
	if c.Verdict.Domain.Settle != nil {
		m.observeSettlements(t, c)
	}
	for i := range c.Results {
		r := &c.Results[i]
		if c.Settle != nil && r.Policy.Extra().Settle != nil {
			continue // counted as a settlement, not as a decision
		}
		if one := m.countedBy(t, r.Policy); one != nil {
			m.count(at, one, c, r)
		}
	}
}

// countedBy returns the counters of p in t, or nil if the limit has been removed since then. p is nil for an override that
// could not be parsed.
func (m *Metrics) countedBy(t *domainTable, p *limiter.Policy) *counted {
	at := 0
	if p != nil {
		at = p.Index + 1
	}
	if uint(at) >= uint(len(t.limits)) { // as uint, so that the index below is not checked again
		return m.first(t, &atomic.Pointer[counted]{}, p)
	}
	if one := t.limits[at].Load(); one != nil {
		return one
	}
	return m.first(t, &t.limits[at], p)
}

func (m *Metrics) count(at int, l *counted, c *limiter.Call, r *limiter.Result) {
	o := outcomes(r.Outcome)
	if r.Outcome == limiter.Denied && r.Decision.Never {
		o = never
	}
	if r.Outcome == limiter.Denied && r.Decision.Blocked > 0 {
		l.rarely().blocked.Add(1)
	} else {
		l.counter[at][o].Add(1)
	}
	if r.Policy == nil || r.Cost <= 0 || c.DryRun {
		return
	}
	hits := l.hits
	if r.Policy.Detailed || len(r.Policy.Extra().StatValues) > 0 {
		hits = m.series.of(r.Policy, entries(c, r), hits)
	}
	hits.add(at, r, m.nearRatio)
}

// entries returns nil if the request named the limit.
func entries(c *limiter.Call, r *limiter.Result) []descriptors.Entry {
	if r.Descriptor >= len(c.Descriptors) {
		return nil
	}
	return c.Descriptors[r.Descriptor].Entries
}

var (
	decisionsDesc = newDesc("rlsidecar_decisions_total{domain,limit,outcome}",
		"Decisions of each limit. Only denied, never, blocked and failed_denied cause a denial. A limit has series from its first decision on; limits beyond the bound share domain and limit (overflow).")
	requestsDesc = newDesc("rlsidecar_requests_total{domain,code}",
		"Requests, by answer. A domain has series from its first request on; domains beyond the bound share domain (overflow).")
	unmatchedDesc = newDesc("rlsidecar_requests_unmatched_total{domain}",
		"Requests that matched no limit and were allowed. The label domain is empty for all domains that are not configured.")
	missingDesc = newDesc("rlsidecar_requests_missing_descriptor_total{domain}",
		"Requests without an entry that the domain requires (require). They are denied.")
	notFoundDesc = newDesc("rlsidecar_domain_not_found_total",
		"Requests for a domain that is not configured. They are allowed.")
)

// Describe implements prometheus.Collector. It sends nothing, because the series change with the configuration.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	requests := m.Requests()
	m.service.collect(send, requests.Allowed+requests.Denied)
	m.latency.collect(out)
	m.mu.Lock()
	defer m.mu.Unlock()
	send(notFoundDesc, m.domainNotFound.sum(0))
	send(unmatchedDesc, m.domainNotFound.sum(requestUnmatched), "")
	for _, d := range m.domains.all {
		for code, name := range requestCodes {
			send(requestsDesc, d.sum(code), d.domain, name)
		}
		send(unmatchedDesc, d.sum(requestUnmatched), d.domain)
		if n := d.sum(requestMissing); n > 0 {
			send(missingDesc, n, d.domain)
		}
	}
	m.series.collect(send)
	for _, l := range m.limits.all {
		for o, name := range outcomeNames {
			// Alerts use these two outcomes, so their series exist from the limit's first decision on. The other
			// series exist only when they are not zero.
			if n := l.sum(o); n > 0 || o == int(limiter.Allowed) || o == int(limiter.Denied) {
				send(decisionsDesc, n, l.domain, l.limit, name)
			}
		}
		if n := l.blocked(); n > 0 {
			send(decisionsDesc, n, l.domain, l.limit, "blocked")
		}
		l.collectSettlements(out, send)
	}
	limits, domains, hits := m.folded()
	send(foldedDesc, limits, "limits")
	send(foldedDesc, domains, "domains")
	send(foldedDesc, hits, "hits")
}
