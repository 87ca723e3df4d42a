package httpapi

import (
	"encoding/json"
	"net/url"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func TestLimitsAreListedAndShown(t *testing.T) {
	h, clock := onClock(t)
	w := call(h, "GET", "/v1/limits", "")
	var list struct{ Limits []description }
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != 200 || len(list.Limits) != 14 {
		t.Fatalf("got %d %s; want status 200 and 14 limits", w.Code, w.Body)
	}
	if got := list.Limits[0]; got.Domain != "edge" || got.Name != "both" || list.Limits[13].Domain != "other" {
		t.Errorf("got %s; want the limits in the order of domain and name", w.Body)
	}
	call(h, "POST", "/v1/limit", `{"name":"tokens","key":["a","b"],"count":15,"reserve":true}`)
	clock.Set(storetest.Start + 1)
	script(t, h, clock,
		exchangeStep{1, "/v1/limits/tokens?key=a&key=b&domain=edge", "", 200,
			`{"domain":"edge","name":"tokens","algorithm":"token_bucket","rate":10,"period_us":60000000,"capacity":10,"max_reserved":20,"on_backend_failure":"deny",` +
				`"key":["a","b"],"remaining":0,"value":-29999999,"value_scale":6000000,"time_us":1767225600000001,"reset_after_ms":90000}`},
		exchangeStep{1, "/v1/limits/both?domain=other", "", 200,
			`{"domain":"other","name":"both","algorithm":"token_bucket","rate":1,"period_us":1000000,"capacity":1,"max_reserved":9007199253,"on_backend_failure":"deny",` +
				`"remaining":1,"value":1000000,"value_scale":1000000,"time_us":1767225600000001,"reset_after_ms":0}`},
		exchangeStep{1, "/v1/limits/nope", "", 404, `no limit is named "nope"`},
		exchangeStep{1, "/v1/limits/both", "", 400, `several domains have a limit named "both"; add the domain`},
		exchangeStep{1, "/v1/limits/send?x=1", "", 400, `unknown parameter x; valid are key, domain`},
		exchangeStep{1, "/v1/limits/send?domain=a&domain=b", "", 400, `domain occurs twice; send it once`},
		exchangeStep{1, "/v1/limits/send?key=%zz", "", 400, `the query cannot be parsed`},
	)
}

func TestABlockedBucketNamesTheReason(t *testing.T) {
	clock := storetest.NewClock()
	now := clock.Now
	l := limiter.New(memory.New(memory.Config{Clock: clock.Time}), limiter.Config{Now: now})
	l.Swap(authSnapshot(t, "domain: d\nlimits:\n  send: {algorithm: token_bucket, rate: 1, period: 1m, penalty: {after: 1, for: 5m, max: 1h}}\n"))
	target := adjust.Target{Domain: "d", Limit: "send", Key: []string{"by an operator"}}
	l.Adjust(adjust.NewSet(adjust.Head{}, []*adjust.Adjustment{{
		ID: target.ID(), Target: target, Change: adjust.Change{Block: true}, Algorithm: algorithms.TokenBucket,
		Expires: storetest.Start + algorithms.Day,
	}}), now)
	h := New(Config{API: &API{Limiter: l}})
	for range 2 { // the second request is denied, and begins the penalty
		call(h, "POST", "/v1/limit", `{"name":"send","key":"by a penalty"}`)
	}
	for key, want := range map[string]string{"by a penalty": "penalty", "by an operator": "adjustment", "nobody": ""} {
		w := call(h, "GET", "/v1/limits/send?key="+url.QueryEscape(key), "")
		var got struct {
			For int64  `json:"blocked_for_ms"`
			By  string `json:"blocked_by"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.By != want || (got.For > 0) != (want != "") {
			t.Errorf("%s: got %s (%v); want it blocked by %q", key, w.Body, err, want)
		}
	}
}
