package httpapi

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// FlightKey is a key of a concurrency limit with its units in flight, those of all sidecars that share the store.
type FlightKey struct {
	Domain   string `json:"domain"`
	Name     string `json:"name"`
	Key      key    `json:"key,omitempty"`
	InFlight int64  `json:"in_flight"`
	Capacity int64  `json:"capacity"`
}

// maxFlightKeys bounds the buckets that /api/top reads from the store.
const maxFlightKeys = 20

// inFlight returns the units in flight of the first keys of concurrency limits in the lists, the most units first. If
// the store fails, it returns those that it has read.
func (o *Operator) inFlight(ctx context.Context, denied []topkeys.Item, used []topkeys.Item) []FlightKey {
	list := slices.Concat(denied, used)
	all, seen, current := []FlightKey{}, map[string]bool{}, o.Limiter.Current()
	for i := range list {
		d := &list[i]
		name := strings.Join(append([]string{d.Domain, d.Limit}, d.Key...), "\x00")
		if d.Cut || seen[name] || !hasSlots(current, d) {
			continue
		}
		if seen[name] = true; len(seen) > maxFlightKeys {
			break
		}
		c := limiter.Inspection(d.Domain, d.Limit, d.Key, d.Entries, 0)
		if err := o.Limiter.Check(ctx, c); err != nil {
			continue // a reload has removed the limit
		}
		at := slices.IndexFunc(c.Results, func(r limiter.Result) bool { return r.Key != nil && r.Policy.Name == d.Limit })
		if at < 0 {
			continue
		}
		if c.Results[at].Decision.Err != nil || failed(&c.Results[at]) {
			break
		}
		if b := bucketOf(c, &c.Results[at]); b.InFlight != nil && *b.InFlight > 0 {
			all = append(all, FlightKey{d.Domain, d.Limit, b.Key, *b.InFlight, b.Capacity})
		}
	}
	slices.SortStableFunc(all, func(a, b FlightKey) int { return cmp.Compare(b.InFlight, a.InFlight) })
	return all
}

// hasSlots reports whether the limit of key is a concurrency limit.
func hasSlots(s *limiter.Snapshot, key *topkeys.Item) bool {
	if s == nil || s.Domains[key.Domain] == nil {
		return false
	}
	for _, p := range s.Domains[key.Domain].Settling {
		if p.Name == key.Limit && p.Limit.Kind == algorithms.Concurrency {
			return true
		}
	}
	return false
}
