package simulate

import (
	"bytes"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topk"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

const (
	// maxUnread bounds the line numbers kept of lines that could not be read.
	maxUnread = 5
	// maxShown bounds what is kept of a key to show it.
	maxShown = 256
	// maxHeavy bounds the keys counted to find those denied most.
	maxHeavy = 1000
)

// tally sums up what a replay decides.
type tally struct {
	requests, denied int64
	unlimited        int64 // requests that met no limit
	unrouted         int64 // requests about which no limit was asked, having no route or no descriptor
	leftOut          int64 // descriptors of routes
	first, last      algorithms.Micros
	steppedBack      int64
	unread           int64 // lines
	unreadAt         []int64
	unreadErr        error // of the first
	full             int64 // requests for which the store had no room
	heavy            *topk.Counter[denied]
	rows             []*row
	byPolicy         []*row // by Policy.Index; policies that share buckets share a row
	owners           []string
	used             map[string]*usage // by bucket
	maxUsed          int
	untracked        int64 // asks of buckets for which there was no room in used
	scratch          []byte
	values           []string
}

// denied is a key of a limit, as it is shown.
type denied struct {
	row   *row
	shown string
}

func newTally(s *limiter.Snapshot, maxKeys int) *tally {
	if maxKeys <= 0 {
		maxKeys = memory.DefaultMaxKeys
	}
	t := &tally{heavy: topk.New[denied](maxHeavy), used: map[string]*usage{}, maxUsed: maxKeys, byPolicy: make([]*row, len(s.Policies))}
	byOwner := map[string]*row{}
	for i, p := range s.Policies {
		r := byOwner[p.Owner]
		if r == nil {
			r = &row{policy: p}
			byOwner[p.Owner] = r
			t.rows, t.owners = append(t.rows, r), append(t.owners, p.Owner)
		}
		t.byPolicy[i] = r
	}
	return t
}

// skip counts a line that could not be read.
func (t *tally) skip(line int64, err error) {
	t.unread++
	if len(t.unreadAt) < maxUnread {
		t.unreadAt = append(t.unreadAt, line)
	}
	if t.unreadErr == nil {
		t.unreadErr = err
	}
}

// count takes in an answered Call.
func (t *tally) count(now algorithms.Micros, c *limiter.Call) {
	if t.requests == 0 {
		t.first = now
	}
	t.last = now
	t.requests++
	if c.Denied {
		t.denied++
	}
	if len(c.Results) == 0 {
		t.unlimited++
	}
	if c.Failed && full(c) {
		t.full++
	}
	for i := range c.Results {
		if r := &c.Results[i]; r.Policy != nil && r.Outcome != limiter.Replaced {
			t.result(now, c, r)
		}
	}
}

func (t *tally) result(now algorithms.Micros, c *limiter.Call, r *limiter.Result) {
	row := t.byPolicy[r.Policy.Index]
	row.asked++
	row.shadow, row.quota = row.shadow || r.Policy.Shadow, row.quota || r.Policy.Quota
	if r.Outcome == limiter.Unlimited {
		return
	}
	if !r.Decision.Allowed {
		row.denied++
		if d, added := t.heavy.Add(r.Key); added {
			d.Value = denied{row, string(t.show(nil, c, r))}
		}
	}
	if r.Policy.Limit.Rate > 0 {
		t.use(now, c, r, row)
	}
}

// use notes what the bucket would have seen had everything been allowed.
func (t *tally) use(now algorithms.Micros, c *limiter.Call, r *limiter.Result, row *row) {
	u := t.used[string(r.Key)]
	if u == nil {
		if len(t.used) >= t.maxUsed {
			t.untracked++
			return
		}
		u = &usage{row: row, phase: t.phase(c, r)}
		u.advance(now)
		t.used[string(r.Key)] = u
	}
	row.need = max(row.need, u.charge(now, r.Cost))
	if u.cur > row.peak {
		row.peak = u.cur
		row.peakAt = u.windowStart()
		if !bytes.Equal(row.peakKey, r.Key) {
			row.peakKey = append(row.peakKey[:0], r.Key...)
			row.peakBy = t.show(row.peakBy[:0], c, r)
		}
	}
}

// phase is where the bucket's windows start: those of a fixed window are its own.
func (t *tally) phase(c *limiter.Call, r *limiter.Result) int64 {
	l := &r.Policy.Limit
	switch {
	case l.Kind != algorithms.FixedWindow:
		return 0
	case !l.PhaseFromKey:
		return l.Phase
	}
	var hash uint64
	if len(c.Limits) > 0 {
		t.scratch, hash = r.Policy.AppendKeyOf(t.scratch[:0], c.Limits[r.Descriptor].Key)
	} else {
		t.scratch, hash = r.Policy.AppendKey(t.scratch[:0], c.Descriptors[r.Descriptor].Entries)
	}
	return int64(hash % uint64(l.Period))
}

// show appends the key to show to people, as it came.
func (t *tally) show(dst []byte, c *limiter.Call, r *limiter.Result) []byte {
	t.values = c.AppendValues(t.values[:0], r)
	for i, v := range t.values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, v[:min(len(v), maxShown)]...)
	}
	clear(t.values) // parts of a block of the input, not to be kept
	return dst
}

// sweep forgets the usage of buckets that are as if never seen.
func (t *tally) sweep(now algorithms.Micros) {
	for key, u := range t.used {
		if u.advance(now); u.idle() {
			delete(t.used, key)
		}
	}
}
