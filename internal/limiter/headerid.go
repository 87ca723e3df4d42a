package limiter

import (
	"math"
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// header has what Request.ID settles. Its reservation is in Call.reserved until planSettlements.
type header struct {
	opened bool // ID is signed, and of the domain
	id     [16]byte
	parts  [MaxReserved]headerPart
}

type headerPart struct {
	settled    bool // for a cost of real, by this descriptor
	descriptor int
	real       int64
}

// openHeader opens Request.ID. An id that cannot be used changes nothing.
func (c *Call) openHeader() {
	if c.Request.ID == None {
		return
	}
	if reason := c.config.open(c.Request.ID, c.Verdict.Domain, &c.reserved); reason != Settles {
		c.Settlements = append(c.Settlements, Settlement{Reason: reason, charge: noCharge})
		return
	}
	c.header = header{opened: true, id: c.reserved.ID}
}

// settlesByHeader reports whether Request.ID settles the bucket of r, and notes its cost.
func (c *Call) settlesByHeader(r *Result) bool {
	d := &c.Descriptors[r.Descriptor]
	if !d.Explicit {
		return false
	}
	for j := range min(len(c.reserved.Parts), MaxReserved) {
		part, h := &c.reserved.Parts[j], &c.header.parts[j]
		if part.TTL > 0 || part.Name != "" || part.Limit != limitNumber(r.Policy) || string(part.Key) != string(r.Key[len(r.Policy.Prefix):]) {
			continue
		}
		h.settled, h.descriptor = true, r.Descriptor
		h.real += min(d.Cost, math.MaxInt64-h.real)
		return true
	}
	return false
}

// settleHeader settles the parts of Request.ID whose costs the descriptors stated.
func (c *Call) settleHeader(now algorithms.Micros) {
	for j := range c.header.parts {
		h := &c.header.parts[j]
		if !h.settled {
			continue
		}
		if !slices.ContainsFunc(c.header.parts[:j], func(other headerPart) bool { return other.settled && other.descriptor == h.descriptor }) {
			c.done++
		}
		c.settlePart(h.descriptor, &c.reserved.Parts[j], h.real, now)
	}
}
