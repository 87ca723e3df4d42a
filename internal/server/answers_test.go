package server

import (
	"fmt"
	"math"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
)

const (
	ok   = rls.RateLimitResponse_OK
	over = rls.RateLimitResponse_OVER_LIMIT
)

// All limits are per year, so a window ends during a test only at the turn of a year.
const answers = `
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 2, name: yearly}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: bare}
  - {key: zero, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: q1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: big, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: replacing, rate_limit: {unit: year, requests_per_unit: 5, name: other, replaces: [{name: yearly}]}}
`

func described(s *rls.RateLimitResponse_DescriptorStatus) string { return rlstest.Status(s) }

func expect(t *testing.T, got *rls.RateLimitResponse, code rls.RateLimitResponse_Code, statuses ...string) {
	t.Helper()
	var texts []string
	for _, s := range got.Statuses {
		texts = append(texts, described(s))
	}
	if diff := cmp.Diff(statuses, texts); diff != "" || got.OverallCode != code {
		t.Errorf("overall %s, want %s; statuses:\n%s", got.OverallCode, code, diff)
	}
}

func TestAnswersAreThoseOfTheReferenceServer(t *testing.T) {
	x := start(t, answers)
	expect(t, x.send(t, "plain=a"), ok, "OK left 1 of 2/YEAR yearly reset")
	expect(t, x.send(t, "plain=a"), ok, "OK left 0 of 2/YEAR yearly reset")
	expect(t, x.send(t, "plain=a"), over, "OVER_LIMIT left 0 of 2/YEAR yearly reset")
	expect(t, x.send(t, "plain=b"), ok, "OK left 1 of 2/YEAR yearly reset")

	expect(t, x.send(t, "shadow=a"), ok, "OK left 0 of 1/YEAR reset")
	expect(t, x.send(t, "shadow=a"), ok, "OK left 0 of 1/YEAR reset")

	unlimited := fmt.Sprint("OK left ", uint32(math.MaxUint32))
	expect(t, x.send(t, "free=a"), ok, unlimited)
	expect(t, x.send(t, "bare=a", "nowhere=a", "plain=b,deeper=c"), ok, "OK left 0", "OK left 0", "OK left 0")
	expect(t, x.send(t, "zero=a"), over, "OVER_LIMIT left 0 of 0/YEAR reset")
	expect(t, x.put(t, request("elsewhere", descriptor("plain=a"))), ok, "OK left 0")

	// A request that another limit denies is not charged.
	expect(t, x.send(t, "free=a", "plain=c", "bare=a", "plain=a"), over,
		unlimited, "OK left 2 of 2/YEAR yearly reset", "OK left 0", "OVER_LIMIT left 0 of 2/YEAR yearly reset")
}
