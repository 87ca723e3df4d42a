package httpapi

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestLimitsThatComeWithRequests(t *testing.T) {
	h, clock := onClock(t, func(a *API) { a.Inline = config.Inline })
	const own = `"config":{"algorithm":"token_bucket","rate":2,"period":"1m","max_reserved":3}`
	post := func(rest string) string { return `{"domain":"edge","name":"own","key":"a",` + own + rest + `}` }
	id := reserve(t, h, `{"domain":"edge","name":"own","key":"b","count":4,"reserve":true,`+own+`}`)
	script(t, h, clock,
		exchangeStep{0, "/v1/limit", post(``), 200, `{"ok":true,"limits":[{"name":"own","key":"a","ok":true,"remaining":1,"limit":2,"reset_after_ms":30000}]}`},
		exchangeStep{0, "/v1/limit", post(`,"count":2`), 429, `{"ok":false,"retry_after_ms":30000,"limits":[{"name":"own","key":"a","ok":false,"remaining":1,"limit":2,"reset_after_ms":30000,"retry_after_ms":30000}]}`},
		exchangeStep{0, "/v1/limit", post(`,"count":6,"reserve":true`), 400, `limit "own": the cost is 6, but the limit can never hold more than 5`},
		exchangeStep{0, "/v1/limit", settleBody(id, "1"), 200, `{"ok":true,"limits":[{"name":"own","key":"b","ok":true,"remaining":1,"limit":2,"reset_after_ms":30000}]}`},
		// If the next request has a limit with other numbers, consumed units must stay consumed, as for limits
		// in a file. A request of 0 units converts nothing, so the bucket still fills by its old numbers.
		exchangeStep{0, "/v1/limit", `{"domain":"edge","name":"own","key":"a","count":0,"config":{"algorithm":"token_bucket","rate":10,"period":"1m"}}`, 200,
			`{"ok":true,"limits":[{"name":"own","key":"a","ok":true,"remaining":9,"limit":10,"reset_after_ms":30000}]}`},
		exchangeStep{0, "/v1/limit", post(`,"request_id":"r"`), 200, `{"ok":true,"limits":[{"name":"own","key":"a","ok":true,"remaining":0,"limit":2,"reset_after_ms":60000}]}`},
		exchangeStep{0, "/v1/limit", strings.Replace(post(`,"request_id":"r"`), "1m", "2m", 1), 422, `request_id: it was used for another request; use a new one for each request`},
	)
	for config, want := range map[string]string{
		`{"algorithm":"token_bucket","rate":0,"period":"1m"}`:                    `rate must be at least 1, but is 0`,
		`{"rate":1,"period":"1m"}`:                                               `algorithm is missing; write one of concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket`,
		`{"algorithm":"fixed_window","rate":1,"period":"1m","rate":2}`:           `key "rate" occurs twice`,
		`{"algorithm":"sliding_log","rate":20000,"period":"1m"}`:                 `rate must be at most 10000 for sliding_log`,
		`{"algorithm":"token_bucket","rate":1,"period":"1m","shadow_mode":true}`: `unknown field "shadow_mode"`,
		`{"unit":"minute","requests_per_unit":1}`:                                `unknown field "requests_per_unit"`,
	} {
		w := call(h, "POST", "/v1/limit", `{"domain":"edge","name":"own","config":`+config+`}`)
		var p problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 400 || !strings.HasPrefix(p.Detail, `config of limit "own": `+want) {
			t.Errorf("%s: %d %s (%v), want %s", config, w.Code, p.Detail, err, want)
		}
	}
	for body, want := range map[string]string{
		`{"name":"own",` + own + `}`:                  `there are several domains; add the domain`,
		`{"domain":"nope","name":"own",` + own + `}`:  `domain "nope" is not configured`,
		`{"domain":"edge","name":"send",` + own + `}`: `limit "send" is in the configuration, and a request cannot replace it; leave out config, or choose another name`,
	} {
		if w := call(h, "POST", "/v1/limit", body); !strings.Contains(w.Body.String(), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("%s: got %d %s; want the text %s", body, w.Code, w.Body, want)
		}
	}
}

// TestCompiledLimitsOfRequests checks which limits that came with requests share a compiled form: those with the same
// domain, name and text, while the configuration stays the same.
func TestCompiledLimitsOfRequests(t *testing.T) {
	a := &API{Limiter: limiter.New(memory.New(memory.Config{}), limiter.Config{}), Inline: config.Inline}
	compile := func(domain, name, text string) *limiter.Policy {
		t.Helper()
		p, err := a.inline(domain, name, text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const text = `{"algorithm":"token_bucket","rate":2,"period":"1m"}`
	a.Limiter.Swap(authSnapshot(t, "domain: edge\n---\ndomain: other\n"))
	first := compile("edge", "own", text)
	if compile("edge", "own", text) != first {
		t.Error("the limit was compiled twice for one configuration")
	}
	if p := compile("other", "own", text); p.Domain != "other" || p.Prefix == first.Prefix {
		t.Errorf("the limit of domain other has the domain %s and the prefix of domain edge", p.Domain)
	}
	a.Limiter.Swap(authSnapshot(t, "domain: edge\non_backend_failure: allow\n---\ndomain: other\n"))
	if p := compile("edge", "own", text); p.OnFailure != limiter.Allow {
		t.Errorf("after a reload, on_backend_failure of the limit is %v; want that of the new configuration", p.OnFailure)
	}
	a.Inline = func(*limiter.Domain, string, []byte) (*limiter.Policy, error) { return &limiter.Policy{}, nil }
	for i := range 2 * maxInlines {
		compile("edge", strconv.Itoa(i), text)
		if n := len(a.inlines.compiled); n > maxInlines {
			t.Fatalf("%d compiled limits are kept; want at most %d", n, maxInlines)
		}
	}
}
