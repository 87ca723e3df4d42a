package stores

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Grants can arrive in another order than they were requested. The lease that expires first is used first.
func TestTheLeaseThatExpiresFirstComesFirst(t *testing.T) {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: algorithms.Second})
	if err != nil {
		t.Fatal(err)
	}
	sh := &leaseShard{}
	l := &hotKey{charge: backend.Charge{Key: []byte("a"), Limit: &limit, Lease: &algorithms.Lease{Most: 100, For: 50_000}}, edge: never}
	decision := &backend.Decision{}
	sh.granted(l, 5, decision, 20*time.Millisecond, 30*time.Millisecond)
	sh.granted(l, 7, decision, 10*time.Millisecond, 31*time.Millisecond)
	if l.grants[0].left != 7 || l.grants[1].left != 5 || l.grants[0].until >= l.grants[1].until {
		t.Errorf("got %+v; want the lease of 7 units first, which expires first", l.grants)
	}
}

// A denial from the denial cache has the time of an earlier decision, which the LeaseStore already knows. So
// recordDecision ignores it.
func TestACachedDenialIsNoNewDecision(t *testing.T) {
	for _, at := range []algorithms.Micros{5, 6} {
		s, l := Lease(nil, LeaseConfig{}), &hotKey{last: backend.Decision{At: 5}, lastAt: -1}
		l.charge.Limit = &algorithms.Limit{Kind: algorithms.TokenBucket}
		s.recordDecision(&leaseBatch{
			store: s, direct: l, lastAt: 5, outer: &backend.Batch{Charges: []backend.Charge{{Key: []byte("a")}}, Decisions: []backend.Decision{{At: at}}},
		})
		if isNew := l.lastAt != -1; isNew != (at == 6) {
			t.Errorf("a denial of time %d, when the decision of time 5 is known: recorded %v, want %v", at, isNew, at == 6)
		}
	}
}

func TestElapsedCountsSuspensions(t *testing.T) {
	const s = time.Second
	var monotonic, wall time.Duration
	e := newElapsed(func() (time.Duration, time.Duration) { return monotonic, wall })
	for i, step := range []struct{ monotonic, wall, now time.Duration }{
		{1 * s, 1 * s, 1 * s},
		{2 * s, 5 * s, 5 * s}, // suspended for 3 s
		{3 * s, 6 * s, 6 * s},
		{4 * s, -100 * s, 7 * s}, // the wall clock was set back
		{4 * s, -98 * s, 9 * s},  // suspended for 2 s
		{5 * s, -97 * s, 10 * s},
		{5 * s, -97*s + clockStep/2, 10 * s}, // the two clocks were not read at the same moment
	} {
		monotonic, wall = step.monotonic, step.wall
		if now := e.now(); now != step.now {
			t.Errorf("step %d: %v have passed, want %v", i, now, step.now)
		}
	}
}

// The state of a bucket with shards is not known as a whole. So a decision on it from a lease is the last one of the
// wrapped Store, with the leased units added, and with the passed time subtracted from ResetAfter.
func TestADecisionFromALeaseOfABucketWithShards(t *testing.T) {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 100, Period: algorithms.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := &backend.Charge{Key: []byte("a"), Limit: &limit, Shards: make([]algorithms.Limit, 4)}
	last := backend.Decision{At: 5000, Decision: algorithms.Decision{Allowed: true, Remaining: 60, ResetAfter: 300}}
	for _, test := range []struct {
		extra, remaining   int64
		delay, reset, time algorithms.Micros
	}{
		{0, 60, 0, 300, 5000},
		{10, 70, 0, 300, 5000},
		{10, 70, 100, 200, 5100},
		{0, 60, 100, 200, 5100},
		{50, 100, 400, 0, 5400}, // Remaining is at most the capacity, and ResetAfter at least 0
	} {
		got := later(c, last, test.extra, test.delay)
		if got.Remaining != test.remaining || got.ResetAfter != test.reset || got.At != test.time || !got.Allowed {
			t.Errorf("%d more units, %d us later: got %+v; want %d remaining, full after %d, at %d", test.extra, test.delay, got, test.remaining, test.reset, test.time)
		}
	}
}

// Returns that wait for the timer belong to their bucket. A reset of the bucket drops them, because they
// would refund units that the new bucket never lost. Before the bucket gets a new lease, its waiting returns
// are sent.
func TestWaitingReturnsBelongToTheirBucket(t *testing.T) {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1000, Period: algorithms.Day})
	if err != nil {
		t.Fatal(err)
	}
	waiting := func(key string, cost int64) backend.Charge {
		return backend.Charge{Key: []byte(key), Limit: &limit, Terms: algorithms.Charge{Cost: cost}}
	}
	keys := func(charges []backend.Charge) (text string) {
		for i := range charges {
			text += string(charges[i].Key)
		}
		return text
	}
	s := Lease(nil, LeaseConfig{MaxKeys: leaseShards}) // one hot key for each lock
	sh, _ := s.shard([]byte("a"))
	l := &hotKey{charge: waiting("a", 1)}
	l.charge.Lease = &algorithms.Lease{Most: 100, For: 50_000}
	l.grants[0] = grant{left: 7, until: never}

	sh.returns = []backend.Charge{waiting("b", -1), waiting("a", -2), waiting("c", -3), waiting("a", -4)}
	list := sh.returnAll([]backend.Charge{waiting("x", -5)}, l, 0)
	if got := keys(list); got != "xaaa" || list[1].Terms.Cost != -7 || keys(sh.returns) != "bc" {
		t.Errorf("got %s, and %s waits; want x, the lease of a and its two returns, and bc", got, keys(sh.returns))
	}

	sh.returns = []backend.Charge{waiting("b", -1), waiting("a", -2), waiting("a", -4)}
	sh.hotKeys["a"] = l
	l.ahead = &ahead{}
	s.drop([]byte("a"), nil)
	if keys(sh.returns) != "b" || len(sh.hotKeys) != 0 || !l.removed || l.left() != 0 {
		t.Errorf("after a reset of a: %s waits, %d keys, %d units; want b, and none", keys(sh.returns), len(sh.hotKeys), l.left())
	}
}
