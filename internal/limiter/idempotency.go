package limiter

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
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

// MaxRemember is the longest Lifetime that callers may choose. A payment provider repeats a webhook for some days.
const MaxRemember = 30 * algorithms.Day

// once gives each group of charges an idempotency key. Groups are charged independently, so each needs an
// ID of its own. Every request has a first group, so requests with the same ID meet there, whatever their limits are.
func (c *Call) once() {
	of := c.requestDigest()
	for at, n := 0, 0; at < len(c.charges); n++ {
		end := at + backend.GroupLen(c.charges[at:])
		once := &backend.IdempotencyKey{
			ID:     IdempotencyID(c.Verdict.Domain.Name, c.IdempotencyKey.ID, strconv.Itoa(n)),
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
	for i := range c.charges { // a reload may change them and their order; the answers that were stored for the former ones must then not be used
		parts = append(parts, string(c.charges[i].Key), strconv.FormatBool(c.charges[i].Then))
	}
	return digest(parts...)
}

// isRepeat reports whether c repeats a request that was charged before an operator blocked a key of it, or made the key
// unlimited. c then has the charges and the decisions of that request.
func (l *Limiter) isRepeat(ctx context.Context, c *Call) bool {
	first := &Call{Request: c.Request, config: c.config, since: c.since}
	if first.plan(c.Snapshot, nil) != nil || len(first.charges) == 0 {
		return false
	}
	first.decisions = make([]backend.Decision, len(first.charges))
	first.dryRun()
	backend.Take(ctx, l.config.store, first.charges, first.decisions)
	if !first.decisions[0].Replayed {
		return false
	}
	for i := range first.Results {
		r := &first.Results[i]
		if r.charge >= 0 && first.isQuota(r) && first.decisions[r.charge].Allowed && !first.decisions[r.charge].Replayed {
			return false // that request did not charge this limit, and a dry run does not either
		}
	}
	*c = *first
	return true
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

// IdempotencyID returns an ID for parts. Equal parts have equal IDs, and different parts have different
// IDs.
func IdempotencyID(parts ...string) (id [16]byte) {
	sum := digest(parts...)
	copy(id[:], sum[:])
	return id
}

// digest hashes the lengths too, so that the digests of ("ab", "c") and ("a", "bc") differ.
func digest(parts ...string) [32]byte {
	var room [256]byte
	text := room[:0]
	for _, part := range parts {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	return sha256.Sum256(text)
}
