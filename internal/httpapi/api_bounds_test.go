package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// A request at a bound is accepted. A request beyond it is refused, as are fields that exclude each other, and
// texts and numbers that are not valid.
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
		"a longer request_id":                 {`{"name":"x","request_id":"` + strings.Repeat("i", maxID+1) + `"}`, "must have 1 to 128 bytes, has 129"},
		"the most costs":                      {costs(weights.Max, weights.MaxName), ""},
		"one cost more":                       {costs(weights.Max+1, 2), "has more than 16 names"},
		"a longer name of a cost":             {costs(1, weights.MaxName+1), "one of more than 64 bytes"},
		"the largest config":                  {own(maxInline), ""},
		"a larger config":                     {own(maxInline + 1), "has 2049 bytes; the maximum is 2048"},
		"name beside limits":                  {`{"limits":[{"name":"x"}],"name":"y"}`, "has limits beside a limit"},
		"key beside limits":                   {`{"limits":[{"name":"x"}],"key":"y"}`, "has limits beside a limit"},
		"count beside limits":                 {`{"limits":[{"name":"x"}],"count":2}`, "has limits beside a limit"},
		"costs beside limits":                 {`{"limits":[{"name":"x"}],"costs":{"a":1}}`, "has limits beside a limit"},
		"reserve beside limits":               {`{"limits":[{"name":"x"}],"reserve":true}`, "has limits beside a limit"},
		"config beside limits":                {`{"limits":[{"name":"x"}],"config":{}}`, "has limits beside a limit"},
		"domain and jitter beside limits":     {`{"limits":[{"name":"x","count":2,"key":"k"},{"name":"y","costs":{"a":1}}],"domain":"d","jitter":5,"request_id":"r"}`, ""},
		"a mistake in the list":               {`{"limits":[{"name":"x"},{"nam":"y"}]}`, `limits: [1]: unknown field "nam"`},
		"half of a character in a field":      {`{"\ud800":1}`, "half of a surrogate pair"},
		"half of a character in a cost":       {`{"name":"x","costs":{"\ud800":1}}`, "half of a surrogate pair"},
		"bytes that are not text":             {`{"name":"x","key":{"base64":5}}`, "must be a text, is a number"},
		"a number that is too large to parse": {`{"name":"x","count":1e999}`, "must be between -2^53 and 2^53"},
		"a jitter that is too large to parse": {`{"name":"x","jitter":99999999999999999999}`, "must be between 0 and 3600000"},
	} {
		req, err := parseRequest([]byte(test.body))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) || err == nil && req == nil {
			t.Errorf("%s: got %v; want an error with %q", name, err, test.want)
		}
	}
}

// A key that is reserved becomes a part of the id, so its length is bounded. The length of other keys is bounded
// only by the size of the body.
func TestTheLongestKeyOfAReservation(t *testing.T) {
	h, _ := onClock(t)
	for _, test := range []struct {
		length  int
		reserve string
		code    int
	}{{reservation.MaxKey, "true", 200}, {reservation.MaxKey + 1, "true", 400}, {reservation.MaxKey + 1, "false", 200}} {
		w := call(h, "POST", "/v1/limit", `{"name":"tokens","key":["`+strings.Repeat("k", test.length-1)+`","k"],"reserve":`+test.reserve+`}`)
		if w.Code != test.code {
			t.Errorf("%d bytes, reserve %s: got %d %s; want %d", test.length, test.reserve, w.Code, w.Body, test.code)
		}
	}
}

// A mistake names the limit that can never allow the cost and that denies the request.
func TestACostThatNeverFitsNamesItsLimit(t *testing.T) {
	h, clock := onClock(t)
	call(h, "POST", "/v1/limit", `{"name":"send","count":10}`)
	const few = `limit "few": the cost is 5, but the limit can never hold more than 3`
	script(t, h, clock,
		exchangeStep{0, "/v1/limit", `{"limits":[{"name":"send","count":1},{"name":"few","count":5}]}`, 400, few},
		exchangeStep{0, "/v1/limit", `{"limits":[{"name":"seen","count":5},{"name":"few","count":5}]}`, 400, few},
	)
	// Units that are reserved ahead count only if all charges of the bucket reserve.
	for _, list := range []string{
		`{"name":"tokens","count":20},{"name":"tokens","count":20,"reserve":true}`,
		`{"name":"tokens","count":20,"reserve":true},{"name":"tokens","count":20}`,
	} {
		exchangeStep{0, "/v1/limit", `{"limits":[` + list + `]}`, 400, `limit "tokens": the cost is 40, but the limit can never hold more than 10`}.check(t, h)
	}
	exchangeStep{0, "/v1/limit", `{"limits":[{"name":"tokens","count":20,"reserve":true},{"name":"tokens","count":20,"reserve":true}]}`, 400,
		`limit "tokens": the cost is 40, but the limit can never hold more than 30`}.check(t, h)
}

func TestADeniedReservationHasNoID(t *testing.T) {
	h, _ := onClock(t)
	reserve(t, h, `{"name":"tokens","key":"a","count":30,"reserve":true}`)
	w := call(h, "POST", "/v1/limit", `{"limits":[{"name":"tokens","key":"a","count":5,"reserve":true},{"name":"hourly","key":"a","reserve":true}]}`)
	if w.Code != 429 || strings.Contains(w.Body.String(), "reservation") {
		t.Errorf("got %d %s; want status 429 without a reservation", w.Code, w.Body)
	}
}

// Up to limiter.MaxReserved limits share one id. With more, each limit has its own. All ids contain the same
// reservation.
func TestTheMostLimitsOfOneReservation(t *testing.T) {
	for _, n := range []int{1, limiter.MaxReserved, limiter.MaxReserved + 1} {
		h, _ := onClock(t)
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"name":"tokens","key":"%d","reserve":true}`, i))
		}
		w := call(h, "POST", "/v1/limit", `{"limits":[`+strings.Join(list, ",")+`]}`)
		var answer apiReply
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || (answer.Reservation != "") != (n <= limiter.MaxReserved) {
			t.Fatalf("%d limits: got %d %s, %v; want an id for all of them: %v", n, w.Code, w.Body, err, n <= limiter.MaxReserved)
		}
		ids := map[[16]byte]bool{}
		for _, l := range answer.Limits {
			var of limiter.Reserved
			if err := reservation.Decode(l.Reservation, &of); err != nil {
				t.Fatal(err)
			}
			ids[of.ID] = true
		}
		if len(ids) != 1 {
			t.Errorf("%d limits: got %d reservations; want one", n, len(ids))
		}
	}
}

func TestAnAnswerIsDegradedIfOneLimitIs(t *testing.T) {
	l := limiter.New(halfAway{memory.New(memory.Config{})}, limiter.Config{})
	l.Swap(authSnapshot(t, "domain: d\nlimits:\n  plain: {algorithm: token_bucket, rate: 1, period: 1h, on_backend_failure: allow}\n"+
		"  other: {algorithm: token_bucket, rate: 9, period: 1h}\n"))
	h := New(Config{API: &API{Limiter: l}})
	for names, want := range map[string]bool{"plain other": true, "other plain": true, "other": false} {
		var list []string
		for name := range strings.FieldsSeq(names) {
			list = append(list, `{"name":"`+name+`","key":"x"}`)
		}
		w := call(h, "POST", "/v1/limit", `{"limits":[`+strings.Join(list, ",")+`]}`)
		if w.Code != 200 || strings.HasPrefix(w.Body.String(), `{"ok":true,"degraded":true,`) != want {
			t.Errorf("%s: got %d %s; want status 200, degraded %v", names, w.Code, w.Body, want)
		}
	}
}

type observed struct{ arrived []bool }

func (*observed) Swapped(*limiter.Snapshot) {}
func (o *observed) Observe(c *limiter.Call) { o.arrived = append(o.arrived, !c.Arrived.IsZero()) }

// An answer names the limit that paid. An adjustment makes a limit unlimited, or leaves its penalty. The list of limits
// has calendars and payers. Each call has a time of arrival, which the metrics need.
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
	l.Adjust(adjust.NewSet(adjust.Head{}, []*adjust.Adjustment{
		{ID: target.ID(), Target: target, Change: adjust.Change{Unlimited: true}, Algorithm: algorithms.TokenBucket, Expires: storetest.Start + algorithms.Day},
		{ID: other.ID(), Target: other, Change: adjust.Change{Factor: 2000}, Algorithm: algorithms.TokenBucket, Expires: storetest.Start + algorithms.Day},
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
	if w := call(h, "GET", "/v1/limits/free?key=more", ""); !strings.Contains(w.Body.String(), `"blocked_by":"penalty"`) {
		t.Errorf("a penalty of an adjusted limit: got %d %s; want it blocked by the penalty", w.Code, w.Body)
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

func TestABucketOfOneOfTwoDomainsIsShown(t *testing.T) {
	h, _ := onClock(t)
	for _, domain := range []string{"edge", "other"} {
		if w := call(h, "GET", "/v1/limits/both?domain="+domain, ""); w.Code != 200 || !strings.HasPrefix(w.Body.String(), `{"domain":"`+domain+`",`) {
			t.Errorf("domain %s: got %d %s; want its bucket", domain, w.Code, w.Body)
		}
	}
}

func TestBucketsAreNotShownWhileTheStoreFails(t *testing.T) {
	away := apiOver(t, broken{backend.ErrUnavailable})
	for _, name := range []string{"send", "pass", "share"} {
		if w := call(away, "GET", "/v1/limits/"+name, ""); w.Code != 503 {
			t.Errorf("limit %s: got %d %s; want status 503", name, w.Code, w.Body)
		}
	}
	snapshot := authSnapshot(t, "domain: edge\nlimits:\n  share: {algorithm: token_bucket, rate: 10, period: 1s, on_backend_failure: local, local_share: 10%}\n")
	l := limiter.New(broken{backend.ErrUnavailable}, limiter.Config{Local: memory.New(memory.Config{})})
	l.Swap(snapshot)
	o := (&Operator{Limiter: l}).Handler()
	if w := call(o, "GET", "/api/buckets?limit=share", ""); w.Code != 503 {
		t.Errorf("to an operator: got %d %s; want status 503", w.Code, w.Body)
	}
}

func TestALimitOfARequestNeedsAConfiguration(t *testing.T) {
	h := New(Config{API: &API{Limiter: limiter.New(memory.New(memory.Config{}), limiter.Config{}), Inline: config.Inline}})
	if w := call(h, "POST", "/v1/limit", `{"domain":"edge","name":"own","config":{"algorithm":"token_bucket","rate":2,"period":"1m"}}`); w.Code != 503 {
		t.Errorf("got %d %s; want status 503", w.Code, w.Body)
	}
}

func TestRequestsLeaveTheirSlots(t *testing.T) {
	var a *API
	h := apiOver(t, memory.New(memory.Config{}), func(api *API) { a = api })
	for _, path := range []string{"/v1/limit", "/v1/check", "/v1/reset"} {
		for _, body := range []string{`{"name":"send"}`, `{"name":"nope"}`, `{`} {
			call(h, "POST", path, body)
		}
	}
	if n := len(a.working.busy); n != 0 {
		t.Errorf("%d requests are in progress after their answers; want none", n)
	}
}

type aborting struct{}

func (aborting) Read([]byte) (int, error) {
	return 0, &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
}

func TestAResetConnectionIsNotASlowClient(t *testing.T) {
	h, _ := apiInMemory(t)
	r := httptest.NewRequest("POST", "/v1/limit", io.MultiReader(strings.NewReader(`{"name"`), aborting{}))
	r.Host = ""
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 400 {
		t.Errorf("got %d %s; want status 400", w.Code, w.Body)
	}
}

func TestAClosedAPIRefusesEveryHost(t *testing.T) {
	closed := apiOver(t, memory.New(memory.Config{}), func(a *API) { a.Closed = true })
	if w := call(closed, "GET", "/v1/limits", "", "Host", "limits.test"); w.Code != 401 || !strings.Contains(w.Body.String(), "--api-token-file") {
		t.Errorf("got %d %s; want status 401, and the option --api-token-file", w.Code, w.Body)
	}
}

// Jitter is from 0 to the requested number, both included, and delays all times of an answer that are not 0.
func TestTheBoundsOfJitter(t *testing.T) {
	for _, id := range []string{"", "r"} {
		seen := map[int64]bool{}
		for i := range 100 {
			req := &apiRequest{jitter: 1}
			if id != "" {
				req.id = fmt.Sprint(id, i)
			}
			seen[req.jitterDelay()] = true
		}
		if len(seen) != 2 || !seen[0] || !seen[1] {
			t.Errorf("a jitter of 1 ms with the id %q: got %v; want 0 and 1", id, seen)
		}
		if delay := (&apiRequest{id: id}).jitterDelay(); delay != 0 {
			t.Errorf("no jitter with the id %q: got %d; want 0", id, delay)
		}
	}
	a := apiAnswer{RetryAfter: 5, Wait: 7, Limits: []limitAnswer{{RetryAfter: 3}, {Wait: 4}}}
	a.later(10)
	if a.RetryAfter != 15 || a.Wait != 17 || a.Limits[0].RetryAfter != 13 || a.Limits[0].Wait != 0 || a.Limits[1].RetryAfter != 0 || a.Limits[1].Wait != 14 {
		t.Errorf("got %+v; want each time that is not 0 delayed by 10", a)
	}
}

// A limit with two rates has no single window, so its policy states none.
func TestHeadersOfAFullBucket(t *testing.T) {
	h, _ := onClock(t, func(a *API) { a.Headers = HeaderSets{X: true, IETF: true} })
	w := call(h, "POST", "/v1/limit", `{"name":"send","count":0}`)
	if sent(w, "X-RateLimit-Reset") != "0" || sent(w, "RateLimit") != `"send";r=10;t=0` {
		t.Errorf("got %v; want a reset in 0 s", w.Header())
	}
	spec := "  bank: {algorithm: token_bucket, rate: 10, period: 1s, guaranteed: {rate: 1, period: 1s}}\n"
	w = call(manyLimits(t, spec), "POST", "/v1/limit", `{"name":"bank","count":0}`)
	if got := sent(w, "RateLimit-Policy"); !strings.HasPrefix(got, `"bank";q=`) || strings.Contains(got, ";w=") {
		t.Errorf("a limit with two rates: got %q; want no window", got)
	}
}

func TestAHiddenResultHidesNoOther(t *testing.T) {
	first, second := &descriptors.Policy{Owner: "first"}, &descriptors.Policy{Owner: "second"}
	v := &limiter.Verdict{Results: []limiter.Result{{Policy: first}, {Policy: second}, {Policy: second}, {Policy: second}}}
	v.Results[1].Decision.Err = backend.ErrUnavailable
	for i, want := range map[int]bool{0: true, 1: false, 2: false, 3: true} {
		if got := shownBefore(v, i, 0); got != want {
			t.Errorf("result %d: got %v; want %v", i, got, want)
		}
	}
}

// Browsers must not interpret JSON as another type.
func TestAnswersHaveTheirType(t *testing.T) {
	h := New(Config{
		API: &API{Limiter: limiter.New(memory.New(memory.Config{}), limiter.Config{})}, Ready: func() bool { return true },
		AnswerJSON: func(context.Context, []byte, bool) (int, []byte) { return 200, []byte("{}") },
	})
	for _, test := range []struct {
		method, path, kind string
		noSniff            bool
	}{
		{"GET", "/livez", "text/plain; charset=utf-8", false},
		{"GET", "/readyz", "text/plain; charset=utf-8", false},
		{"GET", "/openapi.json", "application/json", true},
		{"POST", "/json", "application/json", true},
	} {
		w := call(h, test.method, test.path, "{}")
		if got := w.Result().Header; got.Get("Content-Type") != test.kind || (got.Get("X-Content-Type-Options") == "nosniff") != test.noSniff {
			t.Errorf("%s: got %d %v; want the type %s, nosniff: %t", test.path, w.Code, got, test.kind, test.noSniff)
		}
	}
}
