package stores

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The state of a bucket with shards is not known as a whole. So a decision on it from a lease is the last one of the
// wrapped Store, with the leased units added, and with the passed time subtracted from ResetAfter.
func TestADecisionFromALeaseOfABucketWithShards(t *testing.T) {
	limit := limittest.Compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 100, Period: algorithms.Second})
	c := &backend.Charge{Key: []byte("a"), Limit: limit, Shards: make([]algorithms.Limit, 4)}
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

// A reset of a bucket drops its lease and its waiting returns, because they would refund units that the new bucket never
// lost.
func TestADroppedKeyReturnsNothing(t *testing.T) {
	s := Cache(nil, CacheConfig{})
	sh, _ := s.shard([]byte("a"))
	_, l := hotBucket(t)
	l.ahead, l.grants[0].left = &ahead{}, 7
	sh.insert([]byte("a")).hot, sh.hot[l] = l, struct{}{}
	for _, key := range []string{"b", "a", "a"} {
		sh.returns = append(sh.returns, backend.Charge{Key: []byte(key), Terms: algorithms.Charge{Cost: -1}})
	}
	s.dropReset([]backend.Charge{{Key: []byte("a"), Reset: true}}, nil)
	if len(sh.returns) != 1 || string(sh.returns[0].Key) != "b" || len(sh.hot)+len(sh.buckets) != 0 || !l.removed || l.left() != 0 {
		t.Errorf("%+v wait, %d keys, %d units; want the return of b, and none", sh.returns, len(sh.hot), l.left())
	}
}
