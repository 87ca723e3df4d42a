package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
)

type watch struct {
	started time.Time
	history *history.Recorder
	times   history.Times
	usage   *topkeys.Recorder
	// Of the timed decisions, usage records one in thin. thin is a power of two, at most 1,024.
	thin                 atomic.Uint32
	requestsAtLastSample uint64

	shadowed *topkeys.Recorder // denials that shadow mode prevented
	recent   recentTraffic
	fleet    *fleet // nil without Redis
	link     string // the address of the admin listener for other machines, or ""
	// The last Report was made at reportedAt, when the process had used reportedUse of processor time. Only the method report
	// uses them.
	reportedAt  time.Time
	reportedUse time.Duration
	// full is the number of charges for which memory had no room, at the last sample. fullAt is when that
	// number last increased.
	full    uint64
	fullAt  time.Time
	swapped chan swap
	// previous is the configuration before the last load, or nil; guarded by server.loading.
	previous *limiter.Snapshot
}

type swap struct{ before, after *limiter.Snapshot }

func newWatch(now time.Time) *watch {
	w := &watch{started: now, history: history.New(now), usage: topkeys.New(time.Now), shadowed: topkeys.New(time.Now), swapped: make(chan swap, 1)}
	w.thin.Store(1)
	return w
}

// One of sampleEvery decisions is timed. Timing all of them would cost a tenth of a decision's time.
const sampleEvery = 64

// usageSamples is about the largest number of decisions per second that usage records. Recording one takes a
// microsecond, because it reads memory that is in no cache. At a million requests per second, recording all timed
// decisions would take a sixtieth of the time of a core. With the bound, a window of usage (five minutes) still gets
// 300,000 samples, for the 512 keys that it keeps.
const usageSamples = 1000

// thinned returns the value of watch.thin for n requests in a step of history.
func thinned(n uint64) uint32 {
	const most = 1 << 10 // the method sample divides a random number from 0 to 1023 by thin
	thin := uint32(1)
	for thin < most && n/sampleEvery/uint64(thin) > usageSamples*uint64(history.Step/time.Second) {
		thin *= 2
	}
	return thin
}

// observers counts every answer, and records the data of the admin page. Recording an allowed request costs a random
// number and a comparison.
type observers struct {
	*metrics.Metrics
	unmatched *unmatched.Recorder
	denials   *topkeys.Recorder // denials and watch are nil without an admin listener
	watch     *watch
}

// Observe implements limiter.Observer.
func (o observers) Observe(c *limiter.Call) {
	random := rand.Uint32()
	o.Metrics.ObserveAt(c, random)
	if unmatched.Is(c) {
		o.unmatched.Observe(c)
	}
	if o.watch == nil {
		return
	}
	if c.Denied {
		o.denials.Observe(c)
	}
	o.watch.shadowed.ObserveShadowed(c)
	if random>>16%sampleEvery == 0 { // metrics uses the low bits of random
		o.watch.sample(c, random>>16/sampleEvery)
	}
}

// sample records c, which is one of sampleEvery decisions. random is a number from 0 to 1023.
func (w *watch) sample(c *limiter.Call, random uint32) {
	if !c.Arrived.IsZero() {
		w.times.Add(time.Since(c.Arrived))
	}
	if thin := w.thin.Load(); random%thin == 0 {
		w.usage.ObserveUsed(c, sampleEvery*int64(thin))
	}
}

func (s *server) runWatch(ctx context.Context) {
	ticker := time.NewTicker(history.Step)
	defer ticker.Stop()
	seconds := time.NewTicker(trafficTick)
	defer seconds.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-seconds.C:
			s.watch.recent.add(now, s.metrics.Requests(), s.metrics.EachLimit)
		case now := <-ticker.C:
			s.watch.read(now, s.metrics)
			s.storeTimes.Turn()
			s.reportMemory(now)
			s.reportOverflow()
		case swapped := <-s.watch.swapped:
			changes := admin.Compare(swapped.before, swapped.after)
			s.mu.Lock()
			s.reload.Loads = append([]admin.Load{{At: time.Now(), Changes: changes}}, s.reload.Loads[:min(len(s.reload.Loads), admin.MaxLoads-1)]...)
			s.mu.Unlock()
			s.logChanges(changes)
			s.watch.history.Mark(time.Now(), fmt.Sprintf("new configuration: %d limits added, %d removed, %d changed", changes.Added, changes.Removed, changes.Edited))
		}
	}
}

// mostLogged bounds the lines in the log about the changes of one reload.
const mostLogged = 20

func (s *server) logChanges(c *admin.Changes) {
	rows := c.Rows[:min(mostLogged, len(c.Rows))]
	for _, change := range rows {
		s.log.Info("limit "+string(change.Kind), zap.String("limit", change.Name), zap.String("place", change.Place), zap.Strings("details", change.Details))
	}
	if more := c.Added + c.Removed + c.Edited - len(rows); more > 0 {
		s.log.Info("more limits changed; the page Configuration lists them", zap.Int("limits", more))
	}
}

// read samples the counters. In the totals of all requests, a request that was allowed only because of shadow mode
// counts as allowed, and once as shadowed for each limit that would have denied it.
func (w *watch) read(now time.Time, m *metrics.Metrics) {
	w.times.Turn()
	counted := m.Requests()
	requests := counted.Allowed + counted.Denied
	w.thin.Store(thinned(max(requests, w.requestsAtLastSample) - w.requestsAtLastSample))
	w.requestsAtLastSample = requests
	all := history.Totals{Allowed: counted.Allowed, Denied: counted.Denied}
	m.EachLimit(func(_ history.Key, t history.Totals) { all.Shadowed += t.Shadowed })
	w.history.Sample(now, all, m.EachLimit)
}

// compare requests a comparison of two configurations, which the admin page shows. Another goroutine compares them,
// because for many limits a comparison takes longer than a reload should. compare does nothing if w or before is nil.
// Only one goroutine at a time loads configurations, so w.swapped has only one sender.
func (w *watch) compare(before, after *limiter.Snapshot) {
	if w == nil || before == nil {
		return
	}
	select {
	case <-w.swapped:
	default:
	}
	w.previous = before
	w.swapped <- swap{before, after}
}

const (
	memoryFull, controlPlaneAway = "memory-full", "control-plane-away"
	// fullFor is how long memory is reported as full after the last charge for which it had no room.
	fullFor = time.Minute
)

// With Redis, only the buckets of on_backend_failure local are in memory.
func (s *server) reportMemory(now time.Time) {
	stats := s.stack.memory.Stats()
	if stats.Full > s.watch.full {
		s.watch.full, s.watch.fullAt = stats.Full, now
	}
	const remedy = "Raise --memory-max-keys, or find the limit with many keys: rlsidecar top lists the keys that are denied because there is no room."
	switch {
	case !s.watch.fullAt.IsZero() && now.Sub(s.watch.fullAt) < fullFor:
		s.conditions.Set(conditions.Condition{
			Name: memoryFull, Severity: conditions.Critical, Headline: "Memory is full: new keys have no bucket",
			Summary: fmt.Sprintf("Memory has no room for another bucket: all %d are in use. Keys that were not seen yet are answered by on_backend_failure.", stats.MaxKeys),
			Remedy:  remedy,
		})
	case stats.Keys > stats.MaxKeys/10*9:
		s.conditions.Set(conditions.Condition{
			Name: memoryFull, Severity: conditions.Warning, Headline: fmt.Sprintf("Memory is nearly full: %d of %d buckets", stats.Keys, stats.MaxKeys),
			Summary: fmt.Sprintf("Memory is nearly full: %d of %d buckets are in use. When all are, keys that were not seen yet are answered by on_backend_failure.", stats.Keys, stats.MaxKeys),
			Remedy:  remedy,
		})
	default:
		s.conditions.Clear(memoryFull)
	}
}

// reportControlPlane reports that there is no stream to the control plane at server. It returns the function to call
// when the stream opens (true) or ends (false). That function first calls next with the same value.
func (s *server) reportControlPlane(server string, next func(bool)) func(bool) {
	away := conditions.Condition{
		Name: controlPlaneAway, Severity: conditions.Degraded, Headline: "The control plane cannot be reached; the configuration stays as it is",
		Summary: "There is no stream from the xDS server " + server + ". The configuration stays as it is, and changes do not arrive.",
		Remedy:  "Check that the server runs, and --xds-server. The stream is opened again by itself.",
	}
	s.conditions.Set(away)
	return func(connected bool) {
		if next(connected); connected {
			s.conditions.Clear(controlPlaneAway)
		} else {
			s.conditions.Set(away)
		}
	}
}
