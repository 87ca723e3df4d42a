package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/weights"
)

func TestTheBoundsOfARequest(t *testing.T) {
	costs := func(n, length int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`"%0*d":1`, length, i))
		}
		return `{"name":"x","costs":{` + strings.Join(all, ",") + `}}`
	}
	own := func(n int) string {
		const around = `{"a":""}`
		return `{"name":"x","config": { "a" : "` + strings.Repeat("k", n-len(around)) + `" } }`
	}
	for name, test := range map[string]struct{ body, want string }{
		"the longest request_id":              {`{"name":"x","request_id":"` + strings.Repeat("i", maxID) + `"}`, ""},
		"the most costs":                      {costs(weights.Max, weights.MaxName), ""},
		"one cost more":                       {costs(weights.Max+1, 2), "has more than 16 names"},
		"a longer name of a cost":             {costs(1, weights.MaxName+1), "one of more than 64 bytes"},
		"the largest config":                  {own(maxInline), ""},
		"a larger config":                     {own(maxInline + 1), "has 2049 bytes; the maximum is 2048"},
		"name beside limits":                  {`{"limits":[{"name":"x"}],"name":"y"}`, "has limits beside a limit"},
		"key beside limits":                   {`{"limits":[{"name":"x"}],"key":"y"}`, "has limits beside a limit"},
		"costs beside limits":                 {`{"limits":[{"name":"x"}],"costs":{"a":1}}`, "has limits beside a limit"},
		"reserve beside limits":               {`{"limits":[{"name":"x"}],"reserve":true}`, "has limits beside a limit"},
		"domain and jitter beside limits":     {`{"limits":[{"name":"x","count":2,"key":"k"},{"name":"y","costs":{"a":1}}],"domain":"d","jitter":5,"request_id":"r"}`, ""},
		"a mistake in the list":               {`{"limits":[{"name":"x"},{"nam":"y"}]}`, `limits: [1]: unknown field "nam"`},
		"half of a character in a field":      {`{"\ud800":1}`, "half of a surrogate pair"},
		"half of a character in a cost":       {`{"name":"x","costs":{"\ud800":1}}`, "half of a surrogate pair"},
		"bytes that are not text":             {`{"name":"x","key":{"base64":5}}`, "must be a string, but is a number"},
		"a jitter that is too large to parse": {`{"name":"x","jitter":99999999999999999999}`, "must be between 0 and 3600000"},
	} {
		req, err := parseRequest([]byte(test.body))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) || err == nil && req == nil {
			t.Errorf("%s: got %v; want an error with %q", name, err, test.want)
		}
	}
}

// FuzzParseRequest checks that every accepted request is within bounds. A request that charges limits must have the same
// meaning after it is written again, so that different keys stay different.
func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{
		`{"name":"a"}`, `{"limits":[{"name":"a","key":["b",{"base64":"/w=="}],"count":-1,"reserve":true}],"domain":"d"}`,
		`{"name":"\ud83d\ude00\ufffd"}`, `{"name":"\ud800"}`, `[[[[`, `{"name":"a","count":1e9}`, `{"name":"a","key":[]}`,
		`{"reservation":"AQ","count":3}`, `{"reservation":"","count":3}`, `{"name":"a","request_id":"x","jitter":10,"config":{"rate":1, "x":["\u0001"]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := parseRequest(body)
		if err != nil {
			return
		}
		if len(req.id) > maxID || req.jitter < 0 || req.jitter > maxJitter || req.count < 0 {
			t.Fatalf("got %+v; want values within their bounds", req)
		}
		if req.settles {
			return
		}
		c := req.call
		if len(c.Limits) == 0 || len(c.Limits) > maxCharges || len(req.configs) != len(c.Limits) {
			t.Fatalf("%d limits and %d configs; want equal numbers from 1 to %d", len(c.Limits), len(req.configs), maxCharges)
		}
		list := make([]map[string]any, len(c.Limits))
		for i, l := range c.Limits {
			if l.Count > maxCount || l.Count < -maxCount {
				t.Fatalf("count %d; want at most %d, positive or negative", l.Count, int64(maxCount))
			}
			list[i] = map[string]any{"name": l.Name, "key": key(l.Key), "count": l.Count, "reserve": l.Reserve}
			if req.configs[i] != nil {
				list[i]["config"] = json.RawMessage(req.configs[i])
			}
		}
		whole := map[string]any{"domain": c.Request.Domain, "limits": list, "jitter": req.jitter}
		if req.id != "" {
			whole["request_id"] = req.id
		}
		again, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		d, err := parseRequest(again)
		if err != nil || d.id != req.id || d.jitter != req.jitter || fmt.Sprintf("%+v", d.call.Limits) != fmt.Sprintf("%+v", c.Limits) {
			t.Fatalf("%s, written again as %s: error %v; the limits are\n%+v, want those of\n%+v", body, again, err, d, c.Limits)
		}
	})
}

func TestRememberIsChecked(t *testing.T) {
	s := inMemory(t, "limits: {calls: {algorithm: token_bucket, rate: 1000, period: 365d}}\n", 0)
	const must = "remember: must be a time from 1s to 30d, such as 168h or 7d, but is "
	for remember, detail := range map[string]string{
		`"31d"`: must + `"31d"`, `"999ms"`: must + `"999ms"`, `""`: must + `""`, `"-1h"`: must + `"-1h"`, `"a week"`: must + `"a week"`,
		`"1000000000000000d"`: must + `"1000000000000000d"`, `604800`: "remember: must be a string, but is a number",
	} {
		exchangeStep{0, "/v1/limit", `{"name":"calls","request_id":"x","remember":` + remember + `}`, 400, detail}.check(t, s)
	}
	exchangeStep{0, "/v1/limit", `{"name":"calls","remember":"1h"}`, 400, "has remember without a request_id; add the request_id that is remembered, or leave out remember"}.check(t, s)
	s.post("/v1/limit", `{"name":"calls","request_id":"x","remember":"30d"}`, 200)
}
