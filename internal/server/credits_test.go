package server

import (
	"encoding/json"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const creditsYAML = `
domain: d
hash_tag: entry:user
limits:
  plan: {algorithm: fixed_window, rate: 10, period: 365d, start: 2026-01-01T00:00:00Z, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 1000, initial: 0}
  estimated: {algorithm: token_bucket, rate: 100, period: 365d, max_reserved: 0, settle: {estimate: 30}, then: prepaid}
  prepaid: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 500, settle: {estimate: 30}}
descriptors:
  - {key: user, limit: plan}
  - {key: user, value: ai, descriptors: [{key: user, limit: estimated}]}
`

func TestCreditsPayThroughEveryListener(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(t *testing.T) string{
		"memory": func(*testing.T) string { return "" },
		"redis":  func(t *testing.T) string { return "redis://" + redistest.Start(t).Addr },
		"cluster": func(t *testing.T) string {
			return redistest.StartCluster(t, 3).URL()
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, creditsYAML, onRedis(store(t)))
			limit := func(body string, code int, want string) string {
				t.Helper()
				got, answer := post(t, x.HTTP, "/v1/limit", body)
				if got != code || !strings.Contains(answer, want) {
					t.Errorf("%s: %d %s, want %d with %s", body, got, answer, code, want)
				}
				return answer
			}
			envoy := func(cost uint32, code rls.RateLimitResponse_Code, name string) {
				t.Helper()
				r := request("d", descriptor("user=bob"))
				r.HitsAddend = cost
				answer := x.put(t, r)
				if answer.OverallCode != code || answer.Statuses[0].GetCurrentLimit().GetName() != name {
					t.Errorf("%d hits: %v, want %v by %s", cost, answer, code, name)
				}
			}
			const ok, over = rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT
			envoy(8, ok, "plan")
			envoy(5, over, "plan")
			limit(`{"name":"credits","key":"bob","count":-20,"request_id":"order 1"}`, 200, `"remaining":20`)
			envoy(5, ok, "credits")
			limit(`{"name":"plan","key":"bob","count":5,"request_id":"r"}`, 200, `"payer":"credits"`)
			limit(`{"name":"plan","key":"bob","count":5,"request_id":"r"}`, 200, `"remaining":10`)
			limit(`{"name":"plan","key":"bob","count":2}`, 200, `"remaining":0`)
			limit(`{"name":"plan","key":"bob","count":11}`, 429, `"remaining":0`)
			limit(`{"name":"credits","key":"bob","count":0}`, 200, `"remaining":10`)

			// A reservation is settled in the bucket that paid.
			limit(`{"name":"estimated","key":"ai","count":90}`, 200, `"remaining":10`)
			answer := limit(`{"name":"estimated","key":"ai","count":400,"reserve":true}`, 200, `"payer":"prepaid"`)
			var answered struct{ Reservation string }
			if err := json.Unmarshal([]byte(answer), &answered); err != nil || answered.Reservation == "" {
				t.Fatalf("got %s (%v); want JSON with the id of a reservation", answer, err)
			}
			for range 2 {
				limit(`{"reservation":"`+answered.Reservation+`","count":50}`, 200, `"remaining":450`)
			}
			limit(`{"name":"estimated","key":"ai","count":0}`, 200, `"remaining":10`)
			limit(`{"name":"prepaid","key":"ai","count":0}`, 200, `"remaining":450`)

			if name == "memory" {
				if metrics := metricsOf(t, x); !strings.Contains(metrics, `limit="credits"`) {
					t.Error("the metrics lack the label limit=\"credits\"")
				}
			}
		})
	}
}
