package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Reservation is a reservation of units of one bucket, until it is settled.
type Reservation struct {
	// ID identifies it.
	ID string
	// Domain, Name and Key say which bucket.
	Domain, Name string
	Key          []string
	// Kind and Shards are those of the limit then: with others its buckets are new ones.
	Kind   algorithms.Kind
	Shards int
	// Count is what was taken, At when, and Inflow how fast the bucket refilled then.
	Count  int64
	At     algorithms.Micros
	Inflow algorithms.Inflow
}

// ClockSlack is the largest difference between the clocks of sidecars and of the backend.
const ClockSlack = 60 * algorithms.Second

// undoneFrom returns the moment that the undo of a charge names (algorithms.Charge.ChargedAt). It is at, the moment of the
// charge, unless the bucket refilled faster then than it does by l. In that case it is so much earlier that l brings as
// much as the faster rate did. The store does not know when the rate changed, and its clock may be ahead of now, so the
// undo returns too little rather than too much.
//
// A limit that settles remembers its peaks whatever the rate was, so that it needs the moment itself.
func undoneFrom(at, now algorithms.Micros, was algorithms.Inflow, l *algorithms.Limit) algorithms.Micros {
	if l.Settles {
		return at
	}
	is, latest := l.Inflow(), now+ClockSlack
	if was.Units <= 0 || was.Span <= 0 || is.Units == 0 || at <= 0 || latest <= at {
		return at
	}
	n := big.NewInt(int64(latest - at))
	n.Mul(n, big.NewInt(was.Units)).Mul(n, big.NewInt(is.Span))
	span := new(big.Int).Mul(big.NewInt(was.Span), big.NewInt(is.Units))
	n.Div(n.Add(n, span).Sub(n, big.NewInt(1)), span) // rounded up
	switch {
	case !n.IsInt64() || n.Int64() >= int64(latest-l.Tick):
		return 1
	case n.Int64() <= int64(latest-at):
		return at
	default:
		return latest - algorithms.Micros(n.Int64()) - l.Tick
	}
}

// ErrChanged: the limit of a reservation has changed its algorithm or its shards since, and started
// afresh.
var ErrChanged = errors.New("the limit has changed its algorithm or its shards since, and started afresh: there is nothing to settle")

// Reserved returns the reservation of result i of the answered c; id identifies it. ok is false if the store did not
// decide, or if it refunded units.
func (c *Call) Reserved(i int, id string) (r Reservation, ok bool) {
	result := &c.Results[i]
	ask := &c.Limits[result.Descriptor]
	if result.Decision.Err != nil || result.local || result.Cost < 0 {
		return r, false
	}
	r = Reservation{
		ID: id, Domain: result.Policy.Domain, Name: ask.Name, Key: ask.Key,
		Kind: result.Policy.Limit.Kind, Shards: len(result.Policy.Extra().Shards), At: result.Decision.At,
		Inflow: result.Policy.Limit.Inflow(),
	}
	if result.Decision.Allowed { // a shadow limit may have consumed nothing
		r.Count = result.Cost
	}
	return r, true
}

// Settle makes c, which is empty, the settlement of r with the real cost count. The difference is charged like a
// reservation, or refunded (see algorithms.Charge.ChargedAt). A difference of 0 is always accepted. A repetition within the time
// remembered has no further effect. now is the time by this process's clock. The error is one of Check, or ErrChanged.
func (l *Limiter) Settle(
	ctx context.Context, c *Call, r *Reservation, inline *descriptors.Policy, count int64, remembered, now algorithms.Micros,
) error {
	c.Request.Domain = r.Domain
	ask := NamedCharge{Name: r.Name, Key: r.Key, Inline: inline, Count: count - r.Count, Reserve: true, Settle: true}
	if ask.Count < 0 {
		ask.ReservedAt, ask.ofInflow, ask.now = r.At, r.Inflow, now
	}
	c.Limits = append(c.Limits, ask)
	c.IdempotencyKey = IdempotencyKey{ID: "settle " + r.ID, Lifetime: remembered}
	s := l.Current()
	if s == nil {
		return ErrNoConfig
	}
	_, p, err := s.limit(r.Domain, &ask)
	if err != nil {
		return err
	}
	if p.Limit.Kind != r.Kind || len(p.Extra().Shards) != r.Shards {
		return fmt.Errorf("limit %s: %w", strconv.Quote(p.Name), ErrChanged)
	}
	return l.Check(ctx, c)
}
