package diff

import (
	"fmt"
	"strings"
	"testing"
)

func text(changes []Change) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%s %s %s at %s, anew: %t\n", c.What, c.Name, c.Kind, c.Place, c.Fresh)
		for _, d := range c.Details {
			fmt.Fprintf(&b, "\t%s\n", d)
		}
	}
	return b.String()
}

func TestChangesAreDescribed(t *testing.T) {
	const was = `
domain: edge
deny_body: openai
require: [user]
max_override: {unit: minute, requests_per_unit: 9}
limits:
  less: {algorithm: token_bucket, rate: 9, period: 1m}
  renamed: {algorithm: token_bucket, rate: 9, period: 1m, weights: {get: 1, post: 4}}
  gone: {algorithm: sliding_log, rate: 5, period: 1m}
  parts: {algorithm: token_bucket, rate: 90, period: 1m}
  log: {algorithm: sliding_log, rate: 9, period: 1m}
  more: {algorithm: token_bucket, rate: 9, period: 1m}
descriptors:
  - {key: user, limit: less}
  - {key: team, limit: less}
  - {key: both, limit: [less, renamed]}
  - {key: path, value: /a, rate_limit: {name: one, unit: minute, requests_per_unit: 5}}
  - {key: "k*", rate_limit: {unit: minute, requests_per_unit: 5}}
---
domain: left
descriptors: [{key: path, rate_limit: {unit: minute, requests_per_unit: 1}}]
`
	const is = `
domain: edge
limits:
  less: {algorithm: token_bucket, rate: 8, period: 1m}
  renamed: {algorithm: token_bucket, rate: 9, period: 1m}
  new: {algorithm: token_bucket, rate: 5, period: 1m, shadow_mode: true, on_backend_failure: local, local_share: 50%}
  quota: {algorithm: token_bucket, rate: 5, period: 1m, quota_mode: true}
  parts: {algorithm: token_bucket, rate: 80, period: 1m, shards: 2}
  log: {algorithm: sliding_log, rate: 8, period: 1m}
  more: {algorithm: token_bucket, rate: 10, period: 1m}
descriptors:
  - {key: user, shadow_mode: true, limit: less}
  - {key: team, limit: less}
  - {key: both, limit: [renamed, less]}
  - {key: path, value: /a, rate_limit: {name: two, unit: minute, requests_per_unit: 5}}
  - {key: "k*", metadata: {a: 1}, rate_limit: {unit: minute, requests_per_unit: 5, replaces: [{name: two}]}}
---
domain: other
descriptors: [{key: path, rate_limit: {unit: minute, requests_per_unit: 1}}]
`
	const want = `
domain edge changed at , anew: false
	require: user -> nothing
	deny_body: openai -> none
	max_override: fixed window: 9 in each 1m, starting with the clock (UTC) -> none
domain left removed at , anew: false
	Requests of this domain are not limited any more.
domain other added at , anew: false
limit edge/#max_override removed at test.yaml:5, anew: false
	was fixed window: 9 in each 1m, starting with the clock (UTC)
limit edge/gone removed at test.yaml:9, anew: false
	was sliding log: 5 in any 1m, exactly
limit edge/k* changed at test.yaml:16, anew: false
	metadata: map[] -> map[a:1]
	replaces: nothing -> two
limit edge/less changed at test.yaml:4, anew: false
	numbers: token bucket: 9 per 1m, up to 9 at once -> token bucket: 8 per 1m, up to 8 at once
	Consumption is kept: what was used stays used.
	A client that has used more than the new limit holds is denied until the excess has refilled.
	shadow_mode: off -> on (descriptor edge.user)
limit edge/log changed at test.yaml:9, anew: false
	numbers: sliding log: 9 in any 1m, exactly -> sliding log: 8 in any 1m, exactly
	Consumption is kept: what was used stays used.
limit edge/more changed at test.yaml:10, anew: false
	numbers: token bucket: 9 per 1m, up to 9 at once -> token bucket: 10 per 1m, up to 10 at once
	Consumption is kept: what was used stays used.
limit edge/new added at test.yaml:6, anew: false
	token bucket: 5 per 1m, up to 5 at once
	shadow_mode: on
	on_backend_failure: local, a share of 0.5
limit edge/parts changed at test.yaml:8, anew: true
	numbers: token bucket: 90 per 1m, up to 90 at once -> token bucket: 80 per 1m, up to 80 at once
	shards: 1 -> 2
	The buckets start anew: each client gets up to one capacity more, once.
limit edge/two changed at test.yaml:15, anew: false
	name: edge/one -> edge/two
limit edge/quota added at test.yaml:7, anew: false
	token bucket: 5 per 1m, up to 5 at once
	quota_mode: on
limit edge/renamed changed at test.yaml:5, anew: false
	weights: get: 1, post: 4 -> none
limit left/path removed at test.yaml:21, anew: false
	was fixed window: 1 in each 1m, starting with the clock (UTC)
limit other/path added at test.yaml:19, anew: false
	fixed window: 1 in each 1m, starting with the clock (UTC)
descriptor edge: path=/a changed at , anew: false
	matched edge/one, now matches edge/two
`
	if got := text(Compare(compiled(t, was), compiled(t, is))); got != strings.TrimPrefix(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestUsesOfLimitsAreCompared(t *testing.T) {
	const inline = "rate_limit: {unit: minute, requests_per_unit: 5}"
	file := func(descriptors string) string {
		return "{domain: edge, limits: {one: {algorithm: token_bucket, rate: 1, period: 1m}, two: {algorithm: token_bucket, rate: 2, period: 1m}}, descriptors: [" + descriptors + "]}"
	}
	const anew = "\n\t" + fresh
	for _, test := range []struct{ name, was, is, want string }{
		{"another limit before an inline one", "{key: team, " + inline + "}", "{key: team, limit: one, " + inline + "}",
			"descriptor edge: team changed at , anew: false\n\tmatched edge/team, now matches edge/one and edge/team"},
		{"another order", "{key: user, limit: [one, two]}", "{key: user, limit: [two, one], shadow_mode: true}",
			"limit edge/one changed at test.yaml:1, anew: false\n\tshadow_mode: off -> on (descriptor edge.user)\n" +
				"limit edge/two changed at test.yaml:1, anew: false\n\tshadow_mode: off -> on (descriptor edge.user)"},
		{"an expression", `{key: user, value_regex: "a+"}`, `{key: user, value_regex: "a+", limit: one}`,
			"descriptor edge: user~a+ changed at , anew: false\n\tmatched no limit, now matches edge/one"},
		{"a new expression", `{key: user, limit: one}`, `{key: user, limit: one}, {key: user, value_regex: "a+"}`,
			"descriptor edge: user~a+ added at , anew: false\n\tmatches no limit"},
		{"a value before an expression", `{key: user, value_regex: "a+", descriptors: [{key: path, limit: one}]}`,
			`{key: user, value: aa}, {key: user, value_regex: "a+", descriptors: [{key: path, limit: one}]}`,
			"descriptor edge: user=aa,path changed at , anew: false\n\tmatched edge/one, now matches no limit"},
		{"a key before one with a star", `{key: team, descriptors: [{key: "u*", descriptors: [{key: path, limit: one}]}]}`,
			`{key: team, descriptors: [{key: user, value: a}, {key: "u*", descriptors: [{key: path, limit: one}]}]}`,
			"descriptor edge: team,user=a,path changed at , anew: false\n\tmatched edge/one, now matches no limit"},
		{"the values of a shared bucket", `{key: user, value: a, limit: one}`, `{key: user, limit: one}`,
			"descriptor edge: user changed at , anew: false\n\tmatched no limit, now matches edge/one\n" +
				"descriptor edge: user=a changed at , anew: true\n\tedge/one: a bucket for each: limit -> user" + anew},
		{"another limit of the same name", "{key: user, value_prefix: a, " + inline + "}", "{key: user, value: a*, " + inline + "}",
			"limit edge/user_a* added at test.yaml:1, anew: false\n\tfixed window: 5 in each 1m, starting with the clock (UTC)\n" +
				"limit edge/user_a* removed at test.yaml:1, anew: false\n\twas fixed window: 5 in each 1m, starting with the clock (UTC)\n" +
				"descriptor edge: user=a* changed at , anew: true\n\tedge/user_a* is another limit than before" + anew},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := text(Compare(compiled(t, file(test.was)), compiled(t, file(test.is)))); got != test.want+"\n" {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestRoutesAreDescribed(t *testing.T) {
	file := func(auth string) string {
		return "{domain: edge, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}], auth: {" + auth + "}}"
	}
	route := func(settings string) string {
		return "routes: [{" + settings + "descriptors: [[{key: user, from: path}]]}]"
	}
	const section, entry = "section auth changed at , anew: false\n", " -> domain edge: user=path"
	for _, test := range []struct{ was, is, want string }{
		{"", route(""), "\troute added: any method /*" + entry + "\n"},
		{route(""), "", "\troute removed: any method /*" + entry + "\n"},
		{route("match: {path: /}, "), route(""), "\troute removed: any method /" + entry + "\n\troute added: any method /*" + entry + "\n"},
		{"", route("match: {path: '/*'}, "), "\troute added: any method /*" + entry + "\n"},
		{"", route("match: {path: '/a*', method: POST, host: h.test}, "), "\troute added: POST h.test/a*" + entry + "\n"},
		{"", route("match: {'header:X-Kind': 'web*', 'header:X-B': b}, "), "\troute added: any method /* with X-Kind: web* with X-B: b" + entry + "\n"},
		{"", route("match: {path: /a}, path_ignores: [case, backslash], "), "\troute added: any method /a (path_ignores: case, backslash)" + entry + "\n"},
		{"", route("match: {path: /a}, path_ignores: [parameters, trailing_slash], "), "\troute added: any method /a (path_ignores: trailing_slash, parameters)" + entry + "\n"},
		{"", route("hits: 3, check: true, "), "\troute added: any method /*" + entry + ", 3 hits, nothing is consumed\n"},
		{
			"", "routes: [{descriptors: [[{key: user, from: 'header:X-User'}, {key: k, value: v}], [{key: user, from: client_ip}]]}]",
			"\troute added: any method /* -> domain edge: user=header:X-User,k=\"v\"; user=client_ip\n",
		},
		{"", "default: allow, trusted_proxies: [10.0.0.0/8, unix], ipv6_prefix: 56", "\tdefault: deny -> allow\n\ttrusted_proxies: [] unix: false -> [10.0.0.0/8] unix: true\n\tipv6_prefix: 64 -> 56\n"},
	} {
		if got := text(Compare(compiled(t, file(test.was)), compiled(t, file(test.is)))); got != section+test.want {
			t.Errorf("from %q to %q:\n%s\nwant\n%s", test.was, test.is, got, section+test.want)
		}
	}
}

func TestManyMovedDescriptorsAreBounded(t *testing.T) {
	file := func(limit string) string {
		var b strings.Builder
		b.WriteString("domain: edge\nlimits: {one: {algorithm: token_bucket, rate: 1, period: 1s}, two: {algorithm: token_bucket, rate: 2, period: 1s}}\ndescriptors:\n")
		for i := range maxMoved + 1 {
			fmt.Fprintf(&b, "  - {key: k, value: v%04d, limit: %s}\n", i, limit)
		}
		return b.String()
	}
	changes := Compare(compiled(t, file("one")), compiled(t, file("two")))
	if len(changes) != maxMoved || changes[0].Name != "edge: k=v0000" || changes[0].Details[0] != "matched edge/one, now matches edge/two" {
		t.Errorf("%d changes, the first %+v; want %d, of edge: k=v0000", len(changes), changes[0], maxMoved)
	}
}
