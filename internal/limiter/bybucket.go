package limiter

import (
	"bytes"
	"hash/maphash"
	"slices"
)

// A limit with SettleTerms.ByBucket settles without ids: a check reserves, and a later request with a cost settles one of
// the newest reservations of its bucket.

// settlesByBucket reports whether one states a cost, and matches nothing but limits that it settles by bucket.
func (d *Domain) settlesByBucket(one *Descriptor) bool {
	if !one.Explicit || one.Cost <= 0 || one.HasOverride {
		return false
	}
	node := d.Tree.Match(one.Entries)
	return node != nil && len(node.Found.Policies) > 0 && !slices.ContainsFunc(node.Found.Policies, func(p *Policy) bool {
		return p.Extra().Settle == nil || !p.Extra().Settle.ByBucket
	})
}

// settleByBucket charges Result i, which settles one of the reservations of its bucket. If a request has several costs for
// one bucket, they are one cost: their reservation was one, too.
func (c *Call) settleByBucket(i int) {
	r := &c.Results[i]
	for j := range c.Settlements {
		s := &c.Settlements[j]
		if s.charge == noCharge { // the request has an id that settles nothing
			continue
		}
		if charge := &c.charges[s.charge]; bytes.Equal(charge.Key, r.Key) {
			s.Real = min(s.Real+r.Cost, mostCost)
			charge.Terms.Cost, r.charge = s.Real, s.charge
			return
		}
	}
	c.addAlone(r)
	terms := r.Policy.Extras.Settle
	estimate, _ := c.config.estimate(terms, r.cell) // only the bucket knows what was reserved; this is near it
	s := Settlement{
		Policy: r.Policy, Descriptor: r.Descriptor, Reserved: terms.Reserves(estimate, 0), Real: r.Cost, charge: r.charge, cell: r.cell, times: 1,
	}
	if s.cell != 0 {
		s.key = maphash.Bytes(bucketSeed, r.Key)
	}
	c.Settlements = append(c.Settlements, s)
}
