package load

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// recorder counts answers. Only one goroutine at a time may use it.
type recorder struct {
	run     *run
	latency histogram
	ok      int64
	over    int64
	errors  map[string]int64
}

func newRecorder(r *run) *recorder { return &recorder{run: r, errors: map[string]int64{}} }

func (r *recorder) answer(due time.Duration, v verdict) {
	if v == invalid {
		r.fail("the answer cannot be decoded, or its code is unknown")
		return
	}
	if !r.run.measuring.Load() {
		return
	}
	r.latency.add(r.run.now() - due)
	if v == ok {
		r.ok++
	} else {
		r.over++
	}
}

// fail counts an error. It also counts errors in the warm-up, because the figures of a run with errors are
// useless.
func (r *recorder) fail(name string) { r.errors[name]++ }

func (r *recorder) merge(o *recorder) {
	r.latency.merge(&o.latency)
	r.ok += o.ok
	r.over += o.over
	for name, n := range o.errors {
		r.errors[name] += n
	}
}

// Result describes the measured part of a run. Errors also has the errors of the warm-up, and PeakRSS covers the whole
// life of the server.
type Result struct {
	Connections int     `json:"connections"`
	Outstanding int     `json:"outstanding"`
	Keys        int     `json:"keys"`
	Rate        float64 `json:"rate,omitempty"` // the requested rate of an open loop

	Seconds   float64          `json:"seconds"`
	OK        int64            `json:"ok"`
	OverLimit int64            `json:"over_limit"`
	Errors    map[string]int64 `json:"errors,omitempty"`
	PerSecond float64          `json:"per_second"`
	P50       float64          `json:"p50_ms"`
	P99       float64          `json:"p99_ms"`
	Max       float64          `json:"max_ms"`
	// CPU is the processor time that the server used for a request, in microseconds of user and system mode.
	// It equals the CPU seconds for a million requests. 0 means that it was not measured.
	CPU float64 `json:"cpu_us,omitempty"`
	// RSS is the server's resident memory at the end, and PeakRSS is the most since the server started, in bytes.
	// 0 means that it was not measured.
	RSS     int64 `json:"rss_bytes,omitempty"`
	PeakRSS int64 `json:"peak_rss_bytes,omitempty"`

	cpu time.Duration
}

// Answers returns the number of requests that were answered with OK or OVER_LIMIT.
func (r *Result) Answers() int64 { return r.OK + r.OverLimit }

func (r *Result) Failed() (n int64) {
	for _, count := range r.Errors {
		n += count
	}
	return n
}

func (r *Result) fill(c Config, total *recorder) {
	r.Connections, r.Outstanding, r.Keys, r.Rate = c.Connections, c.Outstanding, c.Keys, c.Rate
	r.OK, r.OverLimit, r.Errors = total.ok, total.over, total.errors
	r.P50 = milliseconds(total.latency.quantile(0.5))
	r.P99 = milliseconds(total.latency.quantile(0.99))
	r.Max = milliseconds(total.latency.max)
	if n := float64(r.Answers()); n > 0 {
		r.PerSecond = n / r.Seconds
		r.CPU = r.cpu.Seconds() * 1e6 / n
	}
	if c.PID != 0 {
		r.RSS, r.PeakRSS, _ = Memory(c.PID) // if the process has ended, the values are 0, as if not measured
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *Result) String() string {
	var b strings.Builder
	loop := "closed loop"
	if r.Rate > 0 {
		loop = fmt.Sprintf("open loop at %g/s", r.Rate)
	}
	fmt.Fprintf(&b, "%dx%d, %s, %d keys: %d requests in %.2f s, %.0f/s; OK %d, OVER_LIMIT %d, errors %d; p50 %.2f ms, p99 %.2f ms, max %.1f ms",
		r.Connections, r.Outstanding, loop, r.Keys, r.Answers(), r.Seconds, r.PerSecond,
		r.OK, r.OverLimit, r.Failed(), r.P50, r.P99, r.Max)
	if r.CPU > 0 {
		fmt.Fprintf(&b, "; server: CPU %.2f us/request, RSS %d MiB, peak %d MiB", r.CPU, r.RSS>>20, r.PeakRSS>>20)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(&b, "; %d x %s", r.Errors[name], name)
	}
	return b.String()
}
