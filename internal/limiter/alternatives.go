package limiter

import (
	"bytes"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A limit with Then is charged together with another limit, the payer, which pays for the units that the
// limit does not allow (backend.Charge.Then). Several limits of a request with the same payer form a plan.
// Either all of them allow, or the payer pays once: the largest of their costs.

// payer is a limit that may pay for others, with its Result.
type payer struct {
	Result

	plan int // the index of the first charge that it pays for; the next charges are the others, and then its own
	paid bool
}

// candidate is a Result for which another limit may pay.
type candidate struct {
	of    int    // the index of that Result
	payer Result // the limit that may pay for it
}

// hasAlternative reports whether another limit may pay for Result i. If so, it adds the Result to the
// candidates.
//
// Refunds, dry runs of no units and settlements apply only to the bucket that they name. A payer whose key
// an operator blocks does not pay. If an operator made the payer unlimited, it pays for everything, and
// Result i is charged without a limit.
//
// The limit of Result i must have Then.
func (c *Call) hasAlternative(i int) bool {
	r := &c.Results[i]
	if r.Cost <= 0 || r.settle || r.of != 0 || r.isUnlimited() {
		return false
	}
	keys := len(c.keys)
	f := c.payerOf(r)
	if r.freed = f.isUnlimited(); r.freed || f.isBlocked() {
		c.keys = c.keys[:keys]
		return false
	}
	c.candidates = append(c.candidates, candidate{i, f})
	return true
}

// payerOf returns the Result of the limit that may pay for r.
func (c *Call) payerOf(r *Result) (f Result) {
	f = Result{Descriptor: r.Descriptor, Policy: r.Policy.Extras.Then, Cost: r.Cost, cell: r.cell}
	start := len(c.keys)
	if len(c.Limits) > 0 {
		key := c.Limits[r.Descriptor].Key
		c.keys, f.hash = f.Policy.AppendKeyOf(c.keys, key)
		f.slot = f.Policy.SlotOfKey(key)
	} else {
		entries := c.Descriptors[r.Descriptor].Entries
		c.keys, f.hash = f.Policy.AppendKey(c.keys, entries)
		f.slot = f.Policy.SlotOf(entries)
	}
	f.Key = c.keys[start:]
	if c.adjusted != nil {
		c.adjust(&f)
	}
	return f
}

// chargeAlternatives adds the charges of the candidates. For each payer, the charges that it pays for come
// first, and then its own charge.
func (c *Call) chargeAlternatives() {
	for n := range c.candidates {
		k := &c.candidates[n]
		r := &c.Results[k.of]
		if r.charge != toCharge {
			continue
		}
		group, together := 0, c.together(r)
		if !together {
			c.groups++
			group = c.groups
		}
		c.instead = append(c.instead, payer{Result: k.payer, plan: len(c.charges)})
		f := &c.instead[len(c.instead)-1]
		c.addToPlan(r, f, group)
		for j := n + 1; together && j < len(c.candidates); j++ {
			other := &c.candidates[j].payer
			if o := &c.Results[c.candidates[j].of]; o.charge == toCharge && c.together(o) && other.hash == f.hash && bytes.Equal(other.Key, f.Key) {
				c.addToPlan(o, f, group)
			}
		}
		c.add(&f.Result, group)
	}
}

// addToPlan adds r to the limits that f pays for. Costs of the same bucket become one charge.
func (c *Call) addToPlan(r *Result, f *payer, group int) {
	at := f.plan
	for at < len(c.charges) && !bytes.Equal(c.charges[at].Key, r.Key) {
		at++
	}
	if r.instead = len(c.instead); at == len(c.charges) {
		c.add(r, group)
		c.charges[at].Then = true
	} else {
		have := &c.charges[at].Terms
		*have = sum(*have, chargeOf(r))
		r.charge = at
	}
	f.Cost = max(f.Cost, c.charges[at].Terms.Cost)
}

// foldAlternatives sets r to the limit that paid, which is r itself or its payer. If neither can pay, the
// Decision has the earliest time at which one of them can.
func (c *Call) foldAlternatives(r *Result) {
	f := &c.instead[r.instead-1]
	decisions := c.decisions[f.plan : f.charge+1]
	last := len(decisions) - 1
	if r.Decision.Err != nil {
		return
	}
	switch from, to := backend.Paid(decisions); {
	case from == last:
		r.For, r.Policy, r.Key, r.hash, r.slot, r.charge = r.Policy, f.Policy, f.Key, f.hash, f.slot, f.charge
		r.Decision = decisions[last]
		if r.Cost = f.Cost; f.paid { // the payer pays once for all of the limits
			r.Cost = 0
		}
		f.paid = true
	case from == to && !r.Decision.Allowed:
		when := retryOf(&decisions[0].Decision)
		for i := range decisions[1:last] {
			when = when.and(retryOf(&decisions[1+i].Decision))
		}
		when = when.or(retryOf(&decisions[last].Decision))
		r.Decision.RetryAfter, r.Decision.Never = when.after, when.never
	}
}
