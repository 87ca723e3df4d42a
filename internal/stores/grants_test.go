package stores

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

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
		got := last
		adapt(c, &got, test.extra, test.delay)
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
	s := Cache(nil, CacheConfig{})
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
	sh.insert([]byte("a")).hot, sh.hot[l] = l, struct{}{}
	l.ahead = &ahead{}
	s.drop([]byte("a"), nil)
	if keys(sh.returns) != "b" || len(sh.hot)+len(sh.buckets) != 0 || !l.removed || l.left() != 0 {
		t.Errorf("after a reset of a: %s waits, %d keys, %d units; want b, and none", keys(sh.returns), len(sh.hot)+len(sh.buckets), l.left())
	}
}
