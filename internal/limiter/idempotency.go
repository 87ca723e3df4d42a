package limiter

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// IdempotencyKey makes a request that is repeated under the same ID consume units once.
type IdempotencyKey struct {
	ID       string // unique within the domain; "" means that each request consumes
	Lifetime algorithms.Micros
}

// once gives each group of charges an idempotency key. Groups are charged independently, so each needs an
// ID of its own.
func (c *Call) once() {
	of := c.requestDigest()
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

func (c *Call) requestDigest() [32]byte {
	var parts []string
	for i := range c.Limits {
		named := &c.Limits[i]
		parts = append(parts, named.Name, strconv.FormatInt(named.Count, 10), strconv.FormatBool(named.Reserve), strconv.Itoa(len(named.Key)))
		parts = append(parts, named.Key...)
		if named.Inline != nil {
			parts = append(parts, fmt.Sprint(named.Inline.Limit))
		}
	}
	for i := range c.payers { // a reload may change the payer; an answer that was stored with the former payer must then not be used
		parts = append(parts, "then", c.payers[i].Policy.Prefix)
	}
	return digest(parts...)
}

// refused returns the store's ErrReused or ErrPending: the request reuses an ID, or another request with the ID is in
// flight. That is not a failure of the store, so on_backend_failure does not apply.
func (c *Call) refused() error {
	if len(c.Limits) == 0 { // foldSettlements handles these errors for settlements
		return nil
	}
	for i := range c.decisions {
		if err := c.decisions[i].Err; errors.Is(err, backend.ErrReused) || errors.Is(err, backend.ErrPending) {
			return err
		}
	}
	return nil
}
