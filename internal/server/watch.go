package server

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/usage"
)

// watch is what the server remembers for the admin page beside the denials.
type watch struct {
	started time.Time
	history *history.Recorder
	times   history.Times
	usage   *usage.Recorder

	// swapped is the last swap of configurations, until it is compared.
	swapped chan swap
}

// swap is two configurations of which the second took the place of the first.
type swap struct{ before, after *limiter.Snapshot }

func newWatch(now time.Time) *watch {
	return &watch{started: now, history: history.New(now), usage: usage.New(time.Now, sampleEvery), swapped: make(chan swap, 1)}
}

// sampleEvery is how many decisions there are for one that is timed: reading the clock costs a tenth of a decision.
const sampleEvery = 64

// observers count every answer, and remember what the page shows. An allowed request costs a random number and a
// comparison for it.
type observers struct {
	*metrics.Metrics
	unmatched *unmatched.Recorder
	denials   *denials.Recorder // nil, as is watch: there is no admin listener
	watch     *watch
}

// Observe implements limiter.Observer.
func (o observers) Observe(c *limiter.Call) {
	o.Metrics.Observe(c)
	if unmatched.Is(c) {
		o.unmatched.Observe(c)
	}
	if o.watch == nil {
		return
	}
	if c.Denied {
		o.denials.Observe(c)
	}
	if rand.Uint32()%sampleEvery == 0 {
		o.watch.sample(c)
	}
}

// sample records one decision of sampleEvery.
func (w *watch) sample(c *limiter.Call) {
	if !c.Arrived.IsZero() {
		w.times.Add(time.Since(c.Arrived))
	}
	w.usage.Observe(c)
}

// runWatch takes a sample of the counters in every step, and compares configurations, until ctx ends.
func (s *server) runWatch(ctx context.Context) {
	ticker := time.NewTicker(history.Step)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.watch.read(now, s.metrics)
			s.reportOverflow()
		case swapped := <-s.watch.swapped:
			changes := admin.Compare(swapped.before, swapped.after)
			s.mu.Lock()
			s.reload.Changes = changes
			s.mu.Unlock()
		}
	}
}

// read takes a sample of the counters. What shadow mode allowed counts as denied.
func (w *watch) read(now time.Time, m *metrics.Metrics) {
	w.times.Turn()
	allowed, denied := m.Requests()
	w.history.Sample(now, history.Totals{Allowed: allowed, Denied: denied}, func(visit func(history.Key, history.Totals)) {
		m.Tallies(func(domain, limit string, t metrics.Tally) {
			visit(history.Key{Domain: domain, Limit: limit}, history.Totals{Allowed: t.Allowed, Denied: t.Denied + t.Shadowed})
		})
	})
}

// compare has the page show how after differs from before. For many limits that takes longer than a reload should. One
// goroutine loads configurations, so that no other send comes between.
func (w *watch) compare(before, after *limiter.Snapshot) {
	if w == nil || before == nil {
		return
	}
	select {
	case <-w.swapped:
	default:
	}
	w.swapped <- swap{before, after}
}
