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

type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
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
