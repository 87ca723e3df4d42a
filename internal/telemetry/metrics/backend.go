package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Backend returns a Store that wraps store, and counts and times its answers. It calls onAnswer with the duration of
// each. When store could not decide, the wrapper calls onFailure with the error, unless the caller canceled the request
// or had a clearly shorter deadline than timeout. timeout is the deadline of store. Call Backend once.
func (m *Metrics) Backend(store backend.Store, timeout time.Duration, onAnswer func(time.Duration), onFailure func(error)) backend.Store {
	b := &timed{
		next: store, timeout: timeout, answered: onAnswer, failed: onFailure,
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "rlsidecar_backend_seconds",
			Help:    "Duration of decisions by the backend, failures included.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .003, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		failures: total("rlsidecar_backend_failures_total",
			"Batches of requests that the backend did not decide in time. If a batch was sent, it is unknown whether it was charged."),
		abandoned: total("rlsidecar_backend_abandoned_total",
			"Calls to the backend that ended before its answer, because the client cancelled its request, or its deadline was shorter than --backend-timeout. They are not failures of the backend."),
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

// failure returns the reason why the backend could not decide, or nil if it decided. The store works if an error concerns
// only the request.
func failure(decisions []backend.Decision) error {
	for i := range decisions {
		switch err := decisions[i].Err; {
		case err == nil, errors.Is(err, backend.ErrReused), errors.Is(err, backend.ErrPending), errors.Is(err, backend.ErrTooLarge):
		default:
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

// Examined records whether a check of the settings of server passed. The gauge of the check is 1 while it fails for
// at least one server.
func (m *Metrics) Examined(server, check string, passed bool) {
	m.unfitMu.Lock()
	defer m.unfitMu.Unlock()
	m.unfit[[2]string{check, server}] = !passed
	failing := 0.
	for of, fails := range m.unfit {
		if of[0] == check && fails {
			failing = 1
		}
	}
	m.examined.WithLabelValues(check).Set(failing)
}
