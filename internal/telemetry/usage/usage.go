// Package usage estimates which keys use most of their limits, from a sample of the requests and in bounded memory.
package usage

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topk"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Used is a key, and an estimate of what it used.
type Used struct {
	Domain, Limit string
	// Key, Entries and Cut are as those of a denials.Denied.
	Key     []string
	Entries []descriptors.Entry
	Cut     bool
	// Units is about how many units it consumed.
	Units int64
	// Recent are the decisions that were in the sample, newest first.
	Recent []denials.Event
}

const (
	// window is how long the counts of a window are added to; those of one and of the one before it are returned.
	window = 5 * time.Minute
	// kept is how many keys a window has at most. One that uses more than a five-hundredth of all is among them.
	kept = 512
)

// Recorder estimates usage. It is safe for concurrent use.
type Recorder struct {
	now    func() time.Time
	began  time.Time
	weight int64

	mu             sync.Mutex
	window         int64 // the number of that of recent; guarded by mu, as the rest is
	recent, before *topk.Counter[counted]
}

type counted struct {
	Used
	events denials.Events
}

// New makes a Recorder that is called for one in every requests.
func New(now func() time.Time, every int64) *Recorder {
	r := &Recorder{now: now, began: now(), weight: every}
	r.recent = topk.New[counted](kept)
	r.window = r.number(r.began)
	return r
}

// Observe counts what c consumed. It waits for no other caller: then c is not counted.
func (r *Recorder) Observe(c *limiter.Call) {
	if c.Look || c.Replayed || len(c.Results) == 0 || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	now := c.Arrived
	if now.IsZero() {
		now = r.now()
	}
	r.turn(now)
	for i := range c.Results {
		if result := &c.Results[i]; result.Key != nil && result.Cost > 0 && !result.Outcome.Denies() {
			r.add(now, c, result)
		}
	}
}

// add requires r.mu.
func (r *Recorder) add(now time.Time, c *limiter.Call, result *limiter.Result) {
	one, added := r.recent.AddN(result.Key, min(result.Cost, math.MaxInt32)*r.weight)
	if added {
		d := denials.Describe(c, result)
		one.Value = counted{Used: Used{Domain: d.Domain, Limit: d.Limit, Key: d.Key, Entries: d.Entries, Cut: d.Cut}}
	}
	one.Value.events.Add(denials.Event{At: now, Cost: result.Cost, Outcome: result.Outcome, Remaining: result.Decision.Remaining})
}

// turn makes the window of now the recent one; it requires r.mu.
func (r *Recorder) turn(now time.Time) {
	current := r.number(now)
	switch {
	case current <= r.window: // or a clock that went back
		return
	case current == r.window+1:
		r.before = r.recent
	default:
		r.before = nil
	}
	r.recent, r.window = topk.New[counted](kept), current
}

func (r *Recorder) number(t time.Time) int64 { return t.Unix() / int64(window/time.Second) }

// Top returns the keys that used most, the most first, and since when they are counted: the last five to ten minutes.
func (r *Recorder) Top() (since time.Time, top []Used) {
	now := r.now()
	since = time.Unix((r.number(now)-1)*int64(window/time.Second), 0)
	if since.Before(r.began) {
		since = r.began
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	at := map[string]int{}
	for _, counter := range []*topk.Counter[counted]{r.recent, r.before} {
		if counter == nil {
			continue
		}
		for _, c := range counter.Top(kept) {
			i, seen := at[c.Key()]
			if !seen {
				i = len(top)
				at[c.Key()] = i
				top = append(top, c.Value.Used)
			}
			top[i].Units += c.Least()
			top[i].Recent = c.Value.events.AppendTo(top[i].Recent)
		}
	}
	slices.SortFunc(top, func(a, b Used) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), cmp.Compare(a.Limit, b.Limit), slices.Compare(a.Key, b.Key))
	})
	return since, top
}
