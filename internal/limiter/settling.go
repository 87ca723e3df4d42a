package limiter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// A proxy settles in two requests. The first (settle-start) reserves units of all limits with settle that
// it matches, and its answer has one id for them. The second (settle-done) contains the id and the real
// cost. An application settles in a similar way: it reserves limits by name, and settles the id with its
// own request (Settle).

// MaxReserved is the largest number of limits with settle and of concurrency limits that a request may match, not
// counting limits in shadow mode. A request that matches more is denied, so that its id has a bounded size.
const MaxReserved = 8

// MaxID bounds the id of a reservation for a proxy, in bytes. Applications may use longer keys, so their
// ids may be longer.
const MaxID = 4096

// MaxSlotPrefix bounds the prefix of the keys of a concurrency limit, in bytes, because ids contain it.
const MaxSlotPrefix = 150

// Reserved describes the units that a request reserved. It is the content of an id.
type Reserved struct {
	// ID is different for each request of a domain, except those with the same idempotency key. All parts of one request
	// have the same ID, even if they are in separate ids.
	ID [16]byte
	// Domain is PrefixNumber of the domain's name.
	Domain uint64
	Parts  []ReservedPart
}

// ReservedPart describes the units that a request reserved of one bucket.
type ReservedPart struct {
	// Number is different for all parts with one ID.
	Number int
	// Limit is the number of the limit (limitNumber).
	Limit uint64
	// Key is the bucket's key without the prefix of the limit. It is empty if Name is set. Hash and Slot
	// are those of the charge (algorithms.Charge, backend.Charge). The Slot is stored because a reload may
	// change that of the limit, and the reservation is settled in the bucket that was charged.
	Key        []byte
	Hash, Slot uint64
	// Cell is the number of the estimate; 0 means that no estimate is learned.
	Cell uint64
	// Count is the number of reserved units. They consist of Times equal parts, because a request may
	// charge a bucket several times.
	Count, Times int64
	// At is when the units were reserved. Inflow is the speed at which the bucket refilled then, if Name is set.
	At     algorithms.Micros
	Inflow scaled.Inflow
	// TTL is not 0 if the part is a slot of a concurrency limit: its ttl. Key is then the whole key, and the id and
	// Number name the slot. Origin is Config.Process of the process whose memory has the slot, or 0 if a store that all
	// processes share has it.
	TTL    algorithms.Micros
	Origin uint64
	// ByName is set if an application reserved the limit by its name.
	ByName
}

// ByName identifies the bucket of a reservation that an application made.
type ByName struct {
	// Name is the name of the limit; "" means that the reservation was made for a proxy. Values are the key
	// of the bucket.
	Name   string
	Values []string
	// Config is the limit that came with the request; "" means that the limit is configured.
	Config string
	// Wait is the time from At until the units were available.
	Wait algorithms.Micros
}

// IDs encodes reservations as signed texts, and decodes them.
type IDs interface {
	// NewID returns an ID that no other request has.
	NewID() [16]byte
	// Append appends the id of r. It sets r.ID if that is zero. It returns dst if ids cannot be signed at
	// present, or if the id would be too long.
	Append(dst []byte, r *Reserved) []byte
	// Open decodes id to r, and may reuse the memory of r. It returns false if id is malformed or not signed with a
	// known key.
	Open(id string, r *Reserved) bool
}

// Estimates learns the costs of requests.
type Estimates interface {
	// Estimate returns the estimate of a cell; 0 means that too little is known.
	Estimate(cell uint64) int64
	// Learn adds the real cost of a request. key is a hash of its bucket. quantile is the quantile that
	// Estimate returns.
	Learn(cell uint64, quantile float64, key uint64, now algorithms.Micros, real int64)
}

// Settlement is the settlement of one reserved bucket, or of an id that settles nothing.
type Settlement struct {
	// Policy is nil if nothing is settled; then Reason is the cause.
	Policy *Policy
	Reason Unsettled
	// Descriptor is the index of the descriptor with the id.
	Descriptor int
	// Reserved and Real are units. Unknown means that the proxy did not report the real cost. Late means
	// that the ttl of the limit has passed.
	Reserved, Real int64
	Unknown, Late  bool
	// Decision is that of the store. Repeated means that the bucket was settled before, or that a settlement is
	// in flight, so nothing was charged now.
	Decision backend.Decision
	Repeated bool

	charge int
	cell   uint64 // the number of its estimate; 0 means that none is learned
	times  int64
}

// Failed reports whether the store could not settle s.
func (s *Settlement) Failed() bool { return s.Policy != nil && s.Decision.Err != nil && !s.Repeated }

// Unsettled is the reason why no reservation is settled.
type Unsettled uint8

const (
	Settles      Unsettled = iota // a reservation is settled
	NoneReserved                  // the settle-start reserved nothing
	Forged                        // the id is not signed with a known key
	Foreign                       // the id belongs to another domain
	Changed                       // the limit was removed, no longer has settle, or has another algorithm or number of shards
	Expired                       // an application made the reservation, and it has expired
)

var unsettledNames = [...]string{"", "none", "forged", "foreign", "changed", "expired"}

// String returns the name for metrics.
func (u Unsettled) String() string { return unsettledNames[u] }

// None is the id of a request that reserved nothing.
const None = "none"

// settling reports whether descriptor i belongs to a settle-done, and whether its key is SettleEntries.End.
func (c *Call) settling(i int) (isDone, isEnd bool) {
	return c.Verdict.Domain.Settle.settles(c.Descriptors[i].Entries)
}

func (s *SettleEntries) settles(entries []descriptors.Entry) (isDone, isEnd bool) {
	if s == nil || len(entries) == 0 {
		return false, false
	}
	isEnd = entries[0].Key == s.End
	return isEnd || entries[0].Key == s.Key, isEnd
}

// OnlySettles reports whether r does nothing but settle, with ids or by bucket. It has an effect that is wanted even if
// its caller no longer waits. Of Request.ID, only the signature and the domain are checked.
func (l *Limiter) OnlySettles(r *Request) bool {
	s := l.Current()
	if s == nil || s.Domains[r.Domain] == nil {
		return false
	}
	domain := s.Domains[r.Domain]
	if r.ID != "" {
		if reason := l.config.open(r.ID, domain, &Reserved{}); reason == Settles || reason == NoneReserved {
			return true
		}
	}
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		if isDone, _ := domain.Settle.settles(d.Entries); !isDone && !domain.settlesByBucket(d) {
			return false
		}
	}
	return len(r.Descriptors) > 0
}

func (c *Call) countDone() {
	if c.Verdict.Domain.Settle == nil {
		return
	}
	for i := range c.Descriptors {
		if isDone, _ := c.settling(i); isDone {
			c.done++
		}
	}
}

func (c *Call) reserve(r *Result) {
	d := &c.Descriptors[r.Descriptor]
	declared := int64(0)
	if d.Declared {
		declared = d.Cost
	}
	s := r.Policy.Extras.Settle
	if s.Learn != nil && c.config.Estimates != nil {
		r.cell = c.cell(r.Policy)
	}
	if s.ByBucket && !c.Unsettled {
		if r.open, r.settle = d.Explicit, d.Explicit && d.Cost > 0; !r.open || r.settle {
			r.Cost = min(r.Cost, mostCost)
			return
		}
	}
	estimate, _ := c.config.estimate(s, r.cell)
	if c.Unsettled { // its real cost stays unknown, see realCost
		estimate = max(estimate, s.Estimate)
	}
	r.Cost = s.Reserves(estimate, declared)
}

// estimate returns the estimate for a request, and whether it was learned. cell is 0 if none is learned.
func (c *Config) estimate(s *SettleTerms, cell uint64) (units int64, learned bool) {
	if cell != 0 {
		if units = c.Estimates.Estimate(cell); units > 0 {
			return max(units, s.Learn.Least), true
		}
	}
	return s.Estimate, false
}

// EstimateNow returns the number of units of p, a limit with settle, that a request reserves if it declares
// no cost. If p has an estimate for each of several values, it is that for all values not listed. learned reports
// whether the estimate was learned.
func (l *Limiter) EstimateNow(p *Policy) (units int64, learned bool) {
	s, cell := p.Extra().Settle, uint64(0)
	if s.Learn != nil && l.config.Estimates != nil {
		cell = (&Call{}).cell(p)
	}
	units, learned = l.config.estimate(s, cell)
	return s.Reserves(units, 0), learned
}

// cell returns the number of the estimate for p. There is one for each combination of values that p's
// estimates distinguish.
func (c *Call) cell(p *Policy) uint64 {
	const mix = 0x9E3779B97F4A7C15
	number := PrefixNumber(p.Prefix)
	learn := p.Extras.Settle.Learn
	for _, key := range learn.Per {
		value := uint64(0)
		for i := range c.Descriptors {
			for _, e := range c.Descriptors[i].Entries {
				if e.Key == key && learn.Values[key][e.Value] {
					value = SlotNumber(e.Value)
				}
			}
		}
		number = number*mix ^ value
	}
	return number | 1
}

func (c *Call) updateEstimates() {
	for i := range c.Settlements {
		s := &c.Settlements[i]
		if s.cell != 0 && !s.Unknown && !s.Repeated && !s.Failed() && s.Policy.Extras.Settle.Learn != nil {
			key := maphash.Bytes(bucketSeed, c.charges[s.charge].Key)
			c.config.Estimates.Learn(s.cell, s.Policy.Extras.Settle.Learn.Quantile, key, c.config.Now(), s.Real/s.times)
		}
	}
}

// inID reports whether the id of an answer has a part for a Result of p. Shadow limits get what room is left.
func (c *Call) inID(p *Policy) bool {
	s := p.Extra().Settle
	return !p.Shadow && (p.Limit.Kind == algorithms.Concurrency || s != nil && !s.ByBucket && len(c.Limits) == 0)
}

// deniedByReserves denies a request that matches more limits than one id has room for. Nothing is charged then. It reports
// whether it did.
func (c *Call) deniedByReserves() bool {
	return c.reserves > MaxReserved && c.deny(func(r *Result) bool {
		r.Decision.Never = c.inID(r.Policy)
		return r.Decision.Never
	})
}

// IsDone reports whether c settles reservations and does nothing else.
func (c *Call) IsDone() bool { return c.done > 0 && c.done == len(c.Descriptors) }

// Started reports whether c is a settle-start: a request that is not a settle-done, to a domain in which
// proxies settle reservations.
func (c *Call) Started() bool {
	return c.Verdict.Domain != nil && c.Verdict.Domain.Settle != nil && len(c.Descriptors) > c.done && len(c.Limits) == 0
}

// AppendID appends the id of the units that c, which is answered, has reserved. It appends "none" if there
// are none.
func (c *Call) AppendID(dst []byte) []byte {
	r := &c.reserved
	r.ID, r.Parts = c.slotID, r.Parts[:0]
	if c.config.IDs != nil {
		c.collectReserved(r, false)
		for _, part := range c.Slots() {
			r.Parts = append(r.Parts, part)
		}
		c.collectReserved(r, true)
	}
	if len(r.Parts) > 0 {
		r.Domain = PrefixNumber(c.Verdict.Domain.Name)
		before := len(dst)
		if dst = c.config.IDs.Append(dst, r); len(dst) > before {
			return dst
		}
	}
	return append(dst, None...)
}

// collectReserved adds a part to r for each bucket of which c has reserved units: those of shadow limits, or
// those of all other limits. Shadow limits must come last, because parts beyond MaxReserved are left out.
func (c *Call) collectReserved(r *Reserved, shadow bool) {
	for i := range c.Results {
		one := &c.Results[i]
		if !c.Reserves(one) || one.open || one.Policy.Shadow != shadow {
			continue
		}
		p := one.Policy
		limit := limitNumber(p)
		at := -1
		for j := range r.Parts {
			if r.Parts[j].Limit == limit && string(r.Parts[j].Key) == string(one.Key[len(p.Prefix):]) {
				at = j
			}
		}
		switch {
		case at >= 0:
		case len(r.Parts) == MaxReserved:
			continue
		default:
			at = len(r.Parts)
			r.Parts = append(r.Parts, ReservedPart{
				Limit: limit, Key: one.Key[len(p.Prefix):], Hash: one.hash, Slot: one.slot, Cell: one.cell,
				At: one.Decision.At,
			})
		}
		r.Parts[at].Count += one.Cost
		r.Parts[at].Times += max(1, one.times)
	}
}

// Reserves reports whether r, one of c's Results, has reserved units that can be settled. It is false if
// the request was denied, and if the store did not decide.
func (c *Call) Reserves(r *Result) bool {
	return !c.Denied && !c.WouldDeny && c.Consumed(r) && !r.local && r.Cost > 0 && r.Policy.Extra().Settle != nil && c.SettledLater(r)
}

// SettledLater reports whether r, whose limit has settle, reserves what it charges. By bucket, not all costs do.
func (c *Call) SettledLater(r *Result) bool {
	return !r.settle && (r.reserve || len(c.Limits) == 0) && (len(c.Limits) > 0 || r.open || !r.Policy.Extras.Settle.ByBucket)
}

func (c *Call) planSettlements(now algorithms.Micros) {
	if c.header.opened {
		c.settleHeader(now)
	}
	for i := range c.Descriptors {
		isDone, isEnd := c.settling(i)
		if !isDone || c.settledByOther(i, isEnd) {
			continue
		}
		d := &c.Descriptors[i]
		real := int64(-1)
		if !isEnd && d.Explicit {
			real = d.Cost
		}
		c.planDone(i, d.Entries[0].Value, real, now)
	}
}

// settledByOther reports whether another descriptor of the request settles the id of descriptor i. If
// several descriptors contain the same id, the first one with a real cost settles it. If none of them has a
// real cost, the first one settles it.
func (c *Call) settledByOther(i int, isEnd bool) bool {
	id := c.Descriptors[i].Entries[0].Value
	explicit := func(j int, end bool) bool { return !end && c.Descriptors[j].Explicit }
	for j := range c.Descriptors {
		isDone, end := c.settling(j)
		if !isDone || c.Descriptors[j].Entries[0].Value != id {
			continue
		}
		mine, other := explicit(i, isEnd), explicit(j, end)
		if other && !mine || other == mine && j < i {
			return true
		}
	}
	return false
}

// planDone settles the id of descriptor i. real is -1 if the real cost is unknown.
func (c *Call) planDone(i int, id string, real int64, now algorithms.Micros) {
	if reason := c.config.open(id, c.Verdict.Domain, &c.reserved); reason != Settles {
		c.Settlements = append(c.Settlements, Settlement{Descriptor: i, Reason: reason, charge: noCharge})
		return
	}
	r := &c.reserved
	for j := range r.Parts {
		part := &r.Parts[j]
		switch {
		case part.TTL > 0:
			c.planReturn(i, &r.ID, part)
		case c.header.opened && r.ID == c.header.id && c.header.parts[j].settled:
		default:
			c.settlePart(i, part, real, now)
		}
	}
}

// open opens the id of a reservation of domain to r.
func (c *Config) open(id string, domain *Domain, r *Reserved) Unsettled {
	switch {
	case id == None || id == "":
		return NoneReserved
	case c.IDs == nil || len(id) > MaxID || !c.IDs.Open(id, r):
		return Forged
	case r.Domain != PrefixNumber(domain.Name):
		return Foreign
	}
	return Settles
}

// settlePart settles one part of c.reserved for descriptor i.
func (c *Call) settlePart(i int, part *ReservedPart, real int64, now algorithms.Micros) {
	reason := Expired
	switch p, err := c.limitOf(part, nil); {
	case err != nil:
		reason = Changed
	case !part.expired(now):
		one := c.planPart(i, &c.reserved.ID, part, p, real, now)
		if terms := &c.charges[one.charge].Terms; needsResetMark(p.Limit) { // the mark cannot be read here
			terms.Cost = max(0, terms.Cost)
		}
		return
	}
	c.Settlements = append(c.Settlements, Settlement{Descriptor: i, Reason: reason, charge: noCharge})
}

// planPart adds the settlement and the charge of one part of a reservation, and returns the Result of the charge. id is
// the ID of the reservation, p the limit of the part. real is -1 if the real cost is unknown.
func (c *Call) planPart(i int, id *[16]byte, part *ReservedPart, p *Policy, real int64, now algorithms.Micros) Result {
	r := Result{Descriptor: i, Policy: p, hash: part.Hash, slot: part.Slot, settle: true, reserve: true}
	start := len(c.keys)
	if part.Name == "" {
		c.keys = append(append(c.keys, p.Prefix...), part.Key...)
	} else {
		c.keys, r.hash = p.AppendKeyOf(c.keys, part.Values)
	}
	r.Key = c.keys[start:]
	if c.adjusted != nil {
		c.adjust(&r)
	}
	late, storedFor := part.terms(p, now)
	s := Settlement{Policy: p, Descriptor: i, Reserved: part.Count, Late: late, charge: len(c.charges)}
	s.Real, s.Unknown = realCost(p.Extra().Settle, part, real), real < 0
	s.cell, s.times = part.Cell, part.Times
	if r.Cost = s.Real - s.Reserved; s.Late {
		r.Cost = max(0, r.Cost)
	}
	if r.Policy.Unlimited { // an operator made it so since: nothing more is charged
		r.Cost = min(0, r.Cost)
	}
	if r.Cost < 0 || p.Limit.Settles {
		r.chargedAt = undoTime(part.At, now, part.Inflow, r.Policy.Limit)
	}
	c.groups++
	c.add(&r, c.groups)
	once := &backend.IdempotencyKey{
		ID:       c.settlementID(id, part),
		Lifetime: storedFor,
	}
	copy(once.Digest[:], id[:])
	binary.BigEndian.PutUint64(once.Digest[len(id):], uint64(s.Real)) // with this, another cost is ErrReused
	c.charges[s.charge].IdempotencyKey = once
	c.Settlements = append(c.Settlements, s)
	return r
}

// settlementID returns the IdempotencyID of the settlement of a part of a reservation.
//
// No caller can choose the ID of a reservation. So no hash is needed: the first half of the ID is combined with the domain,
// and with the number and the time of the part. The other half may be a counter, so it stays as it is. Reservations of
// different domains may have the same ID, because it may be a hash of a request_id. So may one that was made with this
// request_id after the first one was forgotten.
func (c *Call) settlementID(id *[16]byte, part *ReservedPart) (unique [16]byte) {
	const odd = 0x9E3779B97F4A7C15 // a product with an odd number is different for each part
	unique = *id
	first := binary.BigEndian.Uint64(id[:8]) ^ PrefixNumber(c.Verdict.Domain.Name) ^ odd*uint64(part.Number+1)
	binary.BigEndian.PutUint64(unique[:8], first^bits.ReverseBytes64(odd*uint64(part.At)))
	return unique
}

// mostCost is more than any bucket can hold. Real costs count as at most mostCost, so that sums of them do not overflow.
const mostCost = 1 << 53

// realCost returns the real cost of a part in units. real is -1 if the proxy did not report it.
func realCost(terms *SettleTerms, part *ReservedPart, real int64) int64 {
	switch {
	case real >= 0:
		return min(real, mostCost/part.Times) * part.Times
	case terms != nil && terms.Unknown >= 0:
		return terms.Unknown * part.Times
	case terms != nil && terms.Learn != nil: // others may have made the estimate small
		return max(part.Count, terms.Estimate*part.Times)
	default:
		return part.Count
	}
}

// foldSettlements denies a settle-done that the store could not charge, so that its sender can repeat it.
func (c *Call) foldSettlements() {
	for i := range c.Settlements {
		s := &c.Settlements[i]
		if s.charge < 0 {
			continue
		}
		s.Decision = c.decisions[s.charge]
		s.Repeated = s.Decision.Replayed || errors.Is(s.Decision.Err, backend.ErrReused) || errors.Is(s.Decision.Err, backend.ErrPending)
		switch {
		case s.Failed():
			c.Failed, c.Denied = true, true
		case s.Repeated && c.header.opened: // the request may be a check with an old id, which reserves nothing
			c.Denied = true
		case s.Decision.Allowed || s.Repeated || s.Policy.Shadow || len(c.Limits) > 0: // the Results are the answer to Limits
			continue
		default: // a limit without settle, which an application reserved
			c.Denied = true
		}
		c.Statuses[s.Descriptor].Denied = true
	}
}

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
	c.Settlements = append(c.Settlements, Settlement{
		Policy: r.Policy, Descriptor: r.Descriptor, Reserved: terms.Reserves(estimate, 0), Real: r.Cost, charge: r.charge, cell: r.cell, times: 1,
	})
}
