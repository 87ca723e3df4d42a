package limiter

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// IdempotencyKey is under what ID a request is taken once, and for how long that is remembered.
type IdempotencyKey struct {
	ID       string // within the domain; "": each time
	Lifetime algorithms.Micros
}

// once makes the groups of charges ones that are taken once, each under an ID of its own: those that
// stand alone are taken, or not, by themselves.
func (c *Call) once() {
	of := c.asked()
	for at := 0; at < len(c.charges); {
		end := at + backend.GroupLen(c.charges[at:])
		once := &backend.IdempotencyKey{
			ID:     IdempotencyID(c.Verdict.Domain.Name, c.IdempotencyKey.ID, strconv.Itoa(c.charges[at].Group)),
			Digest: of, Lifetime: c.IdempotencyKey.Lifetime,
		}
		for i := at; i < end; i++ {
			c.charges[i].IdempotencyKey = once
		}
		at = end
	}
}

// asked is a digest of the whole request c.
func (c *Call) asked() [32]byte {
	var parts []string
	for i := range c.Limits {
		ask := &c.Limits[i]
		parts = append(parts, ask.Name, strconv.FormatInt(ask.Count, 10), strconv.FormatBool(ask.Reserve), strconv.Itoa(len(ask.Key)))
		parts = append(parts, ask.Key...)
		if ask.Inline != nil {
			parts = append(parts, fmt.Sprint(ask.Inline.Limit))
		}
	}
	for i := range c.instead { // after a reload that names another payer, the stored answer must not name it
		parts = append(parts, "then", c.instead[i].Policy.Prefix)
	}
	return digest(parts...)
}

// refused is backend.ErrReused or backend.ErrPending where the store answered that: the request is
// wrong, or too early, whatever the policies say.
func (c *Call) refused() error {
	if len(c.Limits) == 0 { // of settlements, foldSettlements takes care
		return nil
	}
	for i := range c.decisions {
		if err := c.decisions[i].Err; errors.Is(err, backend.ErrReused) || errors.Is(err, backend.ErrPending) {
			return err
		}
	}
	return nil
}
