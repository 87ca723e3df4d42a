package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The limits are small, so that random requests are often denied.
func directLimits(t *rapid.T) map[string]*limiter.Policy {
	capacity, queue := int64(12), int64(2)
	specs := []algorithms.Spec{
		{Kind: algorithms.TokenBucket, Rate: 7, Period: algorithms.Second, Capacity: &capacity},
		{Kind: algorithms.TokenBucket, Rate: 7, Period: algorithms.Second, Overdraw: true},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: algorithms.Second},
		{Kind: algorithms.SlidingWindow, Rate: 5, Period: algorithms.Second},
		{Kind: algorithms.SlidingLog, Rate: 5, Period: algorithms.Second},
		{Kind: algorithms.LeakyBucket, Rate: 3, Period: algorithms.Second, Capacity: &queue},
		{Kind: algorithms.TokenBucket, Rate: 3, Period: algorithms.Second, Penalty: &algorithms.Penalty{After: 2, For: 2 * algorithms.Second, Max: 4 * algorithms.Second}},
	}
	named := map[string]*limiter.Policy{}
	for i, spec := range specs {
		limit := limittest.Compile(t, spec)
		name := fmt.Sprint(i)
		named[name] = &limiter.Policy{
			Index: i, Domain: "d", Name: name, Owner: "d/" + name, Limit: limit, Keys: descriptors.Keys{Prefix: descriptors.Prefix("d", "limit", name, limit.Kind)},
		}
	}
	return named
}

func TestADirectDecidesLikeACall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := 1_767_225_600 * algorithms.Second
		clock := func() algorithms.Micros { return now }
		named := directLimits(t)
		snapshot := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": {Name: "d", Tree: &limiter.Tree{}, Named: named}}}
		l := limiter.New(memory.New(memory.Config{Clock: storetest.Times(clock)}), limiter.Config{})
		l.Swap(snapshot)
		store := memory.New(memory.Config{Clock: storetest.Times(clock)})
		var d limiter.Direct
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += algorithms.Micros(rapid.Int64Range(0, 700_000).Draw(t, "after"))
			var c limiter.Call
			c.Request.Domain = "d"
			c.DryRun = rapid.IntRange(0, 4).Draw(t, "dry run") == 0
			for range rapid.SampledFrom([]int{1, 2, 3, 4, 70}).Draw(t, "limits") {
				p := named[fmt.Sprint(rapid.IntRange(0, len(named)-1).Draw(t, "limit"))]
				terms := algorithms.Charge{Cost: rapid.Int64Range(-2, 14).Draw(t, "cost"), DryRun: c.DryRun}
				terms.Reserve = p.Limit.CanReserve() && rapid.Bool().Draw(t, "reserve")
				key := []string{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")}
				c.Limits = append(c.Limits, limiter.NamedCharge{Name: p.Name, Key: key, Count: terms.Cost, Reserve: terms.Reserve})
				d.Add(p, key, terms)
			}
			d.Take(context.Background(), store)
			if err := l.Check(context.Background(), &c); err != nil {
				t.Fatal(err)
			}
			for i := range c.Results {
				if got, _ := d.Decision(i); *got != c.Results[i].Decision {
					t.Fatalf("charge %d of %+v: a Direct decides %+v, a Call %+v; want the same decision", i, c.Limits, *got, c.Results[i].Decision)
				}
			}
			d.Reset()
		}
	})
}

// A Store may write only some fields of a decision. So Reset must clear the decisions of the previous use.
func TestAReusedDirectForgetsErrors(t *testing.T) {
	b := newBench(t, plans)
	p := b.Current().Domains["d"].Named["burst"]
	var d limiter.Direct
	for _, failure := range []error{backend.ErrUnavailable, nil} {
		b.store.err = failure
		d.Reset()
		d.Add(p, []string{"bob"}, algorithms.Charge{Cost: 1})
		d.Take(t.Context(), b.store)
		if got, _ := d.Decision(0); !errors.Is(got.Err, failure) || got.Allowed != (failure == nil) {
			t.Errorf("got %+v, want the error %v", *got, failure)
		}
	}
}
