package metrics

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func limit(tb testing.TB, rate int64) *algorithms.Limit {
	tb.Helper()
	l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.SlidingLog, Rate: rate, Period: algorithms.Day})
	if err != nil {
		tb.Fatal(err)
	}
	return &l
}

// snapshot returns a Snapshot with one domain, "d". Each policy belongs to a descriptor that has its name as the key.
func snapshot(policies ...*limiter.Policy) *limiter.Snapshot {
	d := &limiter.Domain{Name: "d", Tree: &limiter.Tree{}, Policies: policies}
	for i, p := range policies {
		if p.Limit == nil {
			p.Limit = &algorithms.Limit{}
		}
		p.Index, p.Domain, p.Open = i, "d", []int{0}
		p.Owner, p.Prefix = p.Name, descriptors.Prefix("d", "path", p.Name, p.Limit.Kind)
		if p.StatKey == "" {
			p.StatKey = "d." + p.Name
			if p.Extras == nil {
				p.Extras = &limiter.Extras{}
			}
			p.Extras.StatLevels = []string{p.Name}
		}
		node, _ := d.Tree.Add(nil, descriptors.ValuePattern(p.Name, ""))
		node.Found.Policies = append(node.Found.Policies, p)
	}
	return &limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": d}, Policies: policies}
}

func send(tb testing.TB, l *limiter.Limiter, domain, key, value string, cost int64) {
	tb.Helper()
	c := &limiter.Call{}
	c.Request.Domain = domain
	d := c.AddDescriptor()
	d.Entries, d.Cost = []descriptors.Entry{{Key: key, Value: value}}, cost
	if err := l.Check(context.Background(), c); err != nil {
		tb.Fatal(err)
	}
}

func scrape(tb testing.TB, m *Metrics, prefix string) map[string]string {
	tb.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		tb.Fatalf("%d: got %s; want status 200", w.Code, w.Body)
	}
	samples := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(name, prefix) {
			samples[name+"}"] = value
		} else if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, prefix) {
			samples[name] = value
		}
	}
	return samples
}

func want(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		for _, name := range slices.Sorted(maps.Keys(got)) {
			t.Logf("got %s %s", name, got[name])
		}
		t.Errorf("want %v", want)
	}
}

// wantSome checks only the samples in want. The value "" means that there is none.
func wantSome(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
}

// observed returns a limiter with these limits, and the Metrics to which it reports.
func observed(policies ...*limiter.Policy) (*Metrics, *limiter.Limiter) {
	m := New("v1", "rev")
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: m})
	l.Swap(snapshot(policies...))
	return m, l
}

type broken struct{}

func (broken) Submit(b *backend.Batch) { b.Fail(backend.ErrUnavailable) }

func TestDecisionsAreCounted(t *testing.T) {
	m := New("v1", "rev")
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: m})
	penalized, err := algorithms.Compile(algorithms.Spec{
		Kind: algorithms.TokenBucket, Rate: 2, Period: algorithms.Day,
		Penalty: &algorithms.Penalty{After: 2, For: algorithms.Day, Max: algorithms.Day},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Swap(snapshot(
		&limiter.Policy{Name: "plain", Limit: limit(t, 2)},
		&limiter.Policy{Name: "shadow", Limit: limit(t, 1), Shadow: true},
		&limiter.Policy{Name: "free", Unlimited: true},
		&limiter.Policy{Name: "penalty", Limit: &penalized},
	))
	for range 3 {
		send(t, l, "d", "plain", "v", 1)
	}
	for range 6 { // 2 are allowed and 1 is denied; the second denial blocks the key, so that it and 2 more count as blocked
		send(t, l, "d", "penalty", "v", 1)
	}
	send(t, l, "d", "plain", "v", 9)
	send(t, l, "d", "shadow", "v", 1)
	send(t, l, "d", "shadow", "v", 1)
	send(t, l, "d", "free", "v", 1)
	send(t, l, "d", "unknown", "v", 1)
	send(t, l, "elsewhere", "plain", "v", 1)
	want(t, scrape(t, m, "rlsidecar_decisions_total"), map[string]string{
		`rlsidecar_decisions_total{domain="d",limit="plain",outcome="allowed"}`:   "2",
		`rlsidecar_decisions_total{domain="d",limit="plain",outcome="denied"}`:    "1",
		`rlsidecar_decisions_total{domain="d",limit="plain",outcome="never"}`:     "1",
		`rlsidecar_decisions_total{domain="d",limit="penalty",outcome="allowed"}`: "2",
		`rlsidecar_decisions_total{domain="d",limit="penalty",outcome="denied"}`:  "1",
		`rlsidecar_decisions_total{domain="d",limit="penalty",outcome="blocked"}`: "3",
		`rlsidecar_decisions_total{domain="d",limit="shadow",outcome="allowed"}`:  "1",
		`rlsidecar_decisions_total{domain="d",limit="shadow",outcome="denied"}`:   "0",
		`rlsidecar_decisions_total{domain="d",limit="shadow",outcome="shadowed"}`: "1",
		`rlsidecar_decisions_total{domain="d",limit="free",outcome="allowed"}`:    "0",
		`rlsidecar_decisions_total{domain="d",limit="free",outcome="denied"}`:     "0",
		`rlsidecar_decisions_total{domain="d",limit="free",outcome="unlimited"}`:  "1",
	})
	want(t, scrape(t, m, "rlsidecar_requests_total"), map[string]string{
		`rlsidecar_requests_total{code="ok",domain="d"}`:         "8",
		`rlsidecar_requests_total{code="over_limit",domain="d"}`: "6",
		`rlsidecar_requests_total{code="error",domain="d"}`:      "0",
	})
	want(t, scrape(t, m, "rlsidecar_domain_not_found_total"), map[string]string{"rlsidecar_domain_not_found_total": "1"})
	totals := map[string]history.Totals{}
	m.EachLimit(func(k history.Key, t history.Totals) { totals[k.Limit] = t })
	for limit, want := range map[string]history.Totals{
		"plain": {Allowed: 2, Denied: 2}, "penalty": {Allowed: 2, Denied: 4}, "shadow": {Shadowed: 1, Allowed: totals["shadow"].Allowed}, "none": {},
	} {
		if got := m.Totals(&limiter.Policy{Domain: "d", Name: limit}); got != want || totals[limit] != want {
			t.Errorf("%s: %+v, and %+v of all, want %+v", limit, got, totals[limit], want)
		}
	}
	if got, want := m.Requests(), (Requests{Allowed: 8 + 1, Denied: 6}); got != want {
		t.Errorf("requests: %+v; want %+v", got, want)
	}
}

func TestFailuresAreCounted(t *testing.T) {
	m := New("", "")
	l := limiter.New(broken{}, limiter.Config{Observer: m})
	l.Swap(snapshot(
		&limiter.Policy{Name: "deny", Limit: limit(t, 2)},
		&limiter.Policy{Name: "allow", Limit: limit(t, 2), OnFailure: limiter.Allow},
		&limiter.Policy{Name: "error", Limit: limit(t, 2), OnFailure: limiter.Error},
	))
	for _, key := range []string{"deny", "allow", "error"} {
		send(t, l, "d", key, "v", 3)
	}
	got := scrape(t, m, "rl")
	wantSome(t, got, map[string]string{
		`rlsidecar_decisions_total{domain="d",limit="deny",outcome="failed_denied"}`:   "1",
		`rlsidecar_decisions_total{domain="d",limit="allow",outcome="failed_allowed"}`: "1",
		`rlsidecar_decisions_total{domain="d",limit="error",outcome="failed_denied"}`:  "1",
		`rlsidecar_requests_total{code="error",domain="d"}`:                            "1",
		`rlsidecar_requests_total{code="ok",domain="d"}`:                               "1",
		`rlsidecar_requests_total{code="over_limit",domain="d"}`:                       "1",
	})
	if got, want := m.Requests(), (Requests{Allowed: 1, Denied: 2, Undecided: 2}); got != want {
		t.Errorf("requests: %+v; want %+v", got, want)
	}
	domain := domainCounts{counter: newCounter()}
	failed := limiter.Result{Outcome: limiter.FailedDenied, Decision: backend.Decision{Err: backend.ErrFull}}
	domain.count(0, &limiter.Call{Verdict: limiter.Verdict{Failed: true, Denied: true, Results: []limiter.Result{failed, {Outcome: limiter.Denied}}}})
	domain.count(0, &limiter.Call{Verdict: limiter.Verdict{Failed: true, Denied: true, Results: []limiter.Result{{Outcome: limiter.FailedDenied}}}}) // local
	if n := domain.sum(requestUndecided); n != 0 {
		t.Errorf("%d requests that limits denied count as undecided; want none", n)
	}
	hits := scrape(t, m, "ratelimit_service_rate_limit_total_hits")
	if n := hits[`ratelimit_service_rate_limit_total_hits{domain="d",key1="deny",key2=""}`]; n != "3" {
		t.Errorf("%s hits; want %q", n, "3")
	}
}

func TestHitsAreCountedAsInTheReferenceServer(t *testing.T) {
	m, l := observed(
		&limiter.Policy{Name: "k", Limit: limit(t, 10), StatKey: "d.k_v.k2.k3"},
		&limiter.Policy{Name: "l", Limit: limit(t, 1), Shadow: true, StatKey: "d.k_v.k2.k4"}, // the first two levels are the same as those of k
		&limiter.Policy{Name: "ip", Limit: limit(t, 10), StatKey: "d.ip_10.0.0.1:80"},
	)
	send(t, l, "d", "k", "v", 9) // one hit is near the limit
	send(t, l, "d", "k", "v", 1) // the hit is near the limit
	send(t, l, "d", "k", "v", 5) // the hits are over the limit
	send(t, l, "d", "k", "v", 0)
	send(t, l, "d", "k", "v", -1)
	dry := &limiter.Call{Request: limiter.Request{Domain: "d", DryRun: true, Descriptors: []limiter.Descriptor{
		{Entries: []descriptors.Entry{{Key: "k", Value: "v"}}, Cost: 3},
	}}}
	if err := l.Check(t.Context(), dry); err != nil {
		t.Fatal(err)
	}
	send(t, l, "d", "l", "v", 2) // one hit is near the limit, and one is over it
	send(t, l, "d", "ip", "v", 1)
	samples := map[string]string{}
	for name, n := range map[string]int{"total_hits": 17, "within_limit": 10, "near_limit": 3, "over_limit": 6, "shadow_mode": 2} {
		samples[fmt.Sprintf(`ratelimit_service_rate_limit_%s{domain="d",key1="k_v",key2="k2"}`, name)] = fmt.Sprint(n)
		once := "0"
		if name == "total_hits" || name == "within_limit" {
			once = "1"
		}
		samples[fmt.Sprintf(`ratelimit_service_rate_limit_%s{domain="d",key1="ip_10_0_0_1_80",key2=""}`, name)] = once
	}
	want(t, scrape(t, m, "ratelimit_service_rate_limit"), samples)
}

// TestHitsAreCountedWithinAndOverTheLimit compares with a simple counter. With TakesDenied, denials increment it too, as
// in the reference server.
func TestHitsAreCountedWithinAndOverTheLimit(t *testing.T) {
	epoch := algorithms.Micros(0)
	rapid.Check(t, func(rt *rapid.T) {
		capacity, each := rapid.Int64Range(0, 12).Draw(rt, "limit"), rapid.Bool().Draw(rt, "each")
		spec := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: capacity, Period: 365 * algorithms.Day, Start: &epoch, TakesDenied: each}
		window, err := algorithms.Compile(spec)
		if err != nil {
			rt.Fatal(err)
		}
		m, l := observed(&limiter.Policy{Name: "k", Limit: &window, Alone: each})
		nearest := int64(float32(capacity) * 0.8)
		var count, near, over, within int64
		for _, hits := range rapid.SliceOfN(rapid.Int64Range(1, 15), 1, 8).Draw(rt, "hits") {
			send(t, l, "d", "k", "v", hits)
			after := count + hits
			over += max(0, after-max(capacity, count))
			near += max(0, min(after, capacity)-max(nearest, count))
			if after <= capacity {
				within += hits
			}
			if after <= capacity || each {
				count = after
			}
		}
		got := scrape(t, m, "ratelimit_service_rate_limit_")
		for name, n := range map[string]int64{"near_limit": near, "over_limit": over, "within_limit": within} {
			if s := got[`ratelimit_service_rate_limit_`+name+`{domain="d",key1="k",key2=""}`]; s != fmt.Sprint(n) {
				rt.Fatalf("%s is %s, want %d", name, s, n)
			}
		}
	})
}

func TestRuntimeSeriesAreBounded(t *testing.T) {
	policies := func() []*limiter.Policy {
		return []*limiter.Policy{
			{Name: "k", Limit: limit(t, 10), Extras: &limiter.Extras{StatValues: []int{0}}},
			{Name: "all", Limit: limit(t, 10), Detailed: true},
		}
	}
	m, l := observed(policies()...)
	m.series.maxRuntime = 100
	send(t, l, "d", "k", "bob\xff", 1)
	send(t, l, "d", "k", "bob\xff", 1)
	send(t, l, "d", "all", "x", 1)
	send(t, l, "d", "k", strings.Repeat("long", 100), 1)
	total := func(key1 string) string {
		return scrape(t, m, "ratelimit_service_rate_limit_total_hits")[fmt.Sprintf(`ratelimit_service_rate_limit_total_hits{domain="d",key1=%q,key2=""}`, key1)]
	}
	if total("k_bob\ufffd") != "2" || total("all_x") != "1" || total("k") != "1" {
		t.Errorf("%s hits of bob, %s of x, %s without a value; want 2, 1 and 1", total("k_bob\ufffd"), total("all_x"), total("k"))
	}
	l.Swap(snapshot(policies()...))
	if total("k_bob\ufffd") != "2" {
		t.Error("a reload removed a series that it must keep")
	}
	for i := range m.series.maxRuntime + 5 {
		send(t, l, "d", "k", fmt.Sprint("v", i), 1)
	}
	if n := len(m.series.runtime); n != m.series.maxRuntime {
		t.Errorf("%d series; want %v", n, m.series.maxRuntime)
	}
	if total("k") != "8" { // the long value, and 7 of the 105 values, because there is room for 98
		t.Errorf("%s hits without a value; want 8", total("k"))
	}
	same := m.series.runtime["d.all\x00all\x00x"]
	m.series.runtime["d.k\x00all\x00x"] = same // texts of clients can lead to the same name
	l.Swap(snapshot(policies()[1:]...))
	if n := len(m.series.runtime); n != 1 || total("all_x") != "1" {
		t.Errorf("%d series after a reload without their limit, %s hits of x; want 1 and 1", n, total("all_x"))
	}
}

func TestCountersSurviveReloads(t *testing.T) {
	m := New("", "")
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: m})
	first := snapshot(&limiter.Policy{Name: "a", Limit: limit(t, 9)}, &limiter.Policy{Name: "b", Limit: limit(t, 9)})
	l.Swap(first)
	send(t, l, "d", "a", "v", 1)
	send(t, l, "d", "b", "v", 1)
	l.Swap(snapshot(&limiter.Policy{Name: "b", Limit: limit(t, 3)}, &limiter.Policy{Name: "c", Limit: limit(t, 9)}))
	send(t, l, "d", "b", "v", 1)
	// This call was in flight when the configuration changed.
	late := &limiter.Call{}
	late.Snapshot, late.Verdict.Domain = first, first.Domains["d"]
	late.Results = []limiter.Result{{Policy: first.Policies[1]}}
	m.Observe(late)
	// A removed limit is not counted, and causes no error.
	late.Results = []limiter.Result{{Policy: first.Policies[0]}}
	m.Observe(late)
	late.Verdict.Domain = &limiter.Domain{Name: "gone"}
	m.Observe(late)
	got := scrape(t, m, "rlsidecar_decisions_total")
	if n := got[`rlsidecar_decisions_total{domain="d",limit="b",outcome="allowed"}`]; n != "3" {
		t.Errorf("got %s; want %q", n, "3")
	}
	if _, there := got[`rlsidecar_decisions_total{domain="d",limit="a",outcome="allowed"}`]; there {
		t.Error("a removed limit has counters")
	}
	if n := scrape(t, m, "rlsidecar_requests_total")[`rlsidecar_requests_total{code="ok",domain="d"}`]; n != "5" {
		t.Errorf("%s requests; want %q", n, "5")
	}
}

func TestOverridesAreCounted(t *testing.T) {
	m, l := observed(&limiter.Policy{Name: "a", Limit: limit(t, 9)})
	for _, o := range []limiter.Override{{Rate: 1, Period: algorithms.Day}, {Rate: 1, Period: 0}} {
		c := &limiter.Call{}
		c.Request.Domain = "d"
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.HasOverride, d.Override = []descriptors.Entry{{Key: "x", Value: "y"}}, 1, true, o
		if err := l.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	l.Swap(snapshot(&limiter.Policy{Name: "a", Limit: limit(t, 9)}))
	l.Swap(&limiter.Snapshot{Domains: l.Current().Domains}) // a reload that changes no domain
	got := scrape(t, m, "rlsidecar_decisions_total")
	if got[`rlsidecar_decisions_total{domain="d",limit="override",outcome="allowed"}`] != "1" ||
		got[`rlsidecar_decisions_total{domain="d",limit="override",outcome="never"}`] != "1" {
		t.Errorf("got %v; want 1 allowed and 1 never for the limit override", got)
	}
	if n := scrape(t, m, "ratelimit_service_rate_limit_total_hits")[`ratelimit_service_rate_limit_total_hits{domain="d",key1="override",key2=""}`]; n != "1" { // an override without a policy has no hits
		t.Errorf("%s hits of overrides; want 1", n)
	}
}

func TestConcurrentDecisionsAreAllCounted(t *testing.T) {
	m, l := observed(&limiter.Policy{Name: "k", Limit: limit(t, 10), Extras: &limiter.Extras{StatValues: []int{0}}})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 500 {
				send(t, l, "d", "k", fmt.Sprint(i%3), 1)
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			l.Swap(snapshot(&limiter.Policy{Name: "k", Limit: limit(t, 10), Extras: &limiter.Extras{StatValues: []int{0}}}))
			scrape(t, m, "rlsidecar_")
			time.Sleep(time.Millisecond)
		}
	})
	wg.Wait()
	if got := m.Totals(&limiter.Policy{Domain: "d", Name: "k"}); got.Allowed+got.Denied != 4000 {
		t.Errorf("got %+v; want 4000 decisions", got)
	}
}

func TestAMissingEntryIsNotUnmatched(t *testing.T) {
	m := New("", "")
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: m})
	s := snapshot(&limiter.Policy{Name: "k", Limit: limit(t, 10)})
	s.Domains["d"].Require = []limiter.Requirement{{"user"}}
	l.Swap(s)
	send(t, l, "d", "other", "v", 1)
	got := scrape(t, m, "rlsidecar_requests_")
	wantSome(t, got, map[string]string{
		`rlsidecar_requests_unmatched_total{domain="d"}`: "0", `rlsidecar_requests_total{code="over_limit",domain="d"}`: "1",
	})
}
