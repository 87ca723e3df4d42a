package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestTheCharactersOfALimitsName(t *testing.T) {
	for name, want := range map[string]string{
		" ": "", "~": "", "a\x7f": "not printable", "a\x1f": "not printable", "é": "not printable", "a/b": "a \"/\"", "": "is empty",
		strings.Repeat("x", 128): "", strings.Repeat("x", 129): "the maximum is 128",
	} {
		if got := badName(name); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestTheLargestAcceptedValues(t *testing.T) {
	limit := func(name, more string) string {
		return "domain: d\nlimits:\n  " + name + ": {algorithm: fixed_window, rate: 100, period: 1h" + more + "}\n"
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
	lists := func(n int) string {
		text := "domain: d\ndescriptors:\n"
		for i := range n {
			text += fmt.Sprintf("  - {key: k%d, descriptors: [{key: l}]}\n", i)
		}
		return text
	}
	for name, c := range map[string]struct {
		text string
		bad  bool
	}{
		"64 descriptors of a route":  {route(64, 1), false},
		"65 descriptors of a route":  {route(65, 1), true},
		"32 entries of a descriptor": {route(1, 32), false},
		"33 entries of a descriptor": {route(1, 33), true},
		"lists side by side":         {lists(3 * maxDepth), false},
		"a name of 128 bytes":        {limit(strings.Repeat("n", 128), ""), false},
		"a name of 129 bytes":        {limit(strings.Repeat("n", 129), ""), true},
		"1000 routes":                {routes(1000), false},
		"1001 routes":                {routes(1001), true},
	} {
		_, problems := Compile([]File{{Name: "a.yaml", Data: []byte(c.text)}}, Options{})
		if problems.Bad() != c.bad {
			t.Errorf("%s: got the problems %.300v; want mistakes: %t", name, problems, c.bad)
		}
	}
}

// A value with a blank at its end matches nothing, unless blanks are kept.
func TestWarningsAboutBlanks(t *testing.T) {
	const domain = "domain: d\ndescriptors: [{key: k, value: 'a ', rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	for _, kept := range []bool{false, true} {
		_, problems := Compile(numbered([]string{domain}), Options{KeepBlanks: kept})
		if got := strings.Contains(problems.Error(), "never matches"); got == kept {
			t.Errorf("RLSIDECAR_KEEP_BLANKS %t: got %v; want a warning: %t", kept, problems, !kept)
		}
	}
}
