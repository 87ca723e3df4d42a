package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Backend returns a Store that wraps store, and counts and times its answers. It calls onAnswer with the duration of
// each. When store could not decide, the wrapper calls onFailure with the error, unless the caller canceled the request or had a clearly shorter deadline
// than timeout. timeout is the deadline of store. Call Backend once.
func (m *Metrics) Backend(store backend.Store, timeout time.Duration, onAnswer func(time.Duration), onFailure func(error)) backend.Store {
	b := &timed{
		next: store, timeout: timeout, answered: onAnswer, failed: onFailure,
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "rlsidecar_backend_seconds",
			Help:    "Duration of decisions by the backend, failures included.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .003, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rlsidecar_backend_failures_total",
			Help: "Batches of requests that the backend did not decide in time. If a batch was sent, it is unknown whether it was charged.",
		}),
		abandoned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rlsidecar_backend_abandoned_total",
			Help: "Calls to the backend that ended before its answer, because the client cancelled its request, or its deadline was shorter than --backend-timeout. They are not failures of the backend.",
		}),
	}
	b.timings.New = func() any {
		t := &timing{timed: b}
		t.inner.Done = t.ended
		return t
	}
	allowed := newGauge("rlsidecar_backend_timeout_seconds", "The value of --backend-timeout. Calls to the backend that take longer are failures.", nil)
	allowed.Set(timeout.Seconds())
	m.registry.MustRegister(b.seconds, b.failures, b.abandoned, allowed)
	return b
}

type timed struct {
	next                backend.Store
	timeout             time.Duration
	answered            func(time.Duration)
	failed              func(error)
	timings             sync.Pool
	seconds             prometheus.Histogram
	failures, abandoned prometheus.Counter
}

type timing struct {
	timed *timed
	outer *backend.Batch
	inner backend.Batch
	start time.Time
}

func (b *timed) Submit(outer *backend.Batch) {
	t := b.timings.Get().(*timing)
	t.outer, t.start = outer, time.Now()
	done := t.inner.Done
	t.inner = *outer
	t.inner.Done = done
	b.next.Submit(&t.inner)
}

// ended is the Done of the inner Batch.
func (t *timing) ended(*backend.Batch) {
	outer := t.outer
	defer outer.Done(outer) // deferred, so that the caller gets the answer even if counting panics
	t.timed.took(outer, t.start)
	t.outer, t.inner = nil, backend.Batch{Done: t.inner.Done}
	t.timed.timings.Put(t)
}

// failure returns the reason why the backend could not decide, or nil if it decided.
func failure(decisions []backend.Decision) error {
	for i := range decisions {
		err := decisions[i].Err
		if err != nil && !isAnswer(err) {
			return err
		}
	}
	return nil
}

// took times the answer to a Batch that was submitted at start, and counts it if the backend failed. It does
// not time a Batch that resets buckets, nor one that the caller abandoned.
func (b *timed) took(batch *backend.Batch, start time.Time) {
	err := failure(batch.Decisions)
	if b.wasAbandoned(batch, start, err) {
		b.abandoned.Inc()
		return
	}
	if !batch.Charges[0].Reset {
		d := time.Since(start)
		b.seconds.Observe(d.Seconds())
		b.answered(d)
	}
	if err != nil {
		b.failures.Inc()
		b.failed(err)
	}
}

// wasAbandoned reports whether the caller caused err: it canceled its request, or its deadline was clearly
// earlier than the backend's deadline.
func (b *timed) wasAbandoned(batch *backend.Batch, start time.Time, err error) bool {
	const most = 7. / 8 // a share of the timeout; part of the caller's time may have passed before start
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) &&
		!batch.Deadline.IsZero() && batch.Deadline.Sub(start).Seconds() < most*b.timeout.Seconds()
}

// isAnswer reports whether err concerns only the request. Then the store works.
func isAnswer(err error) bool {
	return errors.Is(err, backend.ErrReused) || errors.Is(err, backend.ErrPending) || errors.Is(err, backend.ErrTooLarge)
}

// WatchLeases adds the metrics of leases. Call it once.
func (m *Metrics) WatchLeases(stats func() stores.CacheStats) {
	w := watcher[stores.CacheStats]{m, stats, nil}
	w.total("rlsidecar_lease_served_total", "Charges decided from leased units, without a call to the backend.", func(s stores.CacheStats) float64 { return float64(s.Served) })
	w.total("rlsidecar_lease_borrowed_units_total", "Units leased from the store.", func(s stores.CacheStats) float64 { return float64(s.Granted) })
	w.total("rlsidecar_lease_returned_units_total", "Unused leased units that were returned to the store. Not counted: units that the bucket had refilled since the lease began.", func(s stores.CacheStats) float64 { return float64(s.Returned) })
	w.gauge("rlsidecar_lease_units", "Units that are leased to this process now.", func(s stores.CacheStats) float64 { return float64(s.Leased) })
	w.gauge("rlsidecar_lease_keys", "Keys with enough requests to have a lease.", func(s stores.CacheStats) float64 { return float64(s.Keys) })
}

// WatchUndos adds a counter of the refunds and clean-ups that were never sent to the backend. Call it once.
func (m *Metrics) WatchUndos(dropped func() int64) {
	watcher[int64]{m, dropped, nil}.total("rlsidecar_backend_undos_dropped_total",
		"Refunds, and deletions of idempotency keys, that were not sent because 1,024 were in flight. If one part of a request is denied, the other parts are refunded. A refund that is not sent makes the limit admit less, never more.",
		func(n int64) float64 { return float64(n) })
}

// WatchBreakers adds a gauge for each server of the backend. The gauge is 1 while the server's circuit
// breaker is open. Call the returned functions when a breaker opens or closes. Call WatchBreakers once.
func (m *Metrics) WatchBreakers() (opened, closed func(server string)) {
	open := gaugeVec("rlsidecar_backend_breaker_open", "1 while the circuit breaker of a server of the backend is open, because the server fails.", "server")
	m.registry.MustRegister(open)
	return func(server string) { open.WithLabelValues(server).Set(1) },
		func(server string) { open.WithLabelValues(server).Set(0) }
}

// Examined records whether a check of the settings of server passed. The gauge of the check is 1 while it fails for
// at least one server.
func (m *Metrics) Examined(server, check string, passed bool) {
	m.unfitMu.Lock()
	defer m.unfitMu.Unlock()
	servers := m.unfit[check]
	if servers == nil {
		servers = map[string]bool{}
		m.unfit[check] = servers
	}
	if passed {
		delete(servers, server)
	} else {
		servers[server] = true
	}
	m.examined.WithLabelValues(check).Set(float64(min(1, len(servers))))
}

// WatchControlPlane adds a gauge that is 1 while a stream to the control plane is open. Call the returned
// function when the stream opens or ends. Call WatchControlPlane once.
func (m *Metrics) WatchControlPlane() (connected func(bool)) {
	up := newGauge("rlsidecar_xds_connected", "1 while a stream to the xDS server is open. While it is 0, the configuration does not change.", nil)
	m.registry.MustRegister(up)
	return func(is bool) {
		if is {
			up.Set(1)
		} else {
			up.Set(0)
		}
	}
}
