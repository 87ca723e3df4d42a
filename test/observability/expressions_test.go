package observability

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

var syntax = parser.NewParser(parser.Options{})

func rules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile(examples+"/rules.yaml", false, model.UTF8Validation, syntax, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return slices.DeleteFunc(rules(t), func(r rulefmt.Rule) bool { return r.Alert == "" })
}

func alertNamed(name string) func(rulefmt.Rule) bool {
	return func(r rulefmt.Rule) bool { return r.Alert == name }
}

type panel struct {
	ID          int
	Type, Title string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ RefID, Expr, LegendFormat string }
	Panels      []panel
}

type dashboard struct {
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Annotations struct{ List []struct{ Name, Expr string } }
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	data, err := os.ReadFile(examples + "/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

type expression struct{ where, text string }

// variables matches the variables in expressions that Grafana replaces.
var variables = regexp.MustCompile(`\$__rate_interval|"\$[a-z]+"`)

func expressions(t *testing.T) (all []expression) {
	t.Helper()
	for _, r := range rules(t) {
		all = append(all, expression{"rules.yaml: " + r.Alert + r.Record, r.Expr})
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, expression{"dashboard.json: " + p.Title, q.Expr})
		}
	}
	for _, a := range d.Annotations.List {
		all = append(all, expression{"dashboard.json: annotation " + a.Name, a.Expr})
	}
	for _, v := range d.Templating.List {
		if query, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			metric, label, _ := strings.Cut(strings.TrimSuffix(query, ")"), "}, ")
			if label == "" {
				metric, label, _ = strings.Cut(strings.TrimSuffix(query, ")"), ", ")
			} else {
				metric += "}"
			}
			all = append(all, expression{"dashboard.json: variable " + v.Name, fmt.Sprintf("count by (%s) (%s)", label, metric)})
		}
	}
	data, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(data), -1) {
		for _, query := range strings.Split(strings.TrimSpace(block[1]), "\n\n") {
			all = append(all, expression{"runbooks.md", query})
		}
	}
	for i := range all {
		all[i].text = variables.ReplaceAllStringFunc(all[i].text, func(v string) string {
			if v == "$__rate_interval" {
				return "5m"
			}
			return `".*"`
		})
	}
	return all
}

// TestExpressionsUseExportedMetrics checks that each expression is valid, that each of its selectors matches
// a series of a real sidecar or of a recording rule, and that one of these has each label that the expression
// groups or matches by.
func TestExpressionsUseExportedMetrics(t *testing.T) {
	exported := []labels.Labels{
		labels.FromStrings("__name__", "up", "job", "rlsidecar", "instance", "10.0.0.1:9090", "namespace", "edge"),
		labels.FromStrings("__name__", "ALERTS", "alertname", "RlsidecarDown", "alertstate", "firing"),
	}
	for _, r := range recordings(t) {
		for _, s := range r.after {
			all := map[string]string{}
			for name, value := range s.labels {
				all[string(name)] = string(value)
			}
			exported = append(exported, labels.FromMap(all))
		}
	}
	all := expressions(t)
	for _, r := range rules(t) {
		if r.Record == "" {
			continue
		}
		recorded := map[string]string{"__name__": r.Record}
		for _, label := range grouping(t, r.Expr) {
			recorded[label] = "x"
		}
		exported = append(exported, labels.FromMap(recorded))
	}
	for _, e := range all {
		known := map[string]bool{}
		for _, matchers := range selectors(t, e.text) {
			found := false
			for _, series := range exported {
				if matches(series, matchers) {
					found = true
					series.Range(func(l labels.Label) { known[l.Name] = true })
				}
			}
			if !found {
				t.Errorf("%s: no sidecar exports %v", e.where, matchers)
			}
		}
		for _, label := range grouping(t, e.text) {
			if !known[label] {
				t.Errorf("%s: nothing has the label %s\n%s", e.where, label, e.text)
			}
		}
	}
	if len(all) < 80 {
		t.Errorf("only %d expressions found, want at least 80", len(all))
	}
}

func matches(series labels.Labels, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !series.Has(m.Name) || !m.Matches(series.Get(m.Name)) {
			return false
		}
	}
	return true
}

func selectors(t *testing.T, text string) [][]*labels.Matcher {
	t.Helper()
	expr, err := syntax.ParseExpr(text)
	if err != nil {
		t.Errorf("%v\n%s", err, text)
		return nil
	}
	return parser.ExtractSelectors(expr)
}

func grouping(t *testing.T, text string) (all []string) {
	t.Helper()
	expr, err := syntax.ParseExpr(text)
	if err != nil {
		return nil
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			all = append(all, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				all = append(all, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	return all
}
