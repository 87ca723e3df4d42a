package stores

import (
	"fmt"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func tenASecond(t *testing.T) *algorithms.Limit {
	t.Helper()
	limit := limittest.Compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second})
	return limit
}

// unchanged returns unknown for a rate of 0. It also returns unknown for a decision that differs from the one computed
// from Decision.Value and the limit, because Value is then not the whole state of the bucket.
func TestADecisionOfAnUnknownStateIsNotComputed(t *testing.T) {
	never := &algorithms.Limit{Kind: algorithms.TokenBucket}
	if got := unchanged(&backend.Charge{Limit: never}, &backend.Decision{}); got != unknown {
		t.Errorf("a rate of 0: got %d, want unknown", got)
	}
	start := time.Unix(1_767_225_600, 0)
	store := memory.New(memory.Config{Clock: func() time.Time { return start }})
	charge := backend.Charge{Key: []byte("a"), Limit: tenASecond(t), Terms: algorithms.Charge{Cost: 10}}
	backend.Take(t.Context(), store, []backend.Charge{charge}, make([]backend.Decision, 1))
	charge.Terms.Cost = 5
	denied := make([]backend.Decision, 1)
	backend.Take(t.Context(), store, []backend.Charge{charge}, denied)
	for name, change := range map[string]func(*backend.Decision){
		"as decided": func(*backend.Decision) {}, "more remaining": func(d *backend.Decision) { d.Remaining++ },
		"another reset time": func(d *backend.Decision) { d.ResetAfter++ }, "another retry time": func(d *backend.Decision) { d.RetryAfter++ },
	} {
		decision := denied[0]
		change(&decision)
		if got := unchanged(&charge, &decision); (got == unknown) != (name != "as decided") {
			t.Errorf("%s: got %d; want unknown, %d, unless the decision is as decided", name, got, unknown)
		}
		var answer backend.Decision
		is := newDenial(&charge, &decision, 0, time.Millisecond, time.Second)
		if !is.answer(&charge, &answer, 0) || answer.Remaining != decision.Remaining || is.answer(&charge, &answer, is.until) {
			t.Errorf("%s: answered with %+v; want %d remaining, and no answer when a retry may succeed", name, answer, decision.Remaining)
		}
	}
}

// What the cache must not answer reaches the wrapped Store, although the same charge has just been denied.
// A cost that can never fit has no retry time, so the wrapped Store answers it.
func TestACostThatNeverFitsIsNotAnsweredFromTheCache(t *testing.T) {
	limit, calls := tenASecond(t), 0
	s := Cache(storeFunc(func(b *backend.Batch) {
		calls++
		_, b.Decisions[0].Decision = limit.Take(algorithms.State{By: limit, At: 1_000_000}, 1_000_000, b.Charges[0].Terms)
		b.Decisions[0].At = 1_000_000
	}), CacheConfig{})
	for _, test := range []struct {
		cost  int64
		calls int
	}{{5, 1}, {6, 1}, {limit.Capacity + 1, 2}} {
		var d [1]backend.Decision
		backend.Take(t.Context(), s, []backend.Charge{{Key: []byte("a"), Limit: limit, Terms: algorithms.Charge{Cost: test.cost}}}, d[:])
		if calls != test.calls || d[0].Allowed || d[0].Never != (test.calls == 2) {
			t.Errorf("%d units: got %+v after %d calls, want a denial after %d", test.cost, d[0], calls, test.calls)
		}
	}
}

func TestWhatIsNeverAnsweredFromTheCache(t *testing.T) {
	overdraw := *tenASecond(t)
	overdraw.Overdraw = true
	slots := algorithms.Limit{Kind: algorithms.Concurrency}
	penalized := *tenASecond(t)
	penalized.Penalty.After = 1
	for name, change := range map[string]func(c *backend.Charge, d *backend.Decision){
		"plain":             func(*backend.Charge, *backend.Decision) {},
		"a dry run":         func(c *backend.Charge, _ *backend.Decision) { c.Terms.DryRun = true },
		"a settlement":      func(c *backend.Charge, _ *backend.Decision) { c.Terms.Settle = true },
		"a refund":          func(c *backend.Charge, _ *backend.Decision) { c.Terms.Cost = -1 },
		"a repeatable one":  func(c *backend.Charge, _ *backend.Decision) { c.IdempotencyKey = &backend.IdempotencyKey{} },
		"an alternative":    func(c *backend.Charge, _ *backend.Decision) { c.Own = &algorithms.Own{Cost: 1} },
		"an overdraw":       func(c *backend.Charge, _ *backend.Decision) { c.Limit = &overdraw },
		"a slot":            func(c *backend.Charge, _ *backend.Decision) { c.Limit = &slots },
		"a counted denial":  func(c *backend.Charge, _ *backend.Decision) { c.Limit = &penalized },
		"a block":           func(c *backend.Charge, d *backend.Decision) { c.Limit, d.Blocked = &penalized, algorithms.Second },
		"after a block":     func(c *backend.Charge, d *backend.Decision) { c.Limit, d.Blocked = &penalized, 1 },
		"never":             func(_ *backend.Charge, d *backend.Decision) { d.Never = true },
		"without an end":    func(_ *backend.Charge, d *backend.Decision) { d.RetryAfter = 0 },
		"an unknown answer": func(_ *backend.Charge, d *backend.Decision) { *d = backend.Decision{Err: backend.ErrUnavailable} },
	} {
		plain := backend.Charge{Key: []byte("a"), Limit: tenASecond(t), Terms: algorithms.Charge{Cost: 1}}
		charge := plain
		decision := backend.Decision{Decision: algorithms.Decision{RetryAfter: algorithms.Second}}
		change(&charge, &decision)
		calls, now := 0, time.Duration(0)
		s := Cache(storeFunc(func(b *backend.Batch) {
			calls++
			b.Decisions[0] = decision
		}), CacheConfig{Clocks: func() (monotonic, wall time.Duration) { now += time.Millisecond; return now, now }})
		for _, c := range []backend.Charge{plain, charge, charge} {
			backend.Take(t.Context(), s, []backend.Charge{c}, make([]backend.Decision, 1))
		}
		want := 3
		switch name {
		case "plain":
			want = 1
		case "a block": // of another limit than the first charge
			want = 2
		}
		if calls != want {
			t.Errorf("%s: %d calls, want %d", name, calls, want)
		}
		if n := s.cached.Load(); n > 0 && (decision.Never || decision.RetryAfter == 0) {
			t.Errorf("%s: %d buckets are cached, want none", name, n)
		}
	}
}

type storeFunc func(b *backend.Batch)

func (f storeFunc) Submit(b *backend.Batch) {
	f(b)
	b.Done(b)
}

// The cache is bounded, and empty once its denials have ended and its keys are no longer hot.
func TestTheCacheIsBounded(t *testing.T) {
	const most = 2 * cacheShards
	now, limit := time.Hour, tenASecond(t)
	s := Cache(storeFunc(func(b *backend.Batch) {
		for i := range b.Decisions {
			b.Decisions[i] = backend.Decision{Decision: algorithms.Decision{RetryAfter: algorithms.Second}}
		}
	}), CacheConfig{MaxKeys: most, Clocks: func() (monotonic, wall time.Duration) { return now, now }})
	defer s.Close()
	for i := range 20_000 {
		charges := []backend.Charge{{Key: []byte("all")}, {Key: fmt.Append(nil, i)}}
		for j := range charges {
			charges[j].Limit, charges[j].Terms.Cost = limit, 1
		}
		backend.Take(t.Context(), s, charges, make([]backend.Decision, 2))
		if i%7 == 0 {
			s.ClearBucket(charges[1].Key)
		}
		if n := s.cached.Load(); n > most {
			t.Fatalf("%d buckets are cached after %d denials; want at most %d", n, i+1, most)
		}
	}
	listed := 0
	for i := range s.shards {
		listed += len(s.shards[i].buckets)
	}
	if n := s.cached.Load(); n < most/2 || int(n) != listed {
		t.Errorf("%d buckets are cached, %d listed; want at least %d, counted correctly", n, listed, most/2)
	}
	now += time.Second
	if s.ReturnUnits(); s.cached.Load() != 0 {
		t.Errorf("%d buckets are cached after their denials have ended; want none", s.cached.Load())
	}
}
