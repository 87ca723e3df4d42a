package simulate

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/offline/advise"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topk"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// maxUnread bounds how many numbers of unreadable lines are kept.
	maxUnread = 5
	// maxShown bounds the bytes of each value of a key that are stored for display.
	maxShown = 256
	// maxTopDenied bounds the keys that are counted to find those denied most.
	maxTopDenied = 1000
)

type tally struct {
	requests, denied int64
	unlimited        int64 // requests that matched no limit
	missing          int64 // requests without an entry that their domain requires
	unrouted         int64 // requests that matched no limit, because they have no route or no descriptor
	leftOut          int64 // descriptors that routes left out, because a value was missing
	first, last      algorithms.Micros
	steppedBack      int64
	unread           int64 // lines that could not be read
	unreadAt         []int64
	unreadErr        error // the error of the first such line
	full             int64 // requests for which the store had no room
	early            int64 // calls that were settled before their time, because too many were open
	expired          int64 // reservations by name that were too old to settle
	peaks            peaks
	end              outcome // the outcome of the request that is being counted
	topDenied        *topk.Counter[denied]
	timeline         timeline
	withoutHistory   bool // the replay needs no history of clients
	rows             []*row
	byPolicy         map[*limiter.Policy]*row // policies that share buckets share a row
	owners           []string
	scratch          []byte
	values           []string
}

// denied is a key of a limit in the form in which it is displayed.
type denied struct {
	row   *row
	shown string
}

type row struct {
	policy *limiter.Policy
	// denied is the number of requests that this limit alone would have denied.
	requests, denied int64
	shadow, quota    bool // a policy of this row that a request matched has this mode
	open             reservations
	paidBy           *row  // the limit that paid in place of this one (then), or nil
	paid             int64 // the number of requests for which paidBy paid
	outlived         int64 // requests that lasted longer than the ttl of a concurrency limit
	busiest          []*flight
	history          *advise.History
	advice           *advise.Advice // set at the end of the replay; nil if there is no advice
}

func newTally(s *limiter.Snapshot, historyBytes int64) *tally {
	t := &tally{peaks: peaks{flying: map[string]*flight{}}, topDenied: topk.New[denied](maxTopDenied), byPolicy: make(map[*limiter.Policy]*row, len(s.Policies))}
	memory := advise.NewMemory(historyBytes)
	byOwner := map[string]*row{}
	for _, p := range s.Policies {
		r := byOwner[p.Owner]
		if r == nil {
			r = &row{policy: p, history: memory.New()}
			byOwner[p.Owner] = r
			t.rows, t.owners = append(t.rows, r), append(t.owners, p.Owner)
		}
		t.byPolicy[p] = r
	}
	return t
}

func (t *tally) skip(line int64, err error) {
	t.unread++
	if len(t.unreadAt) < maxUnread {
		t.unreadAt = append(t.unreadAt, line)
	}
	if t.unreadErr == nil {
		t.unreadErr = err
	}
}

func (t *tally) count(now algorithms.Micros, c *limiter.Call, end outcome) {
	t.end = end
	t.peaks.until(now)
	if t.requests == 0 {
		t.first = now
	}
	t.last = now
	t.requests++
	t.timeline.add(now, c.Denied)
	if c.Denied {
		t.denied++
	}
	switch {
	case c.Missing != nil:
		t.missing++
	case len(c.Results) == 0:
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
	row := t.byPolicy[r.Policy]
	if r.For != nil {
		t.countPaid(now, c, r)
		if r.Cost == 0 {
			return // the payer has paid once, for several limits
		}
	}
	row.requests++
	row.shadow, row.quota = row.shadow || r.Policy.Shadow, row.quota || r.Policy.Quota
	if r.Outcome == limiter.Unlimited {
		return
	}
	if !r.Decision.Allowed {
		row.denied++
		if d, added := t.topDenied.Add(r.Key); added {
			d.Value = denied{row, string(t.show(nil, c, r))}
		}
	}
	switch l := r.Policy.Limit; {
	case t.withoutHistory:
	case l.Kind == algorithms.Concurrency:
		t.inFlight(now, c, r, row)
	case l.Kind != algorithms.Concurrency && l.Rate > 0:
		t.addToHistory(now, c, r, row)
	}
}

func (t *tally) addToHistory(now algorithms.Micros, c *limiter.Call, r *limiter.Result, row *row) {
	client, added := row.history.Client(r.Key)
	if client == nil {
		return // the client is not in the sample
	}
	if added {
		row.history.Describe(client, string(t.show(nil, c, r)), t.hash(c, r))
	}
	row.history.Add(client, now, realOf(c, r, t.end))
	client.Denied = client.Denied || !r.Decision.Allowed && r.Decision.Err == nil
}

// hash returns 0 except for a fixed window, whose phase may come from the hash of the key.
func (t *tally) hash(c *limiter.Call, r *limiter.Result) (hash uint64) {
	if r.Policy.Limit.Kind == algorithms.FixedWindow {
		_, hash = t.keyOf(c, r)
	}
	return hash
}

// keyOf returns the key of the bucket of r's policy, valid until the next call, and its hash.
func (t *tally) keyOf(c *limiter.Call, r *limiter.Result) (key []byte, hash uint64) {
	if len(c.Limits) > 0 {
		t.scratch, hash = r.Policy.AppendKeyOf(t.scratch[:0], c.Limits[r.Descriptor].Key)
	} else {
		t.scratch, hash = r.Policy.AppendKey(t.scratch[:0], c.Descriptors[r.Descriptor].Entries)
	}
	return t.scratch, hash
}

func (t *tally) show(dst []byte, c *limiter.Call, r *limiter.Result) []byte {
	t.values = c.AppendValues(t.values[:0], r)
	for i, v := range t.values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, v[:min(len(v), maxShown)]...)
	}
	clear(t.values) // the strings are parts of a large block of the input, which would stay in memory
	return dst
}
