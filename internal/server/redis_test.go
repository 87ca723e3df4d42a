package server

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// onRedis configures the Redis at url, with a timeout that is long enough for a busy test machine.
func onRedis(url string) func(*Config) {
	return func(c *Config) { c.Redis = Redis{URL: url, Timeout: 3 * time.Second} }
}

const shared = `
domain: d
limits:
  all: {algorithm: fixed_window, rate: 300, period: 365d, start: 2026-01-01T00:00:00Z}
descriptors:
  - {key: all, limit: all}
`

// policies has two descriptors with one limit, and a limit that is unlimited, which needs no Redis.
const policies = `
domain: d
limits:
  deny: {algorithm: token_bucket, rate: 100, period: 365d}
descriptors:
  - {key: deny, limit: deny}
  - {key: another, limit: deny}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 100, on_backend_failure: allow}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 20, on_backend_failure: local, local_share: 20%}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 100, on_backend_failure: error}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 100}}
`

func TestAnUnreachableRedisIsAnsweredByOnBackendFailure(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	x := start(t, policies, onRedis("redis://"+redis.Addr))
	for _, d := range []string{"deny=1", "allow=1", "local=1", "error=1", "shadow=1"} {
		if got := x.send(t, d).OverallCode; got != ok {
			t.Fatalf("%s: got %v; want OK", d, got)
		}
	}
	redis.Kill()
	open := func() bool { return x.metric(t, `rlsidecar_backend_breaker_open\{.*\}`) == 1 }
	for until := time.Now().Add(10 * time.Second); !open(); { // requests are answered by on_backend_failure before and after the breaker opens
		if time.Now().After(until) {
			t.Fatal("the circuit breaker is closed after 10 s; want it open")
		}
		for d, want := range map[string]rls.RateLimitResponse_Code{"deny=1": over, "allow=1": ok, "shadow=1": ok} {
			if got := x.send(t, d).OverallCode; got != want {
				t.Fatalf("%s: %v, want %v", d, got, want)
			}
		}
		if _, err := x.rls.ShouldRateLimit(t.Context(), request("d", "error=1")); status.Code(err) != codes.Unavailable {
			t.Fatalf("error=1: %v, want Unavailable", err)
		}
	}
	for i := range 6 { // with local_share, the local bucket allows a fifth of 20
		want := ok
		if i >= 4 {
			want = over
		}
		if got := x.send(t, "local=2").OverallCode; got != want {
			t.Errorf("local, request %d: %v, want %v", i+1, got, want)
		}
	}
	eventually(t, "the condition is reported", func() bool {
		got := x.conditions(t)
		return strings.Contains(got, "critical redis-breaker-open/"+redis.Addr) &&
			strings.Contains(got, "deny (2 limits), allow (1 limit), local (1 limit), error (1 limit)")
	})
	page := x.metrics(t)
	for _, line := range []string{
		`rlsidecar_backend_breaker_open{server="` + redis.Addr + `"} 1`,
		`outcome="failed_denied"`, `outcome="failed_allowed"`, "rlsidecar_backend_failures_total",
	} {
		if !strings.Contains(page, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	redis.Restart()
	eventually(t, "limits are kept in Redis again", func() bool {
		return x.send(t, "deny=3").OverallCode == ok
	})
	eventually(t, "the condition is over", func() bool { return x.conditions(t) == "" })
}

const twoPeriods = `
domain: d
descriptors:
  - {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 2}}
`

func TestLimitsPerSecondHaveTheirOwnRedis(t *testing.T) {
	t.Parallel()
	main, second := redistest.Start(t), redistest.Start(t)
	x := start(t, twoPeriods, onRedis("redis://"+main.Addr), func(c *Config) { c.Redis.PerSecondURL = "redis://" + second.Addr })
	buckets := regexp.MustCompile(`rl:\{\}1`) // buckets only, without the key that the server writes when it examines Redis
	keys := func(s *redistest.Server) int { return len(buckets.FindAllString(s.Do("keys", "*"), -1)) }
	send := func(want rls.RateLimitResponse_Code, texts ...string) *rls.RateLimitResponse {
		t.Helper()
		a := x.send(t, texts...)
		if a.OverallCode != want {
			t.Errorf("%v: %v, want %v", texts, a, want)
		}
		return a
	}
	send(ok, "second=a")
	eventually(t, "a bucket, which exists for a second, is in the Redis for limits per second", func() bool {
		x.send(t, "second=z")
		return keys(second) > 0
	})
	if keys(main) != 0 {
		t.Errorf("%d buckets in the main Redis; want 0", keys(main))
	}
	send(ok, "year=a")
	if keys(main) != 1 {
		t.Errorf("%d buckets in the main Redis; want 1", keys(main))
	}
	send(ok, "second=b", "year=a")

	// The unit of an override decides which Redis has its bucket.
	o := request("d", "any=a")
	o.Descriptors[0].Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_SECOND}
	before := keys(main)
	if a := x.put(t, o); a.OverallCode != ok || keys(main) > before { // Redis may have deleted a full bucket meanwhile
		t.Errorf("got %v, and %d buckets in the main Redis; want OK, and at most %d as before", a, keys(main), before)
	}

	// While one Redis is unreachable, the limits in the other one still apply.
	second.Pause()
	defer second.Resume()
	send(over, "second=z")
	send(ok, "year=z")
	send(over, "second=z", "year=z")
	x.shows(t, `rlsidecar_backend_failures_total 2`)
	redistest.Eventually(t, "the charge of the denied request is refunded", func() bool {
		return x.send(t, "year=z;hits=0").Statuses[0].LimitRemaining == 1
	})
}

// Sidecars with leases stay within the limit together. They return unused units on a reload and when they
// stop. A raised limit applies at once, although its denial was cached.
func TestSidecarsWithLeasesStayWithinTheLimit(t *testing.T) {
	redis := redistest.Start(t)
	const limit, most = 10_000, 500
	leased := strings.Replace(shared, "rate: 300, period: 365d", "lease: {max: 5%, for: 1m}, rate: 10000, period: 365d", 1)
	a, b := start(t, leased, onRedis("redis://"+redis.Addr)), start(t, leased, onRedis("redis://"+redis.Addr))
	for range 300 {
		for _, x := range []*instance{a, b} {
			if got := x.send(t, "all=1").OverallCode; got != ok {
				t.Fatalf("got %v; want OK", got)
			}
		}
	}
	left := func(x *instance) (n int) {
		t.Helper()
		r := get(t, x.HTTP, "/v1/limits/all?key=1")
		if _, err := fmt.Sscanf(regexp.MustCompile(`"remaining":\d+`).FindString(body(t, r)), `"remaining":%d`, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := left(a); n >= limit-600 || n < limit-600-2*most {
		t.Errorf("%d are left after 600 of %d, two sidecars may have leased up to %d each; want less than %v, and at least %v", n, limit, most, limit-600, limit-600-2*most)
	}
	for _, series := range []string{"rlsidecar_lease_served_total", "rlsidecar_lease_borrowed_units_total", "rlsidecar_lease_units", "rlsidecar_lease_keys"} {
		if text := a.metrics(t); !regexp.MustCompile(`(?m)^` + series + ` [1-9]`).MatchString(text) {
			t.Errorf("the metric %s is missing or 0; want more", series)
		}
	}
	if text := a.metrics(t); !strings.Contains(text, "\nrlsidecar_backend_undos_dropped_total 0\n") {
		t.Error("the metrics lack the line rlsidecar_backend_undos_dropped_total 0")
	}
	a.write(t, leased+"# changed\n")
	a.reload(t)
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if n := left(a); n != limit-600 {
		t.Errorf("%d are left after 600 of %d, all leases are returned; want %v", n, limit, limit-600)
	}
	if code, answer := post(t, a.HTTP, "/v1/limit", fmt.Sprintf(`{"name":"all","key":"1","count":%d}`, limit-600)); code != 200 {
		t.Errorf("the rest: %d %s; want code 200", code, answer)
	}
	send := func(want rls.RateLimitResponse_Code) {
		t.Helper()
		if got := a.send(t, "all=1").OverallCode; got != want {
			t.Errorf("one more: %v; want %v", got, want)
		}
	}
	for range 3 {
		send(over)
	}
	a.write(t, strings.Replace(leased, "rate: 10000", "rate: 10001", 1))
	a.reload(t)
	send(ok)
	send(over)
}

// The deadline of a request ends before Redis could answer, so the request must not be sent to Redis.
func TestRequestsWithoutTimeAreNotCharged(t *testing.T) {
	x := start(t, shared, onRedis("redis://"+redistest.Start(t).Addr))
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), answerMargin-time.Microsecond)
		_, _ = x.rls.ShouldRateLimit(ctx, request("d", "all=1")) // the deadline of most requests has passed when they arrive
		cancel()
	}
	if left := x.send(t, "all=1").Statuses[0].LimitRemaining; left != 299 {
		t.Errorf("%d are left of 300 after one request that was charged; want 299 left", left)
	}
}
