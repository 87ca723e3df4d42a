package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestSettleSettingsAreCompiled(t *testing.T) {
	for text, want := range map[string]string{
		"{estimate: 5}": "5, 0 to 100, trusts false, unknown -1, 600 s",
		"{estimate: 5, unknown_cost: 0, ttl: 1m, trust_declared: true}": "5, 0 to 100, trusts true, unknown 0, 60 s",
		"{estimate: 5, unknown_cost: 7, least: 2, most: 50, ttl: 1d}":   "5, 2 to 50, trusts false, unknown 7, 86400 s",
		"{estimate: 5, unknown_cost: most, most: 50, ttl: 1s}":          "5, 0 to 50, trusts false, unknown 50, 1 s",
		"{estimate: {learn: p90, first: 5, least: 2, most: 50}}":        "5, 2 to 50, trusts false, unknown -1, 600 s",
		"{estimate: 5, unknown_cost: estimate}":                         "5, 0 to 100, trusts false, unknown -1, 600 s",
	} {
		s := good(t, Options{}, "domain: d\nlimits:\n  l: {algorithm: fixed_window, rate: 100, period: 1h, settle: "+text+"}\ndescriptors: [{key: k, limit: l}]\n")
		e := s.Domains["d"].Named["l"].Extra().Settle
		if got := fmt.Sprintf("%d, %d to %d, trusts %t, unknown %d, %d s", e.Estimate, e.Least, e.Most, e.TrustDeclared, e.Unknown, e.TTL/algorithms.Second); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// Only values that the configuration names in full have an estimate of their own. A pattern would match any number of
// values.
func TestValuesWithEstimatesOfTheirOwn(t *testing.T) {
	s := good(t, Options{}, "domain: d\nlimits:\n  l: {algorithm: fixed_window, rate: 100, period: 1h, settle: {estimate: {learn: p90, first: 5, per: [model]}}}\n"+
		"descriptors: [{key: model, value: large, limit: l}, {key: model, value: small-*, limit: l}, {key: user, value: ann, limit: l}]\n")
	got := s.Domains["d"].Named["l"].Extra().Settle.Learn.Values
	if want := (map[string]map[string]bool{"model": {"large": true}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheLargestAcceptedValues(t *testing.T) {
	limit := func(name, more string) string {
		return "domain: d\nlimits:\n  " + name + ": {algorithm: fixed_window, rate: 100, period: 1h" + more + "}\n"
	}
	learn := func(quantile string) string {
		return limit("l", ", settle: {estimate: {learn: "+quantile+", first: 5}}") + "descriptors: [{key: k, limit: l}]\n"
	}
	routes := func(n int) string {
		return limit("l", "") + "descriptors: [{key: k, limit: l}]\nauth:\n  routes:\n" +
			strings.Repeat("    - {match: {path: /a}, descriptors: [[{key: k, value: x}]]}\n", n)
	}
	route := func(descriptors, entries int) string {
		one := "[" + strings.Repeat("{key: k, value: x}, ", entries-1) + "{key: k, value: x}]"
		return limit("l", "") + "descriptors: [{key: k, limit: l}]\nauth:\n  routes:\n    - descriptors: [" +
			strings.Repeat(one+", ", descriptors-1) + one + "]\n"
	}
	penalty := func(after int) string {
		return limit("l", fmt.Sprintf(", penalty: {after: %d, for: 1m, max: 1h}", after))
	}
	kinds := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("k%d: 1", i))
		}
		return limit("l", ", weights: {"+strings.Join(list, ", ")+"}")
	}
	shards := func(n int) string {
		return fmt.Sprintf("domain: d\nlimits:\n  l: {algorithm: token_bucket, rate: 1000, period: 1s, shards: %d}\n", n)
	}
	log := func(rate int) string {
		return fmt.Sprintf("domain: d\nlimits:\n  l: {algorithm: sliding_log, rate: %d, period: 1h}\n", rate)
	}
	for name, c := range map[string]struct {
		text string
		bad  bool
	}{
		"64 descriptors of a route":       {route(64, 1), false},
		"65 descriptors of a route":       {route(65, 1), true},
		"32 entries of a descriptor":      {route(1, 32), false},
		"33 entries of a descriptor":      {route(1, 33), true},
		"a penalty after 100 denials":     {penalty(100), false},
		"a penalty after 101 denials":     {penalty(101), true},
		"16 kinds of units":               {kinds(16), false},
		"17 kinds of units":               {kinds(17), true},
		"1 shard":                         {shards(1), true},
		"2 shards":                        {shards(2), false},
		"256 shards":                      {shards(256), false},
		"257 shards":                      {shards(257), true},
		"a sliding log with 10,000 units": {log(10_000), false},
		"a sliding log with 10,001 units": {log(10_001), true},
		"a name of 128 bytes":             {limit(strings.Repeat("n", 128), ""), false},
		"a name of 129 bytes":             {limit(strings.Repeat("n", 129), ""), true},
		"p1":                              {learn("p1"), false},
		"p99":                             {learn("p99"), false},
		"p0":                              {learn("p0"), true},
		"p100":                            {learn("p100"), true},
		"1000 routes":                     {routes(1000), false},
		"1001 routes":                     {routes(1001), true},
	} {
		_, problems := Compile([]File{{Name: "a.yaml", Data: []byte(c.text)}}, Options{})
		if problems.Bad() != c.bad {
			t.Errorf("%s: got the problems %.300v; want mistakes: %t", name, problems, c.bad)
		}
	}
}

func TestTwoLimitsWithOneNameKeepTheNamesOfTheirPlaces(t *testing.T) {
	s := good(t, Options{}, `
domain: d
descriptors:
  - {key: a, rate_limit: {name: same, unit: hour, requests_per_unit: 1}}
  - {key: b, rate_limit: {name: same, unit: hour, requests_per_unit: 2}}
  - {key: c, rate_limit: {name: other, unit: hour, requests_per_unit: 3}}
`)
	var names []string
	for _, p := range s.Policies {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got == "" || strings.Contains(got, "same") || !strings.Contains(got, "other") {
		t.Errorf("the names of the limits are %q; want other, and two without same", got)
	}
}
