package httpapi

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

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

type observed struct{ arrived []bool }

func (*observed) Swapped(*limiter.Snapshot) {}

func (o *observed) Observe(c *limiter.Call) { o.arrived = append(o.arrived, !c.Arrived.IsZero()) }

// The limits here have a payer, a calendar, an adjustment to unlimited, or a penalty that an adjustment of the
// numbers must not remove. Answers and the list of limits must show these. Each call must have a time of arrival,
// which the metrics need.
func TestAnswersOfSpecialLimits(t *testing.T) {
	clock, observer := &storetest.Clock{}, &observed{}
	clock.Set(storetest.Start)
	l := limiter.New(memory.New(memory.Config{Clock: clock.Time}), limiter.Config{Now: clock.Now, Observer: observer})
	l.Swap(authSnapshot(t, `
domain: d
hash_tag: domain
limits:
  plan:    {algorithm: token_bucket, rate: 1, period: 1h, then: credits}
  credits: {algorithm: token_bucket, rate: 5, period: 24h}
  free:    {algorithm: token_bucket, rate: 1, period: 1h, penalty: {after: 1, for: 5m, max: 1h}}
  daily:   {algorithm: fixed_window, rate: 9, period: day, time_zone: Europe/Berlin}
`))
	target := adjust.Target{Domain: "d", Limit: "free", Key: []string{"k"}}
	other := adjust.Target{Domain: "d", Limit: "free", Key: []string{"more"}}
	blocked := adjust.Target{Domain: "d", Limit: "free", Key: []string{"blocked"}}
	l.Adjust(adjust.NewSet(adjust.Head{}, []*adjust.Adjustment{
		{ID: target.ID(), Target: target, Change: adjust.Change{Unlimited: true}, Algorithm: algorithms.TokenBucket, Expires: storetest.Start + algorithms.Day},
		{ID: other.ID(), Target: other, Change: adjust.Change{Factor: 2000}, Algorithm: algorithms.TokenBucket, Expires: storetest.Start + algorithms.Day},
		{ID: blocked.ID(), Target: blocked, Change: adjust.Change{Block: true}, Algorithm: algorithms.TokenBucket, Expires: storetest.Start + algorithms.Day},
	}), clock.Now)
	h := New(Config{API: &API{Limiter: l}})
	script(t, h, clock,
		exchangeStep{0, "/v1/limit", `{"name":"plan","key":"k"}`, 200, `{"ok":true,"limits":[{"name":"plan","key":"k","ok":true,"remaining":0,"limit":1,"reset_after_ms":3600000}]}`},
		exchangeStep{0, "/v1/limit", `{"name":"plan","key":"k"}`, 200, `{"ok":true,"limits":[{"name":"plan","key":"k","payer":"credits","ok":true,"remaining":4,"limit":5,"reset_after_ms":17280000}]}`},
	)
	for range 3 {
		if w := call(h, "POST", "/v1/limit", `{"name":"free","key":"k"}`); w.Code != 200 || !strings.Contains(w.Body.String(), `"key":"k","ok":true,`) {
			t.Errorf("made unlimited: got %d %s; want status 200, and ok true for the limit", w.Code, w.Body)
		}
	}
	for range 3 { // the third request is denied, and begins the penalty
		call(h, "POST", "/v1/limit", `{"name":"free","key":"more"}`)
	}
	for key, want := range map[string]string{"more": "penalty", "blocked": "adjustment", "nobody": ""} {
		w := call(h, "GET", "/v1/limits/free?key="+key, "")
		var got struct {
			For int64  `json:"blocked_for_ms"`
			By  string `json:"blocked_by"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.By != want || (got.For > 0) != (want != "") {
			t.Errorf("%s: got %s (%v); want it blocked by %q", key, w.Body, err, want)
		}
	}
	all := call(h, "GET", "/v1/limits", "").Body.String()
	for _, want := range []string{`"calendar":"day","time_zone":"Europe/Berlin"`, `"then":"credits"`} {
		if !strings.Contains(all, want) {
			t.Errorf("the list of limits: got %s; want it to contain %s", all, want)
		}
	}
	for i, arrived := range observer.arrived {
		if !arrived {
			t.Errorf("call %d has no time of arrival", i)
		}
	}
	if len(observer.arrived) == 0 {
		t.Error("no call was observed")
	}
}

func TestJitterIsNeverEarly(t *testing.T) {
	h, _ := onClock(t)
	call(h, "POST", "/v1/limit", `{"name":"tokens","key":"a","count":10}`)
	seen := map[int64]bool{}
	for range 50 {
		w := call(h, "POST", "/v1/limit", `{"name":"tokens","key":"a","jitter":2000}`)
		var answer apiReply
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 429 {
			t.Fatalf("got %d %s, %v; want status 429", w.Code, w.Body, err)
		}
		if at := answer.RetryAfter; at < 6000 || at > 8000 || answer.Limits[0].RetryAfter != at {
			t.Errorf("got %s; want a retry time of 6 to 8 s, also in the limit", w.Body)
		}
		if header := w.Header().Get("Retry-After"); header < "6" || header > "8" {
			t.Errorf("got Retry-After %s with %s; want 6 to 8", header, w.Body)
		}
		seen[answer.RetryAfter] = true
	}
	if len(seen) < 10 {
		t.Errorf("50 answers have %d different times; want at least 10", len(seen))
	}
	w := call(h, "POST", "/v1/limit", `{"name":"tokens","key":"b","jitter":2000}`)
	if w.Code != 200 || strings.Contains(w.Body.String(), "wait") {
		t.Errorf("an answer without a wait: got %d %s; want status 200 and no wait", w.Code, w.Body)
	}
	w = call(h, "POST", "/v1/limit", `{"name":"tokens","key":"a","count":1,"reserve":true,"jitter":2000}`)
	var answer apiReply
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 202 || answer.Wait < 6000 || answer.Wait > 8000 || answer.Limits[0].Wait != answer.Wait {
		t.Errorf("got %v, %v, %v; want status 202 and a wait of 6 to 8 s, also in the limit", w.Code, w.Body, err)
	}
}

// A client that repeats a denied request with its id must get the same jitter. Otherwise the smallest of many
// answers would reveal the exact time.
func TestJitterOfARequestWithAnIDIsTheSame(t *testing.T) {
	h, _ := onClock(t)
	call(h, "POST", "/v1/limit", `{"name":"tokens","key":"a","count":10}`)
	retry := func(id string) int64 {
		w := call(h, "POST", "/v1/limit", `{"name":"tokens","key":"a","jitter":1000000,"request_id":"`+id+`"}`)
		var answer apiReply
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 429 {
			t.Fatalf("got %d %s, %v; want status 429", w.Code, w.Body, err)
		}
		if want := fmt.Sprint(int64(math.Ceil(float64(answer.RetryAfter) / 1000))); sent(w, "Retry-After") != want {
			t.Errorf("Retry-After %s, and retry_after_ms %d; want Retry-After %s", sent(w, "Retry-After"), answer.RetryAfter, want)
		}
		return answer.RetryAfter
	}
	first, other := retry("r1"), retry("r2")
	for range 5 {
		if again := retry("r1"); again != first {
			t.Errorf("got the retry time %d; want %d as before", again, first)
		}
	}
	if first == other {
		t.Errorf("two requests have the same jitter, %d", first)
	}
}
