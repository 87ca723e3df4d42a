package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func TestFullMemoryIsReported(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := &server{log: zap.NewNop(), metrics: metrics.New("", ""), watch: newWatch(now), conditions: conditions.New(func() time.Time { return now })}
	s.stack.memory = memory.New(memory.Config{MaxKeys: 1000, Clock: func() time.Time { return now }})
	limit := limittest.Compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: 60 * algorithms.Second})
	use := func(from, to int) {
		for i := range to - from {
			var d [1]backend.Decision
			backend.Take(t.Context(), s.stack.memory, []backend.Charge{{Key: fmt.Append(nil, from+i), Limit: limit, Terms: algorithms.Charge{Cost: 1}, Owner: "a"}}, d[:])
		}
	}
	wrong := func() string {
		s.reportMemory(now)
		var all []string
		for _, c := range s.conditions.List() {
			all = append(all, string(c.Severity)+": "+c.Summary)
		}
		return strings.Join(all, "\n")
	}
	use(0, 800)
	if got := wrong(); got != "" {
		t.Errorf("with 800 of 1,000: %q; want none", got)
	}
	use(800, 950)
	if got := wrong(); !strings.HasPrefix(got, "warning: Memory is nearly full: 950 of 1000") {
		t.Errorf("with 950 of 1,000: %q; want a text that starts with %q", got, "warning: Memory is nearly full: 950 of 1000")
	}
	use(950, 1100)
	if got := wrong(); !strings.HasPrefix(got, "critical: Memory has no room") {
		t.Errorf("with 1,100 of 1,000: %q; want a text that starts with %q", got, "critical: Memory has no room")
	}
	now = now.Add(2 * time.Minute) // by now all buckets equal new ones
	use(5000, 5001)
	if got := wrong(); strings.HasPrefix(got, "critical") {
		t.Errorf("two minutes later: %q; want no critical condition", got)
	}
}

func TestSidecarsOfOneRedisKnowEachOther(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	a, b := start(t, oneLimit, onRedis("redis://"+redis.Addr)), start(t, oneLimit, onRedis("redis://"+redis.Addr))
	eventually(t, "both are listed", func() bool { return strings.Contains(body(t, get(t, a.Admin, "/fleet")), "2 sidecars.") })
	page := body(t, get(t, b.Admin, "/fleet"))
	for _, want := range []string{"this one", "none", redis.Addr, "noeviction"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	b.write(t, strings.Replace(oneLimit, "capacity: 2", "capacity: 3", 1))
	b.reload(t)
	eventually(t, "the old configuration is shown", func() bool {
		return strings.Contains(body(t, get(t, a.Admin, "/fleet")), "1 sidecar with another configuration than most.")
	})
}

// At a high rate of requests fewer decisions are recorded, and each recorded one counts for more. The estimate of
// the units must differ from the true number by at most half.
func TestUsageIsEstimatedAtAnyRate(t *testing.T) {
	for requests, want := range map[uint64]uint32{0: 1, 320_000: 1, 320_001 + 64: 2, 10_000_000: 32, 1 << 60: 1024} {
		if got := thinned(requests); got != want {
			t.Errorf("after %d requests in a step, one of %d timed decisions is recorded; want %d", requests, got, want)
		}
	}
	const calls = 1_000_000
	for _, thin := range []uint32{1, 16} {
		w := newWatch(time.Now())
		w.thin.Store(thin)
		o := observers{Metrics: metrics.New("", ""), watch: w}
		l := limiter.New(memory.New(memory.Config{}), limiter.Config{})
		l.Swap(configtest.Compile(t, oneLimit))
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{{Key: "user", Value: "bob"}}, Cost: 2}}}}
		if err := l.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for range calls {
			o.Observe(c)
		}
		top := w.usage.Top(10).Keys
		if len(top) != 1 || top[0].Times < calls || top[0].Times > 3*calls {
			t.Errorf("with one of %d timed decisions: %+v; want bob with about %d units", thin, top, 2*calls)
		}
	}
}
