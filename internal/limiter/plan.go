package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// These values of Result.charge mean that the Result has no charge.
const (
	noCharge = -1 // the Result gets none
	toCharge = -2 // the Result does not have one yet
)

// plan adds the Results and the charges. Limits that are charged together share a Group. Each shadow limit and each
// quota limit has a Group of its own. With `consume: each`, each limit that a descriptor matches has one, too. last
// is the call that was planned before c, or nil. Only requests for named limits and those of operators can cause an error.
func (c *Call) plan(s *Snapshot, last *Call) error {
	c.Snapshot = s
	c.DryRun = c.DryRun || c.Inspect
	if len(c.Limits) > 0 {
		return c.planLimits(s)
	}
	c.Verdict.Domain = s.domain(c.Request.Domain, last)
	if !s.KeepBlanks {
		for i := range c.Descriptors {
			trimBlanks(c.Descriptors[i].Entries)
		}
	}
	if d := c.Verdict.Domain; d != nil {
		c.countDone()
		if c.Request.ID != "" {
			c.openHeader()
		}
		if len(d.Require) > 0 {
			if c.Missing = c.missing(d); c.Missing != nil && !c.config.Modes.Shadow && !c.Inspect {
				return nil // the request is denied without a charge
			}
		}
		for i := range c.Descriptors {
			if isDone, _ := c.settling(i); !isDone {
				c.applyLimits(i)
			}
		}
	} else if c.Inspect {
		return unknownDomain(c.Request.Domain)
	}
	c.replace()
	c.charge()
	for i := range c.Results {
		if r := &c.Results[i]; r.settle && r.charge == toCharge {
			c.settleByBucket(i)
		}
	}
	return nil
}

// trimBlanks removes blanks from both ends of each value.
//
// HTTP/1 parsers remove spaces and tabs and HTTP/2 forbids them, but Envoy keeps them in requests of HTTP/2
// clients, and applications remove further blanks. Without trimming, a client could get a new bucket with each
// number of blanks, while the application always gets the same value.
func trimBlanks(entries []descriptors.Entry) {
	for i := range entries {
		v := canonical.Trim(entries[i].Value)
		if len(v) != len(entries[i].Value) {
			entries[i].Value = v
		}
	}
}

func (c *Call) planLimits(s *Snapshot) error {
	for i := range c.Limits {
		named := &c.Limits[i]
		d, p, err := s.limit(c.Request.Domain, named)
		if err != nil && c.Inspect {
			d, p, err = s.inspected(c.Request.Domain, named)
		}
		if err != nil {
			return err
		}
		if named.Costs != nil {
			if named.Count, err = weightedCost(p, named.Costs); err != nil {
				return err
			}
		}
		if c.Inspect {
			if err := checkKey(s.Find(p.Domain, p.Name), p.Name, named.Key); err != nil {
				return err
			}
		}
		if named.Reserve && !p.Limit.CanReserve() {
			return &RequestError{Problem: fmt.Sprintf("limit %q is a %s, which cannot be reserved", descriptors.Printable(p.Name), kindName(p.Limit))}
		}
		c.Verdict.Domain = d
		if p.Limit.Kind == algorithms.Concurrency {
			if named.Count < 0 {
				return &RequestError{Problem: fmt.Sprintf("limit %q counts requests in flight, so its count must not be negative; return the slot by its id", descriptors.Printable(p.Name))}
			}
		}
		r := Result{Descriptor: i, Policy: p, Cost: named.Count, charge: toCharge}
		r.reserve, r.maxWait = named.Reserve, named.MaxWait
		if c.locate(&r); c.adjusted != nil {
			c.allowUnlimited(&r)
		}
		c.Results = append(c.Results, r)
	}
	c.charge()
	if c.IdempotencyKey.ID == "" {
		return nil
	}
	// A denial in quota mode would return a slot that the store then still grants to a repetition of the request.
	quota := slices.IndexFunc(c.Results, func(r Result) bool { return r.Policy.Quota })
	if c.slots > 0 && quota >= 0 {
		return &RequestError{Problem: fmt.Sprintf("with a request_id, limit %q, which is in quota mode, cannot be combined with a concurrency limit; "+
			"leave out the request_id", descriptors.Printable(c.Results[quota].Policy.Name))}
	}
	c.once()
	return nil
}

func kindName(l *algorithms.Limit) string {
	if l.Kind == algorithms.Guaranteed {
		return "token_bucket with a guaranteed minimum"
	}
	return l.Kind.String()
}

func (c *Call) applyLimits(i int) {
	d := &c.Descriptors[i]
	domain := c.Verdict.Domain
	if d.HasOverride {
		if p := domain.override(d.Override); p != nil {
			c.apply(i, p)
			if most := domain.MostOverride(d.Entries); most != nil {
				c.apply(i, most)
			}
			if c.adjusted != nil {
				c.adjustOverridden(i)
			}
			return
		}
	}
	node := domain.Tree.Match(d.Entries)
	if node == nil || len(node.Found.Policies) == 0 {
		if d.HasOverride { // the request should be limited, but the numbers of its override could not be parsed
			c.Results = append(c.Results, Result{Descriptor: i, Cost: d.Cost, charge: noCharge})
		}
		return
	}
	for _, p := range node.Found.Policies {
		c.apply(i, p)
	}
}

func (c *Call) apply(i int, p *Policy) {
	d := &c.Descriptors[i]
	c.Results = append(c.Results, Result{})
	r := &c.Results[len(c.Results)-1]
	r.Descriptor, r.Policy, r.Cost, r.charge = i, p, d.Cost, toCharge
	if p.Unlimited && c.adjusted == nil {
		r.Outcome, r.charge = Unlimited, noCharge
		return
	}
	start := len(c.keys)
	c.locate(r)
	settles := r.Policy.Extras != nil && r.Policy.Extras.Settle != nil // of the adjusted limit
	if settles && c.header.opened && c.settlesByHeader(r) {
		c.Results, c.keys = c.Results[:len(c.Results)-1], c.keys[:start]
		return
	}
	if settles {
		c.reserve(r)
	}
	if c.adjusted != nil {
		c.allowUnlimited(r)
	}
	if r.Policy.Limit.Kind == algorithms.Concurrency {
		c.ignoreRefund(r)
	}
}

// locate finds the bucket of r, and replaces r.Policy if an adjustment is in force for it.
func (c *Call) locate(r *Result) {
	p, start := r.Policy, len(c.keys)
	if len(c.Limits) > 0 {
		key := c.Limits[r.Descriptor].Key
		c.keys, r.hash = p.AppendKeyOf(c.keys, key)
		r.slot = p.SlotOfKey(key)
	} else {
		entries := c.Descriptors[r.Descriptor].Entries
		c.keys, r.hash = p.AppendKey(c.keys, entries)
		r.slot = p.SlotOf(entries)
	}
	if r.Key = c.keys[start:]; c.adjusted != nil {
		c.adjust(r)
	}
}

// replace marks the Results of limits that another limit of the request replaces. They are not charged. A limit
// replaces others even if it is replaced itself.
func (c *Call) replace() {
	var replaced map[string]bool
	for i := range c.Results {
		p := c.Results[i].Policy
		if p == nil || p.Extras == nil {
			continue
		}
		for _, name := range p.Extras.Replaces {
			if replaced == nil {
				replaced = map[string]bool{}
			}
			replaced[name] = true
		}
	}
	for i := range c.Results {
		if r := &c.Results[i]; replaced != nil && r.canBeReplaced() && replaced[r.Policy.RateName] {
			r.Outcome, r.charge = Replaced, noCharge
		}
	}
}

// canBeReplaced reports whether another limit can replace the limit of r. As in envoyproxy/ratelimit, an unlimited
// limit cannot be replaced. Neither can a limit that denies because an operator blocks the key.
func (r *Result) canBeReplaced() bool {
	return r.Policy != nil && r.Policy.RateName != "" && r.Outcome != Unlimited && !r.isBlocked()
}

// charge adds a charge for every Result that is to be charged. Those that are charged together come first, because chargeTogether
// compares with all charges that exist. What settles by bucket comes later (plan), whatever denies the rest.
func (c *Call) charge() {
	if c.adjusted != nil && c.deniedByBlock() {
		c.excepted = true
		return
	}
	c.reserves = 0
	for i := range c.Results {
		if r := &c.Results[i]; r.charge == toCharge && c.inID(r.Policy) {
			c.reserves++
		}
	}
	if c.reserves > 0 && (c.deniedByReserves() || c.deniedByReturns()) {
		return
	}
	then, alone := false, false
	for i := range c.Results {
		r := &c.Results[i]
		switch {
		case r.charge != toCharge || r.settle:
		case c.IsTogether(r):
			c.chargeTogether(r)
			then = then || r.Policy.Extras != nil && r.Policy.Extras.Then != nil
		default:
			alone = true
		}
	}
	if then {
		c.addPayers()
	}
	for i := 0; alone && i < len(c.Results); i++ {
		if r := &c.Results[i]; r.charge == toCharge && !r.settle {
			c.addAlone(r)
		}
	}
}

// deny denies c without a charge if denies returns true for a Result that is to be charged. It reports whether it did.
func (c *Call) deny(denies func(*Result) bool) (denied bool) {
	for i := range c.Results {
		if r := &c.Results[i]; r.charge == toCharge && !r.settle && denies(r) {
			r.Outcome, r.charge, denied = Denied, noCharge, true
		}
	}
	for i := range c.Results {
		if r := &c.Results[i]; denied && r.charge == toCharge && !r.settle {
			r.Outcome, r.charge = Replaced, noCharge
		}
	}
	return denied
}

// IsTogether reports whether r is charged in one group with other limits of the request. For named limits, the
// domain's consume makes no difference, because the API promises all or none. (envoyproxy/ratelimit has no such
// requests.) A proxy settles each bucket by itself. A settlement by name changes no bucket if one cost can never fit.
func (c *Call) IsTogether(r *Result) bool {
	p := r.Policy
	return (!p.Alone || len(c.Limits) > 0) && (!r.settle || c.Settle != nil) && !p.Shadow && !p.Quota && !c.config.Modes.Quota
}

// chargeTogether adds r to the group of limits that are charged together. Costs of the same bucket are added up in one charge.
func (c *Call) chargeTogether(r *Result) {
	at := c.charged(r.Key)
	if at < 0 {
		c.add(r, c.together)
		return
	}
	have := &c.charges[at]
	have.Terms = sum(have.Terms, chargeOf(r))
	r.charge = at
}

// few is the largest number of limits of a request whose buckets are compared with each other. For more limits, a table
// replaces the comparisons, so that the time grows linearly.
const few = 16

func chargeOf(r *Result) algorithms.Charge {
	return algorithms.Charge{Cost: r.Cost, Reserve: r.reserve, MaxWait: r.maxWait, Open: r.open}
}

// charged returns the index of the charge with this key among those that are charged together, or -1. If it returns -1, the caller must add a
// charge with this key next: in a request with more than few limits, charged has already entered that charge into
// the hash table c.buckets.
func (c *Call) charged(key []byte) int {
	if len(c.Results) <= few {
		for i := range c.charges {
			if bytes.Equal(c.charges[i].Key, key) {
				return i
			}
		}
		return -1
	}
	if len(c.charges) == 0 {
		places := 4 << bits.Len(uint(len(c.Results))) // at least twice the largest possible number of charges, of which each may have a payer
		c.buckets = slices.Grow(c.buckets[:0], places)[:places]
		clear(c.buckets)
	}
	last := uint64(len(c.buckets) - 1)
	at := maphash.Bytes(bucketSeed, key) & last // the seed is secret, so that no client can choose colliding keys
	for ; c.buckets[at] != 0; at = (at + 1) & last {
		if i := int(c.buckets[at] - 1); bytes.Equal(c.charges[i].Key, key) {
			return i
		}
	}
	c.buckets[at] = uint32(len(c.charges) + 1)
	return -1
}

var bucketSeed = maphash.MakeSeed()

func (c *Call) add(r *Result, group int) {
	r.charge = len(c.charges)
	c.charges = append(c.charges, backend.Charge{})
	charge, p := &c.charges[r.charge], r.Policy // filled in place, because a copy of this large struct is slow
	charge.Key, charge.Group, charge.Slot = r.Key, group, r.slot
	setPolicy(charge, p)
	if !r.settle {
		charge.Canceled = c.Canceled
	}
	terms := &charge.Terms
	terms.Cost, terms.Hash, terms.ChargedAt, terms.Reserve, terms.DryRun = r.Cost, r.hash, r.chargedAt, r.reserve, c.DryRun
	terms.Settle, terms.Open, terms.MaxWait = r.settle, r.open, r.maxWait
	if p.Limit.Kind == algorithms.Concurrency && !c.DryRun {
		c.addSlot(p, terms)
	}
	if delay := p.Extra().MaxDelay; delay > 0 && c.Request.MaxDelay > 0 {
		terms.MaxWait = min(delay, c.Request.MaxDelay)
	}
}

// dryRunMistake looks for a named limit, charged together with others, that can never allow its cost, and whose payer, if there is one,
// cannot either. If there is such a limit, dryRunMistake makes the request a dry run and returns true. The dry run
// reports the remaining units, and charges nothing, not even limits that charge denied requests.
func (c *Call) dryRunMistake() bool {
	if len(c.Limits) == 0 || c.config.Modes.Shadow {
		return false
	}
	if !slices.ContainsFunc(c.Results, func(r Result) bool { return r.charge >= 0 && c.IsTogether(&r) && c.neverFits(&r) }) {
		return false
	}
	c.dryRun()
	return true
}

// dryRun makes all charges of c dry runs. If they have an idempotency key, the store still answers a repeated group with
// the first answer. Otherwise it charges nothing and stores nothing.
func (c *Call) dryRun() {
	for i := range c.charges {
		c.charges[i].Terms.DryRun = true
	}
}

// neverFits reports whether r, which has a charge, can never be allowed, and neither can its payer.
func (c *Call) neverFits(r *Result) bool {
	charge := c.charges[r.charge]
	if charge.Own != nil { // whether the row or the payer can pay for the row depends on the Results of the row
		charge.Terms.Cost, charge.Terms.Reserve = charge.Own.Cost, charge.Own.Reserve
	}
	if never := neverFits(r.Policy, &charge); !never || r.payer == 0 {
		return never
	}
	payer := &c.payers[r.payer-1]
	return neverFits(payer.Policy, &c.charges[payer.charge])
}

// answerMistake sets the decisions that the store could not make, after dryRunMistake returned true. They are known
// without the store.
func (c *Call) answerMistake() {
	for i := range c.charges {
		if d := &c.decisions[i]; d.Err != nil {
			never := c.charges[i].NeverFits()
			*d = backend.Decision{Decision: algorithms.Decision{Never: never, Allowed: !never}}
		}
	}
}

// decideLocally decides charges in this process's own buckets, if the store could not decide and
// on_backend_failure is local. Each charge is decided alone, because it is unknown whether the other limits
// of its group would allow. A settlement of units that were reserved in the store does not change local buckets.
func (c *Call) decideLocally(local backend.Store) {
	if local == nil {
		return
	}
	var decidedLocally []bool // by charge; nil if there is none
	for i := range c.Results {
		r := &c.Results[i]
		if r.charge < 0 || c.decisions[r.charge].Err == nil || r.Policy.Extra().Local == nil || r.settle {
			continue
		}
		if errors.Is(c.decisions[r.charge].Err, backend.ErrTooLarge) {
			continue
		}
		charge := c.charges[r.charge]
		charge.Limit, charge.Shards, charge.Lease = r.Policy.Extra().Local, nil, nil
		if own := charge.Own; own != nil { // nothing is paid for others, because each limit decides alone
			charge.Terms.Cost, charge.Terms.Reserve, charge.Own = own.Cost, own.Reserve, nil
		}
		if r.Policy.Extra().Settle != nil && len(c.Limits) == 0 { // an estimate beyond the share would always be denied
			charge.Terms.Cost = min(charge.Terms.Cost, max(1, charge.Limit.Capacity))
		}
		if charge.IdempotencyKey != nil { // with a common ID, the local store would return the first decision for the second charge too
			own := *charge.IdempotencyKey
			own.ID = IdempotencyID(string(own.ID[:]), strconv.Itoa(r.charge))
			charge.IdempotencyKey = &own
		}
		var own [1]backend.Decision
		backend.Take(context.Background(), local, []backend.Charge{charge}, own[:])
		// A cost that only the share cannot hold keeps the error of the store: it would be wrong that it never fits.
		if d := &own[0]; d.Err == nil && (!d.Never || c.neverFits(r)) {
			c.decisions[r.charge] = own[0]
			if decidedLocally == nil {
				decidedLocally = make([]bool, len(c.charges))
			}
			decidedLocally[r.charge] = true
		}
	}
	for i := range c.Results { // several Results may have the same bucket
		if r := &c.Results[i]; decidedLocally != nil && r.charge >= 0 && decidedLocally[r.charge] {
			r.local = true
		}
	}
}

// sum combines two charges of the same bucket into one. It adds their costs, bounded to the range of int64.
// The sum is reserved only if both costs are, and waits no longer than either of them accepts. It is an open reservation if
// one of them is.
func sum(a, b algorithms.Charge) algorithms.Charge {
	a.Reserve = a.Reserve && b.Reserve
	if a.MaxWait == 0 || b.MaxWait > 0 && b.MaxWait < a.MaxWait {
		a.MaxWait = b.MaxWait
	}
	switch total := a.Cost + b.Cost; {
	case a.Cost > 0 && b.Cost > 0 && total < 0:
		a.Cost = math.MaxInt64
	case a.Cost < 0 && b.Cost < 0 && total >= 0:
		a.Cost = math.MinInt64
	default:
		a.Cost = total
	}
	a.Open = (a.Open || b.Open) && a.Cost > 0
	return a
}
