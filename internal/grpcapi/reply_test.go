package grpcapi

import (
	"math"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func verdict(denied bool, results ...limiter.Result) *limiter.Verdict {
	v := &limiter.Verdict{Denied: denied, Results: results}
	for i, r := range results {
		v.Statuses = append(v.Statuses, limiter.Status{Result: i, Denied: r.Outcome.Denies()})
		v.Failed = v.Failed || r.Decision.Err != nil
	}
	return v
}

func result(p *limiter.Policy, o limiter.Outcome, d algorithms.Decision) limiter.Result {
	return limiter.Result{Policy: p, Outcome: o, Decision: backend.Decision{Decision: d}}
}

func reread(t *testing.T, b []byte) *rls.RateLimitResponse {
	t.Helper()
	var r rls.RateLimitResponse
	if err := proto.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func headersOf(r *rls.RateLimitResponse) string {
	var all []string
	for _, header := range r.ResponseHeadersToAdd {
		all = append(all, header.Key+"="+header.Value)
	}
	return strings.Join(all, " ")
}

const (
	ok   = rls.RateLimitResponse_OK
	over = rls.RateLimitResponse_OVER_LIMIT
)

func TestStatus(t *testing.T) {
	perMinute := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute})
	local := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 2, Period: minute})
	plain := &limiter.Policy{Limit: perMinute}
	shown := &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 5, Unit: rls.RateLimitResponse_RateLimit_MINUTE}
	none := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Period: minute, Start: new(algorithms.Micros)})
	zero := &rls.RateLimitResponse_RateLimit{Unit: rls.RateLimitResponse_RateLimit_MINUTE}
	denies := func(p *limiter.Policy) limiter.Result { // for good, 50 s before the next minute
		r := result(p, limiter.Denied, algorithms.Decision{Never: true, ResetAfter: 9e6})
		r.Decision.At = 10 * second
		return r
	}
	var known knownLimits // all limits have the same place in this cache
	failed := func(p *limiter.Policy, o limiter.Outcome) limiter.Result {
		return limiter.Result{Policy: p, Outcome: o, Decision: backend.Decision{Err: backend.ErrUnavailable}}
	}
	for _, c := range []struct {
		name   string
		result limiter.Result
		want   *rls.RateLimitResponse_DescriptorStatus
	}{
		{"within", result(plain, limiter.Allowed, algorithms.Decision{Remaining: 3, ResetAfter: 1500e3, RetryAfter: 9e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, CurrentLimit: shown, LimitRemaining: 3, DurationUntilReset: &durationpb.Duration{Seconds: 2}}},
		{"full", result(plain, limiter.Allowed, algorithms.Decision{Remaining: 5}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, CurrentLimit: shown, LimitRemaining: 5, DurationUntilReset: &durationpb.Duration{Seconds: 1}}},
		{"over", result(plain, limiter.Denied, algorithms.Decision{RetryAfter: 1, ResetAfter: 9e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: shown, DurationUntilReset: &durationpb.Duration{Seconds: 1}}},
		{"over in shadow", result(plain, limiter.Shadowed, algorithms.Decision{Remaining: 2, RetryAfter: 1, ResetAfter: 9e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, CurrentLimit: shown, DurationUntilReset: &durationpb.Duration{Seconds: 9}}},
		{"never", result(plain, limiter.Denied, algorithms.Decision{Never: true, Remaining: 5, ResetAfter: 9e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: shown}},
		{"over with units left", result(plain, limiter.Denied, algorithms.Decision{Remaining: 3, RetryAfter: 1500e3}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: shown, DurationUntilReset: &durationpb.Duration{Seconds: 2}}},
		{"never, as the reference server", result(&limiter.Policy{Limit: perMinute, Alone: true, Reference: true}, limiter.Denied, algorithms.Decision{Never: true, ResetAfter: 9e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: shown, DurationUntilReset: &durationpb.Duration{Seconds: 9}}},
		{"never, charged alone", result(&limiter.Policy{Limit: perMinute, Alone: true}, limiter.Denied, algorithms.Decision{Never: true, ResetAfter: 9e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: shown}},
		{"a rate of 0, as the reference server: the next window", denies(&limiter.Policy{Limit: none, Reference: true, Alone: true}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: zero, DurationUntilReset: &durationpb.Duration{Seconds: 50}}},
		{"a rate of 0", denies(&limiter.Policy{Limit: none, Alone: true}), &rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: zero}},
		{"never, charged with others", denies(&limiter.Policy{Limit: perMinute, Reference: true}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over, CurrentLimit: shown}},
		{"unlimited", result(&limiter.Policy{Unlimited: true}, limiter.Unlimited, algorithms.Decision{}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, LimitRemaining: math.MaxUint32}},
		{"a denial without a limit", result(nil, limiter.Denied, algorithms.Decision{Never: true}),
			&rls.RateLimitResponse_DescriptorStatus{Code: over}},
		{"backend unreachable, denied", failed(plain, limiter.FailedDenied), &rls.RateLimitResponse_DescriptorStatus{Code: over}},
		{"backend away, allowed", failed(plain, limiter.FailedAllowed), &rls.RateLimitResponse_DescriptorStatus{Code: ok}},
		{"backend away, this process's own bucket", result(&limiter.Policy{Limit: perMinute, Extras: &limiter.Extras{Local: local}}, limiter.FailedAllowed, algorithms.Decision{Remaining: 1, ResetAfter: 9e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, CurrentLimit: &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 2, Unit: rls.RateLimitResponse_RateLimit_MINUTE},
				LimitRemaining: 1, DurationUntilReset: &durationpb.Duration{Seconds: 9}}},
		{"more left than can be said", result(plain, limiter.Allowed, algorithms.Decision{Remaining: 1 << 40, ResetAfter: 1e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, CurrentLimit: shown, LimitRemaining: math.MaxUint32, DurationUntilReset: &durationpb.Duration{Seconds: 1}}},
		{"full after more years than a Duration can have", result(plain, limiter.Allowed, algorithms.Decision{ResetAfter: 100_000 * 365 * algorithms.Day}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, CurrentLimit: shown, DurationUntilReset: &durationpb.Duration{Seconds: 10_000 * 365.25 * 86_400}}},
		{"a name, two minutes", result(&limiter.Policy{RateName: "ho\"ur é/1azAZ09_.-/ {`@[:\x7f", Limit: compile(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 7, Period: 2 * minute})}, limiter.Allowed, algorithms.Decision{ResetAfter: 120e6}),
			&rls.RateLimitResponse_DescriptorStatus{Code: ok, DurationUntilReset: &durationpb.Duration{Seconds: 120}, CurrentLimit: &rls.RateLimitResponse_RateLimit{
				Name: "ho_ur___/1azAZ09_.-/_______", RequestsPerUnit: 7, Unit: rls.RateLimitResponse_RateLimit_MINUTE, UnitMultiplier: wrapperspb.UInt32(2)}}},
	} {
		v := verdict(c.result.Outcome.Denies(), c.result)
		v.Never = v.Denied && c.result.Decision.Never
		want := &rls.RateLimitResponse{OverallCode: ok, Statuses: []*rls.RateLimitResponse_DescriptorStatus{c.want}}
		if v.Denied {
			want.OverallCode = over
		}
		for i, known := range []*knownLimits{nil, &known, &known} {
			got := reread(t, appendVerdict(nil, v, known))
			if _, err := protojson.Marshal(got); err != nil {
				t.Errorf("%s: as JSON: %v", c.name, err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s: %d: (-want +got)\n%s", c.name, i, diff)
			}
		}
	}
}

// Envoy makes its headers from the status with the fewest units left. So a denial must not show a limit that allows
// the request. Limits in the reference form are shown nevertheless, as by the reference server.
func TestADenialShowsOnlyTheLimitsThatDeny(t *testing.T) {
	perMinute := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute})
	p, quota := &limiter.Policy{Limit: perMinute}, &limiter.Policy{Limit: perMinute, Quota: true}
	reference := &limiter.Policy{Limit: perMinute, Reference: true}
	shown := &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 5, Unit: rls.RateLimitResponse_RateLimit_MINUTE}
	in := func(seconds int64) *durationpb.Duration { return &durationpb.Duration{Seconds: seconds} }
	passed := algorithms.Decision{Allowed: true, ResetAfter: 9e6}
	longer := algorithms.Decision{Remaining: 4, RetryAfter: 30e6, ResetAfter: 9e6}
	for _, c := range []struct {
		name    string
		results []limiter.Result
		never   bool
		want    []*rls.RateLimitResponse_DescriptorStatus
	}{
		{"one passed with nothing left", []limiter.Result{result(p, limiter.Allowed, passed), result(p, limiter.Denied, longer)}, false,
			[]*rls.RateLimitResponse_DescriptorStatus{{Code: ok}, {Code: over, CurrentLimit: shown, DurationUntilReset: in(30)}}},
		{"one would deny in shadow mode", []limiter.Result{result(p, limiter.Shadowed, passed), result(p, limiter.Denied, longer)}, false,
			[]*rls.RateLimitResponse_DescriptorStatus{{Code: ok}, {Code: over, CurrentLimit: shown, DurationUntilReset: in(30)}}},
		{"a quota denies, and not all of them", []limiter.Result{result(quota, limiter.Denied, longer), result(p, limiter.Denied, algorithms.Decision{RetryAfter: 1})}, false,
			[]*rls.RateLimitResponse_DescriptorStatus{{Code: over}, {Code: over, CurrentLimit: shown, DurationUntilReset: in(1)}}},
		{"one denies for good", []limiter.Result{result(p, limiter.Denied, longer), result(p, limiter.Denied, algorithms.Decision{Never: true})}, true,
			[]*rls.RateLimitResponse_DescriptorStatus{{Code: over, CurrentLimit: shown}, {Code: over, CurrentLimit: shown}}},
		{"as the reference server", []limiter.Result{result(reference, limiter.Allowed, passed), result(reference, limiter.Denied, longer)}, false,
			[]*rls.RateLimitResponse_DescriptorStatus{{Code: ok, CurrentLimit: shown, DurationUntilReset: in(9)}, {Code: over, CurrentLimit: shown, DurationUntilReset: in(30)}}},
	} {
		v := verdict(true, c.results...)
		v.Never = c.never
		got := reread(t, appendVerdict(nil, v, nil))
		if diff := cmp.Diff(&rls.RateLimitResponse{OverallCode: over, Statuses: c.want}, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestLongNestedMessagesAreMoved(t *testing.T) {
	for _, n := range []int{1, 100, 113, 126, 127, 128, 200, 1 << 14, 1 << 15} {
		p := &limiter.Policy{RateName: strings.Repeat("n", n), Limit: compile(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 7, Period: minute})}
		got := reread(t, appendVerdict(nil, verdict(false, result(p, limiter.Allowed, algorithms.Decision{Remaining: 6})), nil))
		if s := got.Statuses[0]; s.CurrentLimit.Name != p.RateName || s.LimitRemaining != 6 || s.DurationUntilReset.Seconds != 1 {
			t.Errorf("%d: got %v; want the name of the limit, 6 remaining and a reset after 1 s", n, s)
		}
	}
}

// The limits are in the reference form. The headers must describe the limit that the reference server chooses.
func TestHeadersAreOfTheMostRestrictiveLimit(t *testing.T) {
	limit := func(rate int64) *limiter.Policy {
		return &limiter.Policy{Limit: compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: rate, Period: minute}), Alone: true, Reference: true}
	}
	quota := limit(30)
	quota.Quota = true
	allowed := func(rate, left int64) limiter.Result {
		return result(limit(rate), limiter.Allowed, algorithms.Decision{Remaining: left, ResetAfter: algorithms.Micros(rate) * second})
	}
	denied := func(p *limiter.Policy) limiter.Result {
		return result(p, limiter.Denied, algorithms.Decision{Remaining: 2, RetryAfter: algorithms.Micros(p.Limit.Rate) * second})
	}
	never := result(limit(40), limiter.Denied, algorithms.Decision{Never: true})
	away := limiter.Result{Policy: limit(50), Outcome: limiter.FailedDenied, Decision: backend.Decision{Err: backend.ErrUnavailable}}
	for _, c := range []struct {
		name    string
		results []limiter.Result
		want    string
	}{
		{"the least left", []limiter.Result{allowed(10, 9), allowed(11, 3), allowed(12, 4)}, "x-limit=11 x-left=3 x-reset=11"},
		{"of equals the first", []limiter.Result{allowed(10, 3), allowed(11, 3)}, "x-limit=10 x-left=3 x-reset=10"},
		{"a denial before a pass", []limiter.Result{allowed(10, 0), denied(limit(20)), allowed(11, 1)}, "x-limit=20 x-left=0 x-reset=20"},
		{"the last denial", []limiter.Result{denied(limit(20)), denied(limit(21))}, "x-limit=21 x-left=0 x-reset=21"},
		{"a quota's denial counts by what is left", []limiter.Result{allowed(10, 1), denied(quota)}, "x-limit=30 x-left=0 x-reset=30"},
		{"a quota's denial after another's", []limiter.Result{denied(limit(20)), denied(quota)}, "x-limit=20 x-left=0 x-reset=20"},
		{"a quota's denial before another's", []limiter.Result{denied(quota), denied(limit(20))}, "x-limit=20 x-left=0 x-reset=20"},
		{"no time that helps", []limiter.Result{never}, "x-limit=40 x-left=0"},
		{"nothing is known", []limiter.Result{away}, "x-ratelimit-reason=backend-failure"},
		{"a limit, and one that is unknown", []limiter.Result{allowed(10, 3), away}, "x-limit=10 x-left=3 x-reset=10 x-ratelimit-reason=backend-failure"},
		{"a missing entry", nil, "x-ratelimit-reason=missing-descriptor"},
		{"no limit", []limiter.Result{result(&limiter.Policy{}, limiter.Unlimited, algorithms.Decision{})}, ""},
	} {
		h, err := Headers{"X-Limit", "X-Left", "X-Reset"}.check()
		if err != nil {
			t.Fatal(err)
		}
		v := verdict(true, c.results...)
		if len(c.results) == 0 {
			v.Missing = limiter.Requirement{"user"}
		}
		if s := headersOf(reread(t, h.append(nil, v))); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
}

func TestHeaderNamesAreChecked(t *testing.T) {
	for _, name := range []string{"", ":status", "a b", "a\r\nb", "é", "Host", "content-length", "Content-Type", "connection", "a,b", "\x00"} {
		if _, err := (Headers{name, "b", "c"}).check(); err == nil {
			t.Errorf("%q is accepted as a header name; want an error", name)
		}
	}
	h, err := Headers{"azAZ09", "!#$%&'*+-.^_`|~", "x-9"}.check() // all characters that RFC 9110 lists for a token
	if want := (Headers{"azaz09", "!#$%&'*+-.^_`|~", "x-9"}); err != nil || h != want {
		t.Errorf("got %+v, %v; want %+v", h, err, want)
	}
}

func TestMetadata(t *testing.T) {
	limit := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute})
	policy := func(m map[string]any) *limiter.Policy {
		return &limiter.Policy{Limit: limit, Extras: &limiter.Extras{Metadata: m}}
	}
	first := map[string]any{"a": 1, "nested": map[string]any{"x": "first"}}
	second := map[string]any{"a": 2, "b": true, "nested": map[string]any{"x": "second", "y": "second"}}
	x := &exchange{hits: 3}
	x.call.Request.Domain = "dom"
	d, a := x.addDescriptor()
	d.Entries = []descriptors.Entry{{Key: "path", Value: "/é"}, {Key: "raw", Value: "a\xff\r\n\x00b"}}
	*a = descriptorFields{hasLimit: true, requests: 42, unit: 3, multiplier: 2, hasHits: true, hits: 7, negative: true}
	d.Cost = -7
	for range 4 {
		x.addDescriptor()
	}
	away := limiter.Result{Policy: policy(nil), Outcome: limiter.FailedAllowed, Decision: backend.Decision{Err: backend.ErrUnavailable}}
	x.call.Verdict = *verdict(true,
		result(policy(first), limiter.Allowed, algorithms.Decision{}),
		result(policy(second), limiter.Shadowed, algorithms.Decision{}),
		result(policy(map[string]any{"denied": true}), limiter.Denied, algorithms.Decision{}), away,
		result(policy(map[string]any{"unlimited": true}), limiter.Unlimited, algorithms.Decision{}))
	x.call.Results[2].Policy.Name = "per_user,"
	want, err := structpb.NewStruct(map[string]any{
		"domain": "dom", "hitsAddend": 3, "backend_failure": true, "denied_by": "per_user_",
		"descriptors": []any{
			map[string]any{"entries": []any{"path=/é", "raw=a\ufffd\ufffd\ufffd\ufffdb"}, "limit": "requests_per_unit:42 unit:HOUR unit_multiplier:{value:2}", "hitsAddend": -7},
			map[string]any{"entries": []any{}}, map[string]any{"entries": []any{}}, map[string]any{"entries": []any{}}, map[string]any{"entries": []any{}},
		},
		"metadata": map[string]any{"a": 1, "b": true, "nested": map[string]any{"x": "first", "y": "second"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := reread(t, appendMetadata(nil, x, true)).DynamicMetadata
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if len(first) != 2 || len(first["nested"].(map[string]any)) != 1 || second["a"] != 2 || second["nested"].(map[string]any)["x"] != "second" {
		t.Errorf("the configuration was edited: %v, %v", first, second)
	}
	x.call.Verdict = *verdict(false, away)
	x.call.Failed = true
	if got := reread(t, appendMetadata(nil, x, true)).DynamicMetadata; !got.Fields["backend_failure"].GetBoolValue() {
		t.Errorf("a request that is allowed because the store failed: got %v; want backend_failure", got)
	}
	x.call.Verdict = *verdict(true, result(policy(nil), limiter.Allowed, algorithms.Decision{}))
	x.call.Results[0].Policy.Extras = &limiter.Extras{Metadata: map[string]any{"not": make(chan int)}}
	if got := reread(t, appendMetadata(nil, x, true)).DynamicMetadata; got.Fields["domain"].GetStringValue() != "dom" || got.Fields["metadata"] != nil {
		t.Errorf("metadata that is not JSON: got %v; want the domain, and no metadata", got)
	}
}

// In shadow mode a request is allowed although a limit denies. As in the reference server, the headers describe
// the limit that denies, and its status shows the units that are left.
func TestAnAllowedRequestShowsTheLimitThatWouldDeny(t *testing.T) {
	limit := func(rate int64) *limiter.Policy {
		return &limiter.Policy{Limit: compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: rate, Period: minute})}
	}
	v := verdict(false, result(limit(20), limiter.Denied, algorithms.Decision{Remaining: 3, RetryAfter: 5 * second}),
		result(limit(10), limiter.Allowed, algorithms.Decision{Allowed: true, Remaining: 1, ResetAfter: 9 * second}))
	h, err := usual.check()
	if err != nil {
		t.Fatal(err)
	}
	got := reread(t, h.append(appendVerdict(nil, v, nil), v))
	if s := got.Statuses[0]; got.OverallCode != ok || s.Code != over || s.LimitRemaining != 3 || s.DurationUntilReset.GetSeconds() != 5 {
		t.Errorf("got %v; want OK, and a status with OVER_LIMIT, 3 remaining and 5 s", got)
	}
	if s := headersOf(got); s != "ratelimit-limit=20 ratelimit-remaining=3 ratelimit-reset=5" {
		t.Errorf("got the headers %s; want those of the limit that denies", s)
	}
}

// The proxy forwards these headers and the body to its client. The header set "retry_after" decides about
// Retry-After, and no retry is proposed where none can succeed.
func TestPartsOfAnAnswerForTheClient(t *testing.T) {
	p := &limiter.Policy{RateName: "n", Limit: compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute}), Extras: &limiter.Extras{Unit: limiter.Tokens}}
	openAI, without := &limiter.HeaderSets{OpenAI: true}, &limiter.HeaderSets{OpenAI: true, NoRetryAfter: true}
	const numbers = "x-ratelimit-limit-tokens=5 x-ratelimit-remaining-tokens=0 x-ratelimit-reset-tokens=9s"
	for _, c := range []struct {
		name          string
		d             *limiter.Domain
		denied, never bool
		want          string
	}{
		{"no domain", nil, false, false, ""},
		{"a denial without a domain", nil, true, false, ""},
		{"neither headers nor a body", &limiter.Domain{}, true, false, ""},
		{"allowed", &limiter.Domain{Headers: openAI, DenyBody: limiter.TextBody}, false, false, numbers},
		{"denied", &limiter.Domain{Headers: openAI}, true, false, numbers + " retry-after-ms=2000 retry-after=2"},
		{"denied for good", &limiter.Domain{Headers: openAI}, true, true, numbers + " x-should-retry=false"},
		{"denied, without Retry-After", &limiter.Domain{Headers: without}, true, false, numbers},
		{"other headers", &limiter.Domain{Headers: &limiter.HeaderSets{X: true}}, true, false, ""},
		{"a body", &limiter.Domain{DenyBody: limiter.TextBody}, true, false,
			"content-type=text/plain; charset=utf-8 Rate limit reached for \"n\". Please try again in 2s.\n"},
		{"a body without Retry-After", &limiter.Domain{Headers: &limiter.HeaderSets{NoRetryAfter: true}, DenyBody: limiter.TextBody}, true, false,
			"content-type=text/plain; charset=utf-8 Rate limit reached for \"n\".\n"},
		{"a body, allowed", &limiter.Domain{DenyBody: limiter.TextBody}, false, false, ""},
	} {
		outcome := limiter.Allowed
		if c.denied {
			outcome = limiter.Denied
		}
		v := verdict(c.denied, result(p, outcome, algorithms.Decision{Never: c.never, RetryAfter: 2 * second, ResetAfter: 9 * second}))
		v.Domain, v.Never, v.RetryAfter = c.d, c.never, 2*second
		r := reread(t, appendForClient(nil, v))
		got := headersOf(r)
		if len(r.RawBody) > 0 {
			got += " " + string(r.RawBody)
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// All answers share a place in the cache. Two policies have the same numbers and other names, and one has an adjusted rate.
func TestTheCacheShowsTheLimitOfTheRequest(t *testing.T) {
	five := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute})
	adjusted := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 50, Period: minute})
	a, b := &limiter.Policy{RateName: "a"}, &limiter.Policy{RateName: "b"}
	var known knownLimits
	for i, s := range []status{{policy: a, limit: five}, {policy: b, limit: five}, {policy: b, limit: adjusted}, {policy: b, limit: five}, {policy: a, limit: five}} {
		got := reread(t, s.append(nil, &known)).Statuses[0].CurrentLimit
		if got.Name != s.policy.RateName || int64(got.RequestsPerUnit) != s.limit.Rate {
			t.Errorf("answer %d: got %v; want the limit %s of %d", i, got, s.policy.RateName, s.limit.Rate)
		}
	}
}
