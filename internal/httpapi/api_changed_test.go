package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// Requests with limits of 100 and of 10 an hour alternate. Together they must get the units of the larger
// limit, and no more.
func TestNumbersThatAlternateForgetNothing(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "fixed_window", "leaky_bucket"} {
		h, _ := onClock(t, func(a *API) { a.Inline = config.Inline })
		admitted := 0
		for i := range 1000 {
			rate, capacity := [...]int{100, 10}[i%2], [...]int{100, 10}[i%2]
			if algorithm == "leaky_bucket" {
				capacity-- // one unit is available at once
			}
			for _, path := range []string{"/v1/check", "/v1/limit"} {
				w := call(h, "POST", path, fmt.Sprintf(
					`{"domain":"edge","name":"own","config":{"algorithm":%q,"rate":%d,"period":"1h","capacity":%d}}`, algorithm, rate, capacity))
				if w.Code != 429 && path == "/v1/limit" {
					admitted++
				}
			}
		}
		if admitted != 100 {
			t.Errorf("%s: admitted %d, want 100", algorithm, admitted)
		}
	}
}

// Consumed units must stay consumed if a limit is lowered, denies, and is raised again.
func TestALimitThatIsRaisedAgainForgetsNothing(t *testing.T) {
	clock := &storetest.Clock{}
	clock.Set(storetest.Start)
	var l *limiter.Limiter
	h := apiOver(t, memory.New(memory.Config{Clock: clock.Time}), func(a *API) { l = a.Limiter })
	reload := func(capacity int) {
		t.Helper()
		text := fmt.Sprintf("domain: edge\nlimits:\n  send: {algorithm: token_bucket, rate: 100, period: 1h, capacity: %d}\n", capacity)
		s, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(text)}}, config.Options{})
		if problems.Bad() {
			t.Fatal(problems)
		}
		l.Swap(s)
	}
	admitted := 0
	for range 20 {
		for _, capacity := range []int{100, 1} {
			reload(capacity)
			for range 30 {
				if call(h, "POST", "/v1/limit", `{"name":"send"}`).Code == 200 {
					admitted++
				}
			}
		}
	}
	if admitted != 100 {
		t.Errorf("admitted %d, want 100", admitted)
	}
}

// Eight reservations are canceled late, when their bucket has refilled. The refunds must not admit more units at one
// moment than the capacity.
func TestLateCancellationsAdmitNoMoreThanTheCapacity(t *testing.T) {
	h, clock := onClock(t, func(a *API) { a.Inline = config.Inline })
	const own = `{"domain":"edge","name":"own","config":{"algorithm":"token_bucket","rate":10,"period":"1s","max_reserved":10}`
	var ids []string
	for i := range algorithms.Micros(8) {
		clock.Set(storetest.Start + i*algorithms.Second)
		ids = append(ids, reserve(t, h, own+`,"count":10,"reserve":true}`))
	}
	clock.Set(storetest.Start + 8*algorithms.Second)
	admitted := 0
	for i := 0; i <= len(ids); i++ {
		for call(h, "POST", "/v1/limit", own+`}`).Code == 200 {
			admitted++
		}
		if i == len(ids) {
			break
		}
		if w := call(h, "POST", "/v1/limit", settleBody(ids[i], "0")); w.Code != 200 {
			t.Fatalf("cancel: %d %s; want status 200", w.Code, w.Body)
		}
	}
	if admitted != 10 {
		t.Errorf("%d admitted at one moment; want 10, the capacity", admitted)
	}
}

// A settlement without a difference must be accepted and stored, even while the bucket is blocked or in debt.
func TestNothingToSettleIsAlwaysAccepted(t *testing.T) {
	const limits = `
domain: edge
limits:
  blocked: {algorithm: token_bucket, rate: 10, period: 1m, penalty: {after: 1, for: 1m, max: 1m}}
  in_debt: {algorithm: token_bucket, rate: 10, period: 1m, overdraw: true}
`
	snapshot, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(limits)}}, config.Options{})
	if problems.Bad() {
		t.Fatal(problems)
	}
	h, _ := onClock(t, func(a *API) { a.Limiter.Swap(snapshot) })
	for _, name := range []string{"blocked", "in_debt"} {
		id := reserve(t, h, `{"name":"`+name+`","count":5,"reserve":true}`)
		if w := call(h, "POST", "/v1/limit", `{"name":"`+name+`","count":9}`); w.Code != 429 {
			t.Fatalf("%s: got %d %s; want status 429", name, w.Code, w.Body)
		}
		for range 2 {
			if w := call(h, "POST", "/v1/limit", settleBody(id, "5")); w.Code != 200 {
				t.Errorf("%s: got %d %s; want status 200", name, w.Code, w.Body)
			}
		}
		if w := call(h, "POST", "/v1/limit", settleBody(id, "6")); w.Code != 409 || !strings.Contains(w.Body.String(), "settled with another count") {
			t.Errorf("%s, with another count: got %d %s; want status 409", name, w.Code, w.Body)
		}
	}
}

// If one limit of a list can never allow its cost, none of them may be charged, and the request_id must stay
// unused.
func TestACostThatNeverFitsChargesNothing(t *testing.T) {
	h, clock := onClock(t)
	script(t, h, clock,
		exchangeStep{0, "/v1/limit", `{"limits":[{"name":"credit","key":"a","count":4},{"name":"few","key":"a","count":4}],"request_id":"r"}`, 400,
			`limit "few": the cost is 4, but the limit can never hold more than 3`},
		exchangeStep{0, "/v1/check", `{"name":"credit","key":"a","count":0}`, 200,
			`{"ok":true,"limits":[{"name":"credit","key":"a","ok":true,"remaining":10,"limit":10,"reset_after_ms":0}]}`},
		exchangeStep{0, "/v1/limit", `{"name":"credit","key":"a","count":4,"request_id":"r"}`, 200,
			`{"ok":true,"limits":[{"name":"credit","key":"a","ok":true,"remaining":6,"limit":10,"reset_after_ms":24000}]}`},
	)
	var p problem
	w := call(h, "POST", "/v1/limit", `{"limits":[{"name":"credit","key":"b"},{"name":"few","key":"b","count":2},{"name":"few","key":"b","count":2}]}`)
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 400 || p.Detail != `limit "few": the cost is 4, but the limit can never hold more than 3` {
		t.Errorf("a limit named twice: got %d %s; want status 400 with the sum of the costs", w.Code, w.Body)
	}
}
