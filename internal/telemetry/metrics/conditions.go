package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

var conditionsDesc = prometheus.NewDesc("rlsidecar_conditions",
	"Problems that exist now, as listed by /api/conditions: the number of conditions of each name, for all servers and domains.",
	[]string{"condition", "severity"}, nil)

// WatchConditions adds a metric of the conditions that list returns. Call it once. The part of a name after a
// slash, such as the address of a server, is omitted to bound the number of series.
func (m *Metrics) WatchConditions(list func() []conditions.Condition) {
	m.registry.MustRegister(conditionCollector(list))
}

type conditionCollector func() []conditions.Condition

// Describe implements prometheus.Collector. It sends nothing, because the conditions are not known in advance.
func (conditionCollector) Describe(chan<- *prometheus.Desc) {}

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
