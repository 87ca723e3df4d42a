package limiter_test

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

type learned struct{ costs []int64 }

func (l *learned) Estimate(uint64) int64 { return 0 }

func (l *learned) Learn(_ uint64, _ float64, _ uint64, _ algorithms.Micros, real int64) {
	l.costs = append(l.costs, real)
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
		{"{learn: p90, first: 101}", guess(3), 26, true},
		{"{learn: p90, first: 100, least: 10}", guess(3), 10, true},
		{"{learn: p90, first: 100}, trust_declared: true", guess(3), 25, true},
	} {
		s := newBench(t, "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: "+c.estimate+"}}\n").Current()
		l := limiter.New(memory.New(memory.Config{}), limiter.Config{Estimates: c.estimates})
		if units, learned := l.EstimateNow(s.Domains["d"].Named["tokens"]); units != c.units || learned != c.learned {
			t.Errorf("%s with %v: %d units, learned %t; want %d and %t", c.estimate, c.estimates, units, learned, c.units, c.learned)
		}
	}
}

// Other clients may have made the estimate small. So a client that hangs up before its cost is known is charged the
// first estimate, unless it has reserved more, or unknown_cost is configured.
func TestAnUnknownCostIsAtLeastTheFirstEstimate(t *testing.T) {
	for _, c := range []struct {
		settle         string
		learned        guess
		hits, reserved int64
		charged        int64
	}{
		{"estimate: {learn: p90, first: 100}", 0, absent, 100, 100},
		{"estimate: {learn: p90, first: 100}", 3, absent, 25, 100},
		{"estimate: {learn: p90, first: 100}", 300, absent, 300, 300},
		{"estimate: {learn: p90, first: 100}", 3, 120, 120, 120},
		{"estimate: {learn: p90, first: 100}, trust_declared: true", 3, 10, 10, 100},
		{"estimate: {learn: p90, first: 100}, unknown_cost: estimate", 3, absent, 25, 100},
		{"estimate: {learn: p90, first: 100, most: 400}, unknown_cost: most", 3, absent, 25, 400},
		{"estimate: {learn: p90, first: 100}, unknown_cost: 7", 3, absent, 25, 7},
		{"estimate: 100, trust_declared: true", 3, 10, 10, 10},
	} {
		p := newProxy(t)
		p.restart(t, "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {"+c.settle+"}}\ndescriptors:\n  - {key: user, limit: tokens}\n", func(config *limiter.Config) { config.Estimates = c.learned })
		call := p.send("d", []int64{c.hits}, "user=bob")
		if got := call.Results[0].Cost; got != c.reserved {
			t.Errorf("%s, learned %d: %d units reserved, want %d", c.settle, c.learned, got, c.reserved)
		}
		p.done(string(call.AppendID(nil)), absent)
		p.want("tokens", "bob", 1000-c.charged)
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
			p.restart(t, learns, func(c *limiter.Config) { c.Estimates = e })
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

// Estimates are learned for each value in the configuration, in entries with its key. All other values share one estimate.
func TestEstimatesAreLearned(t *testing.T) {
	p := newProxy(t)
	p.restart(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000000, period: 1d, settle: {estimate: {learn: p90, first: 500, most: 800, per: [model]}}}
descriptors:
  - {key: user, limit: tokens}
  - {key: model, value: large}
`, func(c *limiter.Config) { c.Estimates = &estimate.Estimates{} })
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
		p.done(id, 200)
		_, unknown := reserved(user, "large")
		p.done(unknown, absent) // an unknown cost is not learned
		p.now += sec
	}
	for _, c := range []struct {
		user, model string
		want        int64
	}{{"bob", "large", 700}, {"bob", "unknown", 200}, {"bob", "", 200}, {"large", "unknown", 200}} {
		if units, _ := reserved(c.user, c.model); units < c.want-5 || units > c.want+5 {
			t.Errorf("user %s, model %q: %d reserved, want %d", c.user, c.model, units, c.want)
		}
	}
}

// The limit of docs/howto/limit-llm-tokens.md, and the units of a full bucket and of what it refills in ten seconds.
const (
	learning = `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 100000, period: 1m, settle: {estimate: {learn: p90, first: 1500, most: 8000}, unknown_cost: estimate, ttl: 10m}}
descriptors:
  - {key: user, limit: tokens}
`
	firstEstimate, leastEstimate = 1500, 375
	inTenSeconds                 = 100_000 + 100_000/6
)

// newLearning returns a proxy whose only client is eve. She has made calls with a cost of 1, one in each second, with each
// of her keys in turn.
func newLearning(t *testing.T, calls, keys int) *proxy {
	t.Helper()
	p := newProxy(t)
	p.restart(t, learning, func(c *limiter.Config) { c.Estimates = &estimate.Estimates{} })
	for i := range calls {
		p.done(p.start(absent, fmt.Sprintf("user=eve %d", i%keys)), 1)
		p.now += sec
	}
	return p
}

// A client that makes cheap calls in a quiet hour, and then hangs up before each usage report, gets no more calls than
// its budget has for calls of the first estimate.
func TestAClientThatHangsUpKeepsTheBudget(t *testing.T) {
	for _, keys := range []int{1, 4, 40} {
		p, calls := newLearning(t, max(20, 2*keys), keys), 0
		for range 2000 {
			if c := p.send("d", []int64{absent}, "user=eve 0"); !c.Denied {
				p.done(string(c.AppendID(nil)), absent)
				calls++
			}
			p.now += sec / 200
		}
		if most := (inTenSeconds + firstEstimate - leastEstimate) / firstEstimate; calls > most { // the last call needs only the least estimate
			t.Errorf("with %d keys: %d calls in 10 s without a usage report, want at most %d", keys, calls, most)
		}
	}
}

// With many keys, a client can make the estimate as low as the least one. So it can have as many calls in flight as the
// budget has reservations of that size. When they end, each is charged the first estimate.
func TestParallelCallsThatHangUpReserveTheLeastEstimate(t *testing.T) {
	p := newLearning(t, 200, 200)
	var open []string
	for c := p.send("d", []int64{absent}, "user=mallory"); !c.Denied; c = p.send("d", []int64{absent}, "user=mallory") {
		open = append(open, string(c.AppendID(nil)))
	}
	if most := 100_000 / leastEstimate; len(open) != most {
		t.Errorf("%d calls in flight, want %d", len(open), most)
	}
	for _, id := range open {
		p.done(id, absent)
	}
	p.now += minute
	if c := p.send("d", []int64{absent}, "user=mallory"); !c.Denied {
		t.Error("allowed after a minute, want denied until the debt of the calls has refilled")
	}
}

// The bucket of this process is smaller than the limit.
func TestAnEstimateFitsTheLocalBucket(t *testing.T) {
	p := newProxy(t)
	p.swap(t, `
domain: d
on_backend_failure: local
local_share: 1%
limits:
  tokens: {algorithm: token_bucket, rate: 100000, period: 1m, settle: {estimate: 1500}}
descriptors:
  - {key: user, limit: tokens}
`)
	p.store.err = backend.ErrUnavailable
	if c := p.send("d", []int64{absent}, "user=bob"); c.Denied {
		t.Errorf("the first request: %+v; want allowed", c.Results[0].Decision)
	}
	if c := p.send("d", []int64{absent}, "user=bob"); !c.Denied || c.Results[0].Decision.RetryAfter != minute {
		t.Errorf("the second request: %+v; want denied for a minute", c.Results[0].Decision)
	}
}
