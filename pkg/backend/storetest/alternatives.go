package storetest

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func alternativesPay(t *testing.T, clock *Clock, store backend.Store) {
	t.Helper()
	plan, credits := token(10, minute, 10), window(20, algorithms.Day)
	plan.Key, credits.Key, plan.Then = []byte("plan"), []byte("credits"), true
	request := func(cost int64, more ...backend.Charge) []backend.Charge {
		group := append([]backend.Charge{plan, credits}, more...)
		group[0].Terms.Cost, group[1].Terms.Cost = cost, cost
		return group
	}
	const none = -1 // the credits are not needed
	for i, step := range []struct {
		cost                   int64
		byPlan, byCredits      bool
		planLeft, creditsLeft  int64
		planRetry, creditRetry algorithms.Micros
	}{
		{cost: 6, byPlan: true, planLeft: 4, creditsLeft: none},
		{cost: 6, byCredits: true, planLeft: 4, creditsLeft: 14, planRetry: 12 * algorithms.Second},
		{cost: 12, byCredits: true, planLeft: 4, creditsLeft: 2},
		{cost: 4, byPlan: true, planLeft: 0, creditsLeft: none},
		{cost: 3, planLeft: 0, creditsLeft: 2, planRetry: 18 * algorithms.Second, creditRetry: algorithms.Day},
		{cost: 3, planLeft: 0, creditsLeft: 2, planRetry: 18 * algorithms.Second, creditRetry: algorithms.Day},
		{cost: 0, byPlan: true, planLeft: 0, creditsLeft: none},
		{cost: 2, byCredits: true, planLeft: 0, creditsLeft: 0, planRetry: 12 * algorithms.Second},
	} {
		group := request(step.cost)
		d := take(store, group...)
		switch {
		case d[0].Err != nil || d[1].Err != nil:
			t.Fatalf("step %d: %v, %v", i, d[0].Err, d[1].Err)
		case d[0].Allowed != step.byPlan || d[1].Allowed != step.byCredits || backend.Allowed(group, d) != (step.byPlan || step.byCredits):
			t.Errorf("step %d, %+v: got %+v", i, step, d)
		case d[0].Remaining != step.planLeft || d[0].RetryAfter != step.planRetry || d[1].RetryAfter != step.creditRetry:
			t.Errorf("step %d, %+v: got %+v", i, step, d)
		case step.creditsLeft == none && d[1].Decision != algorithms.Decision{}:
			t.Errorf("step %d, %+v: the credits must not be charged: %+v", i, step, d[1])
		case step.creditsLeft != none && d[1].Remaining != step.creditsLeft:
			t.Errorf("step %d, %+v: got %+v", i, step, d)
		}
	}
	clock.Set(clock.Now() + 18*algorithms.Second)
	if d := take(store, request(3)...); !d[0].Allowed {
		t.Errorf("at the time of the retry: got %+v, want the plan to allow", d)
	}

	for _, key := range []*[]byte{&plan.Key, &credits.Key} {
		*key = append([]byte("second "), *key...)
	}
	other := token(1, minute, 1)
	other.Key = []byte("beside credits")
	if d := take(store, request(12, other)...); d[0].Allowed || !d[1].Allowed || !d[2].Allowed {
		t.Errorf("beside another limit: got %+v, want the plan to deny, and the credits and the other limit to allow", d)
	}
	if d := take(store, request(8, other)...); !d[0].Allowed || d[2].Allowed || d[1].Decision != (algorithms.Decision{}) {
		t.Errorf("the other limit denies: got %+v, want the plan to allow, and a zero decision of the credits", d)
	}
	if d := take(store, request(11, other)...); !d[0].Never || d[1].Allowed || d[1].Remaining != 8 {
		t.Errorf("both deny: got %+v, want Never from the plan, and credits that deny with 8 left", d)
	}
	dry := request(5)
	dry[0].Terms.Cost, dry[1].Terms.Cost, dry[0].Terms.DryRun, dry[1].Terms.DryRun = 11, 5, true, true
	if d := take(store, dry...); d[0].Allowed || !d[1].Allowed {
		t.Errorf("a dry run: got %+v, want the plan to deny and the credits to allow", d)
	}
	expect(t, store, plan, 0, true, 10, 0)
	expect(t, store, credits, 0, true, 8, 0)

	first := take(store, withID(60, request(6)...)...)
	if !first[0].Allowed || first[0].Remaining != 4 {
		t.Fatalf("under an id: got %+v, want the plan to allow with 4 left", first)
	}
	second := take(store, withID(61, request(5)...)...)
	clock.Set(clock.Now() + minute)
	for id, was := range map[byte][]backend.Decision{60: first, 61: second} { // by now the plan could pay for both
		again := take(store, withID(id, request(int64(66-id))...)...)
		if !again[0].Replayed || again[0].Decision != was[0].Decision || again[1].Decision != was[1].Decision {
			t.Errorf("the repeat of id %d: got %+v, want the first decision, %+v", id, again, was)
		}
	}
	expect(t, store, credits, 0, true, 3, 0)

	namesPayer(t, clock, store)

	plan, credits = window(300, algorithms.Day), window(200, algorithms.Day)
	plan.Key, credits.Key, plan.Then = []byte("crowded plan"), []byte("crowded credits"), true
	if n := hammer(store, 16, 100, plan, credits); n != 500 {
		t.Errorf("admitted %d of 1600, want exactly 500", n)
	}
}

// namesPayer sends groups that also name the bucket of the payer: Own of the credits is charged in any case.
func namesPayer(t *testing.T, clock *Clock, store backend.Store) {
	t.Helper()
	for i, test := range []struct {
		plan, credits int64 // units before the group
		cost, own     int64
		allowed       bool
		planLeft      int64
		creditsLeft   int64
		retry         algorithms.Micros // of the credits
	}{
		{plan: 10, credits: 15, cost: 10, own: 10, allowed: true, planLeft: 0, creditsLeft: 5},
		{plan: 0, credits: 15, cost: 10, own: 10, planLeft: 0, creditsLeft: 15, retry: minute},
		{plan: 0, credits: 20, cost: 10, own: 10, allowed: true, planLeft: 0, creditsLeft: 0},
		{plan: 10, credits: 9, cost: 10, own: 10, planLeft: 10, creditsLeft: 9, retry: 60 * minute},
		{plan: 9, credits: 0, cost: 10, own: 1, planLeft: 9, creditsLeft: 0, retry: 60 * minute},
		{plan: 10, credits: 5, cost: 5, own: -900, allowed: true, planLeft: 5, creditsLeft: 905},
		{plan: 0, credits: 0, cost: 5, own: -900, allowed: true, planLeft: 0, creditsLeft: 895},
		{plan: 10, credits: 0, cost: 5, own: 0, allowed: true, planLeft: 5, creditsLeft: 0},
	} {
		plan, credits := token(10, minute, 10), token(1, 60*minute, 1000)
		plan.Key, credits.Key = fmt.Appendf(nil, "named plan %d", i), fmt.Appendf(nil, "named credits %d", i)
		plan.Terms.Cost, credits.Terms.Cost = 10-test.plan, 1000-test.credits
		take(store, plan, credits)
		plan.Then, plan.Terms.Cost = true, test.cost
		credits.Own, credits.Terms.Cost = &algorithms.Own{Cost: test.own}, test.own+test.cost
		group := []backend.Charge{plan, credits}
		check := []backend.Charge{plan, credits}
		check[0].Terms.DryRun, check[1].Terms.DryRun = true, true
		dry, d := take(store, check...), take(store, withID(byte(100+i), group...)...)
		if got := backend.Allowed(group, d); got != test.allowed || backend.Allowed(check, dry) != got || d[1].RetryAfter != test.retry || dry[1].RetryAfter != test.retry {
			t.Errorf("step %d, %+v: got %+v, a dry run %+v", i, test, d, dry)
		}
		if again := take(store, withID(byte(100+i), group...)...); test.allowed && (!again[0].Replayed || again[1].Decision != d[1].Decision) {
			t.Errorf("step %d: the repeat got %+v, want the first decision, %+v", i, again, d)
		}
		plan.Then, credits.Own = false, nil
		expect(t, store, plan, 0, true, test.planLeft, 0)
		expect(t, store, credits, 0, true, test.creditsLeft, 0)
		if !test.allowed {
			clock.Set(clock.Now() + test.retry - 1)
			if d := take(store, group...); backend.Allowed(group, d) {
				t.Errorf("step %d, 1 us before the retry: got %+v, want a denial", i, d)
			}
			clock.Set(clock.Now() + 1)
			if d := take(store, group...); !backend.Allowed(group, d) {
				t.Errorf("step %d, at the time of the retry: got %+v, want it allowed", i, d)
			}
		}
	}
}
