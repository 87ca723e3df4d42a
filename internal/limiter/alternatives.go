package limiter

import (
	"cmp"
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A limit with Then has a payer: another limit that is charged in its place when it does not allow a request
// (backend.Charge.Then). All charges of a group with the same payer form a row. If all of them are allowed, each
// is made. Otherwise only the payer is charged, once: the largest of their costs.
//
// A bucket occurs once in a group, whatever names it. So the costs of each bucket are added up first, and only a sum
// above 0 has a payer. If the request names the bucket of the payer itself, the charge of the payer has both costs: what
// the request asks of it (backend.Charge.Own), and what it pays.

type payer struct {
	Result

	plan    int  // the index into Call.charges of the first charge of the row; the others follow, and then that of the payer
	largest int  // the index into Call.charges of the first charge of the row with the largest cost
	paid    bool // another Result already has the cost of the payer
	// reserved is the part of the cost that the request reserves: it can also name a limit without reserving. reserves
	// is the number of its Results.
	reserved, reserves int64
}

// place is where a charge that is made together with others belongs.
type place struct {
	row   int // 1 + index into Call.payers: the charge is in the row of that payer; 0: in none; or unlimited
	payer int // 1 + index into Call.payers: the charge is that of the payer; 0: of none
	at    int // the index of the charge after the charges were ordered
}

// unlimited is the place.row of a charge whose payer an operator made unlimited. The charge is not made.
const unlimited = -1

// hasPayer reports whether the limit of r has Then. It has no effect for a key that an operator blocks or has made
// unlimited, which is charged only if an operator inspects the bucket.
func (r *Result) hasPayer() bool {
	return r.Policy.Extra().Then != nil && !r.isBlocked() && !r.isUnlimited()
}

// payerOf returns the payer of r, whose limit has Then. It returns false if an operator blocks the key of the payer, which
// is then not charged.
func (c *Call) payerOf(r *Result) (f Result, ok bool) {
	f = Result{Descriptor: r.Descriptor, Policy: r.Policy.Extras.Then, cell: r.cell, maxWait: r.maxWait}
	start := len(c.keys)
	c.locate(&f)
	if f.isBlocked() {
		c.keys, c.excepted = c.keys[:start], true
		return f, false
	}
	return f, true
}

// addPayers gives each charge whose limit has Then its payer, among those that are made together. Then it orders the
// charges, so that each row is followed by the charge of its payer.
func (c *Call) addPayers() {
	named := len(c.charges)
	c.places = slices.Grow(c.places[:0], named)[:named]
	clear(c.places)
	for i := range c.Results {
		r := &c.Results[i]
		if r.charge < 0 || !r.hasPayer() {
			continue
		}
		if c.places[r.charge].row == 0 && c.charges[r.charge].Terms.Cost > 0 {
			c.addToRow(r, named)
		}
		if r.payer = c.places[r.charge].row; r.payer == unlimited {
			r.Outcome, r.charge, r.Key = Unlimited, noCharge, nil
			c.excepted = true
		}
	}
	for i := range c.payers {
		p := &c.payers[i]
		if charge := &c.charges[p.charge]; p.charge < named {
			charge.Own = &algorithms.Own{Cost: charge.Terms.Cost, Reserve: charge.Terms.Reserve}
			charge.Terms = sum(charge.Terms, chargeOf(&p.Result))
		} else {
			charge.Terms.Cost = p.Cost
		}
	}
	c.orderCharges()
}

// addToRow adds the charge of r to the row of its payer. named is the number of charges without those of payers that the
// request does not name.
func (c *Call) addToRow(r *Result, named int) {
	f, ok := c.payerOf(r)
	if !ok {
		return
	}
	if f.isUnlimited() && !c.Inspect {
		c.places[r.charge].row = unlimited
		return
	}
	if f.charge = c.charged(f.Key); f.charge < 0 {
		c.add(&f, c.together)
		c.places = append(c.places, place{})
	}
	is := &c.places[f.charge]
	if is.payer == 0 {
		c.payers = append(c.payers, payer{Result: f, plan: r.charge, largest: r.charge})
		is.payer = len(c.payers)
	}
	p := &c.payers[is.payer-1]
	if cost := c.charges[r.charge].Terms.Cost; cost > p.Cost {
		p.Cost, p.largest = cost, r.charge
	}
	c.charges[r.charge].Then, c.places[r.charge].row = true, is.payer
}

// orderCharges moves each row before the charge of its payer, and all rows behind the other charges. Stored answers
// depend on this order. It removes the charges that are not made.
func (c *Call) orderCharges() {
	c.order = c.order[:0]
	for i := range c.places {
		if c.places[i].row != unlimited {
			c.order = append(c.order, i)
		}
	}
	made := len(c.order)
	for i := range c.places {
		if c.places[i].row == unlimited {
			c.order = append(c.order, i)
		}
	}
	rank := func(i int) int {
		switch p := c.places[i]; {
		case p.row > 0:
			return 2 * c.payers[p.row-1].charge
		case p.payer > 0:
			return 2*i + 1
		default:
			return i - len(c.places)
		}
	}
	compare := func(i, j int) int { return cmp.Compare(rank(i), rank(j)) }
	if made == len(c.order) && slices.IsSortedFunc(c.order, compare) {
		return
	}
	slices.SortStableFunc(c.order[:made], compare)
	for at, i := range c.order {
		c.places[i].at = at
	}
	for i := range c.Results {
		if r := &c.Results[i]; r.charge >= 0 {
			r.charge = c.places[r.charge].at
		}
	}
	for i := range c.payers {
		p := &c.payers[i]
		p.charge, p.plan, p.largest = c.places[p.charge].at, c.places[p.plan].at, c.places[p.largest].at
	}
	for i := range c.places {
		for at := c.places[i].at; at != i; at = c.places[i].at {
			c.charges[i], c.charges[at] = c.charges[at], c.charges[i]
			c.places[i], c.places[at] = c.places[at], c.places[i]
		}
	}
	clear(c.charges[made:])
	c.charges = c.charges[:made]
}

// addAlone adds r and its payer, if it has one, in a group of their own.
func (c *Call) addAlone(r *Result) {
	var f Result
	pays := false
	if r.hasPayer() && r.Cost > 0 {
		if f, pays = c.payerOf(r); pays && f.isUnlimited() && !c.Inspect {
			r.Outcome, r.charge, r.Key = Unlimited, noCharge, nil
			c.excepted = true
			return
		}
	}
	c.groups++
	if c.add(r, c.groups); pays {
		f.Cost = r.Cost
		c.add(&f, c.groups)
		c.charges[r.charge].Then = true
		c.payers = append(c.payers, payer{Result: f, plan: r.charge, largest: r.charge})
		r.payer = len(c.payers)
	}
}

// foldAlternatives sets r to the Result of the limit that was charged: r itself or its payer. If neither
// allows, the Decision has the earliest time at which one of them can.
func (c *Call) foldAlternatives(r *Result) {
	f := &c.payers[r.payer-1]
	one, decisions := c.charges[f.plan:f.charge+1], c.decisions[f.plan:f.charge+1]
	last := len(decisions) - 1
	if r.Decision.Err != nil {
		return
	}
	switch from, to := backend.Paid(one, decisions); {
	case from == last, from == to && !r.Decision.Allowed && f.isUnlimited(): // the second only if an operator inspects the bucket
		parts, reserves, reserved := c.resultsOf(f.largest)
		if !f.paid {
			f.reserved, f.reserves = reserved, reserves
		}
		r.For, r.Policy, r.Key, r.hash, r.slot, r.charge = r.Policy, f.Policy, f.Key, f.hash, f.slot, f.charge
		r.Decision = decisions[last]
		if r.Cost, r.times = f.Cost, parts; f.paid { // the payer is charged once for all limits of the plan
			r.Cost = 0
		}
		f.paid = true
	case from == to && !r.Decision.Allowed:
		retry := decisions[last].Retry()
		if one[last].Own == nil { // otherwise it includes the row
			row := algorithms.Retry{}
			for i := range decisions[:last] {
				row = row.Both(decisions[i].Retry())
			}
			retry = row.Either(retry)
		}
		r.Decision.RetryAfter, r.Decision.Never = retry.After, retry.Never
	}
}

// resultsOf returns how many Results have the charge with this index, how many of these reserve, and the sum of the costs
// of the latter.
func (c *Call) resultsOf(charge int) (n, reserve, units int64) {
	for i := range c.Results {
		r := &c.Results[i]
		if r.charge != charge {
			continue
		}
		if n++; r.reserve {
			reserve, units = reserve+1, units+r.Cost
		}
	}
	return n, reserve, units
}
