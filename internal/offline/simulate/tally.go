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

// tally counts the requests of a replay for its Report.
type tally struct {
	*Report
	unlimited      int64 // requests that matched no limit
	missing        int64 // requests without an entry that their domain requires
	unrouted       int64 // requests that matched no limit, because they have no route or no descriptor
	repeated       int64 // requests that matched no limit, because /v1/auth denies them as ambiguous
	leftOut        int64 // descriptors that routes left out, because a value was missing
	steppedBack    int64
	unread         int64 // lines that could not be read
	unreadAt       []int64
	unreadErr      error // the error of the first such line
	full           int64 // requests for which the store had no room
	early          int64 // calls that were settled before their time, because too many were open
	expired        int64 // reservations by name that were too old to settle
	peaks          peaks
	end            outcome // the outcome of the request that is being counted
	topDenied      *topk.Counter[DeniedKey]
	withoutHistory bool                       // the replay needs no history of clients
	byPolicy       map[*limiter.Policy]*Limit // policies that share buckets share a Limit
	owners         []string
	scratch        []byte
	values         []string
}

func newTally(s *limiter.Snapshot, historyBytes int64) *tally {
	t := &tally{
		Report: &Report{Notes: []Note{}, Limits: []*Limit{}, Keys: []DeniedKey{}},
		peaks:  peaks{flying: map[string]*Peak{}}, topDenied: topk.New[DeniedKey](maxTopDenied), byPolicy: make(map[*limiter.Policy]*Limit, len(s.Policies)),
	}
	memory := advise.NewMemory(historyBytes)
	byOwner := map[string]*Limit{}
	for _, p := range s.Policies {
		l := byOwner[p.Owner]
		if l == nil {
			l = &Limit{Domain: p.Domain, Name: p.Name, policy: p, history: memory.New()}
			byOwner[p.Owner] = l
			t.Limits, t.owners = append(t.Limits, l), append(t.owners, p.Owner)
		}
		t.byPolicy[p] = l
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
	if t.Requests == 0 {
		t.From = now
	}
	t.To = now
	t.Requests++
	t.timeline.add(now, c.Denied)
	if c.Denied {
		t.Denied++
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
	of := t.byPolicy[r.Policy]
	if r.For != nil {
		t.countPaid(now, c, r)
		if r.Cost == 0 {
			return // the payer has paid once, for several limits
		}
	}
	of.Requests++
	of.Shadow, of.Quota = of.Shadow || r.Policy.Shadow, of.Quota || r.Policy.Quota
	if r.Outcome == limiter.Unlimited {
		return
	}
	if !r.Decision.Allowed {
		of.Denied++
		if key, added := t.topDenied.Add(r.Key, 1); added {
			key.Value = DeniedKey{Domain: of.Domain, Limit: of.Name, Key: string(t.show(nil, c, r)), limit: of}
		}
	}
	switch l := r.Policy.Limit; {
	case t.withoutHistory:
	case l.Kind == algorithms.Concurrency:
		t.inFlight(now, c, r, of)
	case l.Kind != algorithms.Concurrency && l.Rate > 0:
		t.addToHistory(now, c, r, of)
	}
}

func (t *tally) addToHistory(now algorithms.Micros, c *limiter.Call, r *limiter.Result, of *Limit) {
	client, added := of.history.Client(r.Key)
	if client == nil {
		return // the client is not in the sample
	}
	if added {
		of.history.Describe(client, string(t.show(nil, c, r)), t.hash(c, r))
	}
	of.history.Add(client, now, realOf(c, r, t.end))
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
	return dst
}
