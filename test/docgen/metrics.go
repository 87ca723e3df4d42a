package docgen

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics returns docs/reference/metrics.md. text is the answer of /metrics, in Prometheus's text format, when every
// metric has been set. The metrics of Go and of the process are left out.
func Metrics(text string) (string, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return "", err
	}
	p := &page{}
	p.begin("Metrics", "the answer of `/metrics`")
	p.prose("", "[Monitor rlsidecar](../howto/monitor-and-alert.md) names the metrics to watch, and "+
		"[operations](../operations.md#metrics) explains outcomes and reasons. The metrics `ratelimit_service_*` have the names and labels of "+
		"[envoyproxy/ratelimit](../migrating.md#metrics). The usual `go_*` and `process_*` exist too.")
	p.line()
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		labels, labelled := []string(nil), ""
		for _, m := range families[name].GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(labels, l.GetName()) {
					labels = append(labels, l.GetName())
				}
			}
		}
		if len(labels) > 0 {
			labelled = "labels " + code(strings.Join(labels, "`, `"))
		}
		p.row("metric | type and labels | meaning", code(name), families[name].GetHelp(), strings.ToLower(families[name].GetType().String()), labelled)
	}
	return p.String(), nil
}
