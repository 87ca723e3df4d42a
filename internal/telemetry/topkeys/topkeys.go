// Package topkeys counts which keys are denied most, and why, and which limits and which values of one entry these keys
// have in common. It also estimates which keys consume most units. It counts the last five to ten minutes in bounded
// memory (package topk).
package topkeys

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topk"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The reasons for a denial.
const (
	Limit    = "limit"              // the limit was reached
	Penalty  = "penalty"            // the limit's penalty blocks the key, whatever its bucket contains
	Blocked  = "blocked"            // an operator's adjustment blocks the key
	Never    = "never"              // the cost exceeds the most that the limit can ever allow
	Backend  = "backend-failure"    // the store could not decide, and on_backend_failure denies
	Full     = "no-room"            // there was no room for another bucket in memory
	NoConfig = "no-config"          // there is no configuration of the request's domain yet
	Missing  = "missing-descriptor" // the request lacks an entry that its domain requires
	NoRoute  = "no-route"           // no route of auth matched, or the request lacks values for every descriptor of its route
	NoAuth   = "no-auth"            // the configuration has no auth section
)

// Item is a key with the number of its denials, or of the units that it consumed.
type Item struct {
	Domain, Limit string
	// Why is one of the reasons above: that of the last denial. Some reasons do not depend on the key. For these,
	// all keys of a limit count as one Item without Key and Entries. Why is "" for a key that consumed units.
	Why string
	// Key has the values that identify the bucket. Entries is the descriptor, if the request had one. Both
	// contain bytes that a client chose.
	Key     []string
	Entries []descriptors.Entry
	// Cut means that Key or Entries were too long and are incomplete.
	Cut bool
	// Times is the number of denials, or of units, if Exact is true. Otherwise it is a lower bound.
	Times       int64
	Exact       bool
	First, Last time.Time
	// Rate is the number of denials, or of units, in a second, averaged over about the last ten seconds.
	Rate float64
	// Remaining and Capacity are those of the bucket at the last decision.
	Remaining, Capacity int64
	// Recent are the last decisions, newest first.
	Recent []Event

	names []string // the keys of the entries of Key, if the limit has them
	whole bool     // Key has the key and the value of each entry
}

// Event is a decision about a key.
type Event struct {
	At   time.Time
	Cost int64
	// Remaining and RetryAfter are the values for this limit alone.
	Remaining  int64
	RetryAfter algorithms.Micros
	Outcome    limiter.Outcome
}

// recent are the last few events of a key.
type recent struct {
	ring  [8]Event
	added int
}

// add adds an event. If there is no room, it replaces the oldest event.
func (e *recent) add(one Event) {
	e.ring[e.added%len(e.ring)] = one
	e.added++
}

// appendTo appends the events to dst, the newest first.
func (e *recent) appendTo(dst []Event) []Event {
	for i := e.added - 1; i >= max(0, e.added-len(e.ring)); i-- {
		dst = append(dst, e.ring[i%len(e.ring)])
	}
	return dst
}

// counted is an Item in memory that is reused. It has no Key and Entries. When there are more keys than room, most
// denials replace a key, and making an Item for each of them took a third of the time.
type counted struct {
	Item
	// texts has the values of Key, and the keys and values of Entries, each after its length.
	texts           []byte
	values, entries int
	recent          recent
}

// Top is what Recorder.Top returns.
type Top struct {
	// Since is when counting began, which is at most ten minutes ago. Total is the number of denials since then, one
	// for each limit that denied, or of units.
	Since time.Time
	Total int64
	// Keys, Limits and Parts are sorted, those with the most denials or units first. Limits and Parts count only denials.
	Keys          []Item
	Limits, Parts []Part
}

const (
	// Each shard has its own lock, so that denied requests rarely wait for each other.
	shards = 8
	// maxKept bounds the number of keys in each shard. A shard contains every key with more than 1/maxKept of the
	// shard's denials in a window. If the shards have equal numbers of denials, that is about a thousandth of all.
	maxKept = 128
	// maxShown bounds how many bytes of a key are stored for display.
	maxShown = 256
)

// Recorder counts denials, or requests that shadow mode allowed, or units. It is safe for concurrent use.
type Recorder struct {
	now    func() time.Time
	began  time.Time
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu    sync.Mutex
	keys  topk.Windows[counted] // guarded by mu
	parts topk.Windows[Part]    // guarded by mu
	_     [64]byte              // separates the locks of two shards into different cache lines
}

// New returns a Recorder that reads the time from now.
func New(now func() time.Time) *Recorder {
	r := &Recorder{now: now, began: now(), seed: maphash.MakeSeed()}
	for i := range r.shards {
		r.shards[i].keys, r.shards[i].parts = topk.NewWindows[counted](maxKept), topk.NewWindows[Part](maxKept)
	}
	return r
}

// Observe counts the denials of c.
func (r *Recorder) Observe(c *limiter.Call) {
	now := r.arrival(c)
	if len(c.Results) == 0 {
		reason := NoConfig
		switch {
		case c.Missing != nil:
			reason = Missing
		case c.IsDone() && c.Failed: // a settlement, which its sender repeats
			reason = Backend
		case c.IsDone():
			reason = Limit
		}
		r.count(now, c, &limiter.Result{}, reason, 1)
		return
	}
	for i := range c.Results {
		if result := &c.Results[i]; c.Denies(result) {
			r.count(now, c, result, reasonOf(result), 1)
		}
	}
}

// ObserveShadowed counts the denials of c that did not happen, because shadow mode allowed the request.
func (r *Recorder) ObserveShadowed(c *limiter.Call) {
	for i := range c.Results {
		if result := &c.Results[i]; result.Outcome == limiter.Shadowed || c.WouldDeny && result.Outcome.Denies() {
			r.count(r.arrival(c), c, result, reasonOf(result), 1)
		}
	}
}

// ObserveUsed counts the units that c consumed, and those that it got only because of shadow mode. The caller observes a
// random sample of the requests. weight is the number of requests for which c stands, such as 64 if one of 64 is in the
// sample; the units of c count weight times.
func (r *Recorder) ObserveUsed(c *limiter.Call, weight int64) {
	if c.DryRun || c.Replayed {
		return
	}
	for i := range c.Results {
		if result := &c.Results[i]; result.Cost > 0 && (result.Outcome == limiter.Shadowed || c.Consumed(result)) {
			r.count(r.arrival(c), c, result, "", min(result.Cost, math.MaxInt32)*weight)
		}
	}
}

// arrival returns c.Arrived, which is accurate enough; reading the clock would take a tenth of a denial's time.
func (r *Recorder) arrival(c *limiter.Call) time.Time {
	if c.Arrived.IsZero() {
		return r.now()
	}
	return c.Arrived
}

func reasonOf(r *limiter.Result) string {
	switch {
	case r.Outcome == limiter.FailedDenied && errors.Is(r.Decision.Err, backend.ErrFull):
		return Full
	case r.Outcome == limiter.FailedDenied:
		return Backend
	case r.Decision.Never:
		return Never
	case r.Policy != nil && r.Policy.Adjusted != nil && r.Policy.Adjusted.Block:
		return Blocked
	case r.Decision.Blocked > 0:
		return Penalty
	default:
		return Limit
	}
}

// count counts n denials or, if why is "", n units.
func (r *Recorder) count(now time.Time, c *limiter.Call, result *limiter.Result, why string, n int64) {
	var room [256]byte
	aboutKey := why == "" || why == Limit || why == Penalty || why == Blocked || why == Never
	key := room[:0]
	switch {
	case aboutKey && result.Key != nil:
		key = append(append(key, 'k'), result.Key...)
	case result.Policy != nil:
		key = append(append(append(key, 'o'), why...), result.Policy.Owner...)
	default:
		key = append(append(append(key, 'd'), why...), cut(c.Request.Domain)...)
	}
	s := &r.shards[maphash.Bytes(r.seed, key)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	item, added := s.keys.Add(now, key, n)
	one := &item.Value
	if added {
		*one = counted{Item: Item{First: now}, texts: one.texts[:0]}
		one.describe(c, result, aboutKey)
	}
	one.Last, one.Why, one.Remaining = now, why, result.Decision.Remaining
	one.recent.add(Event{now, result.Cost, result.Decision.Remaining, result.Decision.RetryAfter, result.Outcome})
	if result.Policy == nil {
		return
	}
	if result.Policy.Limit != nil {
		one.Capacity = result.Policy.Limit.Capacity
	}
	if why != "" {
		s.addParts(now, c, result, aboutKey)
	}
}

// unrouted and itsDenial are a request that was denied before any limit was evaluated.
var unrouted, itsDenial = limiter.Call{}, limiter.Result{Outcome: limiter.Denied}

// Unrouted counts such a request. why is NoRoute or NoAuth.
func (r *Recorder) Unrouted(why string) { r.count(r.now(), &unrouted, &itsDenial, why, 1) }

// describe stores the domain, limit, key and descriptor of result. It copies their texts, because the listener reuses
// their memory.
func (d *counted) describe(c *limiter.Call, result *limiter.Result, aboutKey bool) {
	d.Domain, d.Limit = namesOf(c, result)
	if p := result.Policy; p != nil {
		d.names, d.whole = p.Extra().OpenKeys, p.Whole
	}
	if !aboutKey {
		return
	}
	if result.Policy != nil {
		var list [8]string
		values := c.AppendValues(list[:0], result)
		d.values = len(values)
		for left := maxShown; len(values) > 0; values = values[1:] {
			left = d.addText(values[0], left)
		}
	}
	if result.Descriptor < len(c.Descriptors) && len(c.Limits) == 0 {
		entries := c.Descriptors[result.Descriptor].Entries
		d.entries = len(entries)
		left := maxShown
		for i := range entries {
			left = d.addText(entries[i].Value, d.addText(entries[i].Key, left))
		}
	}
}

// addText stores at most left bytes of text. It returns how many more may be stored.
func (d *counted) addText(text string, left int) int {
	if len(text) > left {
		text, d.Cut = text[:left], true
	}
	d.texts = append(binary.AppendUvarint(d.texts, uint64(len(text))), text...)
	return left - len(text)
}

// item returns the Item that d describes.
func (d *counted) item() Item {
	one, texts := d.Item, d.texts
	next := func() string {
		n, size := binary.Uvarint(texts)
		text := string(texts[size : size+int(n)])
		texts = texts[size+int(n):]
		return text
	}
	for range d.values {
		one.Key = append(one.Key, next())
	}
	for range d.entries {
		one.Entries = append(one.Entries, descriptors.Entry{Key: next(), Value: next()})
	}
	return one
}

// namesOf returns the names of the domain and the limit of result. They are copies if they come from the request.
func namesOf(c *limiter.Call, result *limiter.Result) (domain, limit string) {
	if c.Verdict.Domain != nil {
		domain = c.Verdict.Domain.Name
	} else {
		domain = strings.Clone(cut(c.Request.Domain))
	}
	if p := result.Policy; p != nil {
		if limit = cut(p.Name); p.Index < 0 {
			limit = strings.Clone(limit)
		}
	}
	return domain, limit
}

func cut(text string) string { return text[:min(len(text), maxShown)] }

// Top returns the n keys with the most denials or units, or all if there are fewer, and as many limits and parts.
func (r *Recorder) Top(n int) Top {
	now := r.now()
	t := Top{Since: topk.Since(now, r.began)}
	all, missed := parts{}, int64(0)
	for i := range r.shards {
		t.Keys = r.shards[i].top(now, t.Keys)
		denials, uncounted := r.shards[i].read(now, all)
		t.Total, missed = t.Total+denials, missed+uncounted
	}
	slices.SortFunc(t.Keys, func(a, b Item) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), b.Last.Compare(a.Last), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Limit, b.Limit), slices.Compare(a.Key, b.Key))
	})
	all.complete(t.Keys, missed)
	t.Limits, t.Parts = all.sorted(n)
	t.Keys = t.Keys[:min(n, len(t.Keys))]
	return t
}

func (s *shard) top(now time.Time, dst []Item) []Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.keys.Items(now) {
		d := c.Newest.Value.item()
		d.Times, d.Rate, d.Exact = c.Least, c.Rate, c.Least == c.Most
		d.Recent = c.Newest.Value.recent.appendTo(nil)
		if c.Oldest != c.Newest {
			d.First, d.Recent = c.Oldest.Value.First, c.Oldest.Value.recent.appendTo(d.Recent)
		}
		dst = append(dst, d)
	}
	return dst
}
