package limiter_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

type learned struct{ costs []int64 }

func (l *learned) Estimate(uint64) int64 { return 0 }

func (l *learned) Learn(_ uint64, _ float64, _ uint64, _ algorithms.Micros, real int64) {
	l.costs = append(l.costs, real)
}

// A request may reserve from one bucket several times.
func TestEstimatesLearnTheCostOfOneRequest(t *testing.T) {
	p, costs := newProxy(t), &learned{}
	p.Limiter = limiter.New(p.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now }, Estimates: costs,
	})
	p.swap(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: {learn: p90, first: 100}, unknown_cost: 7}}
descriptors:
  - {key: user, limit: tokens}
`)
	id := p.start(absent, "user=bob", "user=bob")
	p.want("tokens", "bob", 800)
	p.done(id, 30)
	p.done(id, 30)
	if p.want("tokens", "bob", 940); !slices.Equal(costs.costs, []int64{30}) {
		t.Errorf("learned %v, want 30 once", costs.costs)
	}
	id = p.start(absent, "user=joe", "user=joe")
	p.done(id, absent)
	p.want("tokens", "joe", 986)
}

// A cost is learned only if it is real, and if the limit learns both when it is reserved and when it is settled.
func TestWhatEstimatesDoNotLearn(t *testing.T) {
	p, costs := newProxy(t), &learned{}
	p.Limiter = limiter.New(p.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now }, Estimates: costs,
	})
	const learns = "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: {learn: p90, first: 100}, unknown_cost: 7}}\n" +
		"descriptors:\n  - {key: user, limit: tokens}\n"
	forgets := strings.Replace(learns, "{learn: p90, first: 100}", "100", 1)
	p.swap(t, learns)
	unknown, late := p.start(absent, "user=bob"), p.start(absent, "user=bob")
	p.done(unknown, absent)
	p.swap(t, forgets)
	p.done(late, 30)
	none := p.start(absent, "user=bob")
	p.swap(t, learns)
	p.done(none, 40)
	p.want("tokens", "bob", 1000-7-30-40)
	if len(costs.costs) != 0 {
		t.Errorf("learned %v, want nothing", costs.costs)
	}
}

type guess int64

func (g guess) Estimate(uint64) int64 { return int64(g) }

func (guess) Learn(uint64, float64, uint64, algorithms.Micros, int64) {}

func TestTheEstimateOfALimit(t *testing.T) {
	for _, c := range []struct {
		estimate  string
		estimates limiter.Estimates
		units     int64
		learned   bool
	}{
		{"100", nil, 100, false},
		{"100", guess(300), 100, false},
		{"{learn: p90, first: 100}", nil, 100, false},
		{"{learn: p90, first: 100}", guess(0), 100, false},
		{"{learn: p90, first: 100}", guess(300), 300, true},
	} {
		s := newBench(t, "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: "+c.estimate+"}}\n").Current()
		l := limiter.New(memory.New(memory.Config{}), limiter.Config{Estimates: c.estimates})
		if units, learned := l.EstimateNow(s.Domains["d"].Named["tokens"]); units != c.units || learned != c.learned {
			t.Errorf("%s with %v: %d units, learned %t; want %d and %t", c.estimate, c.estimates, units, learned, c.units, c.learned)
		}
	}
}

// No cost is learned from a settlement that is in flight elsewhere, repeats another one with another cost, or has
// failed.
func TestSettlementsWithoutADecisionAreNotLearned(t *testing.T) {
	const learns = "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: {learn: p90, first: 100}}}\n" +
		"descriptors:\n  - {key: user, limit: tokens}\n"
	for err, denied := range map[error]bool{backend.ErrPending: false, backend.ErrReused: false, backend.ErrUnavailable: true} {
		p, costs := newProxy(t), &learned{}
		with := func(e limiter.Estimates) {
			p.Limiter = limiter.New(p.store, limiter.Config{
				IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now }, Estimates: e,
			})
			p.swap(t, learns)
		}
		with(costs)
		id := p.start(absent, "user=bob")
		p.store.err = err
		if c := p.done(id, 30); c.Denied != denied || c.Settlements[0].Repeated == denied || len(costs.costs) != 0 {
			t.Errorf("%v: %+v, learned %v; want denied %t, repeated %t, and nothing learned", err, c.Verdict, costs.costs, denied, !denied)
		}
		p.store.err = nil
		with(nil) // another sidecar, which learns nothing
		if c := p.done(id, 30); c.Denied || len(costs.costs) != 0 {
			t.Errorf("%v: %+v, learned %v; want allowed and nothing learned", err, c.Verdict, costs.costs)
		}
		if c := p.send("d", []int64{absent}, "user=ann"); c.Denied || c.Results[0].Cost != 100 {
			t.Errorf("%v: %+v; want the configured estimate", err, c.Results)
		}
	}
}

// Estimates are learned for each value in the configuration. All other values share one estimate.
func TestEstimatesAreLearned(t *testing.T) {
	p := newProxy(t)
	p.Limiter = limiter.New(p.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now },
		Estimates: &estimate.Estimates{},
	})
	p.swap(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000000, period: 1d, settle: {estimate: {learn: p90, first: 500, most: 800, per: [model]}}}
descriptors:
  - {key: user, limit: tokens}
  - {key: model, value: large}
`)
	reserved := func(user, model string) (units int64, id string) {
		c := p.send("d", []int64{absent, absent}, "user="+user, "model="+model)
		return c.Results[0].Cost, string(c.AppendID(nil))
	}
	for i := range 40 {
		user := fmt.Sprint(i)
		units, id := reserved(user, "large")
		if i == 0 && units != 500 {
			t.Errorf("the first estimate is %d, want 500", units)
		}
		p.done(id, 700)
		_, id = reserved(user, "unknown "+user)
		p.done(id, 100)
		_, unknown := reserved(user, "large")
		p.done(unknown, absent) // an unknown cost is not learned
		p.now += sec
	}
	for _, c := range []struct {
		model string
		want  int64
	}{{"large", 700}, {"unknown", 100}, {"", 100}} {
		if units, _ := reserved("bob", c.model); units < c.want-5 || units > c.want+5 {
			t.Errorf("model %q: %d reserved, want %d", c.model, units, c.want)
		}
	}
}
