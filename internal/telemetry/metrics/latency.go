package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// latency estimates the durations of all decisions from a random sample. Timing each of them would take a tenth of
// the time of a decision in memory.
type latency struct {
	// every is a power of two. One decision in every is timed, and counts as that many decisions.
	every     atomic.Uint32
	second    atomic.Int64  // the second, since 1970, in which timed counts
	timed     atomic.Uint32 // timed decisions
	listeners [limiter.Listeners]durations
	sent      *timings // nil without StatsD
}

const (
	// mostTimed is the number of decisions in a second above which fewer are timed. So all are timed when few arrive.
	mostTimed = 1000
	mostEvery = 64
)

// Envoy's default timeout is 20 ms. It ignores later answers.
var durationBounds = [...]float64{
	.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .02, .025, .05, .1, .25, .5, 1, 2.5, 5, 10,
}

type durations struct {
	counts [len(durationBounds) + 1]atomic.Uint64 // the last one is above all bounds
	nanos  atomic.Uint64
}

// observe may time c. random has at least six random bits.
func (l *latency) observe(c *limiter.Call, random uint32) {
	every := l.every.Load()
	if random&(every-1) != 0 || c.Arrived.IsZero() {
		return
	}
	now := time.Now()
	d := max(0, now.Sub(c.Arrived))
	l.pace(now.Unix())
	to, bucket := &l.listeners[c.Listener], 0
	for bucket < len(durationBounds) && d.Seconds() > durationBounds[bucket] {
		bucket++
	}
	to.counts[bucket].Add(uint64(every))
	to.nanos.Add(uint64(d) * uint64(every))
	if l.sent != nil && c.Listener.IsRateLimitService() {
		l.sent.add(d)
	}
}

// pace doubles every when too many decisions are timed, and halves it in the second after few were timed.
func (l *latency) pace(second int64) {
	n, every := l.timed.Add(1), l.every.Load()
	last := l.second.Load()
	switch {
	case second != last:
		if !l.second.CompareAndSwap(last, second) {
			return
		}
		if l.timed.Store(0); n < mostTimed/4 && every > 1 {
			l.every.Store(every / 2)
		}
	case n >= mostTimed && every < mostEvery && l.timed.CompareAndSwap(n, 0):
		l.every.Store(every * 2)
	}
}

var (
	decisionSecondsDesc = prometheus.NewDesc("rlsidecar_decision_seconds",
		"Durations of decisions, from the arrival of a request to its verdict, without the intended delay of a leaky bucket. The label listener is grpc, json (/json), v1 (/v1/limit and others) or auth (/v1/auth). Estimated: when there are more than 1,000 a second, a random sample is timed.",
		[]string{"listener"}, nil)
	responseSecondsDesc = prometheus.NewDesc("ratelimit_service_response_time_seconds",
		"The part of rlsidecar_decision_seconds with the listeners grpc and json, under the reference server's name.", []string{"grpc_method"}, nil)
)

func (l *latency) collect(out chan<- prometheus.Metric) {
	var service histogram
	for i := range l.listeners {
		var h histogram
		h.add(&l.listeners[i])
		if h.count == 0 {
			continue
		}
		out <- h.metric(decisionSecondsDesc, limiter.Listener(i).String())
		if limiter.Listener(i).IsRateLimitService() {
			service.add(&l.listeners[i])
		}
	}
	out <- service.metric(responseSecondsDesc, shouldRateLimit)
}

type histogram struct {
	count   uint64
	seconds float64
	buckets [len(durationBounds)]uint64 // counts of durations up to each bound
}

func (h *histogram) add(d *durations) {
	var sum uint64
	for i := range d.counts {
		sum += d.counts[i].Load()
		if i < len(h.buckets) {
			h.buckets[i] += sum
		}
	}
	h.count += sum
	h.seconds += float64(d.nanos.Load()) / 1e9
}

func (h *histogram) metric(desc *prometheus.Desc, label string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.buckets))
	for i, n := range h.buckets {
		buckets[durationBounds[i]] = n
	}
	return prometheus.MustNewConstHistogram(desc, h.count, h.seconds, buckets, label)
}
