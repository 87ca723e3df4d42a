package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// step parses the level that a descriptor describes. The Key of the result is empty if the level cannot be
// determined.
func (c *compiler) step(one *descriptor) step {
	s := step{shared: one.ShareThreshold.value, metric: one.ValueToMetric.value}
	reported := 0
	for _, v := range []struct {
		*text
		key string
		how descriptors.How
	}{
		{&one.Value, "value", descriptors.Exact},
		{&one.ValuePrefix, "value_prefix", descriptors.HasPrefix},
		{&one.ValueSuffix, "value_suffix", descriptors.HasSuffix},
		{&one.ValueRegex, "value_regex", descriptors.Regex},
	} {
		if !v.stated() {
			continue
		}
		reported++
		var err error
		switch {
		case !v.ok:
			return s // the mistake has been reported already
		case reported > 1:
			c.mistake(v.at, "%s cannot be combined with another value; remove one", v.key)
			return s
		case v.how == descriptors.Exact:
			c.warnBlanks(v.at, v.key, v.value, v.how)
			s.Pattern = descriptors.ValuePattern("", v.value)
			continue
		case v.value == "":
			c.mistake(v.at, "%s is empty; remove it to match any value, or write a value", v.key)
			return s
		case strings.Contains(one.Key.value, "*"):
			c.mistake(v.at, "%s cannot be combined with a \"*\" in the key; write a value with a \"*\", or the whole key", v.key)
			return s
		case v.how == descriptors.Regex:
			if s.Pattern, err = descriptors.RegexPattern("", v.value); err != nil {
				c.mistake(v.at, "%s %v", v.key, err)
				return s
			}
		default:
			c.warnBlanks(v.at, v.key, v.value, v.how)
			s.Pattern = descriptors.Pattern{How: v.how, Text: v.value}
			if strings.Contains(v.value, "*") {
				c.warn(v.at, "a \"*\" in %s has no special meaning; remove it, or write value: %q", v.key, short(v.value))
			}
		}
	}
	if reported == 0 {
		s.How = descriptors.Any
	}
	s.Key = one.Key.value
	return s
}

// warnBlanks warns of a value that no descriptor can match, because blanks at the ends of the values in
// requests are removed.
func (c *compiler) warnBlanks(at place, key, value string, how descriptors.How) {
	atStart := how != descriptors.HasSuffix && canonical.TrimLeft(value) != value
	atEnd := how != descriptors.HasPrefix && canonical.TrimRight(value) != value
	if !c.o.KeepBlanks && (atStart || atEnd) {
		c.warn(at, "%s %q never matches: blanks at the ends of descriptor values are removed before they are compared; "+
			"remove them here, or keep them everywhere with RLSIDECAR_KEEP_BLANKS", key, short(value))
	}
}

// site is a descriptor of a domain, with the steps of the path to it, and its node in the tree.
type site struct {
	d     *domain
	one   *descriptor
	steps path
	node  *limiter.Node
}

func (c *compiler) descriptors(d *domain, parent *limiter.Node, above path, list []*descriptor) {
	for _, one := range list {
		if c.full {
			return
		}
		c.o.pause()
		at := one.at
		if one.Key.stated() {
			at = one.Key.at
		}
		if one.Key.value == "" && (one.Key.ok || !one.Key.stated() && !one.incomplete) {
			c.mistake(at, "descriptor has empty key; write \"key: NAME\"")
		}
		s := c.step(one)
		steps := above.extended(s)
		if s.Key != "" && s.shared && !s.matchesSeveral() {
			c.mistake(one.ShareThreshold.at, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'; remove it, or end the value in *", s.composite())
		}
		if s.Key == "" { // the mistake has been reported already, and the level is unknown
			node := &limiter.Node{}
			c.place(site{d, one, steps, node})
			c.descriptors(d, node, steps, one.Descriptors.value)
			continue
		}
		node, added := d.Tree.Add(parent, s.Pattern)
		first := d.nodes[node]
		if s.matchesSeveral() { // differently written steps can be equal, such as value_prefix: a and value: a*
			same := sibling{parent, s.composite()}
			if before, twice := d.patterns[same]; twice {
				added, first = false, before
			} else {
				d.patterns[same] = at
			}
		}
		if added {
			d.nodes[node] = at
		} else {
			c.mistake(at, "duplicate descriptor composite key '%s.%s'; it is first at %s: merge the two", d.Name, steps.name(), first)
			node = &limiter.Node{}
		}
		c.place(site{d, one, steps, node})
		c.descriptors(d, node, steps, one.Descriptors.value)
	}
}

// place compiles the limits of a descriptor, and adds them to its node.
func (c *compiler) place(s site) {
	d, one, steps, node := s.d, s.one, s.steps, s.node
	for _, name := range one.Limit.value {
		l := d.limits[name.value]
		switch {
		case l == nil && c.incomplete:
		case l == nil:
			c.mistake(name.at, "domain %q has no limit named %q%s", d.Name, name.value, c.limitAdvice(d, name.value))
		case l.policy != nil:
			p := *l.draft
			p.Place, p.more.Named = name.at.shown(), false
			if (l.used == place{}) {
				c.checkSettle(name.at, &p)
			}
			if p.more.Then != nil {
				c.payerAt(s, name, l, &p)
			}
			c.useAt(s, &p, true, nil)
			c.sameSlot(d, l, name, &p)
			d.referenced = append(d.referenced, name)
		}
	}
	if one.MaxOverride.ok {
		node.Found.MaxOverride = c.maxOverride(d, one.MaxOverride.value, steps)
	}
	for i, l := range one.RateLimit.value {
		if l.Then.stated() {
			c.mistake(l.Then.at, "then belongs in a named limit; move this limit under limits, and write \"limit: NAME\" here")
		}
		p, ok := c.limit(d, l, "")
		if !ok {
			continue
		}
		id := steps.id()
		p.Name = steps.name()
		if i > 0 {
			id += "#" + strconv.Itoa(i+1)
			p.Name += "#" + strconv.Itoa(i+1)
		}
		p.Prefix = descriptors.Prefix(d.Name, "path", id, p.Limit.Kind)
		c.slotPrefix(l.at, &p)
		p.Place = l.at.shown()
		if p.Limit.Overdraw {
			c.checkSettle(l.place("overdraw"), &p)
		}
		c.useAt(s, &p, false, l.Replaces.value)
	}
	concurrency := func(p *limiter.Policy) bool { return p.Limit.Kind == algorithms.Concurrency }
	byBucket := func(p *limiter.Policy) bool { return p.Limit.OpenFor > 0 }
	if list := node.Found.Policies; slices.ContainsFunc(list, concurrency) && slices.ContainsFunc(list, byBucket) {
		c.mistake(one.at, "a limit with algorithm concurrency and one with settle by: bucket cannot share a descriptor: a call without a cost would reserve, and take a slot; give one of them a descriptor of its own")
	}
	if c.o.Cluster {
		c.warnSlots(s)
	}
}

// checkSettle warns that a proxy's refunds can defeat a limit with overdraw.
func (c *compiler) checkSettle(at place, p *draft) {
	if p.Limit.Overdraw {
		c.warn(at, "overdraw: do not let Envoy refund a fixed number at the end of a stream, because it does so after a denial too, and denied requests would reduce the debt; charge the units that were used")
	}
}

// useAt completes p for the descriptor that uses the limit, and adds it to the node.
func (c *compiler) useAt(at site, p *draft, named bool, replaces []*replacement) {
	d, one, steps, node := at.d, at.one, at.steps, at.node
	c.warnHits(one.at, p)
	p.Shadow = p.Shadow || one.Shadow.value
	p.Quota = p.Quota || one.Quota.value
	if one.Quota.value && p.more.Settle != nil {
		c.mistake(one.Quota.at, "quota_mode cannot be combined with settle, which a limit of this descriptor has: all limits of a request are reserved together; remove one")
	}
	if one.Quota.value && p.Limit.Kind == algorithms.Concurrency {
		c.mistake(one.Quota.at, "quota_mode cannot be combined with algorithm concurrency, which a limit of this descriptor has; remove one")
	}
	p.more.Metadata = one.Metadata.value
	p.Detailed = one.Detailed.value
	number := ""
	if n := len(node.Found.Policies); n > 0 {
		number = "#" + strconv.Itoa(n+1)
	}
	p.StatKey = d.Name + "." + steps.name() + number
	sharedToo := false
	for i, s := range steps {
		sharedToo = sharedToo || s.shared
		if s.metric && s.identifiesBucket() && !p.Detailed {
			p.more.StatValues = append(p.more.StatValues, i)
		}
	}
	c.identifyBuckets(d, steps, p, named)
	if p.Whole && sharedToo {
		c.warn(one.at, "share_threshold has no effect here, because a key with \"*\" above it gives each value its own bucket; remove share_threshold")
	}
	if p.Detailed || len(p.more.StatValues) > 0 {
		p.more.StatLevels = steps.levels()
		p.more.StatLevels[len(steps)-1] += number
	}
	node.Found.Policies = append(node.Found.Policies, c.add(d, p, one.at, replaces))
}

// add converts p to a Policy, and adds it to d with the next Index. If there are too many limits, add reports that
// and does not add the Policy.
func (c *compiler) add(d *domain, p *draft, at place, replaces []*replacement) *limiter.Policy {
	policy := c.policy(p)
	if c.policies == c.o.maxLimits() {
		c.tooMany(at)
		return policy
	}
	c.policies++
	policy.Index = len(d.Policies)
	d.Policies = append(d.Policies, policy)
	if len(replaces) > 0 || policy.RateName != "" {
		d.uses = append(d.uses, use{policy, replaces})
	}
	return policy
}

// at is the place of the first limit beyond the bound.
func (c *compiler) tooMany(at place) {
	if !c.full {
		c.mistake(inFile(at.file()), "the configuration has more than %d limits; make it smaller, or raise RLSIDECAR_MAX_LIMITS", c.o.maxLimits())
	}
	c.full = true
}

// owner returns the start of the Owner of a domain's inline limits. The start ends in "/", so each "/" in the
// domain is replaced.
func owner(domain string) string { return slashes.Replace(domain) + "/" }

var slashes = strings.NewReplacer("%", "%25", "/", "%2F")
