package httpapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

const apiLimits = `
domain: edge
limits:
  send:   {algorithm: token_bucket, rate: 10, period: 1m}
  tokens: {algorithm: token_bucket, rate: 10, period: 1m, max_reserved: 20}
  few:    {algorithm: token_bucket, rate: 1, period: 1s, capacity: 3}
  third:  {algorithm: token_bucket, rate: 3, period: 1s, capacity: 1}
  jobs:   {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 2}
  log:    {algorithm: sliding_log, rate: 2, period: 1s}
  seen:   {algorithm: token_bucket, rate: 1, period: 1s, shadow_mode: true}
  pass:   {algorithm: token_bucket, rate: 1, period: 1s, on_backend_failure: allow}
  share:  {algorithm: token_bucket, rate: 10, period: 1s, on_backend_failure: local, local_share: 10%}
  both:   {algorithm: token_bucket, rate: 1, period: 1s}
  hourly: {algorithm: fixed_window, rate: 100, period: 1h, start: 2026-01-01T00:00:00Z, max_reserved: 100}
  credit: {algorithm: token_bucket, rate: 10, period: 1m, max_reserved: 5, overdraw: true}
  upload: {algorithm: concurrency, capacity: 2, ttl: 1m}
---
domain: other
limits:
  both:   {algorithm: token_bucket, rate: 1, period: 1s}
`

// apiOver returns the API over a store. The clock for reservations stands at storetest.Start.
func apiOver(tb testing.TB, store backend.Store, edit ...func(*API)) http.Handler {
	tb.Helper()
	return apiAt(tb, store, func() algorithms.Micros { return storetest.Start }, edit...)
}

// apiAt returns the API with a clock for reservations. The API's token signs the reservations.
func apiAt(tb testing.TB, store backend.Store, now func() algorithms.Micros, edit ...func(*API)) http.Handler {
	tb.Helper()
	a := &API{Headers: HeaderSets{X: true}}
	token := func() []string {
		if a.Token == nil {
			return []string{""}
		}
		return []string{a.Token()}
	}
	a.Limiter = limiter.New(store, limiter.Config{Local: memory.New(memory.Config{}), IDs: reservation.NewKeys(token), Now: now})
	a.Limiter.Swap(authSnapshot(tb, apiLimits))
	for _, e := range edit {
		e(a)
	}
	return New(Config{API: a, Ready: func() bool { return true }})
}

func call(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8080"
	for i := 0; i+1 < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

type exchangeStep struct {
	at         algorithms.Micros // since storetest.Start
	path, body string
	code       int
	want       string // the whole body; for a problem, its detail
}

func (s exchangeStep) check(t *testing.T, h http.Handler) {
	t.Helper()
	method := http.MethodPost
	if s.body == "" {
		method = http.MethodGet
	}
	w := call(h, method, s.path, s.body)
	got := w.Body.String()
	if strings.HasPrefix(w.Header().Get("Content-Type"), "application/problem+json") {
		var p problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != w.Code || p.Type == "" || p.Title == "" {
			t.Errorf("%s %s: problem %s (%v)", s.path, s.body, got, err)
		}
		got = p.Detail
	}
	got = reservations.ReplaceAllString(got, "")
	if w.Code != s.code || got != s.want {
		t.Errorf("%s %s:\n got %d %s\nwant %d %s", s.path, s.body, w.Code, got, s.code, s.want)
	}
}

// reservations matches the ids of reservations, which differ each time. Other tests check them.
var reservations = regexp.MustCompile(`,"reservation":"[^"]*"`)

func script(t *testing.T, h http.Handler, clock *storetest.Clock, steps ...exchangeStep) {
	t.Helper()
	for _, s := range steps {
		clock.Set(storetest.Start + s.at)
		s.check(t, h)
	}
}

const ms = algorithms.Micros(1000)

func TestMistakesAreExplained(t *testing.T) {
	h, clock := onClock(t)
	for _, c := range []struct {
		body string
		code int
		want string
	}{
		{`{"name":"send","count":12}`, 400, `limit "send": the cost is 12, but the limit can never hold more than 10`},
		{`{"name":"nope"}`, 404, `no limit is named "nope"`},
		{`{"domain":"x","name":"send"}`, 404, `domain "x" is not configured`},
		{`{"name":"both"}`, 400, `several domains have a limit named "both"; add the domain`},
		{`{}`, 400, `names no limit; write {"name": …} or {"limits": [{"name": …}, …]}`},
		{`{"limits":[]}`, 400, `limits: is empty; name at least one limit`},
		{`{"limits":[{"key":"x"}]}`, 400, `limits: [0]: names no limit`},
		{`{"limits":[{"name":"send"}],"count":1}`, 400, `has limits beside a limit; put all of them into the list`},
		{`{"name":"send","key":["x"` + strings.Repeat(`,""`, 100) + `]}`, 400, `key: has more than 100 values`},
		{`{"limits":[` + strings.Repeat(`{"name":"send"},`, 100) + `{"name":"send"}]}`, 400, `limits: has more than 100 limits`},
		{`{"limits":{}}`, 400, `limits: must be a list, but is an object`},
		{`{"name":"send","Count":1}`, 400, `unknown field "Count"`},
		{`{"name":"send","config":{}}`, 400, `config in requests is off here; the sidecar must be started with --api-inline-config`},
		{`{"name":"send","config":[]}`, 400, `config: must be an object, but is a list`},
		{`{"name":"send","config":{"x":"` + strings.Repeat("y", maxInline) + `"}}`, 400, `config: has 2056 bytes; the maximum is 2048`},
		{`{"name":"send","request_id":""}`, 400, `request_id: must have 1 to 128 bytes, but has 0`},
		{`{"name":"send","request_id":"` + strings.Repeat("x", 129) + `"}`, 400, `request_id: must have 1 to 128 bytes, but has 129`},
		{`{"name":"send","key":{"base64":"/x=="}}`, 400, `key: is not base64`},
		{`{"name":"send","request_id":7}`, 400, `request_id: must be a string, but is a number`},
		{`{"name":"send","jitter":-1}`, 400, `jitter: must be between 0 and 3600000, an hour in milliseconds, but is -1`},
		{`{"name":"send","jitter":3600001}`, 400, `jitter: must be between 0 and 3600000, an hour in milliseconds, but is 3600001`},
		{`{"name":"send","jitter":true}`, 400, `jitter: must be a whole number, but is true`},
		{`{"reservation":"x","name":"send","count":1}`, 400, `name cannot be combined with reservation; send reservation with only count or costs`},
		{`{"name":"upload","count":-1}`, 400, `limit "upload" counts requests in flight, so its count must not be negative; return the slot by its id`},
		{`{"name":"upload","count":3}`, 400, `limit "upload": the cost is 3, but the limit can never hold more than 2`},
		{`{"name":"upload","reserve":true}`, 400, `limit "upload" is a concurrency, which cannot be reserved`},
		{`{"reservation":"x","count":-1}`, 400, `count: the real cost of a reservation must be 0 or more, but is -1`},
		{`{"name":"tokens","reserve":true,"key":["k","` + strings.Repeat("k", reservation.MaxKey) + `"]}`, 400, `limit "tokens": a key can be reserved only if it has 16 KiB or less`},
		{`{"name":"send","name":"send"}`, 400, `name occurs twice; send it once`},
		{`{"name":"send","count":"1"}`, 400, `count: must be a whole number, but is a string`},
		{`{"name":"send","count":1.5}`, 400, `count: must be a whole number, but is 1.5`},
		{`{"name":"send","count":1.1e1}`, 400, `limit "send": the cost is 11, but the limit can never hold more than 10`},
		{`{"name":"send","count":12.0}`, 400, `limit "send": the cost is 12, but the limit can never hold more than 10`},
		{`{"name":"send","count":1e999}`, 400, `count: must be between -2^53 and 2^53, but is 1e999`},
		{`{"name":"send","count":-1e300}`, 400, `count: must be between -2^53 and 2^53, but is -1e300`},
		{`{"name":"send","count":9007199254740993}`, 400, `count: must be between -2^53 and 2^53, but is 9007199254740993`},
		{`{"name":"send","count":99999999999999999999}`, 400, `count: must be between -2^53 and 2^53, but is 99999999999999999999`},
		{`{"name":"send","reserve":1}`, 400, `reserve: must be true or false, but is a number`},
		{`{"name":"send","key":null}`, 400, `key: must be a string, but is null`},
		{`{"name":"send","key":["a",1]}`, 400, `key: [1]: must be a string, but is a number`},
		{`{"name":"send","key":{"base64":"*"}}`, 400, `key: is not base64`},
		{`{"name":"send","key":{}}`, 400, `key: must be a string or {"base64": "…"}`},
		{`{"name":"send","key":"\ud800"}`, 400, `key: has half of a surrogate pair, which is not a character`},
		{"{\"name\":\"send\",\"key\":\"\xff\"}", 400, `is not UTF-8; write a key of other bytes as {"base64": "…"}`},
		{`{"name":["send"]}`, 400, `name: must be a string, but is a list`},
		{`[]`, 400, `must be an object, but is a list`},
		{`{"name":"send"} x`, 400, `is not JSON, at byte 17: invalid character 'x' after top-level value`},
		{`{"name":`, 400, `is not JSON, at byte 8: unexpected end of JSON input`},
	} {
		for _, path := range []string{"/v1/limit", "/v1/check"} {
			exchangeStep{0, path, c.body, c.code, c.want}.check(t, h)
		}
	}
	script(t, h, clock, exchangeStep{0, "/v1/limit", `{"name":"send","count":10}`, 200, // None of these requests may have charged anything.
		`{"ok":true,"limits":[{"name":"send","ok":true,"remaining":0,"limit":10,"reset_after_ms":60000}]}`})
}

func TestKeysAreBytes(t *testing.T) {
	h, _ := onClock(t)
	for _, k := range []string{`""`, `"\u0000"`, `"a\r\nb"`, `"a"`, `["a",""]`, `["",  "a"]`, `{"base64":"/w=="}`, `{"base64":"/wA="}`, `"\ufffd"`, `"😀"`} {
		for _, code := range []int{200, 429} { // each key has a bucket of its own
			if w := call(h, "POST", "/v1/limit", `{"name":"few","count":3,"key":`+k+`}`); w.Code != code {
				t.Errorf("%s: got %d %s; want status %d", k, w.Code, w.Body, code)
			}
		}
	}
}

func TestResetForgetsOneBucket(t *testing.T) {
	h, clock := onClock(t)
	full := func(key string, code int) exchangeStep {
		want := `{"ok":true,"limits":[{"name":"few","key":"` + key + `","ok":true,"remaining":0,"limit":3,"reset_after_ms":3000}]}`
		if code == 429 {
			want = `{"ok":false,"retry_after_ms":3000,"limits":[{"name":"few","key":"` + key + `","ok":false,"remaining":0,"limit":3,"reset_after_ms":3000,"retry_after_ms":3000}]}`
		}
		return exchangeStep{0, "/v1/limit", `{"name":"few","count":3,"key":"` + key + `"}`, code, want}
	}
	script(t, h, clock,
		full("a", 200), full("b", 200), full("a", 429),
		exchangeStep{0, "/v1/reset", `{"name":"few","key":"a"}`, 200, `{"ok":true}`},
		full("a", 200), full("b", 429),
		exchangeStep{0, "/v1/reset", `{"domain":"edge","name":"few","key":"never seen"}`, 200, `{"ok":true}`},
		exchangeStep{0, "/v1/reset", `{"name":"nope"}`, 404, `no limit is named "nope"`},
		exchangeStep{0, "/v1/reset", `{"name":"both"}`, 400, `several domains have a limit named "both"; add the domain`},
		exchangeStep{0, "/v1/reset", `{"key":"a"}`, 400, `names no limit; write {"name": …}`},
		exchangeStep{0, "/v1/reset", `{"name":"few","count":1}`, 400, `unknown field "count"`},
		exchangeStep{0, "/v1/reset", `{`, 400, `is not JSON, at byte 1: unexpected end of JSON input`},
	)
	exchangeStep{0, "/v1/reset", `{"name":"few"}`, 503, `reset a bucket of limit "few": no room for another bucket`}.check(t, apiOver(t, broken{backend.ErrFull}))
}

type broken struct{ err error }

func (s broken) Submit(b *backend.Batch) { b.Fail(s.err) }

func TestBackendFailureIsAnsweredByPolicy(t *testing.T) {
	// Errors of a store have its addresses, which clients must not see.
	away := apiOver(t, broken{fmt.Errorf("dial tcp 192.0.2.9:6379: refused: %w", backend.ErrUnavailable)})
	id := reservations.FindString(call(apiOver(t, memory.New(memory.Config{})), http.MethodPost, "/v1/limit", `{"name":"tokens","reserve":true}`).Body.String())
	for _, s := range []exchangeStep{
		{0, "/v1/limit", `{"count":1` + id + `}`, 503, "the backend did not answer in time; repeat the request: a reservation is settled once"},
		{0, "/v1/limit", `{"name":"send","request_id":"1"}`, 503, "the backend did not decide in time; units may have been consumed: repeat the request with its request_id to be charged once"},
		{0, "/v1/limit", `{"name":"send"}`, 503, "the backend did not decide in time; units may have been consumed: to repeat the request and be charged once, send a request_id"},
		{0, "/v1/check", `{"name":"send"}`, 503, "the backend did not decide in time; nothing was consumed; try again"},
		{0, "/v1/limits/send", ``, 503, "the bucket could not be read; try again"},
		{0, "/v1/limits/pass", ``, 503, "the bucket could not be read; try again"},
		{0, "/v1/limits/share", ``, 503, "the bucket could not be read; try again"},
		{0, "/v1/reset", `{"name":"send"}`, 503, "the backend did not answer in time; the bucket may or may not have been reset; reset it again"},
		{0, "/v1/limit", `{"limits":[{"name":"send"},{"name":"pass"}]}`, 503, "the backend did not decide in time; units may have been consumed: to repeat the request and be charged once, send a request_id"},
		{0, "/v1/limit", `{"name":"pass"}`, 200, `{"ok":true,"degraded":true,"limits":[{"name":"pass","ok":true,"limit":1,"degraded":true}]}`},
	} {
		s.check(t, away)
	}
	if w := call(away, "POST", "/v1/limit", `{"name":"send"}`); w.Header().Get("Retry-After") != "1" {
		t.Errorf("headers %v; want Retry-After 1", w.Header())
	}
	if w := call(away, "POST", "/v1/limit", `{"name":"share"}`); w.Code != 200 || !strings.Contains(w.Body.String(), `"remaining":0,"limit":1,`) {
		t.Errorf("within local_share: got %d %s; want status 200, with the limit 1 and 0 remaining", w.Code, w.Body)
	}
	if w := call(away, "POST", "/v1/limit", `{"name":"share"}`); w.Code != 429 || !strings.Contains(w.Body.String(), `"degraded":true`) {
		t.Errorf("beyond local_share: got %d %s; want status 429, degraded", w.Code, w.Body)
	}
	exchangeStep{0, "/v1/limit", `{"name":"send"}`, 503, "the memory of the sidecar has no room for another bucket or request_id, so nothing was consumed; raise --memory-max-keys, let ids be remembered for a shorter time (remember), or keep them in Redis (--redis-url)"}.check(t, apiOver(t, broken{backend.ErrFull}))
}

func TestCallersNeedPermission(t *testing.T) {
	store := memory.New(memory.Config{})
	open := apiOver(t, store)
	token := apiOver(t, store, func(a *API) { a.Token = httpauth.FixedToken("s3cret") })
	closed := apiOver(t, store, func(a *API) { a.Closed = true })
	for _, c := range []struct {
		h            http.Handler
		method, path string
		header       []string
		code         int
	}{
		{open, "GET", "/v1/limits", nil, 200},
		{open, "HEAD", "/v1/limits", nil, 200},
		{open, "POST", "/v1/limits", nil, 405},
		{open, "GET", "/v1/limit", nil, 405},
		{open, "GET", "/v1/else", nil, 404},
		{open, "POST", "/v1/limit", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{open, "POST", "/v1/limit", []string{"Origin", "https://elsewhere.example"}, 403},
		{open, "POST", "/v1/limit", []string{"Origin", "http://evil.test:8080", "Host", "evil.test:8080", "Sec-Fetch-Site", "same-origin"}, 403}, // a web site whose name resolves to this machine
		{open, "GET", "/v1/limits", []string{"Host", "evil.test"}, 403},
		{open, "GET", "/v1/limits", []string{"Host", "[::1]:8080"}, 200},
		{open, "GET", "/livez", []string{"Host", "evil.test"}, 200},
		{token, "GET", "/v1/limits", []string{"Authorization", "Bearer s3cret", "Host", "limits.test"}, 200},
		{token, "GET", "/v1/limits", nil, 401},
		{token, "GET", "/v1/else", nil, 401},
		{token, "GET", "/v1/limits", []string{"Authorization", "Bearer wrong"}, 401},
		{token, "GET", "/v1/limits", []string{"Authorization", "Basic s3cret"}, 401},
		{token, "GET", "/v1/limits", []string{"Authorization", "Bearer s3cret"}, 200},
		{token, "GET", "/v1/limits", []string{"Authorization", "bearer s3cret"}, 200},
		{token, "GET", "/livez", nil, 200},
		{closed, "GET", "/v1/limits", nil, 401},
		{closed, "GET", "/v1/limits", []string{"Authorization", "Bearer "}, 401},
	} {
		w := call(c.h, c.method, c.path, "", c.header...)
		if w.Code != c.code {
			t.Errorf("%s %s %v: %d %s, want %d", c.method, c.path, c.header, w.Code, w.Body, c.code)
		}
		if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (w.Code == 401) {
			t.Errorf("%s %s: got %d with WWW-Authenticate %q; want the header only with 401", c.method, c.path, w.Code, challenge)
		}
	}
	if w := call(open, "DELETE", "/v1/limit", ""); w.Header().Get("Allow") != "POST" {
		t.Errorf("Allow: got %q; want POST", w.Header().Get("Allow"))
	}
}

func TestBodiesAreBounded(t *testing.T) {
	h, _ := onClock(t)
	pad := func(n int) string { return `{"name":"send"` + strings.Repeat(" ", n-len(`{"name":"send"}`)) + `}` }
	if w := call(h, "POST", "/v1/limit", pad(maxRequestBody)); w.Code != 200 {
		t.Errorf("64 KiB: got %d %s; want status 200", w.Code, w.Body)
	}
	if w := call(h, "POST", "/v1/limit", pad(maxRequestBody+1)); w.Code != 413 {
		t.Errorf("a byte more: got %d %s; want status 413", w.Code, w.Body)
	}
	reset := iotest.ErrReader(&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}) // an error of the network, but not a slow client
	r := httptest.NewRequest("POST", "/v1/limit", io.MultiReader(strings.NewReader(`{"name"`), reset))
	r.Host = ""
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 400 {
		t.Errorf("a body that breaks off: got %d %s; want status 400", w.Code, w.Body)
	}
}

func TestSlowClientsAreCutOff(t *testing.T) {
	h, _ := onClock(t)
	server := httptest.NewUnstartedServer(h)
	server.Config.ReadTimeout = 50 * time.Millisecond
	server.Config.ReadHeaderTimeout = time.Minute // long enough for the head of a request on a busy machine
	server.Start()
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{") // the rest of the body never arrives
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusRequestTimeout || !answer.Close {
		t.Errorf("got %s, close %v; want status 408, and that the connection closes", answer.Status, answer.Close)
	}
}

func weighted(t *testing.T) (http.Handler, *storetest.Clock) {
	t.Helper()
	return onClock(t, func(a *API) {
		a.Limiter.Swap(authSnapshot(t, `
domain: ai
limits:
  llm:  {algorithm: token_bucket, rate: 1000, period: 1m, weights: {input: 1, cached: 1/10, output: 4}}
  send: {algorithm: token_bucket, rate: 10, period: 1m}
`))
	})
}

func TestCostsOfSeveralKindsAreWeighted(t *testing.T) {
	h, clock := weighted(t)
	script(t, h, clock,
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":{"input":100,"cached":1,"output":25}}`, 200, // 200.1 units, rounded up
			`{"ok":true,"limits":[{"name":"llm","key":"bob","ok":true,"remaining":799,"limit":1000,"reset_after_ms":12060}]}`},
		exchangeStep{0, "/v1/check", `{"name":"llm","key":"bob","costs":{"output":200}}`, 429,
			`{"ok":false,"retry_after_ms":60,"limits":[{"name":"llm","key":"bob","ok":false,"remaining":799,"limit":1000,"reset_after_ms":12060,"retry_after_ms":60}]}`},
		exchangeStep{0, "/v1/limit", `{"limits":[{"name":"llm","key":"bob","costs":{"output":100}},{"name":"send","key":"bob"}]}`, 200,
			`{"ok":true,"limits":[{"name":"llm","key":"bob","ok":true,"remaining":399,"limit":1000,"reset_after_ms":36060},` +
				`{"name":"send","key":"bob","ok":true,"remaining":9,"limit":10,"reset_after_ms":6000}]}`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":{"output":251}}`, 400, `limit "llm": the cost is 1004, but the limit can never hold more than 1000`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":{"outputs":1}}`, 400,
			`limit "llm": costs: "outputs" has no weight; known names are cached, input, output`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":{"output":9007199254740992}}`, 400,
			`limit "llm": costs: the sum of the weighted costs must be at most 2^53`},
		exchangeStep{0, "/v1/limit", `{"name":"send","key":"bob","costs":{"input":1}}`, 400,
			`limit "send" has no weights, so it cannot take costs; send count, or add weights to the limit`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":{"input":-1}}`, 400, `costs: input: must be between 0 and 2^53, but is -1`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":{"input":1,"input":2}}`, 400, `costs: "input" occurs twice; send it once`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":{}}`, 400, `costs: is empty; send a cost, or count`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","costs":[1]}`, 400, `costs: must be an object such as {"input": 1200}, but is a list`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","count":1,"costs":{"input":1}}`, 400, `has count and costs; send one of them`},
		exchangeStep{0, "/v1/limit", `{"limits":[{"name":"llm","key":"bob","count":1,"costs":{"input":1}}]}`, 400, `limits: [0]: has count and costs; send one of them`},
		exchangeStep{0, "/v1/limit", `{"name":"llm","key":"bob","count":0}`, 200, // None of the refused requests may have charged anything.
			`{"ok":true,"limits":[{"name":"llm","key":"bob","ok":true,"remaining":399,"limit":1000,"reset_after_ms":36060}]}`},
	)
}

func TestAReservationIsSettledWithRealCostsByKind(t *testing.T) {
	h, _ := weighted(t)
	const body = `{"name":"llm","key":"eve","costs":{"input":100,"output":100},"reserve":true}`
	first, second := reserve(t, h, body), reserve(t, h, body)
	settle := func(id, costs string, code int, want string) {
		t.Helper()
		exchangeStep{0, "/v1/limit", fmt.Sprintf(`{"reservation":%q,%s}`, id, costs), code, want}.check(t, h)
	}
	left := func(n, reset int) string {
		return fmt.Sprintf(`{"ok":true,"limits":[{"name":"llm","key":"eve","ok":true,"remaining":%d,"limit":1000,"reset_after_ms":%d}]}`, n, reset)
	}
	settle(first, `"costs":{"input":100,"cached":5,"output":40}`, 200, left(239, 45660)) // 260.5 of 500 units
	settle(first, `"costs":{"input":100,"cached":5,"output":40}`, 200, left(239, 45660))
	settle(first, `"costs":{"input":100}`, 409, "the reservation was settled with another count before; the first count stays in force")
	settle(second, `"costs":{"tokens":1}`, 400, `limit "llm": costs: "tokens" has no weight; known names are cached, input, output`)
	settle(second, `"costs":{"input":1},"count":1`, 400, "has count and costs; send one of them")
	settle(second, `"count":500`, 200, left(239, 45660))
}
