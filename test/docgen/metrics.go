package docgen

import (
	"regexp"
	"slices"
	"strings"
)

// sample matches the name and the labels in a line of Prometheus's text format.
var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)

var labelName = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="`)

// Metrics returns docs/reference/metrics.md. text is the answer of /metrics, in Prometheus's text format, when every
// metric has been set. The metrics of Go and of the process are left out.
func Metrics(text string) string {
	help, kind, labels := make(map[string]string), make(map[string]string), make(map[string][]string)
	var names []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, text, _ := strings.Cut(rest, " ")
			if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
				names = append(names, name)
				help[name] = strings.ReplaceAll(strings.ReplaceAll(text, `\"`, `"`), `\\`, `\`)
			}
		} else if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, text, _ := strings.Cut(rest, " ")
			kind[name] = text
		} else if m := sample.FindStringSubmatch(line); m != nil {
			name := m[1]
			for _, of := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, of); kind[base] == "histogram" {
					name = base
				}
			}
			for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
				if l[1] != "le" && !slices.Contains(labels[name], l[1]) {
					labels[name] = append(labels[name], l[1])
				}
			}
		}
	}
	slices.Sort(names)
	p := &page{}
	p.begin("Metrics", "the answer of `/metrics`")
	p.prose("", "[Monitor rlsidecar](../howto/monitor-and-alert.md) names the metrics to watch, and "+
		"[operations](../operations.md#metrics) explains outcomes and reasons. The metrics `ratelimit_service_*` have the names and labels of "+
		"[envoyproxy/ratelimit](../migrating.md#metrics). The usual `go_*` and `process_*` exist too.")
	p.line()
	for _, name := range names {
		labelled := ""
		if len(labels[name]) > 0 {
			labelled = "labels " + code(strings.Join(labels[name], "`, `"))
		}
		p.row("metric | type and labels | meaning", code(name), help[name], kind[name], labelled)
	}
	return p.String()
}
