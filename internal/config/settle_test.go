package config

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestALimitWithSettleSettles(t *testing.T) {
	const file = "domain: d\nlimits:\n  l: {algorithm: token_bucket, rate: 100, period: 1h, settle: {estimate: 5%s}}\n"
	for more, want := range map[string]int64{", max_debt: 0": 0, ", max_debt: 7": 7} {
		l := good(t, Options{}, fmt.Sprintf(file, more)).Domains["d"].Named["l"].Limit
		if !l.Settles || l.MaxDebt != want {
			t.Errorf("%s: settles: %t, up to a debt of %d; want true, %d", more, l.Settles, l.MaxDebt, want)
		}
	}
	if l := good(t, Options{}, fmt.Sprintf(file, "")).Domains["d"].Named["l"].Limit; !l.Settles {
		t.Errorf("without max_debt: got %+v; want a limit that settles", l)
	}
}

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

// A learned estimate is never below least, by default a quarter of first, rounded up.
func TestTheLeastLearnedEstimate(t *testing.T) {
	for text, want := range map[string]int64{
		"{estimate: {learn: p90, first: 1}}": 1, "{estimate: {learn: p90, first: 4}}": 1, "{estimate: {learn: p90, first: 5}}": 2, "{estimate: {learn: p90, first: 100}}": 25,
		"{estimate: {learn: p90, first: 100, least: 3}}": 3, "{estimate: {learn: p90, first: 100}, least: 4}": 4, "{estimate: {learn: p90, first: 100, least: 0}}": 1,
		"{estimate: {learn: p90, first: 100, least: 100}}": 100,
	} {
		s := good(t, Options{}, "domain: d\nlimits:\n  l: {algorithm: fixed_window, rate: 100, period: 1h, settle: "+text+"}\n")
		if got := s.Domains["d"].Named["l"].Extra().Settle.Learn.Least; got != want {
			t.Errorf("%s: at least %d, want %d", text, got, want)
		}
	}
}

// Only values without a "*" in the configuration have an estimate of their own. A pattern would match any number of
// values.
func TestValuesWithEstimatesOfTheirOwn(t *testing.T) {
	s := good(t, Options{}, "domain: d\nlimits:\n  l: {algorithm: fixed_window, rate: 100, period: 1h, settle: {estimate: {learn: p90, first: 5, per: [model]}}}\n"+
		"descriptors: [{key: model, value: large, limit: l}, {key: model, value: small-*, limit: l}, {key: user, value: ann, limit: l}]\n")
	got := s.Domains["d"].Named["l"].Extra().Settle.Learn.Values
	if want := (map[string]map[string]bool{"model": {"large": true}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAPercentileIsAQuantile(t *testing.T) {
	for text, want := range map[string]float64{"p1": 0.01, "p50": 0.5, "p90": 0.9, "p99": 0.99} {
		s, problems := Compile([]File{{"f.yaml", []byte("domain: d\ndescriptors:\n- {key: k, rate_limit: {algorithm: token_bucket, rate: 10, period: 1s, " +
			"settle: {estimate: {learn: " + text + ", first: 5}}}}\n")}}, Options{})
		if s == nil {
			t.Fatal(problems)
		}
		if got := s.Policies[0].Extra().Settle.Learn.Quantile; got != want {
			t.Errorf("%s: learns the quantile %v, want %v", text, got, want)
		}
	}
}

// Each value of a key in per has an estimate of its own, also in a nested descriptor, but not a value with a "*".
func TestEstimatesKnowTheValuesOfNestedDescriptors(t *testing.T) {
	s, problems := Compile([]File{{"f.yaml", []byte(`
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 100, period: 1d, settle: {estimate: {learn: p90, first: 5, per: [model]}}}
descriptors:
- key: user
  limit: tokens
  descriptors:
  - {key: model, value: large, limit: tokens}
- {key: model, value: small, limit: tokens}
- {key: model, value: 'm*', limit: tokens}
`)}}, Options{})
	if s == nil {
		t.Fatal(problems)
	}
	want := map[string]bool{"large": true, "small": true}
	if got := s.Domains["d"].Named["tokens"].Extra().Settle.Learn.Values["model"]; !reflect.DeepEqual(got, want) {
		t.Errorf("got the values %v, want %v", got, want)
	}
}
