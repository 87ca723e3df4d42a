package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestABadShareIsReportedOnce(t *testing.T) {
	text := bad(t, Options{}, "domain: d\non_backend_failure: local\nlocal_share: 200%\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n")
	if strings.Count(text, "\n") != 0 || !strings.Contains(text, "local_share") {
		t.Errorf("got\n%s\nwant one problem, with local_share", text)
	}
}

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

func TestBoundsOfLimitsAndAuth(t *testing.T) {
	limit := func(kind, more string) string {
		return "domain: d\nlimits:\n  l: {algorithm: " + kind + ", rate: 100, period: 1h, " + more + "}\n"
	}
	times := func(n string) string {
		return "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, unit_multiplier: " + n + ", requests_per_unit: 1}}]\n"
	}
	prefix := func(bits string) string { return "domain: d\nauth: {ipv6_prefix: " + bits + "}\n" }
	bound := func(setting string) string {
		return "domain: d\nmax_override: {algorithm: fixed_window, rate: 100, period: 1h, " + setting + "}\n"
	}
	lease := func(span string) string { return limit("fixed_window", "lease: {max: 5%, for: "+span+"}") }
	for name, test := range map[string]struct {
		text, want string // "" means that there is no mistake
	}{
		"ipv6_prefix 1":                {prefix("1"), ""},
		"ipv6_prefix 128":              {prefix("128"), ""},
		"ipv6_prefix 0":                {prefix("0"), "ipv6_prefix must be from 1 to 128"},
		"ipv6_prefix 129":              {prefix("129"), "ipv6_prefix must be from 1 to 128"},
		"a lease of 1 ms":              {lease("1ms"), ""},
		"a lease of 999 us":            {lease("999us"), "for must be between 1ms and 1m"},
		"a lease of 1 m":               {lease("1m"), ""},
		"a lease of 60,001 ms":         {lease("60001ms"), "for must be between 1ms and 1m"},
		"unit_multiplier 1":            {times("1"), ""},
		"unit_multiplier 0":            {times("0"), "unit_multiplier must be between 1"},
		"unit_multiplier 4294967296":   {times("4294967296"), "unit_multiplier must be between 1"},
		"a start in microseconds":      {limit("fixed_window", "start: 2026-01-01T00:00:00.000001Z"), ""},
		"a start in nanoseconds":       {limit("fixed_window", "start: 2026-01-01T00:00:00.000001001Z"), "must not be finer than a microsecond"},
		"a rate without digits":        {"domain: d\nlimits: {l: {algorithm: fixed_window, rate: !!int '', period: 1h}}\n", "rate must be a whole number"},
		"an initial value of 0":        {limit("token_bucket", "initial: 0"), ""},
		"share_threshold at any value": {"domain: d\ndescriptors: [{key: k, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]\n", "share_threshold can only be used with wildcard values"},
		"share_threshold at a pattern": {"domain: d\ndescriptors: [{key: k, value: 'a*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]\n", ""},
		"the key of a settlement":      {limit("fixed_window", "settle: {estimate: 5}") + "descriptors: [{key: settle_end, limit: l}]\n", `descriptors with the key "settle_end" settle reservations`},
		"a bound that settles":         {bound("settle: {estimate: 5}"), "settle cannot be combined with max_override"},
		"a bound with a payer":         {bound("then: other"), "then cannot be combined with max_override"},
		"many lists side by side":      {"domain: d\ndescriptors:\n" + strings.Repeat("  - {key: k, descriptors: [{key: l}]}\n", 3*maxDepth), "duplicate descriptor"},
	} {
		_, problems := Compile(numbered([]string{test.text}), Options{})
		if got := problems.Error(); problems.Bad() != (test.want != "") || !strings.Contains(got, test.want) || strings.Contains(got, "nested more") {
			t.Errorf("%s: got %.400s; want %q", name, got, test.want)
		}
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
	kinds := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("k%d: 1", i))
		}
		return limit("l", ", weights: {"+strings.Join(list, ", ")+"}")
	}
	shards := func(n int64) string {
		return fmt.Sprintf("domain: d\nlimits:\n  l: {algorithm: token_bucket, rate: 1000, period: 1s, shards: %d}\n", n)
	}
	for name, c := range map[string]struct {
		text string
		bad  bool
	}{
		"64 descriptors of a route":  {route(64, 1), false},
		"65 descriptors of a route":  {route(65, 1), true},
		"32 entries of a descriptor": {route(1, 32), false},
		"33 entries of a descriptor": {route(1, 33), true},
		"16 kinds of units":          {kinds(16), false},
		"17 kinds of units":          {kinds(17), true},
		"1 shard":                    {shards(1), true},
		"2 shards":                   {shards(2), false},
		"256 shards":                 {shards(256), false},
		"257 shards":                 {shards(257), true},
		"4294967298 shards":          {shards(4294967298), true}, // cut to 32 bits, it would be 2
		"a name of 128 bytes":        {limit(strings.Repeat("n", 128), ""), false},
		"a name of 129 bytes":        {limit(strings.Repeat("n", 129), ""), true},
		"p1":                         {learn("p1"), false},
		"p99":                        {learn("p99"), false},
		"p0":                         {learn("p0"), true},
		"p100":                       {learn("p100"), true},
		"1000 routes":                {routes(1000), false},
		"1001 routes":                {routes(1001), true},
	} {
		_, problems := Compile([]File{{Name: "a.yaml", Data: []byte(c.text)}}, Options{})
		if problems.Bad() != c.bad {
			t.Errorf("%s: got the problems %.300v; want mistakes: %t", name, problems, c.bad)
		}
	}
}

func TestAMistakeIsReportedOnce(t *testing.T) {
	const entry = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\nauth: {routes: [{descriptors: [[{key: k, from: %s}]]}]}\n"
	for text, want := range map[string]string{
		fmt.Sprintf(entry, "[path]"): "from must be",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: [x]}]}}]\n":               "name must be",
		"domain: d\nlimits: {l: {algorithm: token_bucket, rate: 5, period: 1s, guaranteed: {period: 1s}}}\n":                         "guaranteed needs rate and period",
		"domain: d\nlimits: {l: {algorithm: token_bucket, rate: 5, period: 1s, guaranteed: {rate: 1}}}\n":                            "guaranteed needs rate and period",
		"domain: d\nlimits: {l: {algorithm: token_bucket, rate: 5, period: 1s, guaranteed: {rate: x, period: 1s}}}\n":                "rate must be a whole number",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: 5, period: 1h, time_zone: UTC}}\n":                                   "time_zone needs period day",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: [5], period: 1h}}\n":                                                 "rate must be a whole number, but is a list",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: 5, period: [1h]}}\n":                                                 "period must be a duration",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: 5, period: 1h, then: m}, m: {algorithm: no, rate: 5, period: 1h}}\n": "algorithm must be one of",
	} {
		if got := bad(t, Options{}, text); strings.Contains(got, "\n") || !strings.Contains(got, want) {
			t.Errorf("%s:\n%s\nwant one problem with %q", text, got, want)
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
