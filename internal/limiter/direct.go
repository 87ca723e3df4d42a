package limiter

import (
	"bytes"
	"context"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Direct decides named limits as one group, as Limiter.Check decides a Call with Limits. It is for programs
// that decide requests themselves. It makes no Verdict, keeps none of its arguments, and allocates nothing
// once its buffers have grown. Modes, adjustments, on_backend_failure and payers (Extras.Then) do not apply. It
// is not safe for concurrent use.
//
// Call Reset, Add for each limit, and Take.
type Direct struct {
	charges     []backend.Charge
	decisions   []backend.Decision
	keys        []byte
	chargeIndex []int // for each added limit, the index of its charge in charges
}

// Reset empties d.
func (d *Direct) Reset() {
	clear(d.charges) // releases limits to the garbage collector
	clear(d.decisions)
	d.charges, d.decisions, d.keys, d.chargeIndex = d.charges[:0], d.decisions[:0], d.keys[:0], d.chargeIndex[:0]
}

// Add adds a charge to the bucket of the limit p for a key. Costs of the same bucket are added up; the sum is
// reserved only if each of them is. Add sets terms.Hash.
func (d *Direct) Add(p *Policy, key []string, terms algorithms.Charge) {
	start := len(d.keys)
	d.keys, terms.Hash = p.AppendKeyOf(d.keys, key)
	bucket := d.keys[start:]
	for i := range d.charges {
		if bytes.Equal(d.charges[i].Key, bucket) {
			d.charges[i].Terms = sum(d.charges[i].Terms, terms)
			d.chargeIndex = append(d.chargeIndex, i)
			return
		}
	}
	n := len(d.charges)
	d.chargeIndex = append(d.chargeIndex, n)
	if n < cap(d.charges) && n < cap(d.decisions) {
		d.charges, d.decisions = d.charges[:n+1], d.decisions[:n+1] // Reset has cleared these elements
	} else {
		d.charges, d.decisions = append(d.charges, backend.Charge{}), append(d.decisions, backend.Decision{})
	}
	charge := &d.charges[n]
	charge.Key, charge.Slot, charge.Terms = bucket, p.SlotOfKey(key), terms
	setPolicy(charge, p)
}

// Take submits the charges to store and waits for the decisions. If a cost can never fit, nothing is
// charged, not even for limits that charge denied requests.
func (d *Direct) Take(ctx context.Context, store backend.Store) {
	for i := range d.charges {
		if d.charges[i].NeverFits() {
			for j := range d.charges {
				d.charges[j].Terms.DryRun = true
			}
			break
		}
	}
	backend.Take(ctx, store, d.charges, d.decisions)
	for i := range d.decisions {
		hideBlocked(&d.decisions[i])
	}
}

// Decision returns the decision on the i-th added limit, and its charge. The costs of one bucket are added
// up in one charge. Both are valid until Reset.
func (d *Direct) Decision(i int) (*backend.Decision, *backend.Charge) {
	return &d.decisions[d.chargeIndex[i]], &d.charges[d.chargeIndex[i]]
}

func setPolicy(charge *backend.Charge, p *Policy) {
	more := p.Extra()
	charge.Limit, charge.Owner, charge.Shards, charge.Lease = p.Limit, p.Owner, more.Shards, more.Lease
}
