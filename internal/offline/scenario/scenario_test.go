package scenario

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
)

const limits = `
domain: edge
limits:
  send: {algorithm: token_bucket, rate: 10, period: 1m, capacity: 20, max_reserved: 10}
  pace: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 2, max_delay: 1s}
  quiet: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 2, shadow_mode: true}
descriptors:
  - {key: user, limit: send}
  - {key: pace, limit: pace}
  - {key: seen, shadow_mode: true, rate_limit: {algorithm: token_bucket, rate: 1, period: 1s}}
  - {key: free, rate_limit: {unlimited: true}}
`

// failures runs a scenario with the given steps, one in each line. For each failed step it returns line:column: message.
// The first step is in line 5.
func failures(t *testing.T, configuration string, steps ...string) []string {
	t.Helper()
	var text strings.Builder
	text.WriteString("config: limits.yaml\nscenarios:\n  - name: test\n    steps:\n")
	for _, s := range steps {
		text.WriteString("    - " + s + "\n")
	}
	f, problems := Parse("s.yaml", []byte(text.String()))
	if f == nil {
		t.Fatal(problems)
	}
	snapshot := configtest.Compile(t, configuration)
	var all []string
	for _, f := range f.Scenarios[0].Run(t.Context(), snapshot) {
		all = append(all, fmt.Sprintf("%d:%d: %s", f.Place.Line, f.Place.Column, f.Message))
	}
	return all
}

func TestExpectedAnswersPass(t *testing.T) {
	for _, steps := range [][]string{
		{`{at: 0s, descriptors: ["user=bob"], times: 20, expect: ok}`,
			`{descriptors: ["user=bob"], expect: {ok: false, retry_after: 6s, remaining: 0}}`,
			`{descriptors: ["user=eve"], expect: ok}`,
			`{at: 5s, descriptors: ["user=bob"], expect: denied}`,
			`{at: 6s, limits: [{name: send, key: bob}], expect: {ok: true, remaining: 0, retry_after: 0s}}`},
		{`{descriptors: ["user=bob"], hits: 21, expect: never}`,
			`{descriptors: [{entries: "user=bob", hits: 20}], hits: 21, check: true, expect: {ok: true, remaining: 0}}`,
			`{limits: [{name: send, key: [bob], count: 30, reserve: true}], expect: {ok: true, wait: 1m}}`,
			`{limits: [{name: send, key: bob, count: -10}], expect: {ok: true, remaining: 0, wait: 0s}}`},
		{`{descriptors: ["user=bob"], times: 30, every: 6s, expect: {remaining: 19}}`,
			`{at: 174s, descriptors: ["user=bob"], expect: ok}`},
		{`{domain: nowhere, descriptors: ["user=bob"], expect: not_limited}`,
			`{descriptors: ["usr=bob"], expect: not_limited}`},
		{`{descriptors: ["user=bob"], check: TRUE, expect: {ok: True, never: False, remaining: 19}}`,
			`{descriptors: ["user=bob"], expect: {ok: true, remaining: 19}}`},
		{`{descriptors: ["free=x"], expect: {ok: true, limits: [{name: free, ok: true}]}}`},
		{`{descriptors: ["seen=x"], expect: ok}`,
			`{descriptors: ["seen=x"], expect: {ok: true, limits: [{name: seen, key: x, ok: false, retry_after: 1s, remaining: 0}]}}`},
		{`{limits: [{name: quiet, key: x}], times: 2, expect: ok}`, // /v1/limit reports the turn in shadow mode too
			`{limits: [{name: quiet, key: x}], expect: {ok: true, wait: 2s}}`},
		{`{descriptors: ["pace=x"], expect: {ok: true, wait: 0s}}`,
			`{descriptors: ["pace=x"], expect: {ok: true, wait: 1s}}`,
			`{descriptors: ["pace=x"], expect: {ok: false, retry_after: 1s}}`,
			`{limits: [{name: pace, key: x}], expect: {ok: true, wait: 2s}}`},
	} {
		if got := failures(t, limits, steps...); len(got) > 0 {
			t.Errorf("%s:\ngot the failures\n%s\nwant none", strings.Join(steps, "\n"), strings.Join(got, "\n"))
		}
	}
}

func TestUnexpectedAnswersAreReported(t *testing.T) {
	for _, test := range []struct {
		steps []string
		want  string
	}{
		{[]string{`{descriptors: ["user=bob"], times: 21, expect: ok}`, `{expect: ok, descriptors: ["user=eve"]}`},
			"5:7: at 0s, request 21 of 21: expected ok, got denied, retry after 6s, remaining 0"},
		{[]string{`{descriptors: ["user=bob"], expect: {ok: false, remaining: 3, retry_after: 1s, wait: 2s}}`},
			"5:7: at 0s: expected denied, remaining 3, retry after 1s, wait 2s, got ok, remaining 19"},
		{[]string{`{descriptors: ["user=bob"], hits: 21, expect: {never: false}}`},
			"5:7: at 0s: expected not never, got denied for good: more than the limit can ever hold, remaining 20"},
		{[]string{`{descriptors: ["usr=bob"], expect: {remaining: 0}}`}, "5:7: at 0s: expected remaining 0, got ok, no limit matched"},
		{[]string{`{descriptors: ["user=bob"], expect: not_limited}`}, "5:7: at 0s: expected no limit to match, got send"},
		{[]string{`{descriptors: ["user=bob"], expect: {limits: [{name: pace}]}}`}, "5:53: at 0s: expected limit pace to match, got send"},
		{[]string{`{descriptors: ["user=bob"], expect: {limits: [{name: send, key: eve}]}}`}, "5:53: at 0s: expected limit send with key eve to match, got send"},
		{[]string{`{descriptors: ["usr=bob"], expect: {limits: [{name: send}]}}`}, "5:52: at 0s: expected limit send to match, got none"},
		{[]string{`{descriptors: ["user=bob"], expect: {limits: [{name: send, ok: false}]}}`}, "5:53: at 0s: limit send: expected denied, got ok, remaining 19"},
		{[]string{`{limits: [{name: nope}], expect: ok}`}, `5:7: at 0s: no limit is named "nope"`},
		{[]string{`{limits: [{name: pace, reserve: true}], expect: ok}`}, `5:7: at 0s: limit "pace" is a leaky_bucket, which cannot be reserved`},
	} {
		if got := strings.Join(failures(t, limits, test.steps...), "\n"); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", strings.Join(test.steps, "\n"), got, test.want)
		}
	}
	const two = "{domain: a, descriptors: [{key: k}]}\n---\n{domain: b, descriptors: [{key: k}]}"
	if got := strings.Join(failures(t, two, `{descriptors: ["k=v"], expect: ok}`), "\n"); got != "5:7: at 0s: no domain is named, and several are configured" {
		t.Errorf("no domain: got %s; want the failure that several domains are configured", got)
	}
}

func TestDomainIsTheNearestNamed(t *testing.T) {
	f, problems := Parse("s.yaml", []byte(`
config: [a.yaml, b.yaml]
domain: outer
scenarios:
  - name: one
    domain: inner
    start: 2026-01-01T01:00:00+01:00
    steps:
      - {descriptors: ["a=b"], expect: ok}
      - {domain: own, descriptors: ["a=b"], expect: ok}
  - name: two
    steps: [{descriptors: ["a=b"], expect: ok}]
`))
	if f == nil {
		t.Fatal(problems)
	}
	one, two := f.Scenarios[0], f.Scenarios[1]
	if one.Steps[0].Domain != "inner" || one.Steps[1].Domain != "own" || two.Steps[0].Domain != "outer" || one.Start != defaultStart {
		t.Errorf("got %+v; want the domains inner, own and outer, and the start %d", f, defaultStart)
	}
}

func TestMistakesHaveTheirPlace(t *testing.T) {
	step := func(text string) string {
		return "config: c\nscenarios:\n- name: n\n  steps:\n  - " + text
	}
	for _, test := range []struct{ text, want string }{
		{"", "s.yaml:1:1: the file is empty"},
		{"a: [", "s.yaml:1:1: yaml: did not find expected node content"},
		{"[]", "s.yaml:1:1: the file must be a mapping"},
		{"config: c\nscenarios: []\n---\nx: y", "s.yaml:4:1: the file has a second YAML document"},
		{"scenarios: []", "s.yaml:1:1: the file needs config"},
		{"config: c\nscenarios: []\nconfig: d", "s.yaml:3:1: the file has config twice"},
		{"config: c\nscenarios: {}", "s.yaml:2:12: scenarios must be a list"},
		{"config: c\nscenarios: []\nscenario: []", `s.yaml:3:1: the file has no key "scenario"; it has config, domain, scenarios`},
		{step(`{expect: ok}`), "s.yaml:5:5: a step needs descriptors, limits or done: one of the three"},
		{step(`{descriptors: ["a=b"], limits: [{name: x}], expect: ok}`), "s.yaml:5:5: a step needs descriptors, limits or done"},
		{step(`{descriptors: ["a=b"]}`), "s.yaml:5:5: a step needs expect"},
		{step(`{descriptors: ["a"], expect: ok}`), `s.yaml:5:20: descriptor "a": "a" has no value`},
		{step(`{descriptors: [{hits: 1}], expect: ok}`), "s.yaml:5:20: a descriptor needs entries"},
		{step(`{limits: [{key: k}], expect: ok}`), "s.yaml:5:15: an item of limits needs name"},
		{step(`{limits: [{name: x, count: a}], expect: ok}`), "s.yaml:5:32: count must be a whole number"},
		{step(`{limits: [{name: x, reserve: 1}], expect: ok}`), "s.yaml:5:34: reserve must be true or false"},
		{step(`{limits: [{name: {}}], expect: ok}`), "s.yaml:5:22: name must be text"},
		{step(`{descriptors: ["a=b"], expect: yes}`), "s.yaml:5:36: expect is ok, denied, never, not_limited, or a mapping"},
		{step(`{descriptors: ["a=b"], expect: {retry_after: 6}}`), "s.yaml:5:50: retry_after must be a time such as"},
		{step(`{descriptors: ["a=b"], expect: {wait: 1ns}}`), "s.yaml:5:43: wait must be a time such as"},
		{step(`{descriptors: ["a=b"], at: -1s, expect: ok}`), "s.yaml:5:32: at must be a time such as"},
		{step(`{descriptors: ["a=b"], times: 0, expect: ok}`), "s.yaml:5:35: times must be between 1 and 1000000"},
		{step("{descriptors: [\"a=b\"], at: 1d, expect: ok}\n  - {descriptors: [\"a=b\"], at: 1h, expect: ok}"), "s.yaml:6:5: time goes back: this step is at 1h, the last request was at 1d"},
		{step(`{descriptors: ["a=b"], every: 1000d, times: 1000000, expect: ok}`), "s.yaml:5:5: this step is beyond the year 2112"},
		{step(`{descriptors: ["a=b"], at: 40000d, expect: ok}`), "s.yaml:5:5: this step is beyond the year 2112"},
		{"config: c\nscenarios: [{name: n, start: now, steps: []}]", "s.yaml:2:30: start must be a moment such as"},
	} {
		f, problems := Parse("s.yaml", []byte(test.text))
		if f != nil || !strings.HasPrefix(problems.Error(), test.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", test.text, problems, test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("config: c\nscenarios:\n- name: n\n  steps:\n  - {at: 1s, times: 2, every: 1s, descriptors: [\"a=b\"], expect: {limits: [{name: x, key: [a]}]}}"))
	f.Add([]byte("config: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if file, problems := Parse("s.yaml", data); (file == nil) == (len(problems) == 0) {
			t.Errorf("got %v and %v; want either a file or problems", file, problems)
		}
	})
}
