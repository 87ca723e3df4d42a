package simulate

import (
	"context"
	"errors"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// maxOpen bounds the calls that are not settled yet. If there are more, the one with the earliest settlement
// is settled early.
const maxOpen = 1 << 20

// outcome is the part of a line that describes the end of its call.
type outcome struct {
	later bool              // the line has an outcome, so the call is settled later
	real  int64             // its real cost; -1 means that it is unknown
	after algorithms.Micros // the time from the request to its settlement
}

// openCall is a call that has reserved units and is settled later.
type openCall struct {
	id     string
	domain string
	named  bool  // an application reserved its limits by name
	real   int64 // -1 means that it is unknown
	over   []excess
	// byBucket has the descriptors that settle by bucket. The proxy sends them again, with the real cost.
	byBucket []limiter.Descriptor
}

// excess is the number of units by which the cost of an open call will exceed its reservation, for one key of a limit.
type excess struct {
	of    *overdrafts
	key   string
	units int64
}

// The ids never leave the process, so the key needs no secrecy.
func newIDs() limiter.IDs {
	return reservation.NewKeys(func() []string { return []string{"of this run"} })
}

// estimates learns from samples as a sidecar does: each key counts once a second. A sidecar ignores a sample if
// another key has used the same slot of its table in the same second. estimates has no such table and ignores none.
type estimates struct {
	estimate.Estimates
	second  algorithms.Micros
	counted map[uint64]bool   // the cells and keys that have a sample in this second
	samples algorithms.Micros // the number of samples; each gets a second of its own, so that Estimates ignores none
}

func (e *estimates) Learn(cell uint64, quantile float64, key uint64, now algorithms.Micros, real int64) {
	if second := now / algorithms.Second; second != e.second || e.counted == nil {
		e.second, e.counted = second, map[uint64]bool{}
	}
	if e.counted[cell^key] {
		return
	}
	e.counted[cell^key] = true
	e.samples++
	e.Estimates.Learn(cell, quantile, key, e.samples*algorithms.Second, real)
}

// settleLater keeps the reservations of the answered call c until they are settled. It does nothing if c has reserved
// nothing.
func (r *replay) settleLater(ctx context.Context, c *limiter.Call, end outcome) error {
	call := &openCall{real: end.real, named: len(c.Limits) > 0}
	if call.named {
		call.id = r.idOfNamed(c)
	} else if c.Started() {
		call.id, call.domain = string(c.AppendID(nil)), c.Verdict.Domain.Name
	}
	if call.id == limiter.None {
		call.id = ""
	}
	if call.byBucket = settledByBucket(c); len(call.byBucket) > 0 {
		call.domain = c.Verdict.Domain.Name
	} else if call.id == "" {
		return nil
	}
	call.over = r.tally.addOpenExcess(c, end.real)
	r.open.add(r.now+end.after, call)
	if r.open.len() > maxOpen {
		r.tally.early++
		_, first := r.open.take()
		return r.settle(ctx, first)
	}
	return nil
}

func settledByBucket(c *limiter.Call) (list []limiter.Descriptor) {
	last := -1
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || len(c.Limits) > 0 || !c.Reserves(r) || !r.Policy.Extra().Settle.ByBucket || r.Descriptor == last {
			continue
		}
		last = r.Descriptor
		d := c.Descriptors[last]
		d.Entries = slices.Clone(d.Entries)
		list = append(list, d)
	}
	return list
}

func (r *replay) idOfNamed(c *limiter.Call) string {
	var reserved limiter.Reserved
	for i := range c.Results {
		if part, ok := c.Part(i, ""); ok && c.Limits[c.Results[i].Descriptor].Reserve && !c.Denied {
			part.Number = i
			reserved.Domain = limiter.PrefixNumber(c.Verdict.Domain.Name)
			reserved.Parts = append(reserved.Parts, part)
		}
	}
	for _, part := range c.Slots() {
		reserved.ID, reserved.Domain = c.SlotID(), limiter.PrefixNumber(c.Verdict.Domain.Name)
		reserved.Parts = append(reserved.Parts, part)
	}
	if reserved.Parts == nil {
		return ""
	}
	return r.limiter.ID(&reserved)
}

// settleDue settles the open calls whose settlement is due at the time latest or before, each at its own time.
func (r *replay) settleDue(ctx context.Context, latest algorithms.Micros) error {
	for r.open.due(latest) {
		at, call := r.open.take()
		r.now = max(r.now, at)
		if err := r.settle(ctx, call); err != nil {
			return err
		}
	}
	return nil
}

// addDone adds the descriptors that a proxy sends when call ends.
func (r *replay) addDone(c *limiter.Call, call *openCall) {
	if call.id != "" {
		names := r.limiter.Current().Domains[call.domain].Settle
		end := c.AddDescriptor()
		end.Entries = append(end.Entries, descriptors.Entry{Key: names.End, Value: call.id})
		if call.real >= 0 {
			done := c.AddDescriptor()
			done.Entries = append(done.Entries, descriptors.Entry{Key: names.Key, Value: call.id})
			done.State(call.real)
		}
	}
	for i := range call.byBucket {
		if call.real > 0 {
			d := c.AddDescriptor()
			*d = call.byBucket[i]
			d.Cost = call.real
		}
	}
}

// settle settles call at the time r.now, as its proxy or its application would.
func (r *replay) settle(ctx context.Context, call *openCall) error {
	c := &r.done
	c.Reset()
	removeOpenExcess(call.over)
	if call.named {
		var reserved limiter.Reserved
		if !r.limiter.Open(call.id, &reserved) {
			return errors.New("a reservation cannot be read again")
		}
		err := r.limiter.Settle(ctx, c, limiter.Settle{Reserved: &reserved, Real: call.real})
		if errors.Is(err, limiter.ErrExpired) {
			r.tally.expired++
			return nil
		} else if err != nil {
			return err
		}
	} else {
		c.Request.Domain = call.domain
		r.addDone(c, call)
		if len(c.Descriptors) == 0 { // a call without a cost sends nothing
			return nil
		}
		if err := r.limiter.Check(ctx, c); err != nil {
			return err
		}
	}
	r.tally.settled(c)
	return nil
}
