package observability

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// whileFailing has the metrics and outcomes that a sidecar exports only while something fails, with a recording of
// that. All others must have data after mixed traffic.
var whileFailing = map[string]string{
	"rlsidecar_backend_breaker_open": "Redis paused",
	`outcome=~"failed_.*"`:           "Redis paused",
	"rlsidecar_xds_connected":        "no control plane",
	"rlsidecar_backend_unfit":        "Redis that may evict",
	"rlsidecar_conditions":           "a wrong Redis password",
}

// TestQueriesHaveData evaluates each query of the dashboard after mixed traffic over every listener. In all expressions,
// also those of the rules and runbooks, each metric must have data, and each label that an aggregation keeps must exist.
// "mixed" is scraped on the admin port; TestBothPortsExportTheSame compares it with the other one.
func TestQueriesHaveData(t *testing.T) {
	all := recordings(t)
	databases := map[string]*database{}
	of := func(text string) (string, *database) {
		name := "mixed"
		for part, other := range whileFailing {
			if strings.Contains(text, part) {
				name = other
			}
		}
		if databases[name] == nil {
			databases[name] = newDatabase(t, all[name])
		}
		return name, databases[name]
	}
	queries := expressions(t)
	for _, e := range queries {
		text := strings.TrimSuffix(e.text, " > 0") // hides what has not happened
		if name, db := of(text); strings.HasPrefix(e.where, "dashboard.json") && len(db.evaluate(t, text)) == 0 {
			t.Errorf("%s has no data from the recording %q\n%s", e.where, name, e.text)
		}
		expr, err := syntax.ParseExpr(e.text)
		if err != nil {
			t.Fatal(err)
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				text := strings.Split(n.String(), " offset ")[0]
				if name, db := of(text); len(db.evaluate(t, "last_over_time("+text+"[5m])")) == 0 {
					t.Errorf("%s: %s has no data from the recording %q", e.where, text, name)
				}
			case *parser.AggregateExpr:
				_, db := of(n.Expr.String())
				for _, label := range n.Grouping {
					// key2 is empty for limits at the first level, and Prometheus drops empty labels.
					has := func(s promql.Sample) bool { return s.Metric.Has(label) || label == "key2" }
					if data := db.evaluate(t, n.Expr.String()); len(data) > 0 && !slices.ContainsFunc(data, has) {
						t.Errorf("%s: nothing has the label %s\n%s", e.where, label, n)
					}
				}
			}
			return nil
		})
	}
	if len(queries) < 80 {
		t.Errorf("only %d expressions found, want at least 80", len(queries))
	}
}

// TestBothPortsExportTheSame compares the series of the admin port with those of --metrics-listen.
func TestBothPortsExportTheSame(t *testing.T) {
	metrics := fmt.Sprint("127.0.0.1:", redistest.FreePort(t))
	s := startSidecar(t, limits, "--metrics-listen", metrics)
	s.send(t, 2, "edge", "user_id", "bob")
	names := func(address string) []string { return slices.Sorted(maps.Keys(scrape(t, address))) }
	if admin, other := names(s.Admin), names(metrics); !slices.Equal(admin, other) || !s.exports(t, "rlsidecar_decision_seconds_count") {
		t.Errorf("the admin port exports\n%s\nand --metrics-listen\n%s", strings.Join(admin, "\n"), strings.Join(other, "\n"))
	}
}

// database answers queries from a recording that is repeated each minute, and from the recording rules.
type database struct {
	engine *promql.Engine
	series []storage.Series
}

const minutes = 15

func newDatabase(t *testing.T, r recording) *database {
	t.Helper()
	db := &database{engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: patience})}
	add := func(of labels.Labels, value func(minute int) float64) {
		one := promql.Series{Metric: of}
		for i := range minutes + 1 {
			one.Floats = append(one.Floats, promql.FPoint{T: int64(i) * time.Minute.Milliseconds(), F: value(i)})
		}
		db.series = append(db.series, promql.NewStorageSeries(one))
	}
	constant := func(value float64) func(int) float64 { return func(int) float64 { return value } }
	for name, s := range r.after {
		before := r.before[name].value
		value := func(minute int) float64 { return before + float64(minute)*(s.value-before) }
		if !s.counter { // it changes in the last minute
			value = func(minute int) float64 {
				if minute < minutes {
					return before
				}
				return s.value
			}
		}
		all := map[string]string{}
		for name, value := range s.labels {
			all[string(name)] = string(value)
		}
		add(labels.FromMap(all), value)
	}
	add(labels.FromStrings("__name__", "up", "job", "rlsidecar", "instance", "10.0.0.1:9090", "namespace", "edge"), constant(1))
	add(labels.FromStrings("__name__", "ALERTS", "alertname", "RlsidecarDown", "alertstate", "firing"), constant(1))
	for _, rule := range rules(t) {
		if rule.Record == "" {
			continue
		}
		for _, found := range db.evaluate(t, rule.Expr) {
			of := labels.NewBuilder(found.Metric)
			of.Set("__name__", rule.Record)
			add(of.Labels(), constant(found.F))
		}
	}
	return db
}

func (d *database) evaluate(t *testing.T, text string) promql.Vector {
	t.Helper()
	query, err := d.engine.NewInstantQuery(t.Context(), d, nil, text, time.UnixMilli(0).Add(minutes*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	found, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	found = slices.Clone(found)
	return slices.DeleteFunc(found, func(s promql.Sample) bool { return s.F != s.F }) // NaN is a quantile of nothing
}

// Querier implements storage.Queryable.
func (d *database) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		found := &list{SeriesSet: storage.EmptySeriesSet()}
		for _, s := range d.series {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
				found.rest = append(found.rest, s)
			}
		}
		return found
	}}, nil
}

// list is a series set of several series.
type list struct {
	storage.SeriesSet // an empty one, without errors and warnings

	at   storage.Series
	rest []storage.Series
}

func (l *list) Next() bool {
	if len(l.rest) == 0 {
		return false
	}
	l.at, l.rest = l.rest[0], l.rest[1:]
	return true
}

func (l *list) At() storage.Series { return l.at }
