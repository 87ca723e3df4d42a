package simulate

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// maxChanged bounds the keys that are counted as Changes.Clients.
const maxChanged = 1 << 20

// Comparison counts the requests that two configurations decide differently.
type Comparison struct {
	Requests int64   `json:"requests"`
	Unread   int64   `json:"not_read"`
	Denied   Changes `json:"newly_denied"`
	Allowed  Changes `json:"newly_allowed"`
}

// Changes describes the requests whose answer changed in one direction.
type Changes struct {
	Requests int64 `json:"requests"`
	// Clients is the number of different keys for which a limit denied these requests. At most maxChanged keys are
	// counted; AtLeast means that there may be more.
	Clients int64 `json:"clients"`
	AtLeast bool  `json:"clients_at_least"`
	// Limits are the limits that denied the requests, in descending order of their requests.
	Limits []ChangedBy `json:"limits"`

	seen map[uint64]struct{}
	by   map[string]int64
}

// ChangedBy counts the requests of Changes that one limit denied. A request that several limits denied counts for the
// first of them.
type ChangedBy struct {
	Limit    string `json:"limit"`
	Requests int64  `json:"requests"`
}

// Compare replays the input of oldConfig with both configurations, line by line. Of newConfig it uses only the Snapshot
// and the Templates.
func Compare(ctx context.Context, oldConfig, newConfig Config) (*Comparison, error) {
	newConfig.Format, newConfig.Name, newConfig.Domain, newConfig.MaxKeys = oldConfig.Format, oldConfig.Name, oldConfig.Domain, oldConfig.MaxKeys
	durations := hasConcurrency(oldConfig.Snapshot) || hasConcurrency(newConfig.Snapshot)
	oldConfig.durations, newConfig.durations = durations, durations
	old, err := newReplay(oldConfig)
	if err != nil {
		return nil, err
	}
	new, err := newReplay(newConfig)
	if err != nil {
		return nil, err
	}
	old.tally.withoutHistory, new.tally.withoutHistory = true, true
	c := &Comparison{}
	sweep := func(number int64) {
		old.sweep(number)
		new.sweep(number)
	}
	lines, err := old.eachLine(ctx, sweep, func(line string, number int64) error {
		if err := errors.Join(old.one(ctx, line, number), new.one(ctx, line, number)); err != nil {
			return &LineError{oldConfig.Name, number, err}
		}
		switch before, after := old.call.Denied, new.call.Denied; {
		case after && !before:
			c.Denied.add(&new.call)
		case before && !after:
			c.Allowed.add(&old.call)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.Requests, c.Unread = new.tally.Requests, new.tally.unread
	c.Denied.finish()
	c.Allowed.finish()
	return c, new.unread(lines)
}

// add counts a request. c is the call whose answer denies it.
func (s *Changes) add(c *limiter.Call) {
	if s.seen == nil {
		s.seen, s.by = map[uint64]struct{}{}, map[string]int64{}
	}
	s.Requests++
	for i := range c.Results {
		r := &c.Results[i]
		if !r.Outcome.Denies() || r.Policy == nil {
			continue
		}
		s.by[titleOf(r.Policy)]++
		if len(s.seen) < maxChanged {
			s.seen[xxhash.Sum64(r.Key)] = struct{}{}
		} else {
			s.AtLeast = true
		}
		return // if several limits deny, the request is counted at the first one
	}
}

func (s *Changes) finish() {
	s.Clients, s.Limits = int64(len(s.seen)), []ChangedBy{}
	for limit, n := range s.by {
		s.Limits = append(s.Limits, ChangedBy{limit, n})
	}
	slices.SortFunc(s.Limits, func(a, b ChangedBy) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Limit, b.Limit))
	})
}
