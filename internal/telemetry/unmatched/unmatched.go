// Package unmatched records which requests matched no limit, so that operators notice a typo in a domain or
// in the key of a descriptor. It stores only the keys of descriptors, without the values. It covers the last
// five to ten minutes in bounded memory (package topk). No request waits for another one here.
package unmatched

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topk"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Shape is what requests that matched no limit have in common: the domain, and the keys of the descriptors.
type Shape struct {
	Domain string
	// Configured reports whether there is a configuration of the domain.
	Configured bool
	// Keys has the keys of the entries of each descriptor. They are bytes that a client may have chosen.
	Keys [][]string
	// Cut means that Domain or Keys were too long and are incomplete.
	Cut bool
	// Requests is a lower bound of the number of requests.
	Requests int64
	Last     time.Time
}

const (
	// maxKept bounds the number of shapes in a window.
	maxKept = 64
	// maxText bounds how many bytes of a shape are stored, and maxDomain those of its domain.
	maxText, maxDomain = 1024, 512
	// warnPause is the minimum time between two warnings. warnAgain is the minimum time between two warnings
	// about one shape. maxWarned bounds the number of shapes whose last warning is remembered.
	warnPause = time.Minute
	warnAgain = time.Hour
	maxWarned = 256
)

// Recorder counts requests that matched no limit. It is safe for concurrent use.
type Recorder struct {
	now   func() time.Time
	log   *zap.Logger
	began time.Time

	mu       sync.Mutex
	shapes   topk.Windows[Shape] // guarded by mu, like the following fields
	key      []byte
	warned   map[string]time.Time // by the key of the shape
	warnedAt time.Time
}

// New returns a Recorder that reads the time from now and logs warnings to log.
func New(now func() time.Time, log *zap.Logger) *Recorder {
	return &Recorder{now: now, log: log, began: now(), shapes: topk.NewWindows[Shape](maxKept), warned: map[string]time.Time{}}
}

// Is reports whether c has only descriptors and no limit matched them. It is false for a settlement, for a denial because
// of a missing entry, after a failure of the store, and without a configuration.
func Is(c *limiter.Call) bool {
	return len(c.Results) == 0 && c.Missing == nil && !c.IsDone() && !c.Failed && c.Snapshot != nil && len(c.Limits) == 0
}

// Observe counts c, for which Is must be true. If another goroutine is in Observe, Observe returns without
// counting c. Frequent shapes are still found.
func (r *Recorder) Observe(c *limiter.Call) {
	if !r.mu.TryLock() {
		return
	}
	now := c.Arrived
	if now.IsZero() {
		now = r.now()
	}
	cut := r.setKey(c)
	counted, added := r.shapes.Add(now, r.key, 1)
	if added {
		counted.Value = shapeOf(string(r.key), c.Verdict.Domain != nil, cut)
	}
	counted.Value.Last = now
	shape := counted.Value
	warn := now.Sub(r.warnedAt) >= warnPause && r.mayWarn(now)
	r.mu.Unlock()
	if warn {
		r.warn(&shape)
	}
}

const descriptorMark, keyMark = "\xff\x00", "\xff\x01"

// setKey sets r.key to the key of c's shape, and reports whether that key is incomplete. The caller holds mu.
func (r *Recorder) setKey(c *limiter.Call) (cut bool) {
	add := func(mark, text string) {
		if left := maxText - len(r.key); len(mark)+len(text) > left {
			cut = true
		} else if !cut {
			r.key = append(append(r.key, mark...), text...)
		}
	}
	r.key = append(r.key[:0], c.Request.Domain[:min(len(c.Request.Domain), maxDomain)]...)
	cut = len(c.Request.Domain) > maxDomain
	for i := range c.Descriptors {
		add(descriptorMark, "")
		for _, e := range c.Descriptors[i].Entries {
			add(keyMark, e.Key)
		}
	}
	return cut
}

// shapeOf returns the Shape with a key that setKey has made. If a text of the request contains the marks, the Shape has
// more keys.
func shapeOf(key string, configured, cut bool) Shape {
	parts := strings.Split(key, descriptorMark)
	s := Shape{Domain: parts[0], Configured: configured, Cut: cut}
	for _, part := range parts[1:] {
		s.Keys = append(s.Keys, strings.Split(part, keyMark)[1:])
	}
	return s
}

// mayWarn reports whether to log a warning about the shape r.key now. If so, it records the time. The caller holds mu.
func (r *Recorder) mayWarn(now time.Time) bool {
	if last, warned := r.warned[string(r.key)]; warned && now.Sub(last) < warnAgain {
		return false
	}
	if len(r.warned) >= maxWarned {
		clear(r.warned)
	}
	r.warned[string(r.key)], r.warnedAt = now, now
	return true
}

func (r *Recorder) warn(s *Shape) {
	fields := []zap.Field{zap.String("domain", descriptors.Printable(s.Domain)), zap.String("descriptors", s.Text())}
	if s.Configured {
		r.log.Warn("requests match no limit and are allowed; rlsidecar top --unmatched counts them, and rlsidecar explain shows the reason", fields...)
	} else {
		r.log.Warn("requests are for a domain that is not configured, and are allowed; rlsidecar top --unmatched shows their number", fields...)
	}
}

// Text returns the keys of s as text, such as key,key | key. An ellipsis follows if s is incomplete (Cut).
func (s *Shape) Text() string {
	texts := make([]string, len(s.Keys))
	for i, keys := range s.Keys {
		texts[i] = descriptors.PrintableList(keys, ",")
	}
	text := strings.Join(texts, " | ")
	if s.Cut {
		text += "…"
	}
	return text
}

// Top returns the n shapes with the most requests, or all if there are fewer, the highest first. since is when counting
// began, which is at most ten minutes ago.
func (r *Recorder) Top(n int) (since time.Time, top []Shape) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, c := range r.shapes.Items(now) {
		top = append(top, c.Newest.Value)
		top[len(top)-1].Requests = c.Least
	}
	slices.SortFunc(top, func(a, b Shape) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), b.Last.Compare(a.Last), cmp.Compare(a.Domain, b.Domain))
	})
	return topk.Since(now, r.began), top[:min(n, len(top))]
}
