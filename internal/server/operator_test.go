package server

import (
	"fmt"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/redistest"
)

// TestOperatorsResetForAllSidecars: a bucket is looked at and forgotten at any sidecar, and whom each
// denied it tells of itself.
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
	asks := func(i int, want rls.RateLimitResponse_Code) {
		t.Helper()
		if got := all[i].ask(t, "path=/login,ip=::1").OverallCode; got != want {
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
	asks(0, rls.RateLimitResponse_OK)
	asks(1, rls.RateLimitResponse_OK)
	left(0, 1)
	left(1, 1)
	asks(0, rls.RateLimitResponse_OK)
	asks(0, rls.RateLimitResponse_OVER_LIMIT)
	asks(0, rls.RateLimitResponse_OVER_LIMIT) // of which it remembers the denial
	left(0, 0)
	for i, want := range []string{`"why":"limit","key":"::1","descriptor":[["path","/login"],["ip","::1"]],"denied":2,"exact":true,`, `"denied":[],`} {
		if got := body(t, get(t, all[i].Admin, "/api/top")); !strings.Contains(got, want) {
			t.Errorf("sidecar %d: %s", i, got)
		}
	}
	if code, answer := post(t, all[0].Admin, "/api/reset"+bucket, ""); code != 200 || answer != `{"reset":[{"domain":"d","name":"path_/login.ip","key":"::1"}]}` {
		t.Errorf("%d %s", code, answer)
	}
	left(0, 3)
	left(1, 3)
	asks(0, rls.RateLimitResponse_OK)
	asks(1, rls.RateLimitResponse_OK)
	left(1, 1)
}
