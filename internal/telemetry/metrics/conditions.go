package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

var conditionsDesc = prometheus.NewDesc("rlsidecar_conditions",
	"What is wrong now, as /api/conditions lists it: how many conditions of each name, whatever server or domain they are about.",
	[]string{"condition", "severity"}, nil)

// WatchConditions adds the conditions that list returns; once. Their names come from the program; what follows a
// slash, such as the address of a server, is left out, so that the series are few.
func (m *Metrics) WatchConditions(list func() []conditions.Condition) {
	m.registry.MustRegister(conditionCollector(list))
}

type conditionCollector func() []conditions.Condition

// Describe implements prometheus.Collector: which conditions there will be is not known.
func (conditionCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (list conditionCollector) Collect(out chan<- prometheus.Metric) {
	counts := map[[2]string]int{}
	for _, c := range list() {
		name, _, _ := strings.Cut(c.Name, "/")
		counts[[2]string{label(name), c.Severity.String()}]++
	}
	for of, n := range counts {
		out <- prometheus.MustNewConstMetric(conditionsDesc, prometheus.GaugeValue, float64(n), of[0], of[1])
	}
}
