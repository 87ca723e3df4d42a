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

// There must be a warning if the units that are added during the lease exceed 5 % of the capacity.
func TestALeaseIsAPartOfTheCapacity(t *testing.T) {
	const file = "domain: d\nlimits:\n  l: {algorithm: token_bucket, rate: 60, period: 1m, capacity: %d, lease: {max: 10%%, for: 2s}}\n"
	for capacity, warned := range map[int]bool{1000: false, 20: true} {
		s, problems := Compile(numbered([]string{fmt.Sprintf(file, capacity)}), Options{})
		if problems.Bad() {
			t.Fatal(problems)
		}
		lease := s.Domains["d"].Named["l"].Extra().Lease
		if got := strings.Contains(problems.Error(), "during a lease"); lease.Most != int64(capacity)/10 || got != warned {
			t.Errorf("capacity %d: the lease has %d units, warned: %v; want %d, %v", capacity, lease.Most, got, capacity/10, warned)
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

// An operator names a limit to see or reset a bucket, so no two limits have one name.
func TestNoTwoLimitsHaveOneName(t *testing.T) {
	s, problems := Compile([]File{{Name: "names.yaml", Data: []byte(`
domain: d
limits:
  user: {algorithm: token_bucket, rate: 1, period: 1s}
descriptors:
  - {key: user, limit: user, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: team, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: path, rate_limit: {name: team, unit: second, requests_per_unit: 1}}
  - {key: host, rate_limit: {name: user, unit: second, requests_per_unit: 1}}
`)}}, Options{})
	if s == nil {
		t.Fatal(problems)
	}
	owners := map[string]string{}
	for _, p := range s.Policies {
		if other, taken := owners[p.Name]; taken && other != p.Owner {
			t.Errorf("two limits have the name %q", p.Name)
		}
		owners[p.Name] = p.Owner
	}
	if len(owners) != 5 || owners["user"] != s.Domains["d"].Named["user"].Owner {
		t.Errorf("got the names %q; want five, one of them that of the named limit user", owners)
	}
}
