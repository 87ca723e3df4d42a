package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit/httplimit"
)

var trusted = netip.MustParsePrefix("10.0.0.0/8")

// limited returns a handler that allows two units, with one more every 1.5 s, and answers "hello". If
// store is nil, the buckets are in memory, and their clock stands still.
func limited(tb testing.TB, store backend.Store, c httplimit.Config) http.Handler {
	tb.Helper()
	if store == nil {
		store = memory.New(memory.Config{Clock: func() time.Time { return time.UnixMicro(int64(1_767_225_600 * algorithms.Second)) }})
	}
	limiter, err := ratelimit.New(ratelimit.Config{Store: store, Limits: ratelimit.Limits{"requests": ratelimit.TokenBucket(2, 3*time.Second)}})
	if err != nil {
		tb.Fatal(err)
	}
	c.Limit = "requests"
	limit, err := httplimit.New(limiter, c)
	if err != nil {
		tb.Fatal(err)
	}
	return limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
}

// headers are names and values in turn.
func get(h http.Handler, peer string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = peer
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestAnswersHaveTheHeadersAndProblems(t *testing.T) {
	h := limited(t, nil, httplimit.Config{})
	for i, want := range []struct {
		code                     int
		rateLimit, retry, policy string
		body                     string
	}{
		{200, `"requests";r=1;t=2`, "", `"requests";q=2;w=3`, "hello"},
		{200, `"requests";r=0;t=3`, "", `"requests";q=2;w=3`, "hello"},
		{429, `"requests";r=0;t=2`, "2", `"requests";q=2;w=3`, `{"title":"Too many requests","status":429,"detail":"try again after 1.5s"}` + "\n"},
	} {
		w := get(h, "192.0.2.1:1234")
		header := w.Header()
		if w.Code != want.code || header.Get("RateLimit") != want.rateLimit || header.Get("Retry-After") != want.retry ||
			header.Get("RateLimit-Policy") != want.policy || w.Body.String() != want.body {
			t.Errorf("%d: %d %v %q, want %+v", i, w.Code, header, w.Body, want)
		}
	}
}

// The headers describe both limits.
func TestSeveralLimits(t *testing.T) {
	clock := func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	limiter, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{Clock: clock}), Limits: ratelimit.Limits{
		"all": ratelimit.TokenBucket(5, 5*time.Second), "logins": ratelimit.TokenBucket(1, time.Minute),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = http.NotFoundHandler()
	for _, name := range []string{"logins", "all"} { // the innermost limit first
		limit, err := httplimit.New(limiter, httplimit.Config{Limit: name})
		if err != nil {
			t.Fatal(err)
		}
		h = limit(h)
	}
	for _, want := range [][]string{{`"all";r=4;t=1`, `"logins";r=0;t=60`}, {`"all";r=3;t=2`, `"logins";r=0;t=60`}} {
		if got := get(h, "192.0.2.1:1").Header().Values("RateLimit"); !slices.Equal(got, want) {
			t.Errorf("RateLimit: %q, want %q", got, want)
		}
	}
}

// A bucket of bought credits is never full. The longest Duration has 292 years, and stands for the time in the headers.
func TestABucketThatIsFullInManyYears(t *testing.T) {
	capacity := int64(100_000)
	credits := ratelimit.TokenBucket(1, 365*24*time.Hour)
	credits.Capacity = &capacity
	limiter, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{"credits": credits}})
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New(limiter, httplimit.Config{Limit: "credits", Cost: func(*http.Request) int64 { return 1000 }})
	if err != nil {
		t.Fatal(err)
	}
	header := get(limit(http.NotFoundHandler()), "192.0.2.1:1").Header()
	if limit, policy := header.Get("RateLimit"), header.Get("RateLimit-Policy"); limit != `"credits";r=99000;t=9223372037` || policy != `"credits";q=100000;w=9223372036` {
		t.Errorf("got RateLimit: %s and RateLimit-Policy: %s", limit, policy)
	}
}

func TestKeysByAddress(t *testing.T) {
	h := limited(t, nil, httplimit.Config{Key: httplimit.ByAddress(trusted)})
	for i, step := range []struct {
		peer, forwarded string
		code            int
	}{
		{"192.0.2.1:1", "", 200},
		{"192.0.2.1:2", "198.51.100.1", 200}, // the peer is not a trusted proxy, so the header is ignored
		{"192.0.2.1:3", "", 429},
		{"10.0.0.1:1", "198.51.100.7", 200},
		{"10.0.0.1:1", "203.0.113.9, 198.51.100.7", 200}, // the client has sent a header of its own, which the proxy extended
		{"10.0.0.2:1", "198.51.100.7, 10.0.0.1", 429},    // through two trusted proxies
		{"[2001:db8:1:2::1]:1", "", 200},
		{"[2001:db8:1:2::2]:1", "", 200}, // the same /64 network
		{"[2001:db8:1:2:3::]:1", "", 429},
		{"[::ffff:192.0.2.1]:1", "", 429}, // IPv4 address in IPv6 form
		{"10.0.0.9:1", "not an address", 200},
		{"10.0.0.9:1", "198.51.100.8, not an address", 200}, // hops before an invalid one are ignored
		{"10.0.0.9:1", "", 429},
		{"@", "", 400},
	} {
		var headers []string
		if step.forwarded != "" {
			headers = []string{"X-Forwarded-For", step.forwarded}
		}
		if w := get(h, step.peer, headers...); w.Code != step.code {
			t.Errorf("%d: got %+v: %d; want status %v", i, step, w.Code, step.code)
		}
	}
}

func TestKeysByHeaderAndValue(t *testing.T) {
	user := httplimit.ByValue(func(r *http.Request) (string, bool) { u, _, ok := r.BasicAuth(); return u, ok })
	h := limited(t, nil, httplimit.Config{Key: httplimit.By(httplimit.ByHeader("x-api-key"), user)})
	const bob = "Basic Ym9iOnNlY3JldA==" // bob:secret
	for i, step := range []struct {
		code    int
		headers []string
	}{
		{200, []string{"X-Api-Key", "k", "Authorization", bob}},
		{200, []string{"X-Api-Key", " k\t\u00a0", "Authorization", bob}},
		{429, []string{"X-Api-Key", "k", "Authorization", bob}},
		{200, []string{"X-Api-Key", "other", "Authorization", bob}},
		{400, []string{"X-Api-Key", "k"}},
		{400, []string{"Authorization", bob}},
		{400, []string{"X-Api-Key", "", "Authorization", bob}},
		{400, []string{"X-Api-Key", "a", "X-Api-Key", "b", "Authorization", bob}},
	} {
		if w := get(h, "192.0.2.1:1", step.headers...); w.Code != step.code {
			t.Errorf("%d: got %v: %d; want status %v", i, step.headers, w.Code, step.code)
		}
	}
}

type answering struct{ err error }

func (s answering) Submit(b *backend.Batch) { b.Fail(s.err) }

var failing = answering{backend.ErrUnavailable}

// FailOpen covers failures of the store, not mistakes of the program.
func TestFailures(t *testing.T) {
	broken := errors.New("no session")
	wrongKey := func(*http.Request, []string) ([]string, error) { return nil, broken }
	for name, c := range map[string]struct {
		store    backend.Store
		config   httplimit.Config
		code     int
		reported error
	}{
		"a store that fails":              {failing, httplimit.Config{}, 503, ratelimit.ErrUnavailable},
		"a store that fails, fail open":   {failing, httplimit.Config{FailOpen: true}, 200, ratelimit.ErrUnavailable},
		"a store that is full":            {answering{backend.ErrFull}, httplimit.Config{}, 503, backend.ErrFull},
		"a store that is full, fail open": {answering{backend.ErrFull}, httplimit.Config{FailOpen: true}, 200, backend.ErrFull},
		"a wrong key":                     {nil, httplimit.Config{FailOpen: true, Key: wrongKey}, 503, broken},
		"a wrong cost":                    {nil, httplimit.Config{FailOpen: true, Cost: func(*http.Request) int64 { return 0 }}, 503, nil},
	} {
		var reported error
		c.config.OnError = func(_ *http.Request, err error) { reported = err }
		if w := get(limited(t, c.store, c.config), "192.0.2.1:1"); w.Code != c.code || reported == nil || c.reported != nil && !errors.Is(reported, c.reported) {
			t.Errorf("%s: got %d, and OnError got %v; want status %d and %v", name, w.Code, reported, c.code, c.reported)
		}
	}
}

// A request that ends before its turn does not reach the handler.
func TestALeakyBucketSpacesRequests(t *testing.T) {
	limiter, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{
		"soon": ratelimit.LeakyBucket(1, 40*time.Millisecond, 9), "late": ratelimit.LeakyBucket(1, time.Hour, 9),
	}})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	twice := func(ctx context.Context, name string) (code int) {
		limit, err := httplimit.New(limiter, httplimit.Config{Limit: name})
		if err != nil {
			t.Fatal(err)
		}
		h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls++ }))
		for range 2 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			code = w.Code
		}
		return code
	}
	start := time.Now()
	if code := twice(t.Context(), "soon"); code != 200 || time.Since(start) < 40*time.Millisecond || calls != 2 {
		t.Errorf("%d calls after %v: %d; want 2 after at least 40 ms", calls, time.Since(start), code)
	}
	calls = 0
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := twice(ctx, "late"); code != 503 || calls != 1 {
		t.Errorf("%d calls, %d; want the first call only, and 503", calls, code)
	}
}

func TestCosts(t *testing.T) {
	cost := int64(2)
	h := limited(t, nil, httplimit.Config{Cost: func(*http.Request) int64 { return cost }})
	if w := get(h, "192.0.2.1:1"); w.Code != 200 || w.Header().Get("RateLimit") != `"requests";r=0;t=3` {
		t.Errorf("got %d %v; want 200 and the header RateLimit: %s", w.Code, w.Header(), `"requests";r=0;t=3`)
	}
	cost = 3
	if w := get(h, "192.0.2.1:1"); w.Code != 413 || w.Header().Get("Retry-After") != "" {
		t.Errorf("more than the limit can ever supply: %d %v; want status 413 and no Retry-After", w.Code, w.Header())
	}
	cost = 0
	if w := get(h, "192.0.2.1:1"); w.Code != 503 {
		t.Errorf("an invalid cost: %d; want status 503", w.Code)
	}
}

func TestAnUnknownLimitIsAnErrorOfNew(t *testing.T) {
	limiter, err := ratelimit.New(ratelimit.Config{Store: failing})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := httplimit.New(limiter, httplimit.Config{Limit: "nope"}); !errors.Is(err, ratelimit.ErrUnknown) {
		t.Errorf("got %v; want the error ratelimit.ErrUnknown", err)
	}
}

func Example() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store:  memory.New(memory.Config{}),
		Limits: ratelimit.Limits{"requests": ratelimit.TokenBucket(1, 90*time.Second)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	limit, err := httplimit.New(limiter, httplimit.Config{
		Limit: "requests",
		Key:   httplimit.ByAddress(netip.MustParsePrefix("10.0.0.0/8")), // the addresses of your proxies
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 ""
	// 429 "90"
}
