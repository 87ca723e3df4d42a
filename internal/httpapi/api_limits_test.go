package httpapi

import (
	"encoding/json"
	"testing"

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
