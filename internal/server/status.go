package server

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/listen"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

// recentTraffic has the counters of the last seconds, so that the line of state changes within seconds.
type recentTraffic struct {
	mu        sync.Mutex
	samples   []countedAt // oldest first; guarded by mu
	halfSince time.Time   // when more than half of the requests began to be denied, or zero; guarded by mu
}

type countedAt struct {
	at              time.Time
	allowed, denied uint64
}

const (
	// trafficTick is the time between two samples, and trafficTicks the number of ticks over which rates are averaged.
	trafficTick  = time.Second
	trafficTicks = 3
)

// add adds a sample. With more than a request per second, and more than half of them denied, it sets halfSince.
func (t *recentTraffic) add(now time.Time, allowed, denied uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.samples = append(t.samples, countedAt{now, allowed, denied})
	t.samples = t.samples[max(0, len(t.samples)-trafficTicks-1):]
	switch allowed, denied := t.rates(); {
	case denied < 1 || denied <= allowed:
		t.halfSince = time.Time{}
	case t.halfSince.IsZero():
		t.halfSince = now
	}
}

// rates returns requests per second. The caller holds t.mu.
func (t *recentTraffic) rates() (allowed, denied float64) {
	if len(t.samples) < 2 {
		return 0, 0
	}
	first, last := t.samples[0], t.samples[len(t.samples)-1]
	seconds := last.at.Sub(first.at).Seconds()
	if seconds <= 0 || last.allowed < first.allowed || last.denied < first.denied { // a domain was removed, with its counters
		return 0, 0
	}
	return float64(last.allowed-first.allowed) / seconds, float64(last.denied-first.denied) / seconds
}

func (s *server) traffic() (t status.Traffic) {
	recent := &s.watch.recent
	recent.mu.Lock()
	t.Allowed, t.Denied = recent.rates()
	t.HalfSince = recent.halfSince
	recent.mu.Unlock()
	t.WouldBeDenied = s.watch.history.Rate().Shadowed
	if !t.HalfSince.IsZero() {
		t.MostlyBy = s.watch.history.MostDenied().Limit
	}
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
	return status.LineOf(s.conditions.List(), s.reasonNotReady(), &t)
}

func (s *server) reasonNotReady() string {
	if s.ready.Load() {
		return ""
	}
	return s.notReady()
}

// status returns the whole state. It reads Redis, for a bounded time.
func (s *server) status(ctx context.Context) status.Status {
	st := status.Status{
		Version: s.config.Version, Started: s.watch.started.UTC().Truncate(time.Second), Ready: s.ready.Load(), NotReady: s.reasonNotReady(),
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
