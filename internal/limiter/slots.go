package limiter

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A request takes a slot of each concurrency limit that it matches. Its id is drawn before the charge, so that slots can
// be returned even if the outcome of the charge stays unknown. The part of the program that notices the end of the
// request returns the slots by the id. Returns and renewals change nothing when they are repeated.

// SlotReporter is the part of the program that noticed the end of a request.
type SlotReporter uint8

// The reporters.
const (
	ReporterSelf      SlotReporter = iota // the limiter: the outcome of the charge is unknown, or another limit denied the request
	ReporterDone                          // a settle-done of a proxy, or another request over RPC
	ReporterHTTP                          // the HTTP API, or package ratelimit
	ReporterReset                         // a check of a proxy that was reset
	ReporterLog                           // a line of an access log
	ReporterAccessLog                     // a record of Envoy's access log service

	slotReporters = iota
)

var slotReporterNames = [slotReporters]string{"self", "done", "http", "reset", "log", "access-log"}

// String returns the name for metrics.
func (r SlotReporter) String() string { return slotReporterNames[r] }

// SlotOutcome is the outcome of the return or the renewal of one slot.
type SlotOutcome uint8

// The outcomes.
const (
	SlotReturned SlotOutcome = iota
	SlotRenewed
	SlotGone    // nothing was returned: the slot was returned before, or has expired
	SlotLost    // nothing was renewed: the slot was returned, or has expired
	SlotForeign // the slot is in the memory of another process
	SlotBadID   // the id is not signed with a known key, or has no slots
	SlotFailed  // the store did not answer
	SlotRefund  // a request with a negative cost, which returns nothing

	slotOutcomes = iota
)

var slotOutcomeNames = [slotOutcomes]string{"returned", "renewed", "gone", "lost", "foreign", "bad-id", "failed", "refund"}

// String returns the name for metrics and for the HTTP API.
func (o SlotOutcome) String() string { return slotOutcomeNames[o] }

// Repeater submits charges for which no caller waits.
type Repeater interface {
	// Repeat submits a copy of c to store, for a bounded time, until the store decides it. If unless is not nil, it gets
	// each decision, and one for which it returns true is repeated too. Then Repeat calls done with the last decision,
	// whose Err is set if there was none. Repeat does not block.
	Repeat(store backend.Store, c *backend.Charge, unless func(*backend.Decision) bool, done func(*backend.Decision))
}

// slotCounters counts slots. All its fields are sums since the start.
type slotCounters struct {
	taken, expired atomic.Uint64
	ended          [slotReporters][slotOutcomes]atomic.Uint64
}

// SlotCounts has numbers of slots since the start.
type SlotCounts struct {
	// Taken counts slots, Expired counts the units of slots that were neither returned nor renewed in time, when
	// another request found them. Ended counts the outcomes of returns and renewals.
	Taken, Expired uint64
	Ended          [slotReporters][slotOutcomes]uint64
}

// SlotCounts returns the current numbers.
func (l *Limiter) SlotCounts() (n SlotCounts) {
	c := l.config.slots
	n.Taken, n.Expired = c.taken.Load(), c.expired.Load()
	for reporter := range n.Ended {
		for outcome := range n.Ended[reporter] {
			n.Ended[reporter][outcome] = c.ended[reporter][outcome].Load()
		}
	}
	return n
}

func (s *slotCounters) end(reporter SlotReporter, outcome SlotOutcome) {
	s.ended[reporter][outcome].Add(1)
}

// ReturnSlots returns the slots of an id. It does not wait for the store. It returns the shortest ttl of the slots, or 0
// if the id is not signed or has no slots.
func (l *Limiter) ReturnSlots(id string, reporter SlotReporter) algorithms.Micros {
	return l.endSlots(id, algorithms.ReturnSlot, reporter)
}

// RenewSlots lets the slots of an id expire a ttl after now, unless they have expired. It does not wait for the store, and
// returns what ReturnSlots returns.
func (l *Limiter) RenewSlots(id string, reporter SlotReporter) algorithms.Micros {
	return l.endSlots(id, algorithms.RenewSlot, reporter)
}

func (l *Limiter) endSlots(id string, op algorithms.SlotOp, reporter SlotReporter) (ttl algorithms.Micros) {
	var r Reserved
	if l.Open(id, &r) {
		ttl = l.endReserved(&r, op, reporter)
	}
	if ttl == 0 {
		l.config.slots.end(reporter, SlotBadID)
	}
	return ttl
}

// endReserved returns or renews the slots of r. It returns the shortest ttl that a renewal gives them now, or 0 if there
// are none.
func (l *Limiter) endReserved(r *Reserved, op algorithms.SlotOp, reporter SlotReporter) (ttl algorithms.Micros) {
	for i := range r.Parts {
		part := &r.Parts[i]
		if part.TTL == 0 {
			continue
		}
		charge := slotCharge(&r.ID, part, op, l.Current().domainOf(r))
		if is := charge.Terms.Slot.TTL; ttl == 0 || is < ttl {
			ttl = is
		}
		store := l.config.storeOf(part)
		if store == nil {
			l.config.slots.end(reporter, SlotForeign)
			continue
		}
		l.config.repeat(store, &charge, nil, reporter)
		if op == algorithms.ReturnSlot && part.Origin != l.config.originOf(false) {
			l.config.returnUnknownTake(&charge)
		}
	}
	return ttl
}

// returnUnknownTake returns the slot of a charge, which was in Local, to the store too: the store could not decide the
// request, but may have taken the slot. returnUnknown keeps it if the request has an idempotency key.
func (c *Config) returnUnknownTake(charge *backend.Charge) {
	c.repeat(c.store, charge, nil, ReporterSelf)
}

// returnFormer returns the slots of limits that a reload has removed: those of the ids in c, although no limit of its domain
// has ids any more. They would be taken if a later reload adds the limit again.
func (l *Limiter) returnFormer(c *Call) {
	settle := &DefaultSettle
	if d := c.Verdict.Domain; d != nil && d.FormerSettle != nil {
		settle = d.FormerSettle
	}
	for i := range c.Descriptors {
		entries := c.Descriptors[i].Entries
		if isDone, _ := settle.settles(entries); isDone && !c.DryRun {
			if r := (Reserved{}); l.Open(entries[0].Value, &r) { // Call.reserved may have the content of Request.ID
				l.endReserved(&r, algorithms.ReturnSlot, ReporterDone)
			}
		}
	}
}

// CountBadID counts the id of an application that Open refused, or that has no slots.
func (l *Limiter) CountBadID() { l.config.slots.end(ReporterHTTP, SlotBadID) }

// originOf returns ReservedPart.Origin of a slot that this process takes, in its own buckets if local is true.
func (c *Config) originOf(local bool) uint64 {
	if c.Local != nil && !local { // with a store for this process alone, there is another one for all
		return 0
	}
	return c.Process
}

// Renew renews the slots of r, and returns the outcome for each of them. It is empty if r has no slots.
func (l *Limiter) Renew(ctx context.Context, r *Reserved) (outcomes []SlotOutcome) {
	for i := range r.Parts {
		part := &r.Parts[i]
		if part.TTL == 0 {
			continue
		}
		outcome := SlotForeign
		if store := l.config.storeOf(part); store != nil {
			charge := slotCharge(&r.ID, part, algorithms.RenewSlot, l.Current().domainOf(r))
			var d [1]backend.Decision
			backend.Take(ctx, store, []backend.Charge{charge}, d[:])
			outcome = slotOutcome(algorithms.RenewSlot, &d[0])
		}
		l.config.slots.end(ReporterHTTP, outcome)
		outcomes = append(outcomes, outcome)
	}
	if len(outcomes) == 0 {
		l.CountBadID()
	}
	return outcomes
}

// storeOf returns the store that has the slot of part: that of the limiter, or Local. It returns nil if the slot is in the
// memory of another process.
func (c *Config) storeOf(part *ReservedPart) backend.Store {
	switch part.Origin {
	case c.originOf(false):
		return c.store
	case c.originOf(true):
		return c.Local
	default:
		return nil
	}
}

// slotLimit is the limit of returns and renewals. They need no configured limit.
var slotLimit = func() *algorithms.Limit {
	capacity := int64(algorithms.MaxSlots)
	l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: algorithms.MaxSlotTTL})
	if err != nil {
		panic(err)
	}
	return &l
}()

// slotCharge returns the charge for an operation on the slot of part. A renewal has the ttl of the configured limit, or
// else that of the part. d is the domain of the part, or nil.
func slotCharge(id *[16]byte, part *ReservedPart, op algorithms.SlotOp, d *Domain) backend.Charge {
	ttl := part.TTL
	if d != nil && d.Settling[part.Limit] != nil {
		ttl = d.Settling[part.Limit].Limit.Period()
	}
	return backend.Charge{
		Key: part.Key, Limit: slotLimit, Slot: part.Slot,
		Terms: algorithms.Charge{Cost: part.Count, Slot: &algorithms.Slot{ID: *id, Part: uint8(part.Number), Op: op, TTL: ttl}},
	}
}

// slotOutcome returns the outcome of an operation on a slot that the store has decided.
func slotOutcome(op algorithms.SlotOp, d *backend.Decision) SlotOutcome {
	switch {
	case d.Err != nil:
		return SlotFailed
	case op == algorithms.RenewSlot && d.Lost > 0:
		return SlotLost
	case op == algorithms.RenewSlot:
		return SlotRenewed
	case d.Lost > 0:
		return SlotGone
	default:
		return SlotReturned
	}
}

func (c *Config) repeat(store backend.Store, charge *backend.Charge, unless func(*backend.Decision) bool, reporter SlotReporter) {
	op, counters := charge.Terms.Slot.Op, c.slots
	done := func(d *backend.Decision) { counters.end(reporter, slotOutcome(op, d)) }
	if c.Repeater == nil {
		var d [1]backend.Decision
		backend.Take(context.Background(), store, []backend.Charge{*charge}, d[:])
		done(&d[0])
		return
	}
	c.Repeater.Repeat(store, charge, unless, done)
}

// addSlot makes terms, those of a charge of p, take a slot. A limit in shadow mode takes none if the id has no room for
// it, or if there is no id.
func (c *Call) addSlot(p *Policy, terms *algorithms.Charge) {
	if p.Shadow {
		if c.reserves >= MaxReserved || c.cannotReturn(p) {
			terms.DryRun = true
			return
		}
		c.reserves++
	}
	if c.slots == 0 {
		c.slotID = c.newSlotID()
	}
	terms.Slot = &algorithms.Slot{ID: c.slotID, Part: uint8(c.slots)}
	c.slots++
}

// ignoreRefund makes the cost of r, a Result of a concurrency limit, 0 if it is negative: a slot is returned by its id.
func (c *Call) ignoreRefund(r *Result) {
	if r.Cost >= 0 {
		return
	}
	r.Cost = 0
	if !c.DryRun {
		c.config.slots.end(ReporterDone, SlotRefund)
	}
}

// newSlotID returns the ID of the slots of c. It is the same for a repeated request.
func (c *Call) newSlotID() [16]byte {
	if c.IdempotencyKey.ID != "" {
		return IdempotencyID("slots", c.Verdict.Domain.Name, c.IdempotencyKey.ID)
	}
	return c.config.IDs.NewID()
}

// cannotReturn reports whether p is a concurrency limit, and the answer of c has no id that could return a slot.
func (c *Call) cannotReturn(p *Policy) bool {
	return p.Limit.Kind == algorithms.Concurrency && !c.DryRun && (c.config.IDs == nil || !c.Returns)
}

// deniedByReturns denies a request whose slots nobody could return. Nothing is charged then. It reports whether it did.
func (c *Call) deniedByReturns() bool {
	return c.deny(func(r *Result) bool {
		r.NoReturn = !r.Policy.Shadow && c.cannotReturn(r.Policy)
		r.Decision.Never = r.NoReturn
		return r.NoReturn
	})
}

// tookSlot reports whether r, one of c's Results, took a slot, and is the first one of its charge.
func (c *Call) tookSlot(r *Result) bool {
	if r.charge < 0 || c.charges[r.charge].Terms.Slot == nil || c.charges[r.charge].Terms.Cost <= 0 {
		return false
	}
	for i := range c.Results {
		if first := &c.Results[i]; first.charge == r.charge {
			if first != r {
				return false
			}
			break
		}
	}
	charge, d := &c.charges[r.charge], &c.decisions[r.charge]
	if charge.Limit.Overdraw && d.Err == nil && !charge.Terms.DryRun { // in shadow mode, a denied request takes its slot too
		return !d.Never
	}
	return c.Consumed(r)
}

// Slots yields a part of an id for each slot that c, which is answered, has taken, with the index of its Result.
func (c *Call) Slots() iter.Seq2[int, ReservedPart] {
	return func(yield func(int, ReservedPart) bool) {
		if c.slots == 0 || c.Denied || c.WouldDeny {
			return
		}
		for i := range c.Results {
			if r := &c.Results[i]; c.tookSlot(r) && !yield(i, c.slotPart(r)) {
				return
			}
		}
	}
}

func (c *Call) slotPart(r *Result) ReservedPart {
	charge := &c.charges[r.charge]
	return ReservedPart{
		Number: int(charge.Terms.Slot.Part), Limit: limitNumber(r.Policy), Key: charge.Key, Slot: charge.Slot, Count: charge.Terms.Cost,
		TTL: charge.Limit.Period(), Origin: c.config.originOf(r.local),
	}
}

// HasSlots reports whether c, which is answered, has taken slots, so that its id contains them.
func (c *Call) HasSlots() bool {
	for range c.Slots() {
		return true
	}
	return false
}

// SlotID is the ID of the slots of c. It is zero if c asked for none.
func (c *Call) SlotID() [16]byte { return c.slotID }

// returnUnknown returns the slots of c whose charges have an unknown outcome. A request with an idempotency key keeps
// them, because it may be repeated.
func (l *Limiter) returnUnknown(c *Call) {
	for i := range c.charges {
		charge, err := &c.charges[i], c.decisions[i].Err
		if charge.Terms.Slot == nil || charge.IdempotencyKey != nil || !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrNotTaken) {
			continue
		}
		back := returnOf(charge)
		l.config.repeat(l.config.store, &back, isGone, ReporterSelf)
	}
}

// isGone reports whether a return found no slot. Its take may still arrive.
func isGone(d *backend.Decision) bool { return d.Lost > 0 }

// returnOf returns the charge that returns the slot of a charge.
func returnOf(charge *backend.Charge) backend.Charge {
	slot := *charge.Terms.Slot
	slot.Op = algorithms.ReturnSlot
	return backend.Charge{Key: charge.Key, Limit: slotLimit, Slot: charge.Slot, Terms: algorithms.Charge{Cost: charge.Terms.Cost, Slot: &slot}}
}

// foldSlots counts the slots of c. If the request is denied, it returns them: those of limits in shadow mode were taken,
// now or when the request was sent before and got no answer. If that request may have been allowed, its slots are in use.
func (l *Limiter) foldSlots(c *Call) {
	for i := range c.Results {
		r := &c.Results[i]
		if !c.tookSlot(r) {
			continue
		}
		replayed := r.Decision.Replayed
		if !replayed {
			l.config.slots.taken.Add(1)
			l.config.slots.expired.Add(uint64(max(0, c.decisions[r.charge].Lost)))
		}
		if (c.Denied || c.WouldDeny) && !(replayed && c.Failed) {
			l.returnResult(c, r, ReporterSelf)
		}
	}
}

func (l *Limiter) returnResult(c *Call, r *Result, reporter SlotReporter) {
	store, back := l.config.store, returnOf(&c.charges[r.charge])
	if r.local {
		store = l.config.Local
	}
	l.config.repeat(store, &back, nil, reporter)
}

// ReturnSlotsOf returns the slots of c, which is answered, because the answer was not used. It does not wait for the
// store.
func (l *Limiter) ReturnSlotsOf(c *Call, reporter SlotReporter) {
	for i := range c.Slots() {
		l.returnResult(c, &c.Results[i], reporter)
	}
}

// slotReturn is the return of a slot by a settlement: a charge of the Call.
type slotReturn struct{ descriptor, charge int }

// planReturn adds the return of a slot, which descriptor i settles.
func (c *Call) planReturn(i int, id *[16]byte, part *ReservedPart) {
	back := slotCharge(id, part, algorithms.ReturnSlot, nil)
	switch part.Origin {
	case c.config.originOf(false):
		c.groups++
		back.Group = c.groups
		start := len(c.keys)
		c.keys = append(c.keys, part.Key...)
		back.Key = c.keys[start:]
		c.returns = append(c.returns, slotReturn{i, len(c.charges)})
		c.charges = append(c.charges, back)
	case c.config.originOf(true):
		var d [1]backend.Decision
		backend.Take(context.Background(), c.config.Local, []backend.Charge{back}, d[:])
		c.slotEnded(slotOutcome(algorithms.ReturnSlot, &d[0]))
		c.config.returnUnknownTake(&back)
	default:
		c.slotEnded(SlotForeign)
	}
}

// slotEnded counts and reports the outcome of a return by a settlement.
func (c *Call) slotEnded(outcome SlotOutcome) {
	c.config.slots.end(c.reporter(), outcome)
	c.SlotOutcomes = append(c.SlotOutcomes, outcome)
}

// reporter returns the reporter of a settlement.
func (c *Call) reporter() SlotReporter {
	if c.Settle != nil {
		return ReporterHTTP
	}
	return ReporterDone
}

// repeatReturns repeats the returns of a settlement that the store did not decide in time. They do not depend on the
// sender of the settlement, which may have given up.
func (l *Limiter) repeatReturns(c *Call) {
	for _, r := range c.returns {
		if c.decisions[r.charge].Err != nil {
			l.config.repeat(l.config.store, &c.charges[r.charge], nil, c.reporter())
		}
	}
}

// foldReturns counts the returns of a settlement. If the store failed, the settlement is denied, so that its sender can
// repeat it. repeatReturns counts that return.
func (c *Call) foldReturns() {
	for _, r := range c.returns {
		d := &c.decisions[r.charge]
		if d.Err == nil {
			c.slotEnded(slotOutcome(algorithms.ReturnSlot, d))
		} else {
			c.Failed, c.Denied = true, true
			if r.descriptor < len(c.Statuses) {
				c.Statuses[r.descriptor].Denied = true
			}
		}
	}
}
