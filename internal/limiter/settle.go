package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// Within is how long a reservation by name can be settled after its units became available.
	Within = 3600 * algorithms.Second
	// ClockSlack is the largest tolerated difference between the clocks of sidecars and of the store. A store keeps
	// the result of a settlement for that much longer than the reservation can be settled, so that it is
	// never settled twice.
	ClockSlack = 60 * algorithms.Second
)

var (
	// ErrChanged means that the limit of a reservation has changed its algorithm or its shards since, or that a
	// proxy made the reservation and the limit no longer has settle.
	ErrChanged = errors.New("the limit has another algorithm or number of shards now, so its bucket is new and nothing can be settled")
	// ErrExpired means that a reservation is too old.
	ErrExpired = errors.New("the reservation is too old; settle within an hour after its units are available")
)

// Settle is the settlement of one reservation by an application. The caller of Check leaves Descriptors and
// Limits of a Request with Settle empty.
type Settle struct {
	Reserved *Reserved
	// Real is the real cost in units.
	Real int64
	// Costs, if not nil, has numbers of units by kind. Real is then their cost by the weights of each
	// limit.
	Costs map[string]int64
	// Inline compiles a limit that came with the request. nil means that requests cannot have limits.
	Inline func(domain, name, config string) (*Policy, error)
}

// Open decodes id to r. It returns false if id is malformed or not signed with a known key, or if Config.IDs is
// nil.
func (l *Limiter) Open(id string, r *Reserved) bool {
	return l.config.IDs != nil && l.config.IDs.Open(id, r)
}

// ID returns the id of r, and sets r.ID if that is zero. It returns "" if ids cannot be signed at present.
func (l *Limiter) ID(r *Reserved) string {
	if l.config.IDs == nil {
		return ""
	}
	return string(l.config.IDs.Append(nil, r))
}

// Part returns the part that result i of c, an answered request for Limits, has reserved. config is the
// limit that came with the request, or "". It returns false if there is nothing to settle: the limit is unlimited, the
// store did not decide, units were refunded, or the Part of another result has the units of a common payer.
func (c *Call) Part(i int, config string) (p ReservedPart, ok bool) {
	r := &c.Results[i]
	named := &c.Limits[r.Descriptor]
	if r.charge < 0 || c.decisions[r.charge].Err != nil || r.local || r.Cost < 0 {
		return p, false
	}
	count, times, name := r.Cost, int64(1), named.Name
	if r.For != nil { // only the bucket that paid is settled, once for all limits of the plan
		f := &c.payers[r.payer-1]
		first := slices.IndexFunc(c.Results, func(other Result) bool { return other.payer == r.payer && other.reserve })
		if first != i || f.reserved <= 0 {
			return p, false
		}
		count, times, name = f.reserved, f.reserves, r.Policy.Name
	}
	if !c.Consumed(r) { // in shadow mode a request is allowed although its units were not consumed
		count = 0
	}
	p = PartOf(r.Policy, ByName{Name: name, Values: named.Key, Config: config, Wait: r.Decision.Wait}, count, r.Decision.At)
	p.Times = times
	if r.Decision.Replayed && r.Decision.At < c.since { // the inflow at the time of the reservation is not known any more
		p.Inflow = scaled.Inflow{Units: mostCost, Span: 1}
	}
	return p, true
}

// PartOf returns the part for count units of p that an application reserved at the time reservedAt. bucket has the
// name of the limit and the key in the application's request.
func PartOf(p *Policy, bucket ByName, count int64, reservedAt algorithms.Micros) ReservedPart {
	return ReservedPart{
		Limit: limitNumber(p), Slot: p.SlotOfKey(bucket.Values), Count: count, Times: 1, At: reservedAt, Inflow: inflow(p.Limit), ByName: bucket,
	}
}

func inflow(l *algorithms.Limit) scaled.Inflow {
	numbers := l.Numbers()
	return numbers.Inflow()
}

// limitNumber returns a number that identifies the buckets of p. If the algorithm or the number of shards
// changes, the limit has other buckets, and so the number changes.
func limitNumber(p *Policy) uint64 {
	return PrefixNumber(p.Prefix) + uint64(len(p.Extra().Shards))
}

// Due returns the time at which the units of p are available.
func (p *ReservedPart) Due() algorithms.Micros { return p.At + p.Wait }

// expired reports whether p can no longer be settled. The reservations of proxies do not expire; they are
// settled late.
func (p *ReservedPart) expired(now algorithms.Micros) bool {
	return p.Name != "" && now >= p.Due()+Within
}

// terms returns whether a settlement of p is late, and how long the store must remember the settlement. l is the limit
// of p. A reservation for a proxy is late after its ttl, and its settlement is remembered for another ttl. A
// settle-done that arrives even later is charged as a late one.
func (p *ReservedPart) terms(l *Policy, now algorithms.Micros) (late bool, storedFor algorithms.Micros) {
	if p.Name != "" {
		return false, p.Due() + Within - now + ClockSlack
	}
	ttl := Within
	if settle := l.Extra().Settle; settle != nil {
		ttl = settle.TTL
	}
	return now > p.At+ttl, max(p.At+2*ttl-now, ttl) + ClockSlack
}

// limitOf returns the limit of a part. The error is a *RequestError, ErrChanged, or an error of inline.
func (c *Call) limitOf(part *ReservedPart, inline func(domain, name, config string) (*Policy, error)) (p *Policy, err error) {
	d := c.Verdict.Domain
	switch {
	case part.Name == "":
		p = d.Settling[part.Limit]
	case part.Config == "":
		if p = d.Named[part.Name]; p == nil {
			return nil, missing("domain %q has no limit named %q", d.Name, descriptors.Printable(part.Name))
		}
	case inline != nil:
		if p, err = inline(d.Name, part.Name, part.Config); err != nil {
			return nil, err
		}
	}
	switch {
	case p == nil:
		return nil, ErrChanged
	case limitNumber(p) != part.Limit:
		return nil, fmt.Errorf("limit %s: %w", strconv.Quote(p.Name), ErrChanged)
	default:
		return p, nil
	}
}

// Settle makes c, which must be empty, a settlement, and answers it. For each part of the reservation, the difference
// between the real cost and the reserved units is charged like a reservation, or refunded (see
// algorithms.Charge.ChargedAt). A difference of 0 is always accepted.
//
// A repeated settlement has no further effect; with another cost its error is backend.ErrReused. c.Limits
// gets the parts. Other errors are those of Check, ErrChanged and ErrExpired.
func (l *Limiter) Settle(ctx context.Context, c *Call, s Settle) error {
	c.Request.Settle = &s
	return l.Check(ctx, c)
}

func (c *Call) planSettle(s *Snapshot, now algorithms.Micros) error {
	t := c.Settle
	c.Snapshot = s
	if c.Verdict.Domain = s.domainOf(t.Reserved); c.Verdict.Domain == nil {
		return missing("the domain of the reservation is not configured")
	}
	for i := range t.Reserved.Parts {
		part := &t.Reserved.Parts[i]
		if part.TTL > 0 {
			c.planReturn(len(t.Reserved.Parts), &t.Reserved.ID, part) // a slot has no element in Limits
			continue
		}
		p, err := c.limitOf(part, t.Inline)
		if err != nil {
			return err
		}
		if part.expired(now) {
			return fmt.Errorf("limit %s: %w", strconv.Quote(p.Name), ErrExpired)
		}
		real := t.Real
		if t.Costs != nil {
			if real, err = weightedCost(p, t.Costs); err != nil {
				return err
			}
		}
		r := c.planPart(len(c.Limits), &t.Reserved.ID, part, p, real, now)
		c.Limits = append(c.Limits, NamedCharge{Name: p.Name, Key: part.Values, Count: r.Cost, Reserve: true})
		c.Results = append(c.Results, r)
	}
	return nil
}

// undoTime returns the Charge.ChargedAt of an undo under l (see package algorithms). former is the inflow of the limit
// at chargedAt, the time of the charge.
//
// Usually the result is chargedAt. If former was faster than the inflow under l, the result is earlier. Then the inflow
// under l since the result equals the former inflow since chargedAt. The store does not know when the rate changed, and
// its clock may be ahead of now. So the undo refunds too little rather than too much.
//
// A store refunds units of a limit with Settles by its peaks (algorithms.Peaks), which do not depend on the rate. So
// the result is then chargedAt.
func undoTime(chargedAt, now algorithms.Micros, former scaled.Inflow, l *algorithms.Limit) algorithms.Micros {
	if l.Settles {
		return chargedAt
	}
	numbers, latest := l.Numbers(), now+ClockSlack
	is, tick := numbers.Inflow(), algorithms.Micros(numbers.Tick)
	if former.Span <= 0 || is.Units == 0 || chargedAt <= 0 || latest <= chargedAt {
		return chargedAt
	}
	n := big.NewInt(int64(latest - chargedAt))
	n.Mul(n, big.NewInt(former.Units)).Mul(n, big.NewInt(is.Span))
	span := new(big.Int).Mul(big.NewInt(former.Span), big.NewInt(is.Units))
	n.Div(n.Add(n, span).Sub(n, big.NewInt(1)), span) // rounded up
	switch {
	case !n.IsInt64() || n.Int64() >= int64(latest-tick):
		return 1
	case n.Int64() <= int64(latest-chargedAt):
		return chargedAt
	default:
		return latest - algorithms.Micros(n.Int64()) - tick
	}
}
