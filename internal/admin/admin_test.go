package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

var compile = limittest.Compile

var began = time.Unix(1e9, 0)

func fixture(t *testing.T) Config {
	t.Helper()
	capacity := int64(20)
	start := algorithms.Micros(0)
	minute := 60 * algorithms.Second
	s := &limiter.Snapshot{Hash: "0123456789abcdef", Policies: []*limiter.Policy{
		{Domain: "d", Name: "path_/login", StatKey: "d.path_/login", Reference: true, Place: limiter.Place{File: "a.yaml", Line: 3},
			Limit: compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute, Start: &start})},
		{Domain: "d", Name: "send", StatKey: "d.user_id", Shadow: true,
			Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: &capacity})},
		{Domain: "d", Name: "send", StatKey: "d.other", Limit: &algorithms.Limit{}}, // the same named limit
		{Domain: "d", Name: "<b>free</b>", StatKey: "d.free", Limit: &algorithms.Limit{}, Unlimited: true, Quota: true},
	}}
	recorder := history.New(began)
	recorder.Sample(began.Add(time.Minute), history.Totals{Allowed: 600, Denied: 60, Shadowed: 30}, func(visit func(history.Key, history.Totals)) {
		visit(history.Key{Domain: "d", Limit: "send"}, history.Totals{Allowed: 120, Shadowed: 30})
	})
	return Config{
		Version: "v1", Started: began, Now: func() time.Time { return began.Add(time.Hour) },
		Unmatched: func(int) (time.Time, []unmatched.Shape) {
			return began, []unmatched.Shape{{Domain: "sh0p", Keys: [][]string{{"user", "<b>"}, {"\xff"}}, Requests: 12345, Last: began}, {Domain: "d", Configured: true, Requests: 1, Last: began}}
		},
		Used:     func(int) topkeys.Top { return topkeys.Top{Since: began} },
		Shadowed: func(int) topkeys.Top { return topkeys.Top{} },
		Line:     func() status.Line { return status.LineOf(nil, "", &status.Traffic{Allowed: 10, Denied: 1}) },
		Status:   func(context.Context) status.Status { return status.Status{Store: status.Store{Kind: "memory"}} },
		History:  recorder, Times: &history.Times{}, Conditions: func() []conditions.Condition { return nil },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }),
		Current: func() *limiter.Snapshot { return s },
		Reload: func() Reload {
			return Reload{Paths: []string{"a.yaml", "b"}, Loaded: time.Unix(0, 0), Failed: time.Unix(86400, 0), Refused: []Refusal{{Text: "a.yaml:1:2: <wrong>"}}}
		},
		Totals: func(p *limiter.Policy) history.Totals {
			switch p.Name {
			case "send":
				return history.Totals{Allowed: 1234, Shadowed: 56}
			case "path_/login":
				return history.Totals{Allowed: 99, Denied: 1}
			default:
				return history.Totals{}
			}
		},
		Denied: func(n int) topkeys.Top {
			last := time.Unix(86400, 0)
			return topkeys.Top{Since: time.Unix(43200, 0), Total: 94, Keys: []topkeys.Item{
				{Domain: "d", Limit: "send", Why: topkeys.Limit, Key: []string{"bob"}, Entries: []descriptors.Entry{{Key: "user", Value: "<script>alert(1)</script>"}, {Key: "ip", Value: "::1"}}, Times: 77, Exact: true, Last: last},
				{Domain: "d", Limit: "send", Why: topkeys.Never, Key: []string{"a\r\n", "\xff\"'&"}, Times: 8, Cut: true, Last: last},
				{Domain: "d", Limit: "other", Why: topkeys.Backend, Times: 9, Exact: true, Last: last},
			}[:min(n, 3)]}
		},
		API: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "api") }),
	}
}

func get(h http.Handler, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	r.Host = "localhost:6070"
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRlconfigHasTheFormatOfTheReferenceServer(t *testing.T) {
	want := `d.path_/login: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false
d.user_id: algorithm=token_bucket rate=10 period=1m capacity=20, shadow_mode: true, quota_mode: false
d.other: algorithm=unknown rate=0 period=0s capacity=0, shadow_mode: false, quota_mode: false
d.free: unlimited: true, shadow_mode: false, quota_mode: true
`
	if got := get(New(fixture(t)), "/rlconfig", "").Body.String(); got != want {
		t.Errorf("got:\n%s; want %v", got, want)
	}
}

func TestWithoutATokenOtherHostNamesAreRejected(t *testing.T) {
	h := New(fixture(t))
	for host, code := range map[string]int{
		"localhost": 200, "LOCALHOST:6070": 200, "127.0.0.1:6070": 200, "[::1]:6070": 200, "[::1]": 200, "10.1.2.3": 200, "": 200,
		"evil.test": 421, "evil.test:6070": 421, "localhost.evil.test:6070": 421, "127.0.0.1.evil.test": 421, "127.0.0.1:x:y": 421,
	} {
		for _, path := range []string{"/", "/api/top", "/metrics", "/rlconfig", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/symbol"} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != code {
				t.Errorf("%q: %d from %s, want %d", host, w.Code, path, code)
			}
		}
	}
}

// A page of another site cannot read a profile. It must not be able to start one either, because it could
// start many.
func TestPagesOfOtherSitesStartNoProfile(t *testing.T) {
	c := fixture(t)
	for _, token := range []string{"", "secret"} {
		c.Token = httpauth.FixedToken(token)
		h := New(c)
		for site, code := range map[string]int{"": 200, "none": 200, "same-origin": 200, "same-site": 403, "cross-site": 403} {
			r := httptest.NewRequest("GET", "/debug/pprof/heap?gc=1", nil)
			r.Host = "localhost:6070"
			r.Header.Set("Sec-Fetch-Site", site)
			if token != "" {
				r.Header.Set("Authorization", "Bearer secret")
				code = 200 // a request with the token is allowed, because a page of another site does not know the token
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != code {
				t.Errorf("token %q, %q: %d, want %d", token, site, w.Code, code)
			}
		}
	}
}

// The command line may contain secrets. Clients with the token must not get them either.
func TestTheCommandLineIsNotExposed(t *testing.T) {
	c := fixture(t)
	c.Token = httpauth.FixedToken("secret")
	for _, path := range []string{"/debug/pprof/cmdline", "/debug/pprof/cmdline/", "/debug/pprof//cmdline", "/debug/vars"} {
		if w := get(New(c), path, "Bearer secret"); w.Code == 200 || strings.Contains(w.Body.String(), os.Args[0]) {
			t.Errorf("%s: got %d %q; want status other than 200 and no %q", path, w.Code, w.Body, os.Args[0])
		}
	}
}
