package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const operated = `
domain: edge
limits:
  send: {algorithm: token_bucket, rate: 10, period: 1m}
descriptors:
  - {key: user, limit: send}
  - key: path
    value: /login
    descriptors: [{key: ip, rate_limit: {unit: minute, requests_per_unit: 3}}]
  - {key: free, rate_limit: {unlimited: true}}
`

func operator(tb testing.TB, store backend.Store) (http.Handler, *limiter.Limiter, *observer.ObservedLogs) {
	tb.Helper()
	l := limiter.New(store, limiter.Config{})
	l.Swap(authSnapshot(tb, operated))
	core, logs := observer.New(zap.InfoLevel)
	top := func(n int) topkeys.Top {
		all := []topkeys.Item{
			{Domain: "edge", Limit: "send", Why: topkeys.Limit, Key: []string{"<b>\xff"}, Entries: []descriptors.Entry{{Key: "user", Value: "<b>\xff"}}, Times: 7, Exact: true, Last: time.UnixMicro(int64(storetest.Start))},
			{Domain: "edge", Limit: "send", Why: topkeys.Backend, Times: 3, Cut: true, Last: time.UnixMicro(int64(storetest.Start))},
		}
		return topkeys.Top{Since: time.UnixMicro(int64(storetest.Start - algorithms.Second)), Keys: all[:min(n, len(all))]}
	}
	return (&Operator{Limiter: l, Denied: top, Log: zap.New(core)}).Handler(), l, logs
}

func take(t *testing.T, l *limiter.Limiter, text string, n int64) {
	t.Helper()
	entries, err := descriptors.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c := &limiter.Call{Request: limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{{Entries: entries, Cost: n}}}}
	if err := l.Check(t.Context(), c); err != nil || c.Denied {
		t.Fatal(err, c.Denied)
	}
}

func TestOperatorsReadAndResetBuckets(t *testing.T) {
	clock := storetest.NewClock()
	h, l, logs := operator(t, memory.New(memory.Config{Clock: clock.Time}))
	take(t, l, "user=bob", 4)
	take(t, l, "path=/login,ip=::1", 2)
	bytes := "user=" + "a&b\r\n\xff"
	take(t, l, bytes, 10)

	get := func(query string) string { return call(h, "GET", "/api/buckets?"+query, "").Body.String() }
	reset := func(query string) string { return call(h, "POST", "/api/reset?"+query, "").Body.String() }
	send := func(key, remaining string) string {
		return `"key":` + key + `,"remaining":` + remaining + `,`
	}
	login := `"name":"path_/login.ip"`
	for _, c := range []struct{ query, want string }{
		{"limit=send&key=bob", send(`"bob"`, "6")},
		{"domain=edge&limit=send&key=bob", send(`"bob"`, "6")},
		{"domain=edge&descriptor=user%3Dbob", send(`"bob"`, "6")},
		{"limit=send&key=eve", send(`"eve"`, "10")},
		{"limit=send&key=" + url.QueryEscape("a&b\r\n\xff"), send(`{"base64":"YSZiDQr/"}`, "0")},
		{"domain=edge&descriptor=" + url.QueryEscape(bytes), send(`{"base64":"YSZiDQr/"}`, "0")},
		{"domain=edge&descriptor=" + url.QueryEscape(bytes), `"retry_after_ms":6000`},
		{"domain=edge&descriptor=path%3D/login,ip%3D::1", login},
		{"domain=edge&descriptor=path%3D/login,ip%3D::1", `"key":"::1","remaining":1,`},
		{"domain=edge&descriptor=free%3Dx", `{"buckets":[]}`},
		{"domain=edge&descriptor=nobody%3Dx", `{"buckets":[]}`},
	} {
		if got := get(c.query); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.query, got, c.want)
		}
	}
	for _, c := range []struct{ query, want string }{
		{"limit=send&key=bob", `{"reset":[{"domain":"edge","name":"send","key":"bob"}]}`},
		{"domain=edge&descriptor=" + url.QueryEscape(bytes), `{"reset":[{"domain":"edge","name":"send","key":{"base64":"YSZiDQr/"}}]}`},
		{"domain=edge&descriptor=path%3D/login,ip%3D::1", `{"reset":[{"domain":"edge","name":"path_/login.ip","key":"::1"}]}`},
		{"domain=edge&descriptor=free%3Dx", `{"reset":[]}`},
	} {
		if got := reset(c.query); got != c.want {
			t.Errorf("%s: %s, want %s", c.query, got, c.want)
		}
	}
	for _, query := range []string{"limit=send&key=bob", "limit=send&key=" + url.QueryEscape("a&b\r\n\xff"), "domain=edge&descriptor=path%3D/login,ip%3D::1"} {
		if got := get(query); !strings.Contains(got, `"remaining":10,`) && !strings.Contains(got, `"remaining":3,`) {
			t.Errorf("%s after a reset: got %s; want a full bucket", query, got)
		}
	}
	if n := logs.Len(); n != 3 {
		t.Errorf("%d lines in the log; want 3, one for each bucket", n)
	}
	if got := logs.All()[1].ContextMap()["key"]; got != `a&b\r\n\xff` {
		t.Errorf("the log has the key %q; want it escaped", got)
	}
}

func TestOperatorsTop(t *testing.T) {
	h, _, _ := operator(t, memory.New(memory.Config{}))
	first := `{"domain":"edge","name":"send","why":"limit","key":{"base64":"PGI+/w=="},"descriptor":[["user",{"base64":"PGI+/w=="}]],"denied":7,"exact":true,"rate":0,"last":"`
	w := call(h, "GET", "/api/top", "")
	if got := w.Body.String(); w.Code != 200 || !strings.Contains(got, first) || !strings.Contains(got, `{"domain":"edge","name":"send","why":"backend-failure","cut":true,"denied":3,"exact":false,`) {
		t.Errorf("got %d %s; want status 200 with the most denied key and 3 backend failures", w.Code, got)
	}
	if got := call(h, "GET", "/api/top?n=1", "").Body.String(); strings.Contains(got, "backend-failure") || !strings.Contains(got, `"since":"`) {
		t.Errorf("got %v; want the time since, and no backend failures", got)
	}
	if w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("got %v; want application/json, nosniff and no-store", w.Header())
	}
}

func TestOperatorsMistakes(t *testing.T) {
	h, l, _ := operator(t, memory.New(memory.Config{}))
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"GET /api/buckets", 400, "add limit and key"},
		{"GET /api/buckets?key=bob", 400, "add limit and key"},
		{"GET /api/buckets?limit=send&descriptor=a%3Db", 400, "add limit and key"},
		{"GET /api/buckets?descriptor=a%3Db&key=x&domain=edge", 400, "add limit and key"},
		{"GET /api/buckets?descriptor=a%3Db", 400, "needs a domain"},
		{"GET /api/buckets?domain=edge&descriptor=a", 400, "has no value"},
		{"GET /api/buckets?domain=edge&descriptor=", 400, "descriptor is empty"},
		{"GET /api/buckets?limit=send&limit=x", 400, "twice"},
		{"GET /api/buckets?limit=send&nmae=x", 400, "nmae"},
		{"GET /api/buckets?limit=%zz", 400, "cannot be read"},
		{"GET /api/buckets?limit=sned", 404, `no limit is named \"sned\"`},
		{"GET /api/buckets?domain=egde&limit=send", 404, `\"egde\" is not configured`},
		{"GET /api/buckets?domain=egde&descriptor=user%3Dbob", 404, `\"egde\" is not configured`},
		{"POST /api/reset?domain=egde&descriptor=user%3Dbob", 404, `\"egde\" is not configured`},
		{"POST /api/reset?limit=sned", 404, "sned"},
		{"POST /api/reset", 400, "add limit and key"},
		{"GET /api/buckets?limit=send", 400, `the key has no value; a bucket of this limit is identified by 1 value (user)`},
		{"GET /api/buckets?limit=send&key=bob&key=eve", 400, `the key has 2 values; a bucket of this limit is identified by 1 value (user)`},
		{"POST /api/reset?limit=send", 400, "1 value (user)"},
		{"POST /api/reset?domain=edge&limit=send&key=bob&key=eve", 400, "1 value (user)"},
		{"GET /api/reset?limit=send", 405, ""},
		{"POST /api/buckets?limit=send", 405, ""},
		{"GET /api/top?n=0", 400, "from 1 to 1000"},
		{"GET /api/top?n=1001", 400, "from 1 to 1000"},
		{"GET /api/top?n=x", 400, "from 1 to 1000"},
		{"GET /api/top?n=1&n=2", 400, "once"},
		{"GET /api/top?m=1", 400, "valid are n, shadow"},
		{"GET /api/top?shadow=1", 400, "true or false"},
		{"GET /api/", 404, ""},
		{"GET /api/x", 404, ""},
	} {
		method, path, _ := strings.Cut(c.line, " ")
		if w := call(h, method, path, ""); w.Code != c.code || !strings.Contains(w.Body.String(), c.want) || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d %s", c.line, w.Code, w.Body, c.code, c.want)
		}
	}
	// Applications choose the keys of their charges, but they read and reset only buckets that can exist.
	applications := New(Config{API: &API{Limiter: l}})
	for line, code := range map[string]int{"GET /v1/limits/send": 400, "POST /v1/reset": 400, "POST /v1/limit": 200} {
		method, path, _ := strings.Cut(line, " ")
		w := call(applications, method, path, `{"name": "send", "key": []}`)
		if refused := strings.Contains(w.Body.String(), "1 value (user)"); w.Code != code || refused != (code == 400) {
			t.Errorf("%s without a value: %d %s, want %d", line, w.Code, w.Body, code)
		}
	}
	if w := call(h, "POST", "/api/reset?limit=send&key=bob", "", "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("a page of another site: got %d; want status 403", w.Code)
	}
	h = (&Operator{Limiter: limiter.New(memory.New(memory.Config{}), limiter.Config{}), Log: zap.NewNop()}).Handler()
	for _, line := range []string{"GET /api/buckets?limit=send", "POST /api/reset?limit=send"} {
		method, path, _ := strings.Cut(line, " ")
		if w := call(h, method, path, ""); w.Code != 503 {
			t.Errorf("%s without a configuration: got %d; want status 503", line, w.Code)
		}
	}
}

func FuzzOperator(f *testing.F) {
	for _, query := range []string{"limit=send&key=bob", "domain=edge&descriptor=user%3Dbob,a%5C%3D%3Db", "n=7", "limit=%zz", "key=%ff&limit=", "domain=edge&descriptor=%5C"} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		h, l, _ := operator(t, memory.New(memory.Config{}))
		take(t, l, "user=bob", 4)
		for path, method := range map[string]string{"/api/buckets": "GET", "/api/top": "GET", "/api/reset": "POST"} {
			r := httptest.NewRequest(method, path, nil)
			r.URL.RawQuery = query
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != 200 && w.Code != 400 && w.Code != 404 || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s?%q: got %d %s; want status 200, 400 or 404, and valid JSON", path, query, w.Code, w.Body)
			}
		}
	})
}

// An empty list must be a list, not null. The list of adjustments must state the error of the Keeper.
func TestListsOfAdjustments(t *testing.T) {
	keeper := adjust.NewKeeper(adjust.Config{})
	h := describedOperator(t, memory.New(memory.Config{}), keeper).Handler()
	for path, want := range map[string]string{
		"/api/adjustments":       `{"adjustments":[],"kept_in":"this process, until it ends","lasting":false,"version":0}`,
		"/api/adjustments/audit": `{"entries":[]}`,
	} {
		if got := call(h, "GET", path, "").Body.String(); got != want {
			t.Errorf("%s: got %s; want %s", path, got, want)
		}
	}
	const body = `{"limit":"LIMIT","key":["bob"],"factor":2,"for":"2h","author":"ann","reason":"launch"}`
	for limit, want := range map[string]string{"send": `"words":"limit send of domain edge, key bob: `, "nope": `no limit is named \"nope\"`} {
		w := call(h, "POST", "/api/adjustments/preview", strings.Replace(body, "LIMIT", limit, 1), "Content-Type", "application/json")
		if (w.Code == 200) != (limit == "send") || !strings.Contains(w.Body.String(), want) {
			t.Errorf("a preview for limit %s: got %d %s; want %s", limit, w.Code, w.Body, want)
		}
	}
	call(h, "POST", "/api/adjustments", strings.Replace(body, "LIMIT", "send", 1), "Content-Type", "application/json")
	for path, want := range map[string]string{"/api/adjustments": `"author":"ann"`, "/api/adjustments/audit": `"author":"ann"`} {
		if got := call(h, "GET", path, "").Body.String(); !strings.Contains(got, want) {
			t.Errorf("%s: got %s; want the adjustment by ann", path, got)
		}
	}
	keeper = adjust.NewKeeper(adjust.Config{Ledger: unreachable{}})
	_ = keeper.Poll(t.Context())
	away := describedOperator(t, memory.New(memory.Config{}), keeper).Handler()
	if got := call(away, "GET", "/api/adjustments", "").Body.String(); !strings.Contains(got, `"problem":"adjustments cannot be read: no answer"`) {
		t.Errorf("got %s; want the problem of the store", got)
	}
}

func TestUnmatchedRequestsAreListedAndAddedUp(t *testing.T) {
	o := describedOperator(t, memory.New(memory.Config{}), nil)
	got := call(o.Handler(), "GET", "/api/unmatched", "").Body.String()
	if want := `"unmatched":[{"domain":"edge","configured":true,"descriptors":["usr",["a","b"]],"cut":true,"requests":3,`; !strings.Contains(got, want) {
		t.Errorf("got %s; want %s", got, want)
	}
	o.Unmatched = func(int) (time.Time, []unmatched.Shape) {
		return time.Now(), []unmatched.Shape{{Requests: 3}, {Requests: 4}}
	}
	if got := call(o.Handler(), "GET", "/api/top", "").Body.String(); !strings.Contains(got, `"unmatched":7}`) {
		t.Errorf("got %s; want 7 unmatched requests", got)
	}
}
