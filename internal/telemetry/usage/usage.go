// Package usage estimates which keys consume most units. It uses a sample of the requests and bounded memory.
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

// Used is a key with an estimate of the units that it consumed.
type Used struct {
	Domain, Limit string
	// Key, Entries and Cut have the same meaning as in denials.Denied.
	Key     []string
	Entries []descriptors.Entry
	Cut     bool
	Units   int64
	// Rate is an estimate of the units in a second, averaged over about the last ten seconds.
	Rate float64
	// Remaining and Capacity are those of the bucket at the last decision in the sample.
	Remaining, Capacity int64
	// Recent are the decisions in the sample, newest first.
	Recent []denials.Event
}

// maxKept is the maximum number of keys in a window. They include every key that consumed more than 1/maxKept
// of the units in the sample.
const maxKept = 512

// Recorder estimates usage. It is safe for concurrent use.
type Recorder struct {
	now   func() time.Time
	began time.Time

	mu   sync.Mutex
	keys topk.Windows[counted] // guarded by mu
}

type counted struct {
	Used
	events denials.Events
}

// New returns a Recorder that reads the time from now.
func New(now func() time.Time) *Recorder {
	return &Recorder{now: now, began: now(), keys: topk.NewWindows[counted](maxKept)}
}

// Observe counts the units that c consumed. The caller observes a random sample of the requests. weight is the number
// of requests for which c stands, such as 64 if one of 64 is in the sample; the units of c count weight times. If
// another goroutine is in Observe, Observe returns without counting c.
func (r *Recorder) Observe(c *limiter.Call, weight int64) {
	if c.DryRun || c.Replayed || len(c.Results) == 0 || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	now := c.Arrived
	if now.IsZero() {
		now = r.now()
	}
	for i := range c.Results {
		if result := &c.Results[i]; result.Key != nil && result.Cost > 0 && !result.Outcome.Denies() {
			r.add(now, c, result, weight)
		}
	}
}

// add counts the units that result consumed, multiplied by weight. The caller holds r.mu.
func (r *Recorder) add(now time.Time, c *limiter.Call, result *limiter.Result, weight int64) {
	one, added := r.keys.AddN(now, result.Key, min(result.Cost, math.MaxInt32)*weight)
	if added {
		d := denials.Describe(c, result)
		one.Value = counted{Used: Used{Domain: d.Domain, Limit: d.Limit, Key: d.Key, Entries: d.Entries, Cut: d.Cut}}
	}
	one.Value.Remaining, one.Value.Capacity = result.Decision.Remaining, result.Policy.Limit.Capacity
	one.Value.events.Add(denials.Event{At: now, Cost: result.Cost, Outcome: result.Outcome, Remaining: result.Decision.Remaining})
}

// Top returns the keys that consumed most, the highest first. since is when counting began, which is at most
// ten minutes ago.
func (r *Recorder) Top() (since time.Time, top []Used) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys.Each(now, func(at int, c *topk.Counted[counted]) {
		if at == len(top) {
			top = append(top, c.Value.Used)
		}
		top[at].Units, top[at].Rate = top[at].Units+c.Least(), top[at].Rate+c.Rate(now)
		top[at].Recent = c.Value.events.AppendTo(top[at].Recent)
	})
	slices.SortFunc(top, func(a, b Used) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), cmp.Compare(a.Limit, b.Limit), slices.Compare(a.Key, b.Key))
	})
	return topk.Since(now, r.began), top
}
