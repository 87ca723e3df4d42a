package scenario

import (
	"strings"
	"testing"
)

const budgets = `
domain: ai
settle: {key: settle, end: settle_end}
limits:
  tokens: {algorithm: token_bucket, rate: 60, period: 1m, capacity: 1000, settle: {estimate: 100, most: 500, unknown_cost: 200, ttl: 1m, max_debt: 50}}
  calls: {algorithm: fixed_window, rate: 10, period: 1h}
descriptors:
  - {key: user, limit: tokens}
  - {key: app, limit: calls}
`

func TestScenariosReserveAndSettle(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]string{
		"an estimate, and the real cost, which is settled once": {
			`{descriptors: ["user=bob", "app=x"], reserves: call, expect: {ok: true, reserved: 100, remaining: 9, limits: [{name: tokens, reserved: 100, remaining: 900}, {name: calls, reserved: 0}]}}`,
			`{done: call, hits: 30, expect: {settlement: settled, cost: 30, lost: 0, remaining: 970}}`,
			`{done: call, hits: 900, expect: {ok: true, settlement: repeated, cost: 0}}`,
			`{descriptors: ["user=bob"], check: true, expect: {remaining: 870}}`,
		},
		"declared hits": {
			`{descriptors: ["user=bob"], hits: 400, reserves: a, expect: {reserved: 400}}`,
			`{descriptors: [{entries: "user=bob", hits: 9000}], reserves: b, expect: {reserved: 500, remaining: 100}}`,
			`{descriptors: ["user=bob"], hits: 101, expect: {ok: false, reserved: 0}}`,
		},
		"no real cost": {
			`{descriptors: ["user=bob"], reserves: call, expect: ok}`,
			`{at: 1s, done: call, expect: {settlement: unknown, cost: 200, remaining: 801}}`,
		},
		"too late for a refund": {
			`{descriptors: ["user=bob"], hits: 500, reserves: call, expect: {remaining: 500}}`,
			`{at: 61s, done: call, hits: 1, expect: {settlement: late, cost: 1, remaining: 561}}`,
		},
		"beyond max_debt": {
			`{descriptors: ["user=bob"], reserves: call, expect: {remaining: 900}}`,
			`{done: call, hits: 2000, expect: {settlement: settled, cost: 2000, lost: 950, remaining: 0}}`,
			`{descriptors: ["user=bob"], expect: {ok: false, retry_after: 2m30s}}`,
		},
		"a denied request reserves nothing": {
			`{descriptors: ["user=bob"], hits: 500, times: 2, expect: ok}`,
			`{descriptors: ["user=bob"], reserves: call, expect: {ok: false, reserved: 0}}`,
			`{done: call, hits: 900, expect: {ok: true, settlement: none, cost: 0}}`,
		},
		"forged ids": {
			`{descriptors: ["settle=made-up", "settle_end=made-up"], hits: 900, expect: {ok: true, settlement: forged}}`,
			`{descriptors: ["user=bob"], expect: {remaining: 900}}`,
		},
		"parallel calls": {
			`{descriptors: ["user=bob"], times: 10, reserves: calls, expect: {reserved: 100}}`,
			`{descriptors: ["user=bob"], expect: denied}`,
			`{at: 1s, done: calls, hits: 10, times: 10, expect: {settlement: settled, cost: 10}}`,
			`{at: 1s, descriptors: ["user=bob"], expect: {ok: true, remaining: 801}}`,
		},
	} {
		if got := failures(t, budgets, steps...); len(got) > 0 {
			t.Errorf("%s: got the failures\n%s\nwant none", name, strings.Join(got, "\n"))
		}
	}
}

func TestFailedSettlementsAreDescribed(t *testing.T) {
	t.Parallel()
	const start = `{descriptors: ["user=bob"], reserves: call, expect: ok}`
	for _, test := range []struct{ step, want string }{
		{`{done: call, hits: 30, expect: {settlement: unknown, cost: 200, lost: 1}}`, "6:7: at 0s: expected settlement unknown, cost 200, lost 1, got ok, settlement settled, cost 30, lost 0, remaining 970"},
		{`{descriptors: ["user=bob"], expect: {reserved: 7}}`, "6:7: at 0s: expected reserved 7, got ok, reserved 100, remaining 800"},
		{`{done: cal, expect: ok}`, "6:7: at 0s: no step before has reserves: cal"},
		{`{done: call, times: 2, expect: ok}`, "6:7: at 0s, request 2 of 2: reserves: call has reserved 1 times, and this is request 2"},
		{`{descriptors: ["settle=x"], expect: {settlement: none}}`, "6:7: at 0s: expected settlement none, got ok, settlement forged, cost 0, lost 0"},
	} {
		if got := strings.Join(failures(t, budgets, start, test.step), "\n"); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", test.step, got, test.want)
		}
	}
	for step, want := range map[string]string{
		`{done: a, descriptors: ["a=b"], expect: ok}`:    "a step needs descriptors, limits or done: one of the three",
		`{done: a, check: true, expect: ok}`:             "done cannot be combined with check",
		`{limits: [{name: x}], reserves: a, expect: ok}`: "reserves needs descriptors",
		`{done: a, expect: {settlement: paid}}`:          "settlement must be one of settled, unknown, late, repeated, none, forged, foreign, changed",
	} {
		if _, problems := Parse("s.yaml", []byte("config: c\nscenarios:\n- name: n\n  steps:\n  - "+step)); !strings.Contains(problems.Error(), want) {
			t.Errorf("%s: got %v; want %s", step, problems, want)
		}
	}
}
