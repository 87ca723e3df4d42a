// Package metrics counts the program's decisions for Prometheus. Counting a decision takes a few additions
// that rarely contend: the number of a policy is the index of its counters, and each counter has several
// stripes, so that CPUs rarely share a cache line.
//
// Only the series of limits with value_to_metric or detailed_metric have label values from requests. The number of
// these series is bounded.
package metrics

import (
	"math/bits"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The stripes of a counter, which take 64 bytes each, are a power of two: as many as CPUs, but at most 8.
const stripeBits = 3

var stripes = 1 << min(stripeBits, bits.Len(uint(runtime.GOMAXPROCS(0)-1)))

// Metrics holds the counters of one instance of the program. It implements limiter.Observer.
type Metrics struct {
	registry *prometheus.Registry

	current        atomic.Pointer[table]
	domainNotFound counter
	refused        *prometheus.CounterVec
	tooLarge       *prometheus.CounterVec
	loadOK         prometheus.Gauge
	loadedAt       prometheus.Gauge
	examined       *prometheus.GaugeVec

	unfitMu sync.Mutex
	unfit   map[[2]string]bool // whether a check fails for a server; guarded by unfitMu

	series    seriesSet
	nearRatio float32 // a share of a limit; hits above this share count as near_limit
	service   service
	latency   latency
	ignored   *prometheus.CounterVec // ids of reservations that settled nothing

	most    int // the bound maxLimits; tests set a lower one
	folding atomic.Bool

	mu      sync.Mutex
	limits  index[[2]string, limitCounts] // by domain and name; a limit is added at its first decision; guarded by mu
	domains index[string, domainCounts]   // by name; a domain is added at its first request; guarded by mu
}

// New returns Metrics that include metrics of the process and of the Go runtime. version and revision are the
// version and commit of the program.
func New(version, revision string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), nearRatio: defaultNearRatio,
		refused: counterVec("rlsidecar_requests_refused_total{reason}",
			"Requests that were answered before any limit was applied. The reason decides the answer. too_much, panic, auth_repeated and auth_not_configured: a denial. auth_no_route and auth_no_descriptor: the default of the section auth. no_config: that of on_backend_failure. malformed, no_domain and no_descriptors: an error. A panic that denies several requests counts once."),
		tooLarge: counterVec("rlsidecar_requests_too_large_total{bound}",
			"Requests that were denied because they exceed a bound: of descriptors, of a descriptor's entries, or of bytes."),
		loadOK: newGauge("rlsidecar_config_last_reload_successful",
			"1 if the last configuration was valid, 0 if an earlier one is still in use for some or all domains.", nil),
		loadedAt: newGauge("rlsidecar_config_last_reload_success_timestamp_seconds",
			"Time at which the last valid configuration was loaded, in seconds since 1970.", nil),
		examined: gaugeVec("rlsidecar_backend_unfit{check}",
			"1 for each check of the backend's settings that fails: check \"eviction\" means that Redis may evict live buckets. The checks run at the start, and then every minute until all have passed; afterwards only the clock is checked."),
		ignored: counterVec("rlsidecar_settle_ignored_total{domain,reason}",
			"Ids of reservations that settled nothing, by reason. none: nothing was reserved. forged: the signature is wrong. foreign: the id is of another domain. changed: the limit was removed, no longer has settle, or has another algorithm. expired: the reservation of an application has expired."),
		unfit: map[[2]string]bool{}, most: maxLimits,
	}
	m.limits = index[[2]string, limitCounts]{map[[2]string]*limitCounts{}, [2]string{overflow, overflow}, &m.folding}
	m.domains = index[string, domainCounts]{map[string]*domainCounts{}, overflow, &m.folding}
	m.series.byName, m.series.runtime = index[string, series]{map[string]*series{}, overflow, &m.folding}, map[string]*series{}
	m.domainNotFound = newCounter()
	m.latency.every.Store(1)
	m.series.maxRuntime, m.series.levels = maxRuntimeSeries, 2 // the labels key1 and key2
	m.series.most = maxLimits
	m.current.Store(&table{})
	build := newGauge("rlsidecar_build_info", "Always 1. The labels describe the program.",
		prometheus.Labels{"version": label(version), "revision": label(revision), "goversion": runtime.Version()})
	build.Set(1)
	m.registry.MustRegister(m, m.refused, m.tooLarge, m.loadOK, m.loadedAt, m.examined, m.ignored, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// family returns the name and the labels of series, which has the form name{label,label} or name.
func family(series string) (name string, labels []string) {
	name, list, ok := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	if ok {
		labels = strings.Split(list, ",")
	}
	return name, labels
}

func newDesc(series, help string) *prometheus.Desc {
	name, labels := family(series)
	return prometheus.NewDesc(name, help, labels, nil)
}

func counterVec(series, help string) *prometheus.CounterVec {
	name, labels := family(series)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func gaugeVec(series, help string) *prometheus.GaugeVec {
	name, labels := family(series)
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func total(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func newGauge(name, help string, constant prometheus.Labels) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: constant})
}

// Handler serves the metrics in the formats of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, ErrorHandling: promhttp.ContinueOnError})
}

// Loaded counts a configuration. used is false if all or a part of it was rejected because of mistakes. at is the time at
// which it was put in use.
func (m *Metrics) Loaded(used bool, at time.Time) {
	if !used {
		m.service.refused.Add(1)
		m.loadOK.Set(0)
		return
	}
	m.service.loaded.Add(1)
	m.loadOK.Set(1)
	m.loadedAt.Set(float64(at.UnixMilli()) / 1000)
}

// Refused counts a request that was answered without any limit. The reference server counts a service_error for some
// reasons. The reasons are those of package grpcapi.
func (m *Metrics) Refused(reason string) {
	m.refused.WithLabelValues(reason).Inc()
	switch reason {
	case "malformed", "no_domain", "no_descriptors", "no_config":
		m.service.badRequests.Add(1)
	}
}

// TooLarge counts a request that was denied because it exceeds a bound.
func (m *Metrics) TooLarge(bound string) { m.tooLarge.WithLabelValues(bound).Inc() }

// label returns s as valid UTF-8, because a label's value must be.
func label(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// counter is a group of related counters. A stripe occupies one cache line.
type counter []stripe

type stripe [8]atomic.Uint64

func newCounter() counter { return make(counter, stripes) }

func (c counter) sum(i int) (n uint64) {
	for s := range c {
		n += c[s][i].Load()
	}
	return n
}
