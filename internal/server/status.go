package server

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/listen"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

// recentTraffic has the counters of the last seconds, so that the line of state changes within seconds.
type recentTraffic struct {
	mu        sync.Mutex
	samples   []countedAt // oldest first; guarded by mu
	halfSince time.Time   // when more than half of the requests began to be denied, or zero; guarded by mu
	// While halfSince is set, denied has the denials of each limit at the last sample, and mostly is the limit that denied
	// most before it, or "". Both are guarded by mu.
	denied map[history.Key]uint64
	mostly string
}

type countedAt struct {
	at time.Time
	metrics.Requests
}

const (
	// trafficTick is the time between two samples, and trafficTicks the number of ticks over which rates are averaged.
	trafficTick  = time.Second
	trafficTicks = 2
)

// add adds a sample. With more than a request per second, and more than half of them denied, it sets halfSince. Only then
// it calls limits, which visits each limit.
func (t *recentTraffic) add(now time.Time, requests metrics.Requests, limits func(visit func(history.Key, history.Totals))) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.samples = append(t.samples, countedAt{now, requests})
	t.samples = t.samples[max(0, len(t.samples)-trafficTicks-1):]
	switch rates := t.rates(); {
	case rates.Denied < 1 || rates.Denied <= rates.Allowed:
		t.halfSince, t.denied, t.mostly = time.Time{}, nil, ""
		return
	case t.halfSince.IsZero():
		t.halfSince = now
	}
	denied, most := map[history.Key]uint64{}, uint64(0)
	limits(func(key history.Key, totals history.Totals) {
		denied[key] = totals.Denied
		if more := totals.Denied - min(totals.Denied, t.denied[key]); t.denied != nil && more > most {
			t.mostly, most = key.Limit, more
		}
	})
	t.denied = denied
}

// rates returns requests per second. The caller holds t.mu.
func (t *recentTraffic) rates() (now status.Traffic) {
	if len(t.samples) < 2 {
		return now
	}
	first, last := t.samples[0], t.samples[len(t.samples)-1]
	seconds := last.at.Sub(first.at).Seconds()
	if seconds <= 0 || last.Allowed < first.Allowed || last.Denied < first.Denied || last.Undecided < first.Undecided { // a domain was removed, with its counters
		return now
	}
	now.Allowed, now.Denied = float64(last.Allowed-first.Allowed)/seconds, float64(last.Denied-first.Denied)/seconds
	now.Undecided = float64(last.Undecided-first.Undecided) / seconds
	return now
}

func (s *server) traffic() (t status.Traffic) {
	recent := &s.watch.recent
	recent.mu.Lock()
	t = recent.rates()
	t.HalfSince, t.MostlyBy = recent.halfSince, recent.mostly
	recent.mu.Unlock()
	t.WouldBeDenied = s.watch.history.Rate().Shadowed
	t.Median, t.P99 = quantiles(&s.watch.times)
	return t
}

// quantiles returns the median and the 99th percentile, in microseconds.
func quantiles(times *history.Times) (median, p99 int64) {
	of, _ := times.Quantiles(.5, .99)
	return of[0].Microseconds(), of[1].Microseconds()
}

// line returns the state in one line.
func (s *server) line() status.Line {
	t := s.traffic()
	return status.LineOf(s.conditions.List(), s.notReady(), &t)
}

// status returns the whole state. It reads Redis, for a bounded time.
func (s *server) status(ctx context.Context) status.Status {
	st := status.Status{
		Version: s.config.Version, Started: s.watch.started.UTC().Truncate(time.Second), Ready: s.ready.Load(), NotReady: s.notReady(),
		Conditions: s.conditions.List(), Traffic: s.traffic(), Fleet: status.Fleet{Sidecars: []status.Sidecar{}},
	}
	if current := s.limiter.Current(); current != nil {
		st.Config, st.Loaded = current.Hash[:min(len(current.Hash), 12)], s.lastReload().Loaded.UTC().Truncate(time.Second)
	}
	if st.Store.Kind = "memory"; s.watch.fleet != nil {
		st.Fleet, st.Store = s.watch.fleet.read(ctx)
		st.Store.Timeout = s.config.Redis.Timeout.Microseconds()
		st.Store.Median, st.Store.P99 = quantiles(&s.storeTimes)
	}
	memory := s.stack.memory.Stats()
	st.Store.Keys, st.Store.MaxKeys, st.Store.Failures = memory.Keys, memory.MaxKeys, s.redisFailures.count.Load()
	st.State = status.LineOf(st.Conditions, st.NotReady, &st.Traffic)
	return st
}

// linkOf returns the address at which other machines reach the listener, or "".
func linkOf(configured string, actual net.Addr) string {
	if listen.IsLocal(configured) {
		return ""
	}
	host, port, err := net.SplitHostPort(actual.String())
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = strings.ToLower(hostname())
	}
	return net.JoinHostPort(host, port)
}
