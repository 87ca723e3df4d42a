package metrics

import (
	"context"
	"errors"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type failing struct {
	backend.Store
	unreachable bool
}

func (f *failing) Submit(b *backend.Batch) {
	if !f.unreachable {
		f.Store.Submit(b)
		return
	}
	for i := range b.Decisions {
		b.Decisions[i].Err = errors.New("unreachable")
	}
	b.Done(b)
}

// settling reserves and settles units in all ways, with a limiter that reports to m. The limit "tokens" has
// 1,000 units, an estimate of 100 and max_debt 0. The configuration also has the domains of configured.
func settling(t *testing.T, m *Metrics, configured *limiter.Snapshot) {
	t.Helper()
	none := int64(0)
	numbers, err := algorithms.Compile(algorithms.Spec{
		Kind: algorithms.FixedWindow, Rate: 1000, Period: algorithms.Day, Settles: true, MaxDebt: &none,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &limiter.Policy{Name: "tokens", Limit: &numbers, Extras: &limiter.Extras{
		Settle: &limiter.SettleTerms{Estimate: 100, Most: 1000, Unknown: -1, TTL: algorithms.Second},
	}}
	s := snapshot(p)
	d := s.Domains["d"]
	d.Name, p.Domain = "ai", "ai"
	s.Domains = maps.Clone(configured.Domains)
	s.Domains["ai"] = d
	d.Settle = &limiter.SettleEntries{Key: "settle", End: "settle_end"}
	d.Settling = map[uint64]*limiter.Policy{limiter.PrefixNumber(p.Prefix): p}
	var now algorithms.Micros = 1_767_225_600 * algorithms.Second
	store := &failing{Store: memory.New(memory.Config{Clock: func() time.Time { return time.UnixMicro(int64(now)) }})}
	l := limiter.New(store, limiter.Config{
		Observer: m, IDs: reservation.NewKeys(func() []string { return []string{"secret"} }), Now: func() algorithms.Micros { return now },
	})
	l.Swap(s)
	send := func(key, value string, cost int64, explicit bool) (id string) {
		t.Helper()
		c := &limiter.Call{}
		c.Request.Domain = "ai"
		one := c.AddDescriptor()
		one.Entries, one.Cost, one.Explicit = []descriptors.Entry{{Key: key, Value: value}}, cost, explicit
		if err := l.Check(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		return string(c.AppendID(nil))
	}
	first := send("tokens", "bob", 1, false)
	send("settle", first, 50, true)
	send("settle", first, 50, true) // repeated
	send("settle", send("tokens", "bob", 1, false), 1, false)
	send("settle", send("tokens", "bob", 1, false), 2000, true) // 850 of the 2,000 units can be charged, so 1,150 are lost
	send("settle", limiter.None, 5, true)
	send("settle", "forged", 5, true)
	late := send("tokens", "carol", 1, false)
	store.unreachable = true
	send("settle", late, 5, true)
	store.unreachable = false
	now += 2 * algorithms.Second
	send("settle", late, 5, true)
	var of limiter.Reserved
	if !l.Open(send("tokens", "dave", 1, false), &of) {
		t.Fatal("the id of a reservation cannot be opened")
	}
	if err := l.Settle(context.Background(), &limiter.Call{}, limiter.Settle{Reserved: &of, Real: 60}); err != nil { // by an application
		t.Fatal(err)
	}
}

func TestSettlementsAreCounted(t *testing.T) {
	m := New("v1", "rev")
	settling(t, m, snapshot())
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`rlsidecar_settle_starts_total{domain="ai",limit="tokens"} 5`,
		`rlsidecar_settle_units_total{domain="ai",kind="reserved",limit="tokens"} 500`,
		`rlsidecar_settle_units_total{domain="ai",kind="real",limit="tokens"} 2215`,
		`rlsidecar_settle_units_total{domain="ai",kind="lost",limit="tokens"} 1150`,
		`rlsidecar_settlements_total{domain="ai",limit="tokens",result="settled"} 3`,
		`rlsidecar_settlements_total{domain="ai",limit="tokens",result="unknown"} 1`,
		`rlsidecar_settlements_total{domain="ai",limit="tokens",result="late"} 1`,
		`rlsidecar_settlements_total{domain="ai",limit="tokens",result="repeated"} 1`,
		`rlsidecar_settlements_total{domain="ai",limit="tokens",result="failed"} 1`,
		`rlsidecar_settle_ignored_total{domain="ai",reason="forged"} 1`,
		`rlsidecar_settle_ignored_total{domain="ai",reason="none"} 1`,
		`rlsidecar_settle_cost_ratio_count{domain="ai",limit="tokens"} 4`,
		`rlsidecar_decisions_total{domain="ai",limit="tokens",outcome="allowed"} 5`, // a settlement is no decision
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("%s is missing in\n%s", want, w.Body)
		}
	}
	m.Swapped(snapshot())
	w = httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if strings.Contains(w.Body.String(), `limit="tokens"`) {
		t.Error("the series of a limit outlive it")
	}
}
