package budget

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Each user has a budget of 100,000 tokens, and up to 100 calls in flight. Sidecars learn estimates from the
// calls of other users.
const (
	budget   = 100_000
	parallel = 100
	limits   = `
domain: ai
limits:
  tokens: {algorithm: fixed_window, rate: 100000, period: 300d, settle: {estimate: {learn: p90, first: 1500, least: 100, most: 8000}}}
descriptors:
  - {key: user, limit: tokens}
`
)

type call struct {
	id               string
	estimate, tokens int64
	sidecar          int
}

// load sends calls to sidecars. random decides the order of starts and ends, and the costs.
type load struct {
	t        *testing.T
	random   *rand.Rand
	sidecars []*limiter.Limiter
}

// cost returns a random number of tokens: lognormal, with a mean of 1,500 and a 99th percentile of 8,000.
func (l *load) cost() int64 {
	// mean = exp(mu + sigma*sigma/2), and p99 = exp(mu + 2.326*sigma).
	const sigma = 0.8865
	mu := math.Log(1500) - sigma*sigma/2
	return max(1, int64(math.Exp(mu+sigma*l.random.NormFloat64())))
}

func (l *load) send(sidecar int, explicit bool, hits int64, entries ...descriptors.Entry) *limiter.Call {
	l.t.Helper()
	c := &limiter.Call{}
	c.Request.Domain = "ai"
	for _, e := range entries {
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.Explicit = []descriptors.Entry{e}, hits, explicit
	}
	if err := l.sidecars[sidecar].Check(l.t.Context(), c); err != nil || c.Failed {
		l.t.Fatalf("got %v, failed %t; want no error and no failure", err, c.Failed)
	}
	return c
}

func (l *load) start(user string) (one call, ok bool) {
	one.sidecar = l.random.IntN(len(l.sidecars))
	c := l.send(one.sidecar, false, 1, descriptors.Entry{Key: "user", Value: user})
	one.id, one.tokens, one.estimate = string(c.AppendID(nil)), l.cost(), c.Results[0].Cost
	return one, !c.Denied
}

// done settles a call at a random sidecar, because a proxy may settle at another one than it started at. It
// sends about one of ten settlements twice.
func (l *load) done(one call) {
	for range 1 + l.random.IntN(10)/9 {
		sidecar := l.random.IntN(len(l.sidecars))
		l.send(sidecar, true, one.tokens, descriptors.Entry{Key: "settle", Value: one.id})
	}
}

// run sends calls of one user, up to 100 at a time, until 300 are denied and all have ended. It returns the tokens used,
// the units consumed at the first denial, and the amount by which the real costs of the calls in flight after the last
// allowed one exceed their estimates.
func (l *load) run(user string) (used, atDenial, excess int64) {
	var open []call
	consumed := int64(0) // the costs that the store knows: real costs of ended calls, and estimates of the others
	for denied := 0; denied < 300; {
		if len(open) == parallel || len(open) > 0 && l.random.IntN(3) == 0 {
			i := l.random.IntN(len(open))
			one := open[i]
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
			l.done(one)
			consumed += one.tokens - one.estimate
			continue
		}
		one, ok := l.start(user)
		if !ok {
			if denied == 0 {
				atDenial = consumed
			}
			denied++
			continue
		}
		open = append(open, one)
		used, consumed, excess = used+one.tokens, consumed+one.estimate, 0
		for _, other := range open {
			excess += max(0, other.tokens-other.estimate)
		}
	}
	for _, one := range open {
		l.done(one)
	}
	return used, atDenial, excess
}

// TestParallelCallsKeepTheBudget checks the bound on overshoot that docs/howto/limit-llm-tokens.md describes.
func TestParallelCallsKeepTheBudget(t *testing.T) {
	for _, c := range []struct {
		name     string
		sidecars int
		store    func(t *testing.T) backend.Store
	}{
		{"in memory", 1, func(*testing.T) backend.Store { return memory.New(memory.Config{}) }},
		{"on Redis", 1, onRedis},
		{"on Redis, two sidecars", 2, onRedis},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stores []backend.Store
			for range c.sidecars {
				stores = append(stores, c.store(t))
			}
			for seed := range uint64(5) {
				testBudget(t, seed, stores)
			}
		})
	}
}

func testBudget(t *testing.T, seed uint64, stores []backend.Store) {
	t.Helper()
	l := &load{t: t, random: rand.New(rand.NewPCG(seed, 20))}
	// The clock advances by 20 ms each time the sidecars read it. In each second, the first settlement of a bucket is a
	// sample for the estimate.
	now := algorithms.Micros(time.Now().UnixMicro())
	ticking := func() algorithms.Micros { now += algorithms.Second / 50; return now }
	for _, store := range stores {
		s := limiter.New(store, limiter.Config{
			IDs: reservation.NewKeys(func() []string { return []string{"a shared secret"} }, nil), Now: ticking, Estimates: &estimate.Estimates{},
		})
		snapshot, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(limits)}}, config.Options{})
		if problems.Bad() {
			t.Fatal(problems)
		}
		s.Swap(snapshot)
		l.sidecars = append(l.sidecars, s)
	}
	for i := range 200 { // The sidecars learn estimates from the calls of other users.
		if one, ok := l.start(fmt.Sprintf("%d other %d", seed, i)); ok {
			l.done(one)
		}
	}
	used, atDenial, excess := l.run(fmt.Sprintf("%d bob", seed))
	t.Logf("seed %d: %d of %d tokens used, %.1f %% consumed at the first denial, %d above the estimates of open calls",
		seed, used, budget, 100*float64(atDenial)/budget, excess)
	if used > budget+excess {
		t.Errorf("seed %d: %d tokens used, want at most %d and the %d above the estimates of open calls", seed, used, budget, excess)
	}
	if atDenial < budget*95/100 {
		t.Errorf("seed %d: %d of %d tokens were consumed at the first denial, want at least 95 %%", seed, atDenial, budget)
	}
}

var redisServer = map[*testing.T]*redistest.Server{}

// onRedis opens a store on the test's Redis, which it starts at the first call.
func onRedis(t *testing.T) backend.Store {
	t.Helper()
	if redisServer[t] == nil {
		redisServer[t] = redistest.Start(t)
	}
	store, err := redis.Open(redis.Config{URL: "redis://" + redisServer[t].Addr, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}
