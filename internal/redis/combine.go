package redis

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// steps decides a charge of a sharded bucket in several steps, each of which is a batch of its own.
type steps struct {
	*draws

	i      int              // the position of the charge in the outer batch
	charge *backend.Charge  // the whole charge
	is     backend.Decision // the decision on the whole charge. Its Value is in the unit of the shards
	// next receives the decisions on the charges of the last step, and returns the charges of the next step. If there are
	// none, is has been decided.
	next  func(answers []backend.Decision) []backend.Charge
	batch backend.Batch
	state atomic.Int32
}

// The states of steps, from the Submit of a batch until its Done.
const (
	submitting = iota
	submitted  // Submit has returned, Done has not been called
	completed  // Done was called before Submit returned
)

func (d *draws) steps(i int) steps { return steps{draws: d, i: i, charge: &d.outer.Charges[i]} }

// begin makes the first step, with these charges.
func (m *steps) begin(charges []backend.Charge) {
	m.pending.Add(1)
	m.batch = backend.Batch{Deadline: m.outer.Deadline, Detached: m.outer.Detached, Source: m.outer.Source, Done: m.answered}
	m.run(charges)
}

// run makes steps until the charge is decided, or until Submit returns before the decisions are known. A loop is
// used, because with recursion the stack could grow without bound.
func (m *steps) run(charges []backend.Charge) {
	for len(charges) > 0 {
		m.batch.Charges, m.batch.Decisions = charges, make([]backend.Decision, len(charges))
		m.state.Store(submitting)
		m.shardStore.next.Submit(&m.batch)
		if m.state.CompareAndSwap(submitting, submitted) {
			return
		}
		charges = m.next(m.batch.Decisions)
	}
	m.conclude(m.i, m.is)
	m.ended()
}

// answered is the Done function of the batch.
func (m *steps) answered(*backend.Batch) {
	if !m.state.CompareAndSwap(submitting, completed) {
		m.run(m.next(m.batch.Decisions))
	}
}

func (m *steps) peekAll() (charges []backend.Charge) {
	for i := range m.charge.Shards {
		part := shardOf(m.charge, i)
		part.Terms, part.Group = algorithms.Charge{Hash: m.charge.Terms.Hash, DryRun: true}, i
		charges = append(charges, part)
	}
	return charges
}

// peeked returns the states of all shards, taken from the decisions on the dry runs of peekAll. now is
// the latest of their times. err is the error of a dry run that failed; the state of its shard is then zero. If all
// failed, now is 0.
func (m *steps) peeked(answers []backend.Decision) (buckets []algorithms.Bucket, now algorithms.Micros, err error) {
	c := m.charge
	buckets = make([]algorithms.Bucket, len(answers))
	for i := range answers {
		m.memory.observe(c.Key, c.Shards, i, &answers[i])
		buckets[i].Limit = &c.Shards[i]
		if answers[i].Err != nil {
			err = answers[i].Err
			continue
		}
		buckets[i].State = algorithms.State{By: &c.Shards[i], Value: answers[i].Value, At: answers[i].At}
		now = max(now, answers[i].At)
	}
	return buckets, now, err
}

// planShards decides a charge with these terms from the last known states of the shards, and stores the next states in
// buckets. It returns the decision, and for each shard its part of the charge. The cost of a part may be 0.
func planShards(now algorithms.Micros, buckets []algorithms.Bucket, terms algorithms.Charge) (algorithms.Decision, []algorithms.Charge) {
	before := slices.Clone(buckets)
	d := algorithms.TakeShards(now, buckets, terms)
	parts := make([]algorithms.Charge, len(buckets))
	for i, b := range buckets {
		if was := before[i].State; b.State.Value != was.Value || b.State.At != was.At {
			_, current := b.Limit.Take(was, now, algorithms.Charge{Hash: terms.Hash, DryRun: true})
			parts[i] = algorithms.Charge{Cost: current.Value - b.State.Value, Scaled: true, Hash: terms.Hash, Reserve: terms.Reserve, ChargedAt: partOf(b.Limit, &terms)}
		}
	}
	return d, parts
}

// partOf returns Charge.ChargedAt for one shard's part of a refund with these terms. It is 0 for a token bucket,
// because the inflow of all shards has already been subtracted from the refund.
func partOf(l *algorithms.Limit, terms *algorithms.Charge) algorithms.Micros {
	if l.Kind == algorithms.TokenBucket {
		return 0
	}
	return terms.ChargedAt
}

// combine reads all shards, makes a decision, and charges each shard its part. The parts are one group. If meanwhile other
// sidecars have consumed units that a part needs, the group is denied, and combine starts again. It makes at most three
// attempts. If all fail, it denies the charge; the retry time is that of the shards after the refunds of the last group.
type combine struct {
	steps

	tries   int
	now     algorithms.Micros
	buckets []algorithms.Bucket // the states as last read
	parts   []algorithms.Charge // what each shard is charged
}

func (d *draws) combine(i int) {
	m := &combine{steps: d.steps(i)}
	m.next = m.plan
	m.begin(m.peekAll())
}

// plan makes a decision from the decisions on the dry runs, and returns the charges of the shards. If it returns none,
// the decision is final.
func (m *combine) plan(answers []backend.Decision) (charges []backend.Charge) {
	m.is = backend.Decision{}
	if m.buckets, m.now, m.is.Err = m.peeked(answers); m.is.Err != nil {
		return nil
	}
	m.is.Decision, m.parts = planShards(m.now, m.buckets, m.charge.Terms)
	m.is.At = m.now
	if !m.is.Allowed || m.charge.Terms.DryRun || m.charge.Terms.Cost == 0 {
		return nil
	}
	for i := range m.parts {
		if m.parts[i].Cost != 0 {
			part := shardOf(m.charge, i)
			part.Terms = m.parts[i]
			charges = append(charges, part)
		}
	}
	m.next = m.charged
	return charges
}

// charged receives the decisions on the group of the parts.
func (m *combine) charged(answers []backend.Decision) []backend.Charge {
	denied := slices.ContainsFunc(answers, func(d backend.Decision) bool { return !d.Allowed })
	switch m.tries++; {
	case answers[0].Err != nil: // the error of the whole group
		m.is = backend.Decision{Err: answers[0].Err}
	case denied && m.tries < 3:
		m.next = m.plan
		return m.peekAll()
	case denied:
		m.deny(answers)
	}
	return nil
}

// deny makes the decision a denial, from the decisions on a group of which a part was denied. Its other parts are refunded.
func (m *combine) deny(answers []backend.Decision) {
	for i := range m.parts {
		if m.parts[i].Cost == 0 {
			continue
		}
		d := &answers[0]
		answers = answers[1:]
		m.buckets[i].State.Value, m.buckets[i].State.At = d.Value, d.At
		if d.Allowed {
			m.buckets[i].State.Value += m.parts[i].Cost
		}
		m.now = max(m.now, d.At)
	}
	if is := algorithms.TakeShards(m.now, m.buckets, m.charge.Terms); !is.Allowed {
		m.is.Decision, m.is.At = is, m.now
	} else { // the refunds make enough units available again
		m.is.Decision = algorithms.Decision{RetryAfter: 1, Remaining: m.is.Remaining}
	}
}

type shardCharge struct {
	shard int
	terms algorithms.Charge
}

// refund refunds units of a sharded bucket, to the emptiest shards first.
//
// If shards cannot be reached, the units of an undo or of a lease go to the others, because nobody repeats that refund.
// Any other refund fails as a whole.
//
// The shards are not read at the same moment, and another process may fill a shard before its refund arrives.
// So units that did not fit are offered to each shard in turn, twice. (In a test, 12 goroutines consumed and
// refunded 1,300 units. Offering units once to each shard lost 32 units, offering them twice lost none.)
type refund struct {
	steps

	sent  []shardCharge // the refunds that were sent last
	rest  int64         // what has not fitted yet, in the unit of State.Value
	whole int64         // all that is to be refunded, in the unit of State.Value
	order []int         // the shards to which the rest is offered, in this order
}

func (d *draws) refund(i int) {
	m := &refund{steps: d.steps(i)}
	m.next = m.plan
	m.begin(m.peekAll())
}

// plan uses the decisions on the dry runs to distribute the refund over the shards.
func (m *refund) plan(answers []backend.Decision) []backend.Charge {
	terms := m.charge.Terms
	terms.Cost = -m.charge.Limit.GiveBack(terms.Cost)
	buckets, now, err := m.peeked(answers)
	if isRepeatable := terms.Settle || terms.ChargedAt == 0; err != nil && (now == 0 || isRepeatable) {
		m.is = backend.Decision{Err: err}
		return nil
	}
	var parts []algorithms.Charge
	m.is.Decision, parts = planShards(now, buckets, terms)
	m.is.At = now
	n := len(m.charge.Shards)
	m.order = slices.DeleteFunc(append(m.memory.order(n), m.memory.order(n)...), func(i int) bool { return answers[i].Err != nil })
	m.whole = -terms.Cost * m.charge.Shards[0].Unit()
	m.rest = refundedUnits(m.charge.Shards, m.whole, terms.ChargedAt, now)
	var refunds []shardCharge
	for i := range parts {
		if parts[i].Cost < 0 && answers[i].Err == nil {
			refunds = append(refunds, shardCharge{i, parts[i]})
		}
	}
	m.next = m.offer
	if len(refunds) == 0 {
		return m.offer(nil)
	}
	return m.refundCharges(refunds...)
}

// offer receives the decisions on the refunds that were sent last. It offers the rest to the next shard.
func (m *refund) offer(answers []backend.Decision) []backend.Charge {
	if answers != nil {
		fitted, err := m.fitted(answers)
		if m.rest -= fitted; err != nil {
			m.fail(err)
			return nil
		}
	}
	if m.rest <= 0 || len(m.order) == 0 {
		return nil
	}
	i := m.order[0]
	m.order = m.order[1:]
	terms := &m.charge.Terms
	return m.refundCharges(shardCharge{i, algorithms.Charge{Cost: -m.rest, Scaled: true, Hash: terms.Hash, ChargedAt: partOf(m.charge.Limit, terms)}})
}

// fail ends m with an error. If an earlier part of the refund was made, that error is not an ErrNotTaken.
func (m *refund) fail(err error) {
	if errors.Is(err, backend.ErrNotTaken) && m.rest < m.whole {
		err = stores.MaybeConsumed(err)
	}
	m.is = backend.Decision{Err: err}
}

// refundCharges returns the refunds, and before each of them a dry run of the same shard. fitted compares the
// two decisions. No other charge comes between the two, because they are in one batch and in one slot.
func (m *refund) refundCharges(refunds ...shardCharge) (charges []backend.Charge) {
	m.sent = refunds
	for _, g := range refunds {
		peek := shardOf(m.charge, g.shard)
		peek.Terms, peek.Group = algorithms.Charge{Hash: g.terms.Hash, DryRun: true}, len(charges)
		returned := peek
		returned.Terms, returned.Group = g.terms, len(charges)+1
		charges = append(charges, peek, returned)
	}
	return charges
}

// refundedUnits returns how much is refunded at time now to all shards together, if a charge of units at time
// chargedAt is undone. If chargedAt is 0, the time is unknown, and all units are refunded. units and the result are in
// the unit of State.Value. See algorithms.Charge.ChargedAt.
func refundedUnits(shards []algorithms.Limit, units int64, chargedAt, now algorithms.Micros) int64 {
	if shards[0].Kind != algorithms.TokenBucket || chargedAt <= 0 {
		return units
	}
	p := int64(0)
	for i := range shards {
		p += shards[i].Numbers().P
	}
	n := shards[0].Numbers()
	return scaled.Returned(units, p, n.Ticks(int64(now))-n.Ticks(int64(chargedAt)))
}

// fitted returns how many of the refunded units fitted, and the error that takes precedence. Units that have
// flowed in since the charge count as fitted.
func (m *refund) fitted(answers []backend.Decision) (fitted int64, err error) {
	for n, g := range m.sent {
		before, after := &answers[2*n], &answers[2*n+1]
		m.memory.observe(m.charge.Key, m.charge.Shards, g.shard, after)
		if after.Err != nil {
			err = stores.MoreSevere(err, after.Err)
			continue
		}
		flowed := -g.terms.Cost - refundedUnits(m.charge.Shards[g.shard:g.shard+1], -g.terms.Cost, g.terms.ChargedAt, after.At)
		fitted += after.Value - before.Value + flowed
	}
	return fitted, err
}

// resetShards resets all shards of a bucket at the same time. Until it has ended, other processes may find
// some shards reset and others not.
func (d *draws) resetShards(i int) {
	m := d.steps(i)
	m.next = func(answers []backend.Decision) []backend.Charge {
		m.memory.forget(m.charge.Key)
		for i := range answers {
			m.is.Err = stores.MoreSevere(m.is.Err, answers[i].Err)
		}
		m.is.Allowed = m.is.Err == nil
		return nil
	}
	var charges []backend.Charge
	for i := range m.charge.Shards {
		part := shardOf(m.charge, i)
		part.Group = i
		charges = append(charges, part)
	}
	m.begin(charges)
}
