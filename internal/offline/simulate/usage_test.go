package simulate

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// ask is one ask of a random trace of one bucket.
type ask struct {
	at   algorithms.Micros
	cost int64
}

// needs are specs of a limit of each kind of which a number can be found at which nothing is
// denied; set puts that number in.
var needs = []struct {
	name      string
	spec      algorithms.Spec
	reference bool
	set       func(s *algorithms.Spec, n int64)
}{
	{"token bucket", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 7, Period: 60_000}, false, setCapacity},
	{"guaranteed", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 3, Period: 60_000, Minimum: &algorithms.Rate{Units: 2, Period: 9_000}}, false, setCapacity},
	{"leaky bucket", algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 7, Period: 60_000}, false, setCapacity},
	{"fixed window", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 7, Period: 60_000}, false, setCapacity},
	{"fixed window of the clock", algorithms.Spec{Kind: algorithms.FixedWindow, Period: 60_000, Start: new(algorithms.Micros(0))}, true, setRate},
	{"sliding window", algorithms.Spec{Kind: algorithms.SlidingWindow, Period: 60_000}, false, setRate},
}

func setCapacity(s *algorithms.Spec, n int64) { s.Capacity = &n }
func setRate(s *algorithms.Spec, n int64)     { s.Rate = n }

// TestNeedIsTheLeastThatDeniesNone: with that number none is denied, with one less some is.
func TestNeedIsTheLeastThatDeniesNone(t *testing.T) {
	for _, test := range needs {
		t.Run(test.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				asks, hash := drawAsks(t), rapid.Uint64().Draw(t, "hash")
				spec := test.spec
				test.set(&spec, max(1, spec.Rate))
				need := needOf(t, spec, test.reference, asks, hash)
				if spec.Kind == algorithms.LeakyBucket {
					need-- // one place is not the queue's
				}
				if need < 1 {
					return // a limit of nothing is not one
				}
				test.set(&spec, need)
				if i := firstDenied(t, spec, asks, hash); i >= 0 {
					t.Fatalf("with %d, ask %d is denied", need, i)
				}
				if need == 1 {
					return
				}
				test.set(&spec, need-1)
				if firstDenied(t, spec, asks, hash) < 0 {
					t.Fatalf("with %d, one less, none is denied", need-1)
				}
			})
		})
	}
}

func drawAsks(t *rapid.T) (asks []ask) {
	now := algorithms.Micros(1_767_225_600_000_000)
	for range rapid.IntRange(1, 40).Draw(t, "asks") {
		now += algorithms.Micros(rapid.OneOf(rapid.Int64Range(0, 5_000), rapid.Int64Range(0, 200_000)).Draw(t, "pause"))
		asks = append(asks, ask{now, rapid.Int64Range(1, 9).Draw(t, "cost")})
	}
	return asks
}

func needOf(t *rapid.T, spec algorithms.Spec, reference bool, asks []ask, hash uint64) (need int64) {
	u := &usage{row: &row{policy: &descriptors.Policy{Limit: compile(t, spec), Reference: reference}}}
	if l := &u.row.policy.Limit; l.Kind == algorithms.FixedWindow && l.PhaseFromKey {
		u.phase = int64(hash % uint64(l.Period))
	}
	u.advance(asks[0].at)
	for _, a := range asks {
		need = max(need, u.charge(a.at, a.cost))
	}
	return need
}

func firstDenied(t *rapid.T, spec algorithms.Spec, asks []ask, hash uint64) int {
	limit, state := compile(t, spec), algorithms.State{}
	for i, a := range asks {
		var d algorithms.Decision
		state, d = limit.Take(state, a.at, algorithms.Ask{Cost: a.cost, Hash: hash})
		if !d.Allowed {
			return i
		}
	}
	return -1
}

func compile(t *rapid.T, spec algorithms.Spec) algorithms.Limit {
	l, err := algorithms.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPeakIsOfOnePeriod(t *testing.T) {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 5, Period: 1000})
	if err != nil {
		t.Fatal(err)
	}
	u := &usage{row: &row{policy: &descriptors.Policy{Limit: limit}}}
	for i, step := range []struct {
		at         algorithms.Micros
		cost, want int64
	}{{0, 3, 3}, {999, 4, 7}, {1000, 2, 2}, {1500, -5, 0}, {5000, 1, 1}, {5001, 1 << 62, maxDebt}, {5002, 1 << 62, maxDebt}} {
		u.charge(step.at, step.cost)
		if u.cur != step.want {
			t.Errorf("step %d: %d in this period, want %d", i, u.cur, step.want)
		}
	}
}

func TestIdleUsageIsForgotten(t *testing.T) {
	s := compiled(t, `
domain: edge
limits: {send: {algorithm: token_bucket, rate: 1, period: 1s, capacity: 5}}
descriptors: [{key: user, limit: send}]`)
	tally, r := newTally(s, 10), newReplay(t, s)
	for i := range 10 {
		r.ask(t, algorithms.Micros(i), fmt.Sprintf(`{"time_us":%d,"domain":"edge","descriptors":[{"entries":[["user","%d"]],"hits":5}]}`, i, i))
		tally.count(r.now, &r.call)
	}
	tally.sweep(4 * algorithms.Second)
	if n := len(tally.used); n != 10 {
		t.Errorf("%d of 10 buckets in debt are kept", n)
	}
	tally.sweep(6 * algorithms.Second)
	if n := len(tally.used); n != 0 {
		t.Errorf("%d idle buckets are kept", n)
	}
}
