package config

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const thenCombination = "then cannot be combined with "

// payers resolves the names that "then" states. If the limit with "then" (the plan) denies a request, the named limit
// pays for it. The two limits are decided in one step. Combinations that one step cannot decide exactly are
// mistakes.
func (c *compiler) payers(d *domain) {
	for _, name := range d.names {
		l := d.limits[name]
		if !l.then.ok {
			continue
		}
		before := c.mistakes
		c.checkThen(d, name, l)
		t := d.limits[l.then.value]
		if c.mistakes > before || t == nil || t.draft == nil {
			continue
		}
		t.policy.Extras = t.draft.extras()
		l.draft.more.Then = t.policy
		l.policy.Extras = l.draft.extras()
	}
}

func (c *compiler) checkThen(d *domain, name string, l *named) {
	at, t := l.then.at, d.limits[l.then.value]
	switch {
	case t == nil && c.incomplete:
		return
	case t == nil:
		c.mistake(at, "then: domain %q has no limit named %q%s", d.Name, short(l.then.value), c.limitAdvice(d, l.then.value))
		return
	case t == l:
		c.mistake(at, "then: limit %q cannot pay for itself; name another limit, or remove then", name)
		return
	case t.draft == nil:
		return // the mistake has been reported already
	case t.then.stated():
		c.mistake(at, "then: limit %q has a then itself, at %s, and only one other limit can pay; remove one of the two", l.then.value, t.then.at)
		return
	}
	c.checkThenCombinations(at, &l.draft.Policy, &l.draft.more, "this limit")
	c.checkThenCombinations(at, &t.draft.Policy, &t.draft.more, "limit "+l.then.value)
	plan, payer := l.draft, t.draft
	if plan.Limit.OpenFor > 0 || payer.Limit.OpenFor > 0 {
		c.mistake(at, "then cannot be combined with settle by: bucket, which does not know who paid; remove one")
	}
	switch {
	case plan.more.Settle != nil && payer.more.Settle == nil:
		c.mistake(at, "then: this limit has settle, and limit %q has not, so that reservations charged to that limit could not be settled; add settle to it", l.then.value)
	case plan.more.Settle == nil && payer.more.Settle != nil:
		c.mistake(at, "then: limit %q has settle, and this limit has not: reservations charged to that limit would never be settled; add settle to this limit", l.then.value)
	}
	if limiter.PerSecond(plan.Limit) != limiter.PerSecond(payer.Limit) {
		c.mistake(at, "then: one of the two limits is per second, so that with --redis-per-second-url they are in different Redis servers, "+
			"which cannot decide in one step; use another period, or algorithm token_bucket")
	}
	if d.Alone {
		c.mistake(at, thenCombination+"consume: each, with which limits are charged one by one, not as one request; remove one")
	}
	if d.tag == (hashTag{}) {
		c.mistake(at, "then needs both buckets in one slot of a Redis Cluster, so that one step decides who pays; add \"hash_tag: domain\" or \"hash_tag: entry:KEY\" to the domain")
	}
}

// checkThenCombinations checks a limit that has "then", or one that pays. which describes this limit in messages.
func (c *compiler) checkThenCombinations(at place, p *limiter.Policy, more *limiter.Extras, which string) {
	for _, other := range []struct {
		key, why string
		stated   bool
	}{
		{"shards", "the parts of a bucket are in different slots", len(more.Shards) > 0},
		{"lease", "a sidecar that decides from borrowed units does not see the other bucket", more.Lease != nil},
		{"penalty", "a request that another limit pays for is no denial", p.Limit.Penalty.After > 0},
		{"overdraw", "it charges denied requests, so that both limits would pay", p.Limit.Overdraw},
		{"algorithm leaky_bucket", "a queue makes requests wait instead of denying them", p.Limit.Kind == algorithms.LeakyBucket},
		{"algorithm concurrency", "a slot is returned to the bucket that it was taken from", p.Limit.Kind == algorithms.Concurrency},
		{"shadow_mode", "such a limit denies nothing", p.Shadow},
		{"quota_mode", "such limits deny only together", p.Quota},
	} {
		if other.stated {
			c.mistake(at, thenCombination+"%s, which %s has: %s; remove one", other.key, which, other.why)
		}
	}
}

// payerAt compiles the limit that pays for p at the place of a descriptor, and sets it as the Then of p. name
// is the name of p's limit.
func (c *compiler) payerAt(at site, name text, l *named, p *draft) {
	d, one, steps := at.d, at.one, at.steps
	t := d.limits[l.then.value]
	q := *t.draft
	q.Place, q.more.Named, q.more.Metadata = name.at.shown(), false, one.Metadata.value
	q.StatKey = d.Name + "." + steps.name() + "#" + q.Name
	c.identifyBuckets(d, steps, &q, true)
	switch {
	case one.Shadow.value:
		c.mistake(one.Shadow.at, thenCombination+"shadow_mode: limit %q has then, and here it would deny nothing; remove one", name.value)
	case one.Quota.value:
		c.mistake(one.Quota.at, thenCombination+"quota_mode: limit %q has then, and such limits deny only together; remove one", name.value)
	case q.more.Slot == (limiter.Slot{}):
		c.mistake(name.at, "limit %q has then, and hash_tag names entry %q, which is not among the entries here: the two buckets would be in different slots; "+
			"use \"hash_tag: domain\", or another limit here", name.value, d.tag.entry)
	default:
		c.sameSlot(d, t, name, &q)
	}
	p.more.Then = c.add(d, &q, one.at, nil)
}

// checkPayers reports limits that a request could charge twice, and plans whose slot no setting determines.
func (c *compiler) checkPayers(d *domain) {
	pays := map[string]*named{}
	for _, name := range d.names {
		l := d.limits[name]
		if l.draft == nil || l.draft.more.Then == nil {
			continue
		}
		pays[l.then.value] = l
		if (l.used == place{}) && !d.tag.domain {
			c.mistake(l.then.at, "then: no descriptor uses limit %q, so that hash_tag does not determine the slot of its buckets; use \"hash_tag: domain\"", name)
		}
	}
	for _, name := range d.referenced {
		if l := pays[name.value]; l != nil {
			c.mistake(name.at, "limit %q pays for another limit (then at %s), so that a descriptor cannot use it as well: a request could charge it twice; remove one", name.value, l.then.at)
		}
	}
}
