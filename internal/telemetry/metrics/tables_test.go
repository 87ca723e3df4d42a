package metrics

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// manyLimits returns limits k0 to kn-1, each for one key and any value.
func manyLimits(t *testing.T, n int) (list []*limiter.Policy) {
	t.Helper()
	for i := range n {
		list = append(list, &limiter.Policy{Name: fmt.Sprint("k", i), Limit: limit(t, 9)})
	}
	return list
}

func sampleCount(t *testing.T, m *Metrics) int {
	t.Helper()
	n := 0
	for _, prefix := range []string{"rlsidecar_decisions_total", "rlsidecar_requests_total", "ratelimit_service_rate_limit_"} {
		n += len(scrape(t, m, prefix))
	}
	return n
}

func TestALimitHasSeriesFromItsFirstDecisionOn(t *testing.T) {
	m, l := observed(manyLimits(t, 1000)...)
	if n := sampleCount(t, m); n != 0 {
		t.Errorf("%d samples before the first request; want 0", n)
	}
	send(t, l, "d", "k7", "v", 1)
	want(t, scrape(t, m, "rlsidecar_decisions_total"), map[string]string{
		`rlsidecar_decisions_total{domain="d",limit="k7",outcome="allowed"}`: "1",
		`rlsidecar_decisions_total{domain="d",limit="k7",outcome="denied"}`:  "0",
	})
	// Other keys make no series. A reload keeps the counters of a limit that stays, and adds none for new limits.
	n := sampleCount(t, m)
	for i := range 1000 {
		send(t, l, "d", "k7", fmt.Sprint(i), 1)
	}
	l.Swap(snapshot(manyLimits(t, 2000)...))
	if again := sampleCount(t, m); again != n {
		t.Errorf("%d samples after 1,000 keys and a reload; want %d as before", again, n)
	}
	send(t, l, "d", "k7", "v", 1)
	if got := m.Totals(&limiter.Policy{Domain: "d", Name: "k7"}); got.Allowed != 1002 {
		t.Errorf("got %+v; want 1,002 allowed", got)
	}
}

func TestLimitsBeyondTheBoundShareOverflow(t *testing.T) {
	m, l := observed(manyLimits(t, 30)...)
	m.most, m.series.most = 10, 10
	if m.Folding() {
		t.Error("folding at the start")
	}
	for i := range 30 {
		send(t, l, "d", fmt.Sprint("k", i), "v", 1)
		send(t, l, "d", fmt.Sprint("k", i), "w", 1)
	}
	got := scrape(t, m, "rlsidecar_")
	wantSome(t, got, map[string]string{
		`rlsidecar_decisions_total{domain="d",limit="k9",outcome="allowed"}`:                  "2",
		`rlsidecar_decisions_total{domain="d",limit="k10",outcome="allowed"}`:                 "",
		`rlsidecar_decisions_total{domain="(overflow)",limit="(overflow)",outcome="allowed"}`: "40",
		`rlsidecar_requests_total{code="ok",domain="d"}`:                                      "60",
		`rlsidecar_metrics_folded{what="limits"}`:                                             "20",
		`rlsidecar_metrics_folded{what="hits"}`:                                               "20",
		`rlsidecar_metrics_folded{what="domains"}`:                                            "0",
	})
	if n := scrape(t, m, "ratelimit_service_rate_limit_")[`ratelimit_service_rate_limit_total_hits{domain="(overflow)",key1="(overflow)",key2=""}`]; n != "40" {
		t.Errorf("%s hits of overflow; want %q", n, "40")
	}
	if !m.Folding() {
		t.Error("got Folding false; want true")
	}
	if n := m.Statsd().Counters()["ratelimit.service.rate_limit.overflow.total_hits"]; n != 40 {
		t.Errorf("StatsD gets %d hits of the overflow, want 40", n)
	}
	// With fewer limits there is room again, and removed limits have no counters.
	l.Swap(snapshot(manyLimits(t, 12)[8:]...))
	for i := 8; i < 12; i++ {
		send(t, l, "d", fmt.Sprint("k", i), "v", 1)
	}
	got = scrape(t, m, "rlsidecar_")
	wantSome(t, got, map[string]string{
		`rlsidecar_decisions_total{domain="d",limit="k7",outcome="allowed"}`:  "",
		`rlsidecar_decisions_total{domain="d",limit="k9",outcome="allowed"}`:  "3",
		`rlsidecar_decisions_total{domain="d",limit="k11",outcome="allowed"}`: "1",
		`rlsidecar_metrics_folded{what="limits"}`:                             "0",

		`rlsidecar_decisions_total{domain="(overflow)",limit="(overflow)",outcome="allowed"}`: "40",
	})
}

func TestCountingAllocatesOnce(t *testing.T) {
	m, l := observed(manyLimits(t, 2)...)
	send(t, l, "d", "k1", "v", 1)
	s := l.Current()
	c := &limiter.Call{}
	c.Snapshot, c.Verdict.Domain = s, s.Domains["d"]
	c.Results = []limiter.Result{{Policy: s.Policies[1], Cost: 1}}
	c.AddDescriptor().Entries = []descriptors.Entry{{Key: "k1", Value: "v"}}
	if n := testing.AllocsPerRun(100, func() { m.Observe(c) }); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}
