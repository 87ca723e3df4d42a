package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func compile(t *testing.T, s algorithms.Spec) algorithms.Limit {
	t.Helper()
	l, err := algorithms.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func config(t *testing.T) Config {
	t.Helper()
	capacity := int64(20)
	start := algorithms.Micros(0)
	minute := 60 * algorithms.Second
	s := &limiter.Snapshot{Hash: "0123456789abcdef", Policies: []*descriptors.Policy{
		{Domain: "d", Name: "path_/login", StatKey: "d.path_/login", Reference: true, Place: "a.yaml:3",
			Limit: compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute, Start: &start})},
		{Domain: "d", Name: "send", StatKey: "d.user_id", Shadow: true,
			Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: &capacity})},
		{Domain: "d", Name: "send", StatKey: "d.other"}, // the same named limit
		{Domain: "d", Name: "<b>free</b>", StatKey: "d.free", Unlimited: true, Quota: true},
	}}
	return Config{
		Version: "v1",
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }),
		Current: func() *limiter.Snapshot { return s },
		Reload: func() Reload {
			return Reload{Paths: []string{"a.yaml", "b"}, Loaded: time.Unix(0, 0), Failed: time.Unix(86400, 0), Problems: "a.yaml:1:2: <wrong>"}
		},
		Counts: func(p *descriptors.Policy) (uint64, uint64) { return 1234, 56 },
	}
}

func get(h http.Handler, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRlconfigIsThatOfTheReferenceServer(t *testing.T) {
	want := `d.path_/login: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false
d.user_id: algorithm=token_bucket rate=10 period=1m capacity=20, shadow_mode: true, quota_mode: false
d.other: algorithm=unknown rate=0 period=0s capacity=0, shadow_mode: false, quota_mode: false
d.free: unlimited: true, shadow_mode: false, quota_mode: true
`
	if got := get(New(config(t)), "/rlconfig", "").Body.String(); got != want {
		t.Errorf("got:\n%s", got)
	}
}

func TestIndexShowsLimitsAndTheLastReload(t *testing.T) {
	w := get(New(config(t)), "/", "")
	body := w.Body.String()
	for _, want := range []string{
		"v1", "a.yaml, b", "1970-01-01 00:00:00", "0123456789ab<", "1970-01-02 00:00:00", "a.yaml:1:2: &lt;wrong&gt;",
		"path_/login", "1234", "56", "a.yaml:3", "&lt;b&gt;free", "shadow", "quota",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Count(body, "<td>send") != 1 {
		t.Error("a named limit is listed for each of its uses")
	}
	c := config(t)
	c.Current = func() *limiter.Snapshot { return nil }
	c.Reload = func() Reload { return Reload{} }
	if body := get(New(c), "/", "").Body.String(); !strings.Contains(body, "none") || strings.Contains(body, "refused") {
		t.Error(body)
	}
}

func TestPaths(t *testing.T) {
	h := New(config(t))
	for path, code := range map[string]int{"/metrics": 200, "/debug/pprof/": 200, "/debug/pprof/cmdline": 200, "/elsewhere": 404} {
		if w := get(h, path, ""); w.Code != code {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestTokenIsNeededWhereThereIsOne(t *testing.T) {
	c := config(t)
	c.Token = "secret"
	h := New(c)
	for token, code := range map[string]int{
		"": 401, "secret": 401, "Bearer": 401, "Bearer ": 401, "Bearer Secret": 401, "Basic secret": 401, "Bearer secretsecret": 401,
		"Bearer secret": 200, "bearer secret": 200,
	} {
		for _, path := range []string{"/", "/metrics", "/rlconfig", "/debug/pprof/"} {
			if w := get(h, path, token); w.Code != code {
				t.Errorf("%q gets %d from %s", token, w.Code, path)
			}
		}
	}
}
