package limiter

import (
	"bytes"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A limit with Then has a payer: another limit that is charged in its place when it does not allow a request
// (backend.Charge.Then). All limits of a request with the same payer form a plan. If all of them allow, each
// is charged. Otherwise only the payer is charged, once: the largest of their costs.

type payer struct {
	Result

	plan int  // the index into Call.charges of the first charge of the plan; its other charges follow, and then that of the payer
	paid bool // another Result already has the cost of the payer
}

type candidate struct {
	result int // index into Call.Results
	payer  Result
}

// addCandidate adds Result i, whose limit must have Then, to the candidates. It reports whether it did.
//
// Refunds and costs of 0 apply only to the bucket that they name. If an operator blocks the key of the payer, the payer
// is not charged. If an operator made the payer unlimited, Result i is unlimited, too.
func (c *Call) addCandidate(i int) bool {
	r := &c.Results[i]
	if r.Cost <= 0 {
		return false
	}
	keys := len(c.keys)
	f := c.payerOf(r)
	if f.isBlocked() {
		c.keys, c.excepted = c.keys[:keys], true
		return false
	}
	if f.isUnlimited() && !c.Inspect {
		r.Outcome, r.charge, r.Key = Unlimited, noCharge, nil
		c.excepted = true
		return true
	}
	c.candidates = append(c.candidates, candidate{i, f})
	return true
}

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

func (c *Call) chargeAlternatives() {
	for n := range c.candidates {
		k := &c.candidates[n]
		r := &c.Results[k.result]
		if r.charge != toCharge {
			continue
		}
		group, together := 0, c.together(r)
		if !together {
			c.groups++
			group = c.groups
		}
		c.payers = append(c.payers, payer{Result: k.payer, plan: len(c.charges)})
		f := &c.payers[len(c.payers)-1]
		c.addToPlan(r, f, group)
		for j := n + 1; together && j < len(c.candidates); j++ {
			other := &c.candidates[j].payer
			if o := &c.Results[c.candidates[j].result]; o.charge == toCharge && c.together(o) && other.hash == f.hash && bytes.Equal(other.Key, f.Key) {
				c.addToPlan(o, f, group)
			}
		}
		c.add(&f.Result, group)
	}
}

// addToPlan combines r with the charge of the same bucket, if the plan has one.
func (c *Call) addToPlan(r *Result, f *payer, group int) {
	at := f.plan
	for at < len(c.charges) && !bytes.Equal(c.charges[at].Key, r.Key) {
		at++
	}
	if r.payer = len(c.payers); at == len(c.charges) {
		c.add(r, group)
		c.charges[at].Then = true
	} else {
		have := &c.charges[at].Terms
		*have = sum(*have, chargeOf(r))
		r.charge = at
	}
	f.Cost = max(f.Cost, c.charges[at].Terms.Cost)
}

// foldAlternatives sets r to the Result of the limit that was charged: r itself or its payer. If neither
// allows, the Decision has the earliest time at which one of them can.
func (c *Call) foldAlternatives(r *Result) {
	f := &c.payers[r.payer-1]
	decisions := c.decisions[f.plan : f.charge+1]
	last := len(decisions) - 1
	if r.Decision.Err != nil {
		return
	}
	switch from, to := backend.Paid(decisions); {
	case from == last:
		r.For, r.Policy, r.Key, r.hash, r.slot, r.charge = r.Policy, f.Policy, f.Key, f.hash, f.slot, f.charge
		r.Decision = decisions[last]
		if r.Cost = f.Cost; f.paid { // the payer is charged once for all limits of the plan
			r.Cost = 0
		}
		f.paid = true
	case from == to && !r.Decision.Allowed:
		retryAfter := retryOf(&decisions[0].Decision)
		for i := range decisions[1:last] {
			retryAfter = retryAfter.both(retryOf(&decisions[1+i].Decision))
		}
		retryAfter = retryAfter.either(retryOf(&decisions[last].Decision))
		r.Decision.RetryAfter, r.Decision.Never = retryAfter.after, retryAfter.never
	}
}
