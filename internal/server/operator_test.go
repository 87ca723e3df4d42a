package server

import (
	"fmt"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// An operator can read and reset a bucket at any sidecar. Each sidecar lists only the denials of its own
// requests.
func TestOperatorsResetForAllSidecars(t *testing.T) {
	redis := redistest.Start(t)
	var all []*instance
	for range 2 {
		all = append(all, start(t, `
domain: d
descriptors:
  - key: path
    value: /login
    descriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 3}}]
`, onRedis("redis://"+redis.Addr)))
	}
	const bucket = "?domain=d&descriptor=path%3D/login,ip%3D::1"
	expect := func(i int, want rls.RateLimitResponse_Code) {
		t.Helper()
		if got := all[i].send(t, "path=/login,ip=::1").OverallCode; got != want {
			t.Errorf("sidecar %d answers %v, want %v", i, got, want)
		}
	}
	left := func(i, want int) {
		t.Helper()
		if got := body(t, get(t, all[i].Admin, "/api/buckets"+bucket)); !strings.Contains(got, fmt.Sprintf(`"remaining":%d,`, want)) {
			t.Errorf("sidecar %d: %s, want %d", i, got, want)
		}
	}
	left(1, 3)
	expect(0, rls.RateLimitResponse_OK)
	expect(1, rls.RateLimitResponse_OK)
	left(0, 1)
	left(1, 1)
	expect(0, rls.RateLimitResponse_OK)
	expect(0, rls.RateLimitResponse_OVER_LIMIT)
	expect(0, rls.RateLimitResponse_OVER_LIMIT) // this sidecar has a cached denial
	left(0, 0)
	for i, want := range []string{`"why":"limit","key":"::1","descriptor":[["path","/login"],["ip","::1"]],"denied":2,"exact":true,`, `"denied":[],`} {
		if got := body(t, get(t, all[i].Admin, "/api/top")); !strings.Contains(got, want) {
			t.Errorf("sidecar %d: %s; want a text that contains %q", i, got, want)
		}
	}
	if code, answer := post(t, all[0].Admin, "/api/reset"+bucket, ""); code != 200 || answer != `{"reset":[{"domain":"d","name":"path_/login.ip","key":"::1"}]}` {
		t.Errorf("got %d %s; want code 200 and answer %q", code, answer, `{"reset":[{"domain":"d","name":"path_/login.ip","key":"::1"}]}`)
	}
	left(0, 3)
	left(1, 3)
	expect(0, rls.RateLimitResponse_OK)
	expect(1, rls.RateLimitResponse_OK)
	left(1, 1)
}

func TestRequestsAreNotLogged(t *testing.T) {
	x := start(t, `{domain: d, descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 2}}]}`)
	before := x.logs.Len()
	for range 5 {
		x.send(t, "k=v")
	}
	if added := x.logs.All()[before:]; len(added) > 0 {
		t.Errorf("5 requests, of which 3 are denied: got the log lines %v; want none", added)
	}
}

// An operator reads buckets that would deny. One is in debt, and one is blocked by a penalty. No counter
// changes.
func TestRequestsOfOperatorsAreNotCounted(t *testing.T) {
	x := start(t, `
domain: d
limits:
  credit: {algorithm: token_bucket, rate: 1, period: 365d, overdraw: true}
  login:  {algorithm: token_bucket, rate: 1, period: 365d, penalty: {after: 1, for: 1h, max: 1h}}
descriptors:
  - {key: user, limit: credit, detailed_metric: true}
  - {key: ip, limit: login}
`)
	r := request("d", descriptor("user=bob"))
	r.HitsAddend = 5
	for _, r := range []*rls.RateLimitRequest{r, request("d", descriptor("ip=::1")), request("d", descriptor("ip=::1"))} {
		x.put(t, r)
	}
	counters := func() string {
		var lines []string
		for line := range strings.Lines(body(t, get(t, x.Admin, "/metrics"))) {
			for _, prefix := range []string{"rlsidecar_requests", "rlsidecar_decisions", "rlsidecar_domain_not_found", "rlsidecar_refused", "ratelimit_"} {
				if strings.HasPrefix(line, prefix) {
					lines = append(lines, line)
				}
			}
		}
		_, top, _ := strings.Cut(body(t, get(t, x.Admin, "/api/top")), `"denied":`)
		return strings.Join(lines, "") + top
	}
	before := counters()
	for _, want := range []string{`code="over_limit",domain="d"} 2`, `"name":"credit","why":"limit","key":"bob"`, `"name":"login"`} {
		if !strings.Contains(before, want) {
			t.Fatalf("the counters lack %s:\n%s", want, before)
		}
	}
	for path, want := range map[string]string{
		"/api/buckets?limit=credit&key=bob":              `"value":-126143`,
		"/api/buckets?limit=login&key=::1":               `"remaining":0,`,
		"/api/buckets?domain=d&descriptor=user%3Dbob":    `"remaining":0,`,
		"/api/buckets?domain=d&descriptor=ip%3D::1":      `"remaining":0,`,
		"/api/buckets?domain=elsewhere&descriptor=ip%3D": "not configured",
		"/api/buckets?limit=other&key=bob":               "no limit is named",
		"/api/top":                                       `"key":"bob"`,
	} {
		if got := body(t, get(t, x.Admin, path)); !strings.Contains(got, want) {
			t.Errorf("%s: got %s; want a text that contains %q", path, got, want)
		}
	}
	for _, path := range []string{"/v1/limits/credit?key=bob", "/v1/limits/login?key=::1"} {
		if got := body(t, get(t, x.HTTP, path)); !strings.Contains(got, `"remaining":0,`) {
			t.Errorf("%s: got %s; want a text that contains %q", path, got, `"remaining":0,`)
		}
	}
	if code, answer := post(t, x.Admin, "/api/reset?limit=credit&key=eve", ""); code != 200 {
		t.Errorf("got %d %s; want code 200", code, answer)
	}
	if code, answer := post(t, x.HTTP, "/v1/reset", `{"name": "credit", "key": "eve"}`); code != 200 {
		t.Errorf("got %d %s; want code 200", code, answer)
	}
	if after := counters(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s; want equal counters", before, after)
	}
	// A check by an application counts.
	if code, answer := post(t, x.HTTP, "/v1/check", `{"name": "credit", "key": "bob"}`); code != 429 {
		t.Errorf("got %d %s; want code 429", code, answer)
	}
	if after := counters(); !strings.Contains(after, `code="over_limit",domain="d"} 3`) {
		t.Errorf("after a check that was denied:\n%s; want a text that contains %q", after, `code="over_limit",domain="d"} 3`)
	}
}
