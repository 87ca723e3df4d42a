package config

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/spelling"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// units are the units of the reference form. A month has 30 days, a year has 365. Without a time_zone, windows
// start at multiples of their length since 1970, so a week starts on a Thursday.
var units = map[string]algorithms.Micros{
	"second": algorithms.Second,
	"minute": 60 * algorithms.Second,
	"hour":   3600 * algorithms.Second,
	"day":    algorithms.Day,
	"week":   7 * algorithms.Day,
	"month":  30 * algorithms.Day,
	"year":   365 * algorithms.Day,
}

// window returns the length of l's window in the reference form: unit_multiplier times the unit. The unit may
// be a duration. known is false if it is neither a unit nor a duration.
func (l *limit) window() (period algorithms.Micros, known bool) {
	period, known = units[strings.ToLower(l.Unit.value)]
	if !known {
		var err error
		period, err = parseSpan(l.Unit.value)
		known = err == nil
	}
	n := max(1, l.UnitMultiplier.or(1)) // the method reference reports smaller values
	if int64(period) > math.MaxInt64/n {
		return math.MaxInt64, known // compiling the limit reports that this is too long
	}
	return period * algorithms.Micros(n), known
}

// named compiles a named limit once. Requests use it by name, and descriptors use it as a template.
func (c *compiler) named(d *domain, l namedLimit) {
	if before := d.limits[l.name]; before != nil {
		c.mistake(l.limit.at, "domain %q already has a limit named %q, at %s; rename or remove one", d.Name, l.name, before.at)
		return
	}
	n := &named{at: l.limit.at}
	d.limits[l.name] = n
	d.names = append(d.names, l.name)
	if subject := badName(l.name); subject != "" {
		c.mistake(l.limit.at, "the name of a limit %s; choose another", subject)
		return
	}
	p, ok := c.limit(d, l.limit, l.name)
	if !ok {
		return
	}
	p.Name, p.StatKey = l.name, d.Name+"."+l.name
	if p.RateName == "" {
		p.RateName = l.name
	}
	p.Prefix = descriptors.Prefix(d.Name, "limit", l.name, p.Limit.Kind)
	c.slotPrefix(l.limit.at, &p)
	p.Place = l.limit.at.shown()
	p.more.Named = true
	if d.tag.domain { // a limit that no descriptor uses still needs a slot
		p.more.Slot = d.Slot
	}
	n.then = l.limit.Then
	n.draft, n.policy = &p, c.add(d, &p, n.at, l.limit.Replaces.value)
	d.Named[l.name] = n.policy
}

// badName describes the fault of a limit's name, or returns "". Names occur in URLs (so "/" is not
// permitted), and in headers and logs (so only printable characters are permitted).
func badName(name string) string {
	const most = 128
	switch {
	case name == "":
		return "is empty"
	case len(name) > most:
		return fmt.Sprintf("has %d bytes; the maximum is %d", len(name), most)
	case strings.Contains(name, "/"):
		return fmt.Sprintf("has a \"/\": %q", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r >= 0x7f }):
		return fmt.Sprintf("has a character that is not printable ASCII: %q", name)
	}
	return ""
}

// limit compiles the numbers and settings of l. name is its name under limits, or "". ok is false if a
// mistake has been reported.
func (c *compiler) limit(d *domain, l *limit, name string) (p draft, ok bool) {
	before := c.mistakes
	p.Domain, p.RateName, p.Shadow, p.Quota, p.Alone = d.Name, l.Name.value, l.Shadow.value, l.Quota.value, d.Alone
	p.Limit = &algorithms.Limit{} // every Policy needs a Limit, even if the numbers are not compiled
	p.more.Replaces = c.replaces(l, name)
	p.more.DenyBody, p.more.Unit = l.DenyBody.value, l.UnitName.value
	switch isReference, ok := c.form(l, name != ""); {
	case !ok:
	case isReference:
		c.checkTimeZone(l, true)
		c.reference(d, l, &p)
	default:
		c.algorithmForm(l, &p)
	}
	if !l.broken && c.mistakes == before {
		c.failure(d, l, &p)
	}
	return p, !l.broken && c.mistakes == before
}

func (c *compiler) replaces(l *limit, name string) (list []string) {
	for _, r := range l.Replaces.value {
		switch r.Name.value {
		case "":
			if r.Name.ok || !r.Name.stated() && !r.incomplete {
				c.mistake(r.at, "should not have an empty replaces entry; write {name: NAME}")
			}
		case l.Name.value, name:
			c.mistake(r.at, "replaces should not contain name of same descriptor; remove %q", r.Name.value)
		default:
			list = append(list, r.Name.value)
		}
	}
	return list
}

// form reports whether l has the reference form. If l mixes both forms, or is a named limit with keys of the
// reference form, form reports a mistake and returns false for ok.
func (c *compiler) form(l *limit, isNamed bool) (isReference, ok bool) {
	reference, atReference := l.stated("reference")
	own, atOwn := l.stated("algorithm")
	switch {
	case len(reference) == 0:
		return len(own) == 0 && !isNamed, true
	case l.Algorithm.stated() && (l.Rate.stated() && l.Period.stated() || l.Algorithm.value == algorithms.Concurrency):
		c.mistake(atReference[0], "%s cannot be combined with algorithm; remove %[1]s", strings.Join(reference, " and "))
	case isNamed:
		c.mistake(atReference[0], "%s not belong in a named limit; write %s", does(reference), l.rewritten())
	case l.Algorithm.stated():
		c.mistake(atReference[0], "%s cannot be combined with algorithm; write %s", strings.Join(reference, " and "), l.rewritten())
	case len(own) > 0:
		c.mistake(atOwn[0], "%s cannot be combined with %s; remove %[1]s, or write %[3]s", strings.Join(own, " and "), strings.Join(reference, " and "), l.rewritten())
	default:
		return true, true
	}
	return false, false
}

func does(keys []string) string {
	if len(keys) == 1 {
		return keys[0] + " does"
	}
	return strings.Join(keys, " and ") + " do"
}

// rewritten returns l as text in the form with an algorithm, as far as l states numbers.
func (l *limit) rewritten() string {
	kind, rate, period := algorithms.FixedWindow, "N", "DURATION"
	if l.Algorithm.ok {
		kind = l.Algorithm.value
	}
	if l.RequestsPerUnit.ok {
		rate = fmt.Sprint(l.RequestsPerUnit.value)
	}
	if window, known := l.window(); known {
		period = duration.Format(window)
	}
	return fmt.Sprintf("{algorithm: %s, rate: %s, period: %s}", kind, rate, period)
}

// reference compiles the reference form: a fixed window whose start and end are multiples of its length or, with a
// time_zone, those of a day, week, month or year.
func (c *compiler) reference(d *domain, l *limit, p *draft) {
	p.Reference, p.Unlimited = true, l.Unlimited.value
	before := c.mistakes
	period, known := l.window()
	unitAt := func() place { return l.place("unit") }
	switch {
	case p.Unlimited && known:
		c.mistake(unitAt(), "should not specify rate limit unit when unlimited; remove unit, or unlimited")
	case p.Unlimited && l.Unit.value != "":
		c.warn(unitAt(), "invalid rate limit unit '%s', which has no meaning with unlimited; remove it", short(l.Unit.value))
	case p.Unlimited, known:
	case l.Unit.stated() && !l.Unit.ok, !l.Unit.stated() && l.incomplete: // the mistake has been reported already
	default:
		c.mistake(unitAt(), "invalid rate limit unit '%s'; write one of second, minute, hour, day, week, month, year, or a duration such as 30s%s", short(l.Unit.value), spelling.DidYouMean(l.Unit.value, sortedKeys(units)))
	}
	if p.Unlimited && l.Penalty.stated() {
		c.mistake(l.Penalty.at, "penalty cannot be combined with unlimited, which never denies; remove one")
	}
	switch n := l.UnitMultiplier; {
	case n.ok && p.Unlimited:
		c.mistake(n.at, "should not specify unit_multiplier when unlimited; remove it, or unlimited")
	case n.ok && (n.value < 1 || n.value > math.MaxUint32):
		c.mistake(n.at, "unit_multiplier must be between 1 and %d, but is %d", uint32(math.MaxUint32), n.value)
	}
	rate := l.RequestsPerUnit.value
	switch {
	case rate < 0 || rate > math.MaxUint32:
		c.mistake(l.RequestsPerUnit.at, "requests_per_unit must be between 0 and %d, but is %d", uint32(math.MaxUint32), rate)
	case rate > 0 || p.Unlimited || l.broken || c.mistakes > before:
	case l.RequestsPerUnit.ok:
		c.warn(l.RequestsPerUnit.at, "requests_per_unit is 0: this limit denies every request; write a larger number if it should allow some")
	default:
		c.warn(l.at, "requests_per_unit is missing, which is 0: this limit denies every request; add \"requests_per_unit: N\"")
	}
	if p.Unlimited || l.broken || c.mistakes > before {
		return
	}
	s := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: rate, Period: period, TakesDenied: d.Alone, Penalty: l.penalty()}
	if l.TimeZone.ok {
		s.Calendar = calendarOf(calendarUnits[strings.ToLower(l.Unit.value)], l.TimeZone.value)
	} else {
		s.Start = new(algorithms.Micros)
	}
	c.numbers(l, p, s)
}

// checkTimeZone reports a time_zone that cannot be combined with the other keys of l, and a period of the calendar
// without a time_zone.
func (c *compiler) checkTimeZone(l *limit, isReference bool) {
	unit, period := strings.ToLower(l.Unit.value), l.Period.value
	_, ofCalendar := calendarUnits[unit]
	switch {
	case l.TimeZone.stated() && !l.TimeZone.ok: // the mistake has been reported already
	case isReference && l.TimeZone.ok && l.Unlimited.value:
		c.mistake(l.TimeZone.at, "time_zone cannot be combined with unlimited; remove it")
	case isReference && l.TimeZone.ok && l.UnitMultiplier.or(1) != 1:
		c.mistake(l.TimeZone.at, "time_zone cannot be combined with unit_multiplier; remove one")
	case isReference && l.TimeZone.ok && l.Unit.ok && !ofCalendar:
		c.mistake(l.TimeZone.at, "time_zone needs unit day, week, month or year, not %s; remove it", short(unit))
	case isReference, !l.Period.ok:
	case l.TimeZone.ok && period.span > 0:
		c.mistake(l.TimeZone.at, "time_zone needs period day, week, month or year; write one of these, or remove time_zone")
	case !l.TimeZone.ok && period.span == 0:
		c.mistake(l.Period.at, "period %s is a calendar unit and needs a time_zone; add \"time_zone: UTC\" or another, or write %s", period.unit, duration.Format(units[period.unit.String()]))
	}
}

// calendarOf returns the same pointer for equal arguments, so that equal limits are equal as Go values.
func calendarOf(unit calendar.Unit, zone *time.Location) *algorithms.Calendar {
	c := unit.In(zone)
	one, _ := calendars.LoadOrStore(c.Unit+" "+c.Zone, c)
	return one.(*algorithms.Calendar)
}

// calendars holds at most one Calendar for each unit and time zone.
var calendars sync.Map

func (c *compiler) algorithmForm(l *limit, p *draft) {
	if l.Algorithm.value == algorithms.Concurrency {
		c.concurrency(l, p)
		return
	}
	before := c.mistakes
	c.missing(l)
	c.checkTimeZone(l, false)
	if l.TTL.stated() {
		c.mistake(l.TTL.at, "ttl belongs to algorithm concurrency: %s; remove ttl", slotExample)
	}
	if l.Rate.ok && l.Rate.value == 0 {
		c.mistake(l.Rate.at, "rate must be at least 1, but is 0")
	}
	if l.MaxDelay.ok && l.Algorithm.ok && l.Algorithm.value != algorithms.LeakyBucket {
		c.mistake(l.MaxDelay.at, "max_delay belongs to algorithm leaky_bucket, not to %s", l.Algorithm.value)
	}
	if l.broken || !l.Algorithm.ok || !l.Rate.ok || !l.Period.ok || c.mistakes > before && l.Period.value.span == 0 {
		return
	}
	s := algorithms.Spec{
		Kind: l.Algorithm.value, Rate: l.Rate.value, Period: l.Period.value.span,
		Capacity: l.Capacity.pointer(), Initial: l.Initial.pointer(), MaxReserved: l.MaxReserved.pointer(),
		Start: l.Start.pointer(), Overdraw: l.Overdraw.value, Penalty: l.penalty(),
	}
	if l.TimeZone.ok && s.Period == 0 {
		s.Calendar = calendarOf(l.Period.value.unit, l.TimeZone.value)
	}
	if g := l.Guaranteed.value; g != nil {
		s.Minimum = &algorithms.Rate{Units: g.Rate.value, Period: g.Period.value}
	}
	p.more.MaxDelay, p.more.Weights = l.MaxDelay.value, l.Weights.value
	if c.numbers(l, p, s); l.Shards.ok && c.mistakes == before {
		c.shards(l, p, s)
	}
	if l.Lease.ok && c.mistakes == before {
		c.lease(l, p)
	}
	if l.Settle.ok && c.mistakes == before {
		c.settles(l, p, s)
	}
}

func (l *limit) penalty() *algorithms.Penalty {
	if !l.Penalty.ok {
		return nil
	}
	terms := l.Penalty.value
	return &algorithms.Penalty{After: terms.After.value, For: terms.For.value, Max: terms.Max.value}
}

func (c *compiler) missing(l *limit) {
	if l.incomplete {
		return
	}
	if !l.Algorithm.stated() {
		c.mistake(l.at, "algorithm is missing; write one of %s", strings.Join(sortedKeys(algorithmNames), ", "))
	}
	if !l.Rate.stated() {
		c.mistake(l.at, "rate is missing; write the units of each period: \"rate: 100\"")
	}
	if !l.Period.stated() {
		c.mistake(l.at, "period is missing; write a duration: \"period: 1m\"")
	}
}

func (c *compiler) numbers(l *limit, p *draft, s algorithms.Spec) {
	l.spec = s
	compiled, err := algorithms.Compile(s)
	p.Limit = &compiled
	for _, w := range specErrors(err) {
		switch {
		case w.Field == "capacity" && !l.Capacity.stated():
			c.mistake(l.place("rate"), "rate, which is also the capacity if none is given, %s", w.Problem)
		case w.Field == "max_debt":
			c.mistake(l.Settle.value.MaxDebt.at, "max_debt %s", w.Problem)
		default:
			c.mistake(l.place(w.Field), "%s %s", w.Field, w.Problem)
		}
	}
}

func (c *compiler) shards(l *limit, p *draft, s algorithms.Spec) {
	var err error
	p.more.Shards, err = algorithms.Split(s, int(min(l.Shards.value, math.MaxInt32)))
	for _, w := range specErrors(err) {
		subject := w.Field
		if subject != "shards" {
			subject = "shards: of one shard, " + subject
		}
		c.mistake(l.Shards.at, "%s %s", subject, w.Problem)
	}
}

// minLease and maxLease bound the duration of a lease, in microseconds. A shorter lease ends before it is useful. A
// longer one withholds units from other sidecars.
const minLease, maxLease = 1000, 60 * algorithms.Second

func (c *compiler) lease(l *limit, p *draft) {
	terms := l.Lease.value
	switch {
	case !p.Limit.CanReserve():
		c.mistake(l.Lease.at, "lease belongs to algorithm fixed_window, and to token_bucket without guaranteed")
	case l.Overdraw.value:
		c.mistake(l.Lease.at, "lease cannot be combined with overdraw")
	case l.Penalty.ok:
		c.mistake(l.Lease.at, "lease cannot be combined with penalty, because a sidecar with a lease does not learn that a key is blocked; remove one")
	case terms.For.value < minLease || terms.For.value > maxLease:
		c.mistake(terms.For.at, "for must be between 1ms and 1m")
	default:
		p.more.Lease = &algorithms.Lease{Most: limiter.ShareOf(p.Limit.Capacity, terms.Max.value), For: terms.For.value}
		c.warnLease(l, p)
	}
}

func (c *compiler) warnLease(l *limit, p *draft) {
	terms := l.Lease.value
	if p.more.Lease.Most < 2 {
		c.warn(terms.Max.at, "lease has no effect: %s of the capacity %d is less than 2 units; use a larger max, or remove lease", percent(terms.Max.value), p.Limit.Capacity)
	}
	const much = 0.05
	lentPerWindow := float64(p.Limit.Rate) * float64(p.more.Lease.For) / float64(l.Period.value.span)
	if share := lentPerWindow / float64(p.Limit.Capacity); p.Limit.Kind == algorithms.TokenBucket && share > much {
		c.warn(terms.For.at, "during a lease (for), %.0f units, %s of capacity, are added to the bucket, which may admit this many units more than its limit; use a shorter for, or a larger capacity", math.Ceil(lentPerWindow), percent(share))
	}
}

func specErrors(err error) algorithms.SpecErrors {
	wrong, _ := errors.AsType[algorithms.SpecErrors](err)
	return wrong
}

func (c *compiler) failure(d *domain, l *limit, p *draft) {
	p.OnFailure = l.OnFailure.or(d.OnFailure)
	if p.OnFailure != limiter.Local {
		if l.LocalShare.ok {
			c.warn(l.LocalShare.at, "local_share has no effect: on_backend_failure is %s here, not local; remove local_share, or write \"on_backend_failure: local\"", p.OnFailure)
		}
		return
	}
	share := l.LocalShare.or(d.share)
	if share == 0 {
		c.mistake(l.place("on_backend_failure"), "on_backend_failure local needs a local_share; add \"local_share: 20%%\"")
		return
	}
	local, err := algorithms.Compile(limiter.SpecShare(l.spec, share))
	if err != nil { // a mistake in the numbers of the whole limit has been reported
		return
	}
	p.more.Local, p.more.LocalShare = &local, share
	if stated := l.OnFailure.ok || l.LocalShare.ok; stated && !p.Unlimited && p.Limit.Rate > 0 {
		c.warnLocal(l, p, share)
	}
}

func (c *compiler) warnLocal(l *limit, p *draft, share float64) {
	most, part := p.Limit.Most(false), max(1, p.more.Local.Most(false))
	c.warn(l.place("on_backend_failure"), "while the backend is unreachable, each sidecar allows %d of %d (local_share %s), so more than %d sidecars exceed the limit",
		part, most, percent(share), most/part)
}

func (c *compiler) checkReplaces(d *domain) {
	if c.incomplete {
		return
	}
	known := map[string]bool{}
	replaces := map[[2]string]bool{} // the name of a limit, and a name that it replaces
	for _, u := range d.uses {
		name := u.policy.RateName
		known[name] = true
		for _, other := range u.policy.Extra().Replaces {
			replaces[[2]string{name, other}] = true
		}
	}
	names := sortedKeys(known)
	for _, u := range d.uses {
		for _, r := range u.replaces {
			switch name := r.Name.value; {
			case name == "":
			case !known[name]:
				c.warn(r.Name.at, "replaces %q, but no limit of domain %q has that name%s", name, d.Name, spelling.DidYouMean(name, names))
			case u.policy.RateName != "" && replaces[[2]string{name, u.policy.RateName}]:
				c.warn(r.Name.at, "%q and %q replace each other: a request that matches both is limited by neither", u.policy.RateName, name)
			}
		}
	}
}

// assignNames uses the name of a rate_limit as the name of the limit everywhere. The reference server allows
// several limits with one name. Such limits keep names made of their places. So does a limit whose name is that of
// another limit, or is not permitted under limits (badName). If the place has the name of a limit under limits, "#1" is
// appended. Buckets and the reference server's counters depend only on the place.
func (d *domain) assignNames() {
	named := map[string]bool{} // the Owners of the named limits
	for _, p := range d.Named {
		named[p.Owner] = true
	}
	placed := map[string]bool{} // the names made of places
	for _, p := range d.Policies {
		if named[p.Owner] {
			continue
		}
		if d.Named[p.Name] != nil {
			p.Name += "#1"
		}
		placed[p.Name] = true
	}
	count := map[string]int{}
	for _, u := range d.uses {
		if p := u.policy; p.RateName != "" && !named[p.Owner] {
			count[p.RateName]++
		}
	}
	for _, u := range d.uses {
		if p := u.policy; !named[p.Owner] && count[p.RateName] == 1 && d.Named[p.RateName] == nil && !placed[p.RateName] && badName(p.RateName) == "" {
			p.Name = p.RateName
		}
	}
}

func (c *compiler) limitAdvice(d *domain, name string) string {
	if guess := spelling.DidYouMean(name, d.names); guess != "" {
		return guess
	}
	if len(d.names) == 0 {
		return "; it has none: add it under limits"
	}
	return "; it has " + strings.Join(d.names[:min(10, len(d.names))], ", ")
}
