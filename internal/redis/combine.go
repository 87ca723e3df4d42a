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

// machine decides a charge of a sharded bucket in several steps. The Value of its decisions is in the unit of the
// shards.
type machine interface {
	// step receives the decisions on the charges that it returned last; at the first call it receives nil. It
	// returns the next charges, and refunds that are submitted separately. If it returns no charges, the
	// machine has ended.
	step(answers []backend.Decision) (charges []backend.Charge, undo []*refund)
	// decision returns the decision on the whole charge after the machine has ended.
	decision() backend.Decision
}

// run runs m, and then calls end with its decision. b supplies the deadline, the source and Detached of the batches.
func (s *shardStore) run(m machine, b *backend.Batch, end func(backend.Decision)) {
	r := &running{shardStore: s, machine: m, end: end}
	r.batch = backend.Batch{Deadline: b.Deadline, Detached: b.Detached, Source: b.Source, Done: r.answered}
	r.run()
}

type running struct {
	*shardStore

	machine machine
	end     func(backend.Decision)
	batch   backend.Batch
	state   atomic.Int32
}

// The states of running, from the Submit of a batch until its Done.
const (
	submitting = iota
	submitted  // Submit has returned, Done has not been called
	completed  // Done was called before Submit returned
)

// run makes steps until the machine has ended, or until Submit returns before the decisions are known. A loop is
// used, because with recursion the stack could grow without bound.
func (r *running) run() {
	for {
		charges, undo := r.machine.step(r.batch.Decisions)
		for _, u := range undo {
			r.undo(u)
		}
		if len(charges) == 0 {
			r.end(r.machine.decision())
			return
		}
		r.batch.Charges, r.batch.Decisions = charges, make([]backend.Decision, len(charges))
		r.state.Store(submitting)
		r.next.Submit(&r.batch)
		if r.state.CompareAndSwap(submitting, submitted) {
			return
		}
	}
}

// answered is the Done function of the batch.
func (r *running) answered(*backend.Batch) {
	if !r.state.CompareAndSwap(submitting, completed) {
		r.run()
	}
}

// undo submits a refund for which no caller waits. If too many of them are in flight, it drops the refund.
func (s *shardStore) undo(u *refund) {
	if !s.undos.Begin() {
		return
	}
	u.charge.Key, u.charge.Canceled = slices.Clone(u.charge.Key), nil
	s.run(u, &backend.Batch{Deadline: s.undos.Deadline(), Detached: true}, func(backend.Decision) { s.undos.End() })
}

func peekAll(c *backend.Charge) (charges []backend.Charge) {
	for i := range c.Shards {
		part := shardOf(c, i)
		part.Terms, part.Group = algorithms.Charge{Hash: c.Terms.Hash, DryRun: true}, i
		charges = append(charges, part)
	}
	return charges
}

// peekedStates returns the states of all shards, taken from the decisions on the dry runs of peekAll. now is
// the latest of their times. err is the error of a dry run that failed; the state of its shard is then zero. If all
// failed, now is 0.
func peekedStates(m *shardMemory, c *backend.Charge, answers []backend.Decision) (buckets []algorithms.Bucket, now algorithms.Micros, err error) {
	buckets = make([]algorithms.Bucket, len(answers))
	for i := range answers {
		m.observe(c.Key, c.Shards, i, &answers[i])
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

// combine reads all shards, makes a decision, and charges each shard its part. If meanwhile other sidecars
// have consumed units that a part needs, combine refunds the other parts and starts again. It makes at most three
// attempts. If all fail, it denies the charge; the retry time is that of the shards after the refunds.
type combine struct {
	charge backend.Charge
	memory *shardMemory

	tries    int
	is       backend.Decision
	now      algorithms.Micros
	buckets  []algorithms.Bucket // the states as last read; nil until they are read for the first time
	parts    []algorithms.Charge
	charging bool
}

func (m *combine) decision() backend.Decision { return m.is }

func (m *combine) step(answers []backend.Decision) (charges []backend.Charge, undo []*refund) {
	switch {
	case answers == nil:
		return peekAll(&m.charge), nil
	case !m.charging:
		return m.plan(answers), nil
	}
	m.charging = false
	m.tries++
	allAllowed, undo := m.conclude(answers)
	if allAllowed || m.is.Err != nil || m.tries == 3 {
		return nil, undo
	}
	return peekAll(&m.charge), undo
}

// plan makes a decision from the decisions on the dry runs, and returns the charges of the shards. If it returns none,
// the decision is final.
func (m *combine) plan(answers []backend.Decision) (charges []backend.Charge) {
	m.is = backend.Decision{}
	if m.buckets, m.now, m.is.Err = peekedStates(m.memory, &m.charge, answers); m.is.Err != nil {
		return nil
	}
	m.is.Decision, m.parts = planShards(m.now, m.buckets, m.charge.Terms)
	m.is.At = m.now
	if !m.is.Allowed || m.charge.Terms.DryRun || m.charge.Terms.Cost == 0 {
		return nil
	}
	for i := range m.parts {
		if m.parts[i].Cost != 0 {
			part := shardOf(&m.charge, i)
			part.Terms, part.Group = m.parts[i], i
			charges = append(charges, part)
		}
	}
	m.charging = true
	return charges
}

// conclude reports whether all charges of the shards were allowed. If not, it makes the decision a denial or an error,
// and returns refunds of the charges that were allowed.
func (m *combine) conclude(answers []backend.Decision) (allAllowed bool, undo []*refund) {
	allAllowed = true
	for n := range answers {
		m.is.Err = stores.MoreSevere(m.is.Err, answers[n].Err)
		allAllowed = allAllowed && answers[n].Allowed && answers[n].Err == nil
	}
	if allAllowed {
		return true, nil
	}
	if m.is.Err != nil {
		m.is.Decision = algorithms.Decision{}
	}
	n := 0
	for i := range m.parts {
		if m.parts[i].Cost == 0 {
			continue
		}
		d, terms := &answers[n], &m.parts[i]
		n++
		// This is the state after the charge. Below, the units that will be refunded are added to it.
		m.buckets[i].State.Value, m.buckets[i].State.At = d.Value, d.At
		m.now = max(m.now, d.At)
		if d.Err != nil || !d.Allowed {
			continue
		}
		m.buckets[i].State.Value += terms.Cost
		if terms.Cost > 0 {
			returned := algorithms.Charge{Cost: -terms.Cost, Scaled: true, Hash: terms.Hash, ChargedAt: d.At}
			undo = append(undo, &refund{charge: m.charge, memory: m.memory, first: &shardCharge{i, returned}})
		}
	}
	if m.is.Err != nil {
		return false, undo
	}
	if is := algorithms.TakeShards(m.now, m.buckets, m.charge.Terms); !is.Allowed {
		m.is.Decision, m.is.At = is, m.now
	} else { // the refunds make enough units available again
		m.is.Decision = algorithms.Decision{RetryAfter: 1, Remaining: m.is.Remaining}
	}
	return false, undo
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
	charge backend.Charge
	memory *shardMemory
	first  *shardCharge // a refund to one shard that is tried before all shards are read, or nil

	is    backend.Decision
	sent  []shardCharge // the refunds that were sent last
	rest  int64         // what has not fitted yet, in the unit of State.Value
	whole int64         // all that is to be refunded, in the unit of State.Value
	order []int         // the shards to which the rest is offered, in this order
}

func (m *refund) decision() backend.Decision { return m.is }

func (m *refund) step(answers []backend.Decision) ([]backend.Charge, []*refund) {
	switch {
	case answers == nil && m.first != nil:
		return m.refundCharges(*m.first), nil
	case answers == nil:
		return peekAll(&m.charge), nil
	case m.first != nil:
		return m.afterFirst(answers), nil
	case m.order == nil:
		return m.plan(answers), nil
	}
	fitted, err := m.fitted(answers)
	if m.rest -= fitted; err != nil {
		m.fail(err)
		return nil, nil
	}
	return m.offer(), nil
}

// afterFirst ends the refund if it fitted into the first shard, or failed. Otherwise it returns dry runs of all
// shards.
func (m *refund) afterFirst(answers []backend.Decision) []backend.Charge {
	fitted, err := m.fitted(answers)
	terms := m.first.terms
	m.first = nil
	rest := (-terms.Cost - fitted) / m.charge.Shards[0].Unit() // not 0 if other processes charged or filled the shard meanwhile
	if err != nil || rest <= 0 {
		return nil
	}
	m.charge.Terms = algorithms.Charge{Cost: -rest, Hash: terms.Hash, ChargedAt: terms.ChargedAt}
	return peekAll(&m.charge)
}

// plan uses the decisions on the dry runs to distribute the refund over the shards.
func (m *refund) plan(answers []backend.Decision) []backend.Charge {
	terms := m.charge.Terms
	terms.Cost = -m.charge.Limit.GiveBack(terms.Cost)
	buckets, now, err := peekedStates(m.memory, &m.charge, answers)
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
	if len(refunds) == 0 {
		return m.offer()
	}
	return m.refundCharges(refunds...)
}

func (m *refund) offer() []backend.Charge {
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
		peek := shardOf(&m.charge, g.shard)
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
