package config

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// settleNames is the section settle of a domain: the keys of the two entries with which a proxy returns the
// id of a reservation.
type settleNames struct {
	Key text `key:"key"`
	End text `key:"end"`
}

type settleTerms struct {
	at            place
	Estimate      estimate    `key:"estimate"`
	Least         whole       `key:"least"`
	Most          whole       `key:"most"`
	TrustDeclared boolean     `key:"trust_declared"`
	UnknownCost   unknownCost `key:"unknown_cost"`
	TTL           span        `key:"ttl"`
	MaxDebt       whole       `key:"max_debt"`
	By            text        `key:"by"`
}

type (
	settleDomain struct{ given[limiter.SettleEntries] }
	settling     struct{ given[*settleTerms] }
	percentile   struct{ given[float64] }      // "p90", stored as 0.9
	unknownCost  struct{ given[unknownUnits] } // estimate, most, or a number of units
)

// estimate is a number of units, or a description of how to learn that number.
type estimate struct {
	given[int64]
	learned *estimateTerms // nil if the estimate is not learned
}

type estimateTerms struct {
	Learn percentile `key:"learn"`
	First whole      `key:"first"`
	Least whole      `key:"least"`
	Most  whole      `key:"most"`
	Per   textList   `key:"per"`
}

// unknownUnits is the charge for a request whose real cost no client has reported.
type unknownUnits struct {
	most  bool  // the charge is the value of the key "most"
	units int64 // -1 means the reserved units; not used if most is true
}

// A TTL is how long unused units of a reservation can be refunded.
const (
	defaultSettleTTL           = 600 * algorithms.Second
	minSettleTTL, maxSettleTTL = algorithms.Second, algorithms.Day
	settleExample              = "{estimate: 1500, ttl: 10m}"
	mostSettleName             = 128
	unknownCostWords           = "estimate (what was reserved), most, or a number of units"
	settleCombination          = "settle cannot be combined with "
	settleAlgorithms           = "settle belongs to algorithm token_bucket, and to fixed_window without rollover"
)

func (s *settleDomain) read(p *parser, key string, n *yaml.Node) {
	names, before := &settleNames{}, p.mistakes
	p.object(n, key, names)
	entries := limiter.DefaultSettle
	for _, name := range []struct {
		of   *text
		key  string
		into *string
	}{{&names.Key, "key", &entries.Key}, {&names.End, "end", &entries.End}} {
		switch {
		case !name.of.ok:
		case name.of.value == "" || len(name.of.value) > mostSettleName:
			p.mistake(name.of.at, "%s: %s must be the key of an entry, of 1 to %d bytes", key, name.key, mostSettleName)
		default:
			*name.into = name.of.value
		}
	}
	if p.mistakes == before && entries.Key == entries.End {
		p.mistake(p.at(n), "%s: key and end are both %q; they are the keys of two entries, give them different names", key, short(entries.Key))
	}
	s.set(p, n, entries, p.mistakes == before)
}

func (s *settling) read(p *parser, key string, n *yaml.Node) {
	terms, before := &settleTerms{at: p.at(n)}, p.mistakes
	p.object(n, key, terms)
	if p.mistakes == before && !terms.Estimate.ok {
		p.mistake(p.at(n), "%s needs estimate, the units that a request reserves: %s", key, settleExample)
	}
	if e := terms.Estimate.learned; e != nil {
		for _, bound := range []struct {
			key          string
			inner, outer *whole
		}{{"least", &e.Least, &terms.Least}, {"most", &e.Most, &terms.Most}} {
			switch {
			case !bound.inner.stated():
			case bound.outer.stated():
				p.mistake(bound.inner.at, "%s is stated in settle already; state it once", bound.key)
			default:
				*bound.outer = *bound.inner
			}
		}
	}
	s.set(p, n, terms, p.mistakes == before)
}

func (e *estimate) read(p *parser, key string, n *yaml.Node) {
	if follow(n).Kind == yaml.MappingNode {
		terms, before := &estimateTerms{}, p.mistakes
		p.object(n, key, terms)
		if p.mistakes == before && (!terms.Learn.ok || !terms.First.ok) {
			p.mistake(p.at(n), "%s needs learn and first, the estimate until enough is known: {learn: p90, first: 1500}", key)
		}
		e.learned = terms
		e.set(p, n, terms.First.value, p.mistakes == before)
		return
	}
	var w whole
	w.read(p, key, n)
	if w.ok && w.value < 1 {
		p.mistake(p.at(n), "%s must be at least 1, but is %d", key, w.value)
		w.ok = false
	}
	e.set(p, n, w.value, w.ok)
}

func (q *percentile) read(p *parser, key string, n *yaml.Node) {
	v := follow(n)
	digits, isP := strings.CutPrefix(v.Value, "p")
	number, err := strconv.ParseUint(digits, 10, 8)
	ok := v.Kind == yaml.ScalarNode && isP && err == nil && number >= 1 && number <= 99
	if !ok {
		p.mistake(p.at(n), "%s must be a percentile from p1 to p99, such as p90, but is %s", key, describe(n))
	}
	q.set(p, n, float64(number)/100, ok)
}

func (u *unknownCost) read(p *parser, key string, n *yaml.Node) {
	v := follow(n)
	isScalar := v.Kind == yaml.ScalarNode
	switch units, err := strconv.ParseInt(v.Value, 10, 64); {
	case isScalar && v.Value == "estimate":
		u.set(p, n, unknownUnits{units: -1}, true)
	case isScalar && v.Value == "most":
		u.set(p, n, unknownUnits{most: true}, true)
	case isScalar && v.ShortTag() == "!!int" && err == nil && units >= 0:
		u.set(p, n, unknownUnits{units: units}, true)
	default:
		p.mistake(p.at(n), "%s must be %s, but is %s", key, unknownCostWords, describe(n))
		u.set(p, n, unknownUnits{}, false)
	}
}

// settles checks the section settle of l and adds it to p. s has the numbers of l, which must be free of
// mistakes.
func (c *compiler) settles(l *limit, p *draft, s algorithms.Spec) {
	before := c.mistakes
	c.settleAlone(l, p)
	c.settleNumbers(l.Settle.value, p.Limit.Capacity)
	if c.mistakes > before {
		return
	}
	terms := l.Settle.value
	s.Settles, s.MaxDebt = true, terms.MaxDebt.pointer()
	if terms.By.ok {
		s.OpenFor = terms.TTL.or(defaultSettleTTL)
	}
	c.numbers(l, p, s)
	settle := &limiter.SettleTerms{
		Estimate: terms.Estimate.value, Least: terms.Least.value, Most: terms.Most.or(p.Limit.Capacity),
		TrustDeclared: terms.TrustDeclared.value, Unknown: -1, TTL: terms.TTL.or(defaultSettleTTL),
		ByBucket: terms.By.ok,
	}
	if u := terms.UnknownCost; u.ok {
		if settle.Unknown = u.value.units; u.value.most {
			settle.Unknown = settle.Most
		}
	}
	if e := terms.Estimate.learned; e != nil {
		const quarter = 4
		least := (e.First.value + quarter - 1) / quarter
		settle.Learn = &limiter.Learn{Quantile: e.Learn.value, Least: max(1, terms.Least.or(least)), Values: map[string]map[string]bool{}}
		for _, key := range e.Per.value {
			settle.Learn.Per = append(settle.Learn.Per, key.value)
			settle.Learn.Values[key.value] = map[string]bool{}
		}
	}
	p.more.Settle = settle
}

// learnValues collects the values that have estimates of their own. They are the values without a "*" that the
// descriptors of d have for the keys in per.
func (d *domain) learnValues() {
	var add func(learn *limiter.Learn, list []*descriptor)
	add = func(learn *limiter.Learn, list []*descriptor) {
		for _, one := range list {
			if values := learn.Values[one.Key.value]; values != nil && one.Value.ok && !strings.Contains(one.Value.value, "*") {
				values[one.Value.value] = true
			}
			add(learn, one.Descriptors.value)
		}
	}
	for _, doc := range d.docs {
		list := doc.descriptors()
		for _, p := range d.Settling {
			if settle := p.Extra().Settle; settle != nil && settle.Learn != nil {
				learn := settle.Learn
				add(learn, list)
			}
		}
	}
}

func (c *compiler) settleAlone(l *limit, p *draft) {
	at := l.Settle.at
	switch kind := p.Limit.Kind; {
	case l.Guaranteed.ok:
		c.mistake(at, settleCombination+"guaranteed; remove one")
	case kind != algorithms.TokenBucket && kind != algorithms.FixedWindow:
		c.mistake(at, settleAlgorithms+", not to %s", kind)
	case kind == algorithms.FixedWindow && p.Limit.Capacity > p.Limit.Rate:
		c.mistake(at, settleAlgorithms+": capacity is %d and rate %d, so that unused units roll over; remove capacity",
			p.Limit.Capacity, p.Limit.Rate)
	}
	for _, other := range []struct {
		key, why string
		stated   bool
	}{
		{"lease", "a sidecar must not settle from borrowed units", l.Lease.ok},
		{"shards", "a reservation is settled in the one bucket that it was made in", l.Shards.ok},
		{"penalty", "the cost of a finished request is never denied", l.Penalty.ok},
		{"overdraw", "it charges the real cost without a reservation", l.Overdraw.value},
		{"quota_mode", "all limits of a request are reserved together", p.Quota},
		{"consume: each", "all limits of a request are reserved together", p.Alone},
		{"time_zone", "by: bucket needs windows of equal length", l.Settle.value.By.ok && l.TimeZone.ok},
	} {
		if other.stated {
			c.mistake(at, settleCombination+"%s: %s; remove one", other.key, other.why)
		}
	}
}

func (c *compiler) settleNumbers(s *settleTerms, capacity int64) {
	bounded := func(w *whole, key string, from, to int64, subject string) {
		if w.ok && (w.value < from || w.value > to) {
			c.mistake(w.at, "%s must be between %d and %s, but is %d", key, from, subject, w.value)
		}
	}
	upTo := fmt.Sprintf("the capacity, %d", capacity)
	most, isMost := capacity, s.Most.ok && s.Most.value >= 1 && s.Most.value <= capacity
	bounded(&s.Most, "most", 1, capacity, upTo)
	subject := upTo
	if isMost {
		most, subject = s.Most.value, fmt.Sprintf("most, %d", s.Most.value)
	}
	bounded(&s.Least, "least", 0, most, subject)
	e := whole{s.Estimate.given}
	bounded(&e, "estimate", max(1, min(s.Least.value, most)), most, subject)
	if by := s.By; by.ok {
		switch {
		case by.value != "bucket":
			c.mistake(by.at, "by must be bucket, but is %s; remove it if the proxy settles with the id of the reservation", strconv.Quote(short(by.value)))
		case s.UnknownCost.ok:
			c.mistake(s.UnknownCost.at, "unknown_cost has no effect with by: bucket, because a call without a cost sends nothing; remove one")
		case s.TrustDeclared.value:
			c.mistake(s.TrustDeclared.at, "trust_declared has no effect with by: bucket, because a request that declares hits settles; remove one")
		}
	}
	const mostDebt = 1 << 53
	bounded(&s.MaxDebt, "max_debt", 0, mostDebt, fmt.Sprint(int64(mostDebt)))
	if u := s.UnknownCost; u.ok && u.value.most && !s.Most.ok {
		c.mistake(u.at, "unknown_cost is most, but most is missing; add \"most: N\", the most units that a request reserves")
	}
	if ttl := s.TTL; ttl.ok && (ttl.value < minSettleTTL || ttl.value > maxSettleTTL) {
		c.mistake(ttl.at, "ttl must be between 1s and 1d, but is %s", duration.Format(ttl.value))
	}
}

// settleEntries sets d.FormerSettle, d.Settling and, if one of its limits has ids, d.Settle: the entries with which
// proxies return ids of reservations. A top-level descriptor with the key of such an entry is a mistake, because no
// request matches it.
func (c *compiler) settleEntries(d *domain) {
	var stated settleDomain
	for _, doc := range d.docs {
		agree(c, d, "settle", &stated.given, &doc.Settle.given)
	}
	entries := stated.or(limiter.DefaultSettle)
	d.FormerSettle = &entries
	d.Settling = map[uint64]*limiter.Policy{}
	withIDs := false
	for _, p := range d.Policies {
		if settle := p.Extra().Settle; settle != nil || p.Limit.Kind == algorithms.Concurrency {
			withIDs = withIDs || settle == nil || !settle.ByBucket
			d.Settling[limiter.PrefixNumber(p.Prefix)] = p
		}
	}
	if len(d.Settling) == 0 {
		d.Settling = nil
		if stated.ok {
			c.warn(stated.at, "settle has no effect: no limit of domain %q has settle or algorithm concurrency; add \"settle: %s\" to a limit", d.Name, settleExample)
		}
		return
	}
	d.learnValues()
	if !withIDs {
		return
	}
	d.Settle = &entries
	for _, doc := range d.docs {
		for _, one := range doc.descriptors() {
			if key := one.Key.value; key == entries.Key || key == entries.End {
				c.mistake(one.Key.at, "descriptors with the key %q settle reservations, and match no limit; choose another key, or other names in the domain's settle", key)
			}
		}
	}
}
