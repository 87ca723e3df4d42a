package usage

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topk"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func call(key string, cost int64, outcome limiter.Outcome) *limiter.Call {
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{{Key: "user", Value: key}}}}}}
	policy := &limiter.Policy{Domain: "d", Name: "send", Keys: descriptors.Keys{Open: []int{0}}, Limit: &algorithms.Limit{Capacity: 40}}
	c.Results = []limiter.Result{{Policy: policy, Key: []byte(key), Cost: cost, Outcome: outcome, Decision: backend.Decision{Decision: algorithms.Decision{Remaining: 7}}}}
	return c
}

func TestTopListsTheKeysThatConsumedMost(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := New(func() time.Time { return now })
	for range 10 {
		r.Observe(call("bob", 3, limiter.Allowed), 64)
	}
	r.Observe(call("ann", 5, limiter.Shadowed), 64)
	r.Observe(call("eve", 5, limiter.Denied), 64) // consumed nothing
	r.Observe(call("carl", 0, limiter.Allowed), 64)
	peeked := call("dora", 5, limiter.Allowed)
	peeked.DryRun = true
	r.Observe(peeked, 64)
	repeated := call("dora", 5, limiter.Allowed)
	repeated.Replayed = true // the first request with this request_id has consumed the units
	r.Observe(repeated, 64)
	now = now.Add(topk.Window)
	r.Observe(call("bob", 1, limiter.Allowed), 64)
	since, top := r.Top()
	if len(top) != 2 || top[0].Key[0] != "bob" || top[0].Units != 31*64 || top[1].Key[0] != "ann" || top[1].Units != 5*64 || !since.Equal(time.Unix(1e9, 0)) {
		t.Fatalf("since %v: got %+v; want %d units of bob and %d of ann, since %v", since, top, 31*64, 5*64, time.Unix(1e9, 0))
	}
	if d := top[0]; d.Domain != "d" || d.Limit != "send" || d.Entries[0].Value != "bob" || d.Remaining != 7 || d.Capacity != 40 || len(d.Recent) != 9 || d.Recent[0].Cost != 1 || d.Recent[1].Cost != 3 {
		t.Errorf("got %+v; want domain %q, limit %q, first value %q, and 9 recent decisions, of which the newest two have the costs 1 and 3", d, "d", "send", "bob")
	}
	now = now.Add(2 * topk.Window)
	if _, top := r.Top(); len(top) != 0 {
		t.Errorf("after ten minutes there is %+v; want nothing", top)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	r := New(time.Now)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 100_000 {
		r.Observe(call(fmt.Sprint("key", i), 1, limiter.Allowed), 64)
		if i%10 == 0 {
			r.Observe(call("bob", 1, limiter.Allowed), 64)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	_, top := r.Top()
	if len(top) > 2*maxKept || top[0].Key[0] != "bob" {
		t.Errorf("%d keys, the first is %+v; want at most %d keys, and bob first", len(top), top[0], 2*maxKept)
	}
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 4<<20 {
		t.Errorf("%d KiB are used; want at most %d KiB", used>>10, 4<<10)
	}
}
