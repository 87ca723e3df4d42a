package diff

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

var compiled = configtest.Compile

func TestEveryDescriptorThatMatchesOtherLimitsIsReported(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was, is := compiled(t, drawConfig(t, "was")), compiled(t, drawConfig(t, "is"))
		changes := Compare(was, is)
		for range 20 {
			var entries []descriptors.Entry
			for range rapid.IntRange(1, 3).Draw(t, "entries") {
				entries = append(entries, descriptors.Entry{
					Key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"), Value: rapid.SampledFrom([]string{"x", "y", "xz", "q"}).Draw(t, "value"),
				})
			}
			before, after := limitsAt(was.Domains["edge"].Tree.Match(entries)), limitsAt(is.Domains["edge"].Tree.Match(entries))
			if slices.Equal(before, after) {
				continue
			}
			want := fmt.Sprintf("matched %s, now matches %s", limitList(before), limitList(after))
			if !slices.ContainsFunc(changes, func(c Change) bool { return c.What == "descriptor" && slices.Contains(c.Details, want) }) {
				t.Fatalf("%v %s, which is not in %+v", entries, want, changes)
			}
		}
	})
}

func drawConfig(t *rapid.T, name string) string {
	var level func(depth int) string
	level = func(depth int) string {
		var nodes []string
		for _, key := range []string{"a", "b"} {
			for _, value := range []string{"", "x", "y", "x*"} {
				if rapid.IntRange(0, 3).Draw(t, name) > 0 {
					continue
				}
				node := fmt.Sprintf("{key: %s", key)
				if value != "" {
					node += fmt.Sprintf(", value: %q", value)
				}
				if rapid.Bool().Draw(t, name) {
					node += ", limit: " + rapid.SampledFrom([]string{"one", "two"}).Draw(t, name)
				}
				if below := ""; depth < 3 {
					if below = level(depth + 1); below != "[]" {
						node += ", descriptors: " + below
					}
				}
				nodes = append(nodes, node+"}")
			}
		}
		return "[" + strings.Join(nodes, ", ") + "]"
	}
	text := "{domain: edge, limits: {one: {algorithm: token_bucket, rate: 1, period: 1s}, two: {algorithm: token_bucket, rate: 2, period: 1s}}"
	if nodes := level(1); nodes != "[]" {
		text += ", descriptors: " + nodes
	}
	return text + "}"
}

func TestNoChangeIsNoDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		yaml := drawConfig(t, "both")
		if changes := Compare(compiled(t, yaml), compiled(t, yaml)); len(changes) > 0 {
			t.Fatalf("got %+v; want no changes", changes)
		}
	})
}

func TestEachPartOfALimitIsCompared(t *testing.T) {
	const fixed = "rate: 10, period: 1m"
	for _, test := range []struct {
		name, was, is, want string
		fresh               bool
	}{
		{"rate", "algorithm: token_bucket, " + fixed, "algorithm: token_bucket, rate: 11, period: 1m", "numbers: token bucket: 10 per 1m, up to 10 at once -> token bucket: 11 per 1m, up to 11 at once", false},
		{"period", "algorithm: sliding_log, " + fixed, "algorithm: sliding_log, rate: 10, period: 2m", "numbers: sliding log: 10 in any 1m, exactly -> sliding log: 10 in any 2m, exactly", false},
		{"algorithm", "algorithm: token_bucket, " + fixed, "algorithm: sliding_log, " + fixed, "algorithm: token bucket: 10 per 1m, up to 10 at once -> sliding log: 10 in any 1m, exactly", true},
		{"shadow", "algorithm: token_bucket, " + fixed, "shadow_mode: true, algorithm: token_bucket, " + fixed, "shadow_mode: off -> on", false},
		{"quota", "quota_mode: true, algorithm: token_bucket, " + fixed, "algorithm: token_bucket, " + fixed, "quota_mode: on -> off", false},
		{"failure", "algorithm: token_bucket, " + fixed, "on_backend_failure: local, local_share: 0.5, algorithm: token_bucket, " + fixed, "on_backend_failure: deny -> local, a share of 0.5", false},
		{"shards", "shards: 2, algorithm: token_bucket, " + fixed, "algorithm: token_bucket, " + fixed, "shards: 2 -> 1", true},
		{"lease", "algorithm: token_bucket, rate: 1000, period: 1m", "lease: {max: 5%, for: 250ms}, algorithm: token_bucket, rate: 1000, period: 1m", "lease: none -> up to 50 for 250ms", false},
		{"penalty", "algorithm: token_bucket, " + fixed, "penalty: {after: 3, for: 1m, max: 1h}, algorithm: token_bucket, " + fixed, "penalty: after 3 denied within 1m a bucket is blocked for 1m", false},
		{"unlimited", "algorithm: token_bucket, " + fixed, "unlimited: true", "-> unlimited", false},
		{"settle", "algorithm: token_bucket, settle: {estimate: 2}, " + fixed, "algorithm: token_bucket, settle: {estimate: 3}, " + fixed, "settle: ", false},
		{"unit", "algorithm: token_bucket, " + fixed, "algorithm: token_bucket, unit_name: tokens, " + fixed, "unit_name: ", false},
		{"deny_body", "algorithm: token_bucket, " + fixed, "algorithm: token_bucket, deny_body: openai, " + fixed, "deny_body: ", false},
		{"max_delay", "algorithm: leaky_bucket, " + fixed, "max_delay: 2s, algorithm: leaky_bucket, " + fixed, "held for up to 2s", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := func(limit string) *limiter.Snapshot {
				return compiled(t, "{domain: edge, descriptors: [{key: user, rate_limit: {"+limit+"}}]}")
			}
			changes := Compare(of(test.was), of(test.is))
			if len(changes) != 1 || changes[0].What != "limit" || changes[0].Name != "edge/user" || changes[0].Fresh != test.fresh {
				t.Fatalf("got %+v; want one change of the limit edge/user, with Fresh %t", changes, test.fresh)
			}
			if text := strings.Join(changes[0].Details, "\n"); !strings.Contains(text, test.want) || strings.Contains(text, fresh) != test.fresh {
				t.Errorf("got %s; want %q, and a sentence about new buckets: %t", text, test.want, test.fresh)
			}
		})
	}
}

func TestSettingsOutsideOfLimitsAreCompared(t *testing.T) {
	const limits = "domain: edge, limits: {one: {algorithm: token_bucket, rate: 1, period: 1s}}"
	const at = "descriptors: [{key: user, limit: one}]"
	auth := func(more, routes string) string {
		return "{" + limits + ", " + at + ", auth: {" + more + "routes: [" + routes + "]}}"
	}
	const first, second = `{match: {path: /a}, descriptors: [[{key: user, from: "header:X-User"}]]}`, `{match: {path: /a, method: GET}, descriptors: [[{key: user, from: client_ip}]]}`
	fixed := strings.Replace(first, `from: "header:X-User"`, "value: header:X-User", 1)
	const settles = "domain: edge, limits: {one: {algorithm: token_bucket, rate: 1, period: 1s, settle: {estimate: 1}}}, " + at
	const any, admin = `{key: path, value: "/api/*", limit: one}`, `{key: path, value: "/*/admin"}`
	long := strings.Repeat("a", 150)
	for _, test := range []struct{ name, was, is, want string }{
		{"consume", "{" + limits + ", " + at + "}", "{consume: each, " + limits + ", " + at + "}", "domain edge changed: consume: together -> each"},
		{"http_headers", "{" + limits + ", " + at + "}", "{http_headers: [x, retry_after], " + limits + ", " + at + "}", "domain edge changed: http_headers: the listener's default -> x, retry_after"},
		{"hash_tag", "{" + limits + ", " + at + "}", "{hash_tag: \"entry:user\", " + limits + ", " + at + "}",
			"limit edge/one changed: hash_tag: none -> by value 1 of the key; " + fresh},
		{"settle", "{" + settles + "}", "{settle: {key: cost}, " + settles + "}", "domain edge changed: settle: settle, settle_end -> cost, settle_end"},
		{"local_share", "{on_backend_failure: local, local_share: 0.1, " + limits + "}", "{on_backend_failure: local, local_share: 0.5, " + limits + "}",
			"domain edge changed: on_backend_failure of limits that come with requests: local, a share of 0.1 -> local, a share of 0.5"},
		{"a long regular expression", "{" + limits + ", descriptors: [{key: user, value_regex: " + long + ", limit: one}]}", "{" + limits + ", descriptors: [{key: user, value_regex: " + long + "|b, limit: one}]}",
			"descriptor edge: user~" + long[:128] + "… added: matches edge/one"},
		{"a regular expression without a limit", "{" + limits + ", descriptors: [{key: user, limit: one}, {key: user, value_regex: a+}]}", "{" + limits + ", descriptors: [{key: user, limit: one}, {key: team, value_regex: a+}]}",
			"descriptor edge: user~a+ removed: matched no limit"},
		{"the order of patterns", "{" + limits + ", descriptors: [{key: team, descriptors: [" + any + ", " + admin + "]}]}", "{" + limits + ", descriptors: [{key: team, descriptors: [" + admin + ", " + any + "]}]}",
			"descriptor edge: team,path=/*/admin changed: patterns are tried in this order: path=/api/*, path=/*/admin -> path=/*/admin, path=/api/*"},
		{"another pattern", "{" + limits + ", descriptors: [{key: user, value: '*', limit: one}]}", "{" + limits + ", descriptors: [{key: user, value: '*a*', limit: one}]}",
			"descriptor edge: user=* changed: matched edge/one, now matches no limit"},
		{"max_override", "{" + limits + ", " + at + "}", "{" + limits + ", descriptors: [{key: user, limit: one, max_override: {unit: minute, requests_per_unit: 5}}]}",
			"descriptor edge: user changed: max_override: none -> fixed window: 5 in each 1m, starting with the clock (UTC)"},
		{"auth", "{" + limits + ", " + at + "}", auth("", first), "section auth added: route added: any method /a -> domain edge: user=header:X-User"},
		{"no auth", auth("", first), "{" + limits + ", " + at + "}", "section auth removed: /v1/auth denies every request"},
		{"a fixed value", auth("", first), auth("", fixed), `section auth changed: route removed: any method /a -> domain edge: user=header:X-User; route added: any method /a -> domain edge: user="header:X-User"`},
		{"another route", auth("", first), auth("", first+", "+second), "section auth changed: route added: GET /a -> domain edge: user=client_ip"},
		{"the order of routes", auth("", first+", "+second), auth("", second+", "+first), "section auth changed: the order of routes changed: the first that matches is used"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, c := range Compare(compiled(t, test.was), compiled(t, test.is)) {
				got = append(got, fmt.Sprintf("%s %s %s: %s", c.What, c.Name, c.Kind, strings.Join(c.Details, "; ")))
			}
			if !slices.Contains(got, test.want) {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

// With "hash_tag: entry:KEY", the keys of the former payer in Redis change, so its buckets start anew.
func TestAChangeOfThePayerIsShown(t *testing.T) {
	const with = `
domain: d
hash_tag: entry:user
limits:
  plan: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 100}
descriptors:
  - {key: user, limit: plan}
`
	changes := Compare(compiled(t, with), compiled(t, strings.Replace(with, ", then: credits", "", 1)))
	if text := fmt.Sprint(changes); len(changes) != 2 || !strings.Contains(text, "then: credits -> none") || !changes[0].Fresh {
		t.Errorf("got %+v; want two changes, the first one fresh with then: credits -> none", changes)
	}
	domain := strings.Replace(with, "entry:user", "domain", 1)
	changes = Compare(compiled(t, domain), compiled(t, strings.Replace(domain, ", then: credits", "", 1)))
	if len(changes) != 1 || changes[0].Fresh {
		t.Errorf("with hash_tag: domain: got %+v; want one change that is not fresh", changes)
	}
}
