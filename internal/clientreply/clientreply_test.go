package clientreply

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	ms     = algorithms.Micros(1000)
	second = algorithms.Second
)

// policy returns the policy of a token bucket of 100 units an hour.
func policy(t *testing.T, name string, unit limiter.Unit, body limiter.Body) *limiter.Policy {
	t.Helper()
	l := limittest.Compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: 3600 * second})
	return &limiter.Policy{RateName: name, Index: 6, Limit: l, Extras: &limiter.Extras{Unit: unit, DenyBody: body}}
}

func result(p *limiter.Policy, o limiter.Outcome, d algorithms.Decision) limiter.Result {
	return limiter.Result{Policy: p, Outcome: o, Decision: backend.Decision{Decision: d}}
}

func denied(body limiter.Body, retry algorithms.Micros, results ...limiter.Result) *limiter.Verdict {
	return &limiter.Verdict{Domain: &limiter.Domain{DenyBody: body}, Denied: true, RetryAfter: retry, Results: results}
}

func TestBodies(t *testing.T) {
	tokens := result(policy(t, "tokens", limiter.Tokens, limiter.NoBody), limiter.Denied, algorithms.Decision{RetryAfter: 359_100 * ms})
	shorter := result(policy(t, "calls", limiter.Requests, limiter.TextBody), limiter.Denied, algorithms.Decision{RetryAfter: second})
	longer := result(policy(t, "", limiter.NoUnit, limiter.TextBody), limiter.Denied, algorithms.Decision{RetryAfter: 3600 * second})
	hostile := result(policy(t, "a\"\\\r\n\xff{", limiter.Tokens, limiter.NoBody), limiter.Denied, algorithms.Decision{RetryAfter: second})
	local := result(policy(t, "local", limiter.NoUnit, limiter.NoBody), limiter.FailedDenied, algorithms.Decision{RetryAfter: 7200 * second})
	away := limiter.Result{Policy: tokens.Policy, Outcome: limiter.FailedDenied, Decision: backend.Decision{Err: backend.ErrUnavailable}}
	never := result(tokens.Policy, limiter.Denied, algorithms.Decision{Never: true})
	unreadable := limiter.Result{Outcome: limiter.Denied, Decision: backend.Decision{Decision: algorithms.Decision{Never: true}}}
	forGood := func(v *limiter.Verdict) *limiter.Verdict { v.Never = true; return v }
	missing := func(f limiter.Body) *limiter.Verdict {
		v := forGood(denied(f, 0))
		v.Missing = limiter.Requirement{"user"}
		return v
	}
	for _, c := range []struct {
		name         string
		v            *limiter.Verdict
		noRetryAfter bool
		want         string
	}{
		{"openai", denied(limiter.OpenAIBody, 359_100*ms, tokens), false,
			`{"error":{"message":"Rate limit reached for \"tokens\". Please try again in 6m0s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`},
		{"openai, of the limit that denies longest", denied(limiter.OpenAIBody, 359_100*ms, shorter, tokens), false,
			`{"error":{"message":"Rate limit reached for \"tokens\". Please try again in 6m0s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`},
		{"openai, for good", forGood(denied(limiter.OpenAIBody, 0, never)), false,
			`{"error":{"message":"The request needs more than limit \"tokens\" ever allows.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`},
		{"openai, a limit that cannot be read", forGood(denied(limiter.OpenAIBody, 0, unreadable)), false,
			`{"error":{"message":"The request needs more than its limit ever allows.","type":"requests","param":null,"code":"rate_limit_exceeded"}}`},
		{"openai, missing", missing(limiter.OpenAIBody), false,
			`{"error":{"message":"The request lacks a value that is required.","type":"invalid_request_error","param":null,"code":"missing_descriptor"}}`},
		{"openai, the store is unreachable", denied(limiter.OpenAIBody, 0, away), false,
			`{"error":{"message":"Rate limits cannot be checked at the moment. Please try again in 1s.","type":"server_error","param":null,"code":"rate_limit_unavailable"}}`},
		{"a limit that denies comes before a bucket of the process", denied(limiter.OpenAIBody, 7200*second, local, tokens), false,
			`{"error":{"message":"Rate limit reached for \"tokens\". Please try again in 2h0m0s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`},
		{"anthropic", denied(limiter.AnthropicBody, 1, tokens), false,
			`{"type":"error","error":{"type":"rate_limit_error","message":"Rate limit reached for \"tokens\". Please try again in 1s."}}`},
		{"anthropic, missing", missing(limiter.AnthropicBody), false,
			`{"type":"error","error":{"type":"invalid_request_error","message":"The request lacks a value that is required."}}`},
		{"anthropic, the store is unreachable", denied(limiter.AnthropicBody, 0, away), true,
			`{"type":"error","error":{"type":"overloaded_error","message":"Rate limits cannot be checked at the moment."}}`},
		{"problem+json", denied(limiter.ProblemBody, second, tokens), true,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":"Rate limit reached for \"tokens\".","violated-policies":["tokens"]}`},
		{"problem+json, the store is unreachable", denied(limiter.ProblemBody, 0, away), false,
			`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Too Many Requests","status":429}`},
		{"the body of the limit", denied(limiter.OpenAIBody, 3600*second, tokens, longer), false,
			`Rate limit reached for "limit-7". Please try again in 1h0m0s.`},
		{"a hostile name", denied(limiter.OpenAIBody, second, hostile), false,
			`{"error":{"message":"Rate limit reached for \"a\\\"\\\\___{\". Please try again in 1s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`},
	} {
		f := Format(c.v)
		got := string(AppendBody(nil, f, c.v, c.noRetryAfter))
		if got != c.want+"\n" {
			t.Errorf("%s: %s\n%swant\n%s", c.name, f, got, c.want)
		}
		if strings.HasSuffix(ContentType(f), "json") && !json.Valid([]byte(got)) {
			t.Errorf("%s: %s; want valid JSON", c.name, got)
		}
	}
	if f := Format(&limiter.Verdict{Domain: &limiter.Domain{DenyBody: limiter.TextBody}}); f != limiter.NoBody {
		t.Errorf("the format for an allowed request is %s; want none", f)
	}
	if f := Format(denied(limiter.NoBody, second, tokens)); f != limiter.NoBody {
		t.Errorf("the format for a denial is %s although none is configured; want none", f)
	}
}

func TestOpenAIHeaders(t *testing.T) {
	tokens := func(left int64, reset algorithms.Micros) limiter.Result {
		return result(policy(t, "t", limiter.Tokens, limiter.NoBody), limiter.Allowed, algorithms.Decision{Allowed: true, Remaining: left, ResetAfter: reset})
	}
	other := result(policy(t, "o", limiter.NoUnit, limiter.NoBody), limiter.Denied, algorithms.Decision{RetryAfter: 121 * second})
	calls := result(policy(t, "c", limiter.Requests, limiter.NoBody), limiter.Denied, algorithms.Decision{Remaining: 0, RetryAfter: 1, ResetAfter: second})
	shadow := tokens(0, second)
	shadow.Outcome = limiter.Shadowed
	for _, c := range []struct {
		name string
		v    limiter.Verdict
		want string
	}{
		{"the least left", limiter.Verdict{Results: []limiter.Result{tokens(50, 2*second), tokens(7, 360*second), shadow}},
			"x-ratelimit-limit-tokens=100 x-ratelimit-remaining-tokens=7 x-ratelimit-reset-tokens=6m0s"},
		{"rounded up", limiter.Verdict{Results: []limiter.Result{tokens(50, 1)}},
			"x-ratelimit-limit-tokens=100 x-ratelimit-remaining-tokens=50 x-ratelimit-reset-tokens=1ms"},
		{"both units", limiter.Verdict{Denied: true, RetryAfter: 1, Results: []limiter.Result{tokens(100, 0), calls}},
			"x-ratelimit-limit-requests=100 x-ratelimit-remaining-requests=0 x-ratelimit-reset-requests=1s " +
				"x-ratelimit-limit-tokens=100 x-ratelimit-remaining-tokens=100 x-ratelimit-reset-tokens=0s retry-after-ms=1"},
		{"longer than SDKs wait", limiter.Verdict{Denied: true, RetryAfter: 121 * second, Results: []limiter.Result{other}}, "retry-after-ms=121000 x-should-retry=false"},
		{"as long as SDKs wait", limiter.Verdict{Denied: true, RetryAfter: 120 * second, Results: []limiter.Result{other}}, "retry-after-ms=120000"},
		{"for good", limiter.Verdict{Denied: true, Never: true, Results: []limiter.Result{other}}, "x-should-retry=false"},
		{"the store is unreachable", limiter.Verdict{Denied: true, Failed: true}, "retry-after-ms=1000"},
		{"no unit", limiter.Verdict{Results: []limiter.Result{other}}, ""},
		{"a debt", limiter.Verdict{Results: []limiter.Result{tokens(-5, second)}}, "x-ratelimit-limit-tokens=100 x-ratelimit-remaining-tokens=0 x-ratelimit-reset-tokens=1s"},
	} {
		var got []string
		OpenAIHeaders(&c.v, false, func(name string, value []byte) { got = append(got, fmt.Sprintf("%s=%s", name, value)) })
		if s := strings.Join(got, " "); s != c.want || len(got) > MaxHeaders {
			t.Errorf("%s: %s\nwant %s", c.name, s, c.want)
		}
	}
	OpenAIHeaders(&limiter.Verdict{Denied: true, RetryAfter: second}, true, func(name string, _ []byte) { t.Errorf("a denial with noRetryAfter has the header %s; want none", name) })
}

func TestMostRestrictive(t *testing.T) {
	p := policy(t, "p", limiter.NoUnit, limiter.NoBody)
	shadow := policy(t, "shadow", limiter.NoUnit, limiter.NoBody)
	shadow.Shadow = true
	allows := func(left int64) limiter.Result {
		return result(p, limiter.Allowed, algorithms.Decision{Remaining: left})
	}
	denies := func(after algorithms.Micros) limiter.Result {
		return result(p, limiter.Denied, algorithms.Decision{RetryAfter: after})
	}
	never := result(p, limiter.Denied, algorithms.Decision{Never: true})
	for name, c := range map[string]struct {
		results []limiter.Result
		want    int
	}{
		"none":                      {nil, -1},
		"the fewest units":          {[]limiter.Result{allows(5), allows(2), allows(2)}, 1},
		"a denial":                  {[]limiter.Result{allows(0), denies(second), allows(0)}, 1},
		"equal denials":             {[]limiter.Result{denies(second), denies(second)}, 0},
		"the longest denial":        {[]limiter.Result{denies(second), denies(3 * second), denies(2 * second)}, 1},
		"a denial for good":         {[]limiter.Result{denies(second), never, denies(3 * second)}, 1},
		"the first denial for good": {[]limiter.Result{never, denies(second), never}, 0},
		"no replaced limit":         {[]limiter.Result{result(p, limiter.Replaced, algorithms.Decision{}), allows(9)}, 1},
		"no shadow limit":           {[]limiter.Result{result(shadow, limiter.Shadowed, algorithms.Decision{}), allows(9)}, 1},
	} {
		v := &limiter.Verdict{Results: c.results}
		for i := range c.results {
			v.Denied = v.Denied || c.results[i].Outcome == limiter.Denied
		}
		if got := MostRestrictive(v); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestNumbersOfTheLocalBucket(t *testing.T) {
	p := policy(t, "p", limiter.NoUnit, limiter.NoBody)
	if r := result(p, limiter.FailedDenied, algorithms.Decision{}); Limit(&r) != p.Limit {
		t.Error("without a local bucket: want the numbers of the limit")
	}
	p.Extras.Local = &algorithms.Limit{}
	for outcome, want := range map[limiter.Outcome]*algorithms.Limit{
		limiter.Allowed: p.Limit, limiter.Denied: p.Limit, limiter.FailedAllowed: p.Extras.Local, limiter.FailedDenied: p.Extras.Local,
	} {
		if r := result(p, outcome, algorithms.Decision{}); Limit(&r) != want {
			t.Errorf("outcome %v: the numbers of the other limit", outcome)
		}
	}
}

func TestNamesInAnswersAreBoundedAndPrintable(t *testing.T) {
	for name, want := range map[string]string{
		"": `"limit-7"`, " !~a\x1f\x7f\"": `" !~a__\""`, strings.Repeat("n", MaxName): `"` + strings.Repeat("n", MaxName) + `"`, strings.Repeat("n", MaxName+1): `"` + strings.Repeat("n", MaxName) + `"`,
	} {
		if got := string(AppendName(nil, policy(t, name, limiter.NoUnit, limiter.NoBody))); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
}

// A body names only limits whose own decision by the store denies the request: no quota limits, which deny only together,
// and no limits that a local bucket decided.
func TestBodiesNameTheLimitsThatDeny(t *testing.T) {
	named := func(name string, o limiter.Outcome) limiter.Result {
		return result(policy(t, name, limiter.NoUnit, limiter.NoBody), o, algorithms.Decision{RetryAfter: second})
	}
	quota := named("quota", limiter.Denied)
	quota.Policy.Quota = true
	quota.Decision.RetryAfter = 9 * second
	unreadable := limiter.Result{Outcome: limiter.Denied, Decision: backend.Decision{Decision: algorithms.Decision{Never: true}}}
	const problem = `{"type":"https://iana.org/assignments/http-problem-types#`
	for _, c := range []struct {
		name    string
		f       limiter.Body
		never   bool
		missing bool
		results []limiter.Result
		want    string
	}{
		{"two limits deny", limiter.ProblemBody, false, false,
			[]limiter.Result{named("allows", limiter.Allowed), named("a", limiter.Denied), quota, named("b", limiter.Denied), named("local", limiter.FailedDenied)},
			problem + `quota-exceeded","title":"Too Many Requests","status":429,"detail":"Rate limit reached for \"a\".","violated-policies":["a","b"]}`},
		{"for good, by an override that cannot be read", limiter.ProblemBody, true, false, []limiter.Result{named("allows", limiter.Allowed), unreadable},
			problem + `quota-exceeded","title":"Too Many Requests","status":429,"detail":"The request needs more than its limit ever allows.","violated-policies":[]}`},
		{"for good", limiter.ProblemBody, true, false, []limiter.Result{named("a", limiter.Denied)},
			problem + `quota-exceeded","title":"Too Many Requests","status":429,"detail":"The request needs more than limit \"a\" ever allows.","violated-policies":["a"]}`},
		{"a value is missing", limiter.ProblemBody, true, true, []limiter.Result{named("a", limiter.Allowed)},
			`{"type":"urn:rlsidecar:problem:missing-descriptor","title":"The request lacks a value that is required","status":429}`},
		{"a quota and a failed store", limiter.TextBody, false, false, []limiter.Result{quota, named("local", limiter.FailedDenied)}, "Rate limits cannot be checked at the moment."},
		{"no unit", limiter.OpenAIBody, false, false, []limiter.Result{named("a", limiter.Denied)},
			`{"error":{"message":"Rate limit reached for \"a\".","type":"requests","param":null,"code":"rate_limit_exceeded"}}`},
	} {
		v := denied(c.f, second, c.results...)
		if v.Never = c.never; c.missing {
			v.Missing = limiter.Requirement{"user"}
		}
		if got := string(AppendBody(nil, Format(v), v, true)); got != c.want+"\n" {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
	}
	if f := Format(&limiter.Verdict{Denied: true}); f != limiter.NoBody {
		t.Errorf("the format of a denial without a domain is %s; want none", f)
	}
}

func TestWhatHeadersDescribe(t *testing.T) {
	shadow, unlimited := policy(t, "shadow", limiter.NoUnit, limiter.NoBody), policy(t, "unlimited", limiter.NoUnit, limiter.NoBody)
	shadow.Shadow, unlimited.Unlimited = true, true
	plain := policy(t, "plain", limiter.NoUnit, limiter.NoBody)
	for _, c := range []struct {
		name string
		r    limiter.Result
		want bool
	}{
		{"allowed", result(plain, limiter.Allowed, algorithms.Decision{}), true},
		{"denied", result(plain, limiter.Denied, algorithms.Decision{}), true},
		{"the local bucket", result(plain, limiter.FailedAllowed, algorithms.Decision{}), true},
		{"no limit", limiter.Result{Outcome: limiter.Denied}, false},
		{"allowed in shadow mode", result(shadow, limiter.Allowed, algorithms.Decision{}), false},
		{"over in shadow mode", result(plain, limiter.Shadowed, algorithms.Decision{}), false},
		{"unlimited", result(unlimited, limiter.Unlimited, algorithms.Decision{}), false},
		{"replaced", result(plain, limiter.Replaced, algorithms.Decision{}), false},
		{"an error", limiter.Result{Policy: plain, Outcome: limiter.FailedAllowed, Decision: backend.Decision{Err: backend.ErrUnavailable}}, false},
	} {
		if got := Describes(&c.r); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
