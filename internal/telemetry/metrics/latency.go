package metrics

import (
	"sort"
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
	to := &l.listeners[c.Listener]
	to.counts[sort.SearchFloat64s(durationBounds[:], d.Seconds())].Add(uint64(every))
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
	decisionSecondsDesc = newDesc("rlsidecar_decision_seconds{listener}",
		"Durations of decisions, from the arrival of a request to its verdict, without the intended delay of a leaky bucket. The label listener is grpc, json (/json), v1 (/v1/limit and others) or auth (/v1/auth). Estimated: when there are more than 1,000 a second, a random sample is timed.")
	responseSecondsDesc = newDesc("ratelimit_service_response_time_seconds{grpc_method}",
		"The part of rlsidecar_decision_seconds with the listeners grpc and json, under the reference server's name.")
)

func (l *latency) collect(out chan<- prometheus.Metric) {
	var service []*durations
	for i := range l.listeners {
		listener, of := limiter.Listener(i), &l.listeners[i]
		if listener.IsRateLimitService() {
			service = append(service, of)
		}
		if of.count() > 0 {
			out <- histogram(decisionSecondsDesc, listener.String(), of)
		}
	}
	out <- histogram(responseSecondsDesc, shouldRateLimit, service...)
}

func (d *durations) count() (n uint64) {
	for i := range d.counts {
		n += d.counts[i].Load()
	}
	return n
}

func histogram(desc *prometheus.Desc, label string, of ...*durations) prometheus.Metric {
	var count, nanos uint64
	upTo := map[float64]uint64{}
	for i, bound := range durationBounds {
		for _, d := range of {
			count += d.counts[i].Load()
		}
		upTo[bound] = count
	}
	for _, d := range of {
		count += d.counts[len(durationBounds)].Load()
		nanos += d.nanos.Load()
	}
	return prometheus.MustNewConstHistogram(desc, count, float64(nanos)/1e9, upTo, label)
}
