package config

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const slotExample = "{algorithm: concurrency, capacity: 20, ttl: 15m}"

// concurrency compiles a limit of units in flight.
func (c *compiler) concurrency(l *limit, p *draft) {
	before := c.mistakes
	for _, other := range []struct {
		key    string
		at     place
		stated bool
	}{
		{"rate", l.Rate.at, l.Rate.stated()},
		{"period", l.Period.at, l.Period.stated()},
		{"initial", l.Initial.at, l.Initial.stated()},
		{"max_reserved", l.MaxReserved.at, l.MaxReserved.stated()},
		{"start", l.Start.at, l.Start.stated()},
		{"overdraw", l.Overdraw.at, l.Overdraw.value},
		{"guaranteed", l.Guaranteed.at, l.Guaranteed.stated()},
		{"shards", l.Shards.at, l.Shards.stated()},
		{"lease", l.Lease.at, l.Lease.stated()},
		{"max_delay", l.MaxDelay.at, l.MaxDelay.stated()},
		{"settle", l.Settle.at, l.Settle.stated()},
		{"then", l.Then.at, l.Then.stated()},
		{"time_zone", l.TimeZone.at, l.TimeZone.stated()},
		{"penalty", l.Penalty.at, l.Penalty.stated()},
		{"quota_mode", l.Quota.at, l.Quota.value},
	} {
		if other.stated {
			c.mistake(other.at, "%s cannot be combined with algorithm concurrency; remove %[1]s", other.key)
		}
	}
	if p.Alone {
		c.mistake(l.Algorithm.at, "algorithm concurrency cannot be combined with consume: each, which would take slots for denied requests; remove one")
	}
	if !l.Capacity.stated() && !l.incomplete {
		c.mistake(l.at, "capacity is missing; write the most units in flight: \"capacity: 20\"")
	}
	if !l.TTL.stated() && !l.incomplete {
		c.mistake(l.at, "ttl is missing; write how long a request may take at most, such as \"ttl: 15m\": a slot that is not returned by then is free again")
	}
	if c.mistakes > before || l.broken || !l.Capacity.ok || !l.TTL.ok {
		return
	}
	p.more.Weights = l.Weights.value
	c.numbers(l, p, algorithms.Spec{Kind: algorithms.Concurrency, Capacity: l.Capacity.pointer(), Period: l.TTL.value})
}

// slotPrefix checks the length of the prefix of p's keys, if p is a concurrency limit.
func (c *compiler) slotPrefix(at place, p *draft) {
	if n := len(p.Prefix); p.Limit.Kind == algorithms.Concurrency && n > limiter.MaxSlotPrefix {
		c.mistake(at, "the ids of slots contain the names of the domain and of the limit, which together may have about %d characters, but have %d; "+
			"move the limit under limits with a shorter name, and write \"limit: NAME\" here", limiter.MaxSlotPrefix-16, n)
	}
}

// inShadow lets a concurrency limit in shadow mode take slots beyond its capacity.
func inShadow(l *algorithms.Limit) *algorithms.Limit {
	spec := l.Spec()
	spec.Overdraw = true
	shadow, err := algorithms.Compile(spec)
	if err != nil {
		return l
	}
	return &shadow
}
