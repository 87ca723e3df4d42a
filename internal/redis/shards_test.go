package redis

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// windowSpec returns a window that does not end during a test.
func windowSpec(n int64) algorithms.Spec {
	start := algorithms.Micros(time.Now().Add(-time.Hour).UnixMicro())
	return algorithms.Spec{Kind: algorithms.FixedWindow, Rate: n, Period: 30 * algorithms.Day, Start: &start}
}

func sharded(tb testing.TB, spec algorithms.Spec, n int, key string) backend.Charge {
	tb.Helper()
	whole := compiled(tb, spec)
	shards, err := algorithms.Split(spec, n)
	if err != nil {
		tb.Fatal(err)
	}
	return backend.Charge{Key: []byte(key), Limit: whole, Shards: shards, Terms: algorithms.Charge{Cost: 1}, Owner: "test"}
}

func takeOne(tb testing.TB, s backend.Store, c backend.Charge, terms algorithms.Charge) backend.Decision {
	tb.Helper()
	c.Terms = terms
	var d [1]backend.Decision
	backend.Take(context.Background(), s, []backend.Charge{c}, d[:])
	if d[0].Err != nil {
		tb.Fatalf("got %v; want no error", d[0].Err)
	}
	return d[0]
}

// values returns the units in each shard, in the unit of State.Value.
func values(tb testing.TB, s *Store, c backend.Charge) (all []int64) {
	tb.Helper()
	for i := range c.Shards {
		d := takeShard(s, c, i, algorithms.Charge{DryRun: true})
		if d.Err != nil {
			tb.Fatalf("got %v; want no error", d.Err)
		}
		all = append(all, d.Value)
	}
	return all
}

func sum(all []int64) (n int64) {
	for _, v := range all {
		n += v
	}
	return n
}

func openWithFixedClock(tb testing.TB, c Config) (*Store, *storetest.Clock) {
	tb.Helper()
	clock := &storetest.Clock{}
	clock.Set(algorithms.Micros(time.Now().UnixMicro()))
	c.Clock = clock.Now
	return open(tb, c), clock
}

func TestShards(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	cluster := redistest.StartCluster(t, 3).Steady() // of its own, because its commands are counted
	config := Config{URL: cluster.URL(), Timeout: 5 * time.Second}
	t.Run("deny only if units are missing", func(t *testing.T) { shardsDenyOnlyMissingUnits(t, config) })
	t.Run("get refunds, the emptiest first", func(t *testing.T) { shardsGetRefunds(t, config) })
	t.Run("end level after a reservation", func(t *testing.T) { shardsSpreadAReservation(t, config) })
	t.Run("report the retry time after another sidecar was faster", func(t *testing.T) { shardsLostARace(t, config) })
	t.Run("spread a hot key over the masters", func(t *testing.T) { shardsSpreadAHotKey(t, cluster) })
	t.Run("answer dry runs as one bucket", func(t *testing.T) { shardsArePeekedAsOne(t, config) })
}

// While there are no other requests, a request is denied exactly if the sum of all shards is less than its
// cost. The answer contains that sum. The request is allowed at its retry time, and not before.
func shardsDenyOnlyMissingUnits(t *testing.T, config Config) {
	t.Helper()
	s, clock := openWithFixedClock(t, config)
	n := seed(t)
	rng := rand.New(rand.NewPCG(n, 5))
	capacity := int64(60)
	specs := []algorithms.Spec{
		windowSpec(capacity),
		{Kind: algorithms.TokenBucket, Rate: 7, Period: algorithms.Second, Capacity: &capacity},
	}
	for i, spec := range specs {
		for _, shards := range []int{2, 3, 11} {
			c := sharded(t, spec, shards, fmt.Sprintf("alone %d %d of %d", i, shards, n))
			denied := 0
			for step := range 120 {
				cost := 1 + rng.Int64N(6)
				if rng.IntN(8) == 0 {
					cost = 1 + rng.Int64N(capacity)
				}
				one := c.Shards[0].Unit()
				there := sum(values(t, s, c))
				d := takeOne(t, s, c, algorithms.Charge{Cost: cost})
				if d.Allowed != (cost*one <= there) {
					t.Fatalf("%s in %d, step %d: cost %d, %d/%d available, got %+v; want allowed %v", spec.Kind, shards, step, cost, there, one, d, cost*one <= there)
				}
				if left := sum(values(t, s, c)); d.Allowed && left != there-cost*one || !d.Allowed && left != there {
					t.Fatalf("%s in %d, step %d: cost %d of %d/%d, %d/%d left; want the cost subtracted exactly if it is allowed", spec.Kind, shards, step, cost, there, one, left, one)
				}
				if d.Allowed {
					continue
				}
				if denied++; d.Remaining != there/one {
					t.Fatalf("%s in %d: %d/%d available, remaining %d; want %v remaining", spec.Kind, shards, there, one, d.Remaining, there/one)
				}
				now := clock.Now()
				clock.Set(now + d.RetryAfter - 1)
				if takeOne(t, s, c, algorithms.Charge{Cost: cost, DryRun: true}).Allowed {
					t.Fatalf("%s in %d: allowed before its retry time", spec.Kind, shards)
				}
				clock.Set(now + d.RetryAfter)
				if !takeOne(t, s, c, algorithms.Charge{Cost: cost, DryRun: true}).Allowed {
					t.Fatalf("%s in %d: denied at its retry time", spec.Kind, shards)
				}
			}
			if denied == 0 {
				t.Errorf("%s in %d: nothing was denied; want some denials", spec.Kind, shards)
			}
		}
	}
}

func shardsGetRefunds(t *testing.T, config Config) {
	t.Helper()
	s, _ := openWithFixedClock(t, config)
	c := sharded(t, windowSpec(40), 4, "back")
	takeOne(t, s, c, algorithms.Charge{Cost: 40})
	for i, cost := range []int64{-1, -4, -6} { // refund different amounts, so that the shards are not equal
		takeShard(s, c, i, algorithms.Charge{Cost: cost})
	}
	if d := takeOne(t, s, c, algorithms.Charge{Cost: -4}); !d.Allowed { // before this refund the shards hold 1, 4, 6 and 0 units
		t.Errorf("got %+v; want allowed", d)
	}
	got := values(t, s, c)
	if slices.Sort(got[:]); !slices.Equal(got, []int64{2, 3, 4, 6}) {
		t.Errorf("left %v, want 2 3 4 6", got)
	}
	takeOne(t, s, c, algorithms.Charge{Cost: -1000})
	if got := values(t, s, c); !slices.Equal(got, []int64{10, 10, 10, 10}) {
		t.Errorf("left %v, want all full", got)
	}
}

func shardsSpreadAReservation(t *testing.T, config Config) {
	t.Helper()
	s, clock := openWithFixedClock(t, config)
	capacity, reserve := int64(12), int64(24)
	c := sharded(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 6, Period: algorithms.Second, Capacity: &capacity, MaxReserved: &reserve}, 4, "reserved")
	one := c.Shards[0].Unit()
	for i, cost := range []int64{1, 3, 0, 2} { // consume different amounts, so that the shards hold 2, 0, 3 and 1 units
		takeShard(s, c, i, algorithms.Charge{Cost: cost})
	}
	d := takeOne(t, s, c, algorithms.Charge{Cost: 14, Reserve: true}) // this leaves a debt of 8 units, two in each shard
	left := values(t, s, c)
	if !d.Allowed || sum(left) != -8*one || slices.Max(left)-slices.Min(left) > 1 {
		t.Errorf("got %+v, left %v of a unit of %d; want allowed, and a debt of 8 units, equal in all shards", d, left, one)
	}
	// Each shard gets 6/4 tokens a second, so two flow in within 4/3 s.
	if d.Wait < 1_333_333 || d.Wait > 1_333_334 {
		t.Errorf("wait %d us; want 1_333_333 or 1_333_334", d.Wait)
	}
	clock.Set(clock.Now() + d.Wait)
	if left := values(t, s, c); slices.Min(left) < 0 {
		t.Errorf("in debt after the wait: %v; want at least 0", left)
	}
	if d := takeOne(t, s, c, algorithms.Charge{Cost: 25, Reserve: true}); d.Allowed || d.Never {
		t.Errorf("more than can be reserved now: %+v; want a denial without Never", d)
	}
}

// shardsLostARace lets another sidecar charge a shard between the dry runs and the charge.
func shardsLostARace(t *testing.T, config Config) {
	t.Helper()
	s, _ := openWithFixedClock(t, config)
	c := sharded(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 20, Period: 20 * algorithms.Second}, 2, "race")
	sender := s.cluster.sender
	var other sync.Once
	s.cluster.sender = func(addr string, at func(string) *node) (backend.Store, *node) {
		store, n := sender(addr, at)
		return contended(store, &other), n
	}
	c.Terms = algorithms.Charge{Cost: 15}
	d := takeAllShards(s, c)
	if d.Allowed || d.Err != nil {
		t.Fatalf("got %+v; want denied and no error", d)
	}
	redistest.Eventually(t, "the charge is refunded", func() bool { return sum(values(t, s, c)) == 12*c.Limit.Unit()*2 })
	want := takeOne(t, s, c, algorithms.Charge{Cost: 15, DryRun: true})
	if d.RetryAfter != want.RetryAfter || d.RetryAfter != 6*algorithms.Second || d.Remaining != 12 {
		t.Errorf("got %+v, want %+v: 3 of 15 are missing, and one of two shards is full", d.Decision, want.Decision)
	}
}

var scriptCalls = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)

func shardsSpreadAHotKey(t *testing.T, cluster *redistest.Cluster) {
	t.Helper()
	s := open(t, Config{URL: cluster.URL(), Timeout: 5 * time.Second})
	for _, shards := range []int{3, 6, 10} {
		c := sharded(t, windowSpec(1_000_000), shards, fmt.Sprintf("hot %d", shards))
		for _, m := range cluster.Masters {
			m.Do("CONFIG", "RESETSTAT")
		}
		const requests = 3000
		for range requests {
			takeOne(t, s, c, algorithms.Charge{Cost: 1})
		}
		var calls []float64
		for _, m := range cluster.Masters {
			found := scriptCalls.FindStringSubmatch(m.Do("INFO", "commandstats"))
			if found == nil {
				t.Fatal("a master got no command")
			}
			n, _ := strconv.Atoi(found[1])
			calls = append(calls, float64(n)/requests)
		}
		t.Logf("%d shards: shares of a hot key's commands by master: %.3f", shards, calls)
		// The shards are spread over three masters. With 10 shards, one master has 4.
		even := math.Ceil(float64(shards)/3) / float64(shards)
		if total := calls[0] + calls[1] + calls[2]; slices.Max(calls) > even+0.05 || total > 1.02 {
			t.Errorf("%d shards: calls of each master for each request %.3f, in all %.2f; want at most %.3f for one master, and 1.02 in all", shards, calls, total, even+0.05)
		}
	}
}

// The result of a dry run must not depend on which shards were charged.
func shardsArePeekedAsOne(t *testing.T, config Config) {
	t.Helper()
	s, clock := openWithFixedClock(t, config)
	whole := memory.New(memory.Config{Clock: clock.Time})
	number := func(n int64) *int64 { return &n }
	for name, spec := range map[string]algorithms.Spec{
		"token bucket":             {Kind: algorithms.TokenBucket, Rate: 100, Period: algorithms.Second},
		"a rate that has divisors": {Kind: algorithms.TokenBucket, Rate: 6, Period: algorithms.Second, Capacity: number(100)},
		"with a debt":              {Kind: algorithms.TokenBucket, Rate: 7, Period: algorithms.Second, Capacity: number(100), MaxReserved: number(50)},
		"a year":                   {Kind: algorithms.TokenBucket, Rate: 200_003, Period: 365 * algorithms.Day},
		"starts half full":         {Kind: algorithms.TokenBucket, Rate: 100, Period: 60 * algorithms.Second, Initial: number(50)},
		"window":                   windowSpec(100),
	} {
		for _, shards := range []int{2, 4, 7} {
			t.Run(fmt.Sprintf("%s in %d", name, shards), func(t *testing.T) {
				c := sharded(t, spec, shards, fmt.Sprintf("look %s %d %d", name, shards, seed(t)))
				peek := func() {
					t.Helper()
					got, want := takeOne(t, s, c, algorithms.Charge{DryRun: true}), takeOne(t, whole, c, algorithms.Charge{DryRun: true})
					if got.Value != want.Value || got.Remaining != want.Remaining {
						t.Errorf("value %d, %d remaining; want those of one bucket, %d and %d", got.Value, got.Remaining, want.Value, want.Remaining)
					}
				}
				peek()
				for _, cost := range []int64{1, 3, 20, -2, 1} {
					takeOne(t, s, c, algorithms.Charge{Cost: cost})
					takeOne(t, whole, c, algorithms.Charge{Cost: cost})
					peek()
				}
				if spec.MaxReserved != nil {
					terms := algorithms.Charge{Cost: 100, Reserve: true}
					takeOne(t, s, c, terms)
					takeOne(t, whole, c, terms)
					peek()
				}
			})
		}
	}
}
