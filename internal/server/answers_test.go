package server

import (
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
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

func TestQuotaModeDeniesOnlyIfAllDescriptorsAreDenied(t *testing.T) {
	x := start(t, answers)
	expect(t, x.send(t, "q1=a", "q2=a"), ok, "OK left 0 of 1/YEAR reset", "OK left 1 of 2/YEAR reset")
	expect(t, x.send(t, "q1=a", "q2=a"), ok, "OVER_LIMIT left 0 of 1/YEAR reset", "OK left 0 of 2/YEAR reset")
	expect(t, x.send(t, "q1=a", "q2=a"), over, "OVER_LIMIT left 0 of 1/YEAR reset", "OVER_LIMIT left 0 of 2/YEAR reset")
	// A limit without quota mode that allows does not prevent the denial by all quota limits. If it denies, the request
	// is denied.
	expect(t, x.send(t, "q1=a", "plain=a"), over, "OVER_LIMIT left 0 of 1/YEAR reset", "OK left 1 of 2/YEAR yearly reset")
	expect(t, x.send(t, "q1=b", "zero=a"), over, "OK left 0 of 1/YEAR reset", "OVER_LIMIT left 0 of 0/YEAR reset")
}

func TestReplacedLimitsAreNotCharged(t *testing.T) {
	x := start(t, answers)
	for range 3 {
		got := x.send(t, "plain=a", "replacing=a")
		if got.OverallCode != ok || described(got.Statuses[0]) != "OK left 0" {
			t.Errorf("got %v; want OK, and the first status without a limit", got)
		}
	}
	expect(t, x.send(t, "plain=a"), ok, "OK left 1 of 2/YEAR yearly reset")
}

func TestOverridesAreBounded(t *testing.T) {
	recipe, err := os.ReadFile("../../examples/recipes/overrides.yaml")
	if err != nil {
		t.Fatal(err)
	}
	x := start(t, string(recipe))
	send := func(text string, unit typev3.RateLimitUnit, requests, multiplier, hits uint32) *rls.RateLimitResponse {
		d := descriptor(text)
		d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: requests, Unit: unit}
		if multiplier > 1 {
			d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
		}
		d.HitsAddend = wrapperspb.UInt64(uint64(hits))
		return x.put(t, request("tenants", d))
	}
	const year, month = typev3.RateLimitUnit_YEAR, typev3.RateLimitUnit_MONTH

	// Below the bound, the override applies.
	expect(t, send("tenant=small", year, 5, 1, 5), ok, "OK left 0 of 5/YEAR reset")
	expect(t, send("tenant=small", year, 5, 1, 1), over, "OVER_LIMIT left 0 of 5/YEAR reset")
	// Above the bound, the bound applies. A denial reports 0 remaining, although units are left that the
	// request did not get.
	expect(t, send("tenant=greedy", year, 5000, 1, 999), ok, "OK left 1 of 1000/YEAR most reset")
	expect(t, send("tenant=greedy", year, 5000, 1, 2), over, "OVER_LIMIT left 0 of 1000/YEAR most reset")
	expect(t, send("tenant=greedy", year, 5000, 1, 1), ok, "OK left 0 of 1000/YEAR most reset")
	// An override with another unit of time has its own buckets, and the same bound.
	expect(t, send("tenant=greedy", month, 5000, 1, 1), over, "OVER_LIMIT left 0 of 1000/YEAR most reset")
	expect(t, send("tenant=greedy", month, 5000, 3, 1), over, "OVER_LIMIT left 0 of 1000/YEAR most reset")
	// If a descriptor has no bound, or matches nothing, the bound of the domain applies.
	for _, text := range []string{"path=/a", "nobody=knows"} {
		expect(t, send(text, year, 50, 1, 10), ok, "OK left 10 of 20/YEAR reset")
		expect(t, send(text, year, 50, 1, 11), over, "OVER_LIMIT left 0 of 20/YEAR reset")
	}
	// A request without an override is not affected.
	expect(t, x.put(t, request("tenants", descriptor("tenant=greedy"))), ok, "OK left 99 of 100/YEAR reset")
}

func TestOverridesComeWithTheRequest(t *testing.T) {
	x := start(t, answers)
	with := func(text string, requests uint32, unit int32, multiplier uint32) *rls.RateLimitRequest {
		d := descriptor(text)
		d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: requests}
		d.Limit.Unit = typev3.RateLimitUnit(unit)
		if multiplier > 0 {
			d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
		}
		return request("d", d)
	}
	expect(t, x.put(t, with("any=a", 1, 6, 0)), ok, "OK left 0 of 1/YEAR reset")
	expect(t, x.put(t, with("any=a", 1, 6, 0)), over, "OVER_LIMIT left 0 of 1/YEAR reset")
	expect(t, x.put(t, with("any=b", 1, 7, 0)), ok, "OK left 0 of 1/WEEK reset")
	if l := x.put(t, with("any=c", 9, 5, 3)).Statuses[0].CurrentLimit; l.UnitMultiplier.GetValue() != 3 || l.Unit.String() != "MONTH" {
		t.Errorf("got the limit %v; want 3 times the unit MONTH", l)
	}
	// If the unit is unknown, the configured limit applies. Without a configured limit the descriptor is
	// denied.
	expect(t, x.put(t, with("plain=a", 1, 99, 0)), ok, "OK left 1 of 2/YEAR yearly reset")
	expect(t, x.put(t, with("any=a", 1, 0, 0)), over, "OVER_LIMIT left 0")
}

func TestHitsOfARequestAndItsDescriptors(t *testing.T) {
	x := start(t, answers)
	with := func(of uint32, texts ...string) *rls.RateLimitRequest {
		r := request("d")
		for _, text := range texts {
			r.Descriptors = append(r.Descriptors, descriptor(text))
		}
		r.HitsAddend = of
		return r
	}
	left := func(n int) string { return fmt.Sprintf("OK left %d of 100/YEAR reset", n) }
	expect(t, x.put(t, with(0, "big=a")), ok, left(99))
	expect(t, x.put(t, with(9, "big=a")), ok, left(90))
	r := with(9, "big=a", "big=b")
	r.Descriptors[0].HitsAddend = wrapperspb.UInt64(20)
	expect(t, x.put(t, r), ok, left(70), left(91))
	r.Descriptors[0].HitsAddend = wrapperspb.UInt64(0) // a dry run for the first descriptor
	expect(t, x.put(t, r), ok, left(70), left(82))
	r.Descriptors[0].IsNegativeHits, r.Descriptors[0].HitsAddend = true, wrapperspb.UInt64(5)
	expect(t, x.put(t, r), ok, left(75), left(73))
	r.Descriptors[0].HitsAddend = nil // the 9 hits of the request
	expect(t, x.put(t, r), ok, left(84), left(64))
	r.Descriptors[0].HitsAddend = wrapperspb.UInt64(math.MaxUint64)
	expect(t, x.put(t, r), ok, left(100), left(55))
	r.Descriptors[0].IsNegativeHits = false
	expect(t, x.put(t, r), over, "OVER_LIMIT left 0 of 100/YEAR", left(55)) // can never fit
	expect(t, x.put(t, with(56, "big=b")), over, "OVER_LIMIT left 0 of 100/YEAR reset")
}

func TestWrongRequestsAreErrors(t *testing.T) {
	x := start(t, answers)
	for text, r := range map[string]*rls.RateLimitRequest{
		"rate limit domain must not be empty":          request("", descriptor("plain=a")),
		"rate limit descriptor list must not be empty": request("d"),
	} {
		_, err := x.rls.ShouldRateLimit(t.Context(), r)
		if s := status.Convert(err); s.Code() != codes.Unknown || s.Message() != text {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

func TestADenialChargesNothingUnlessConsumeIsEach(t *testing.T) {
	for _, c := range []struct {
		name   string
		each   bool
		yaml   string
		left   int
		denied bool // the denial itself is charged
	}{
		{"together", false, answers, 98, false},
		{"each, by the file", false, answers + "consume: each\n", 96, true},
		{"each, by default", true, answers, 96, true},
	} {
		x := start(t, c.yaml, func(o *Config) { o.Defaults.ConsumeEach = c.each })
		for range 4 { // plain has 2 units, so two of the requests are allowed
			x.send(t, "plain=a", "big=a")
		}
		peek := descriptor("big=a")
		peek.HitsAddend = wrapperspb.UInt64(0)
		if got := x.put(t, request("d", peek)).Statuses[0].LimitRemaining; int(got) != c.left {
			t.Errorf("%s: %d left, want %d", c.name, got, c.left)
		}
		// A request with too high a cost consumes the rest, or nothing.
		r := request("d", descriptor("big=a"))
		r.HitsAddend = 99
		x.put(t, r)
		if got := x.put(t, request("d", peek)).Statuses[0].LimitRemaining; (got == 0) != c.denied {
			t.Errorf("%s: %d left after a request with too high a cost; want 0 left: %t", c.name, got, c.denied)
		}
	}
}

func TestManyWorkersGetExactlyTheLimit(t *testing.T) {
	x := start(t, `
domain: d
limits:
  hot: {algorithm: fixed_window, rate: 1000, period: 365d, start: 2026-01-01T00:00:00Z}
descriptors:
  - {key: hot, limit: hot}
`)
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 20 {
				r, err := x.rls.ShouldRateLimit(t.Context(), request("d", descriptor("hot=key")))
				if err != nil {
					t.Error(err)
					return
				}
				if r.OverallCode == ok {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 1000 {
		t.Errorf("%d allowed; want 1000", allowed.Load())
	}
}

func TestHeadersAndMetadataAreSentIfConfigured(t *testing.T) {
	yaml := answers + "  - {key: meta, metadata: {tier: gold}, rate_limit: {unit: year, requests_per_unit: 3}}\n"
	if got := start(t, yaml).send(t, "meta=a"); got.ResponseHeadersToAdd != nil || got.DynamicMetadata != nil {
		t.Errorf("without configuration: %v; want neither headers nor dynamic metadata", got)
	}
	x := start(t, yaml, func(c *Config) {
		c.Answers.Metadata = true
		c.Answers.Headers = &grpcapi.Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}
	})
	got := x.send(t, "meta=a")
	for i, want := range []string{"ratelimit-limit=3", "ratelimit-remaining=2"} {
		if h := got.ResponseHeadersToAdd[i]; h.Key+"="+h.Value != want {
			t.Errorf("%v, want %s", h, want)
		}
	}
	want := map[string]any{
		"domain": "d", "metadata": map[string]any{"tier": "gold"},
		"descriptors": []any{map[string]any{"entries": []any{"meta=a"}}},
	}
	if diff := cmp.Diff(want, got.DynamicMetadata.AsMap(), protocmp.Transform()); diff != "" {
		t.Errorf("the dynamic metadata differs (-want +got):\n%s", diff)
	}
}
