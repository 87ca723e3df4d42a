package limiter

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Reservation is what was reserved of one bucket, until it is known what it came to.
type Reservation struct {
	// ID tells it from all others.
	ID string
	// Domain, Name and Key say which bucket.
	Domain, Name string
	Key          []string
	// Kind and Shards are those of the limit then: with others its buckets are new ones.
	Kind   algorithms.Kind
	Shards int
	// Count is what was taken, At when.
	Count int64
	At    algorithms.Micros
}

// ErrChanged: the limit of a reservation has changed its algorithm or its shards since, and started
// afresh.
var ErrChanged = errors.New("the limit has changed its algorithm or its shards since, and started afresh: there is nothing to settle")

// Reserved is what result i of c, which was answered, has reserved; id tells it from others. It fails
// where the store was not asked, or gave back.
func (c *Call) Reserved(i int, id string) (r Reservation, ok bool) {
	result := &c.Results[i]
	ask := &c.Limits[result.Descriptor]
	if result.Decision.Err != nil || result.local || result.Cost < 0 {
		return r, false
	}
	r = Reservation{
		ID: id, Domain: result.Policy.Domain, Name: ask.Name, Key: ask.Key,
		Kind: result.Policy.Limit.Kind, Shards: len(result.Policy.Extra().Shards), At: result.Decision.At,
	}
	if result.Decision.Allowed { // a shadow limit may have taken nothing
		r.Count = result.Cost
	}
	return r, true
}

// Settle makes c, which is empty, the settlement of r: count is what it came to. The difference is
// charged, as a reservation is, or given back (see algorithms.Ask.Of); none is always accepted. It is done
// once, and remembered for so long. An error is one of Check, or ErrChanged.
func (l *Limiter) Settle(ctx context.Context, c *Call, r *Reservation, inline *descriptors.Policy, count int64, remembered algorithms.Micros) error {
	c.Request.Domain = r.Domain
	ask := LimitAsk{Name: r.Name, Key: r.Key, Inline: inline, Count: count - r.Count, Reserve: true, Settle: true}
	if ask.Count < 0 {
		ask.Of = r.At
	}
	c.Limits = append(c.Limits, ask)
	c.Once = Once{ID: "settle " + r.ID, For: remembered}
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
