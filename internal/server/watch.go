package server

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
)

// watch is what the server remembers for the admin page beside the denials.
type watch struct {
	started time.Time
	history *history.Recorder
	times   history.Times
}

func newWatch(now time.Time) *watch { return &watch{started: now, history: history.New(now)} }

// sampleEvery is how many decisions there are for one that is timed: reading the clock costs a tenth of a decision.
const sampleEvery = 64

// observers count every answer, and remember what the page shows. An allowed request costs a random number and a
// comparison for it.
type observers struct {
	*metrics.Metrics
	denials *denials.Recorder
	watch   *watch
}

// Observe implements limiter.Observer.
func (o observers) Observe(c *limiter.Call) {
	o.Metrics.Observe(c)
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
}

// run takes a sample of the counters in every step, until ctx ends.
func (w *watch) run(ctx context.Context, m *metrics.Metrics) {
	ticker := time.NewTicker(history.Step)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			w.read(now, m)
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
