package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// TestAProxyWithoutIDsSettlesByBucket sends what Envoy AI Gateway and Envoy Gateway generate: the same descriptors twice, with
// 0 hits of their own when a request starts, and with its cost when it ends.
func TestAProxyWithoutIDsSettlesByBucket(t *testing.T) {
	p := newProxy(t)
	p.swap(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {by: bucket, estimate: 300, ttl: 16s, max_debt: 500}}
  calls: {algorithm: fixed_window, rate: 6, period: 1d}
descriptors:
  - {key: user, limit: tokens}
  - {key: team, limit: calls}
`)
	for _, step := range []struct {
		at    algorithms.Micros // after the step before
		costs []int64
		to    []string
		left  int64 // of the first descriptor
		why   string
	}{
		{0, []int64{0, absent}, []string{"user=bob", "team=x"}, 700, "0 reserves the estimate, with the other limits of the request"},
		{0, []int64{0, absent}, []string{"user=bob", "team=x"}, 400, "a parallel request"},
		{0, []int64{0, absent}, []string{"user=bob", "team=x"}, 100, "another one"},
		{0, []int64{0, absent}, []string{"user=bob", "team=x"}, -1, "the rest does not suffice for a fourth"},
		{0, []int64{100}, []string{"user=bob"}, 300, "a cost settles one of them"},
		{0, []int64{absent}, []string{"user=bob"}, 299, "without hits of its own, a descriptor is charged as usual"},
		{0, []int64{-1}, []string{"user=bob"}, 300, "so is a refund"},
		{0, []int64{100, 250}, []string{"user=bob", "user=bob"}, 250, "two costs for one bucket are one"},
		{0, []int64{400, 1}, []string{"user=bob", "team=x"}, 150, "the last one"},
		{0, []int64{100}, []string{"user=bob"}, 50, "none is open: the whole cost is charged"},
		{0, []int64{5000}, []string{"user=bob"}, 0, "down to the debt"},
		{0, []int64{0}, []string{"user=eve"}, 700, "another bucket"},
		{18 * algorithms.Second, []int64{0}, []string{"user=eve"}, 700, "nothing settled her first request, which has expired"},
	} {
		p.now += step.at
		c := p.send("d", step.costs, step.to...)
		if left := c.Results[0].Decision.Remaining; c.Denied != (step.left < 0) || !c.Denied && left != step.left {
			t.Fatalf("%s: %v %v: denied %v, %d left, want %d", step.why, step.to, step.costs, c.Denied, left, step.left)
		}
		if id := string(c.AppendID(nil)); c.Started() || id != limiter.None {
			t.Errorf("%s: it has the id %s, which no proxy asked for", step.why, id)
		}
	}
	if c := p.send("d", []int64{absent}, "team=x"); c.Results[0].Decision.Remaining != 1 {
		t.Errorf("%d calls are left, want 1: three starts, a charge, and this one", c.Results[0].Decision.Remaining)
	}
}

func TestSettlementByBucketTeachesTheEstimate(t *testing.T) {
	p := newProxy(t)
	learned := &learner{}
	p.Limiter = limiter.New(p.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return nil }), Now: func() algorithms.Micros { return p.now }, Estimates: learned,
	})
	p.swap(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {by: bucket, estimate: {learn: p90, first: 300}}}
descriptors:
  - {key: user, limit: tokens}
`)
	p.send("d", []int64{0}, "user=bob")
	p.send("d", []int64{120}, "user=bob")
	if learned.real != 120 || learned.times != 1 {
		t.Errorf("learned %d in %d settlements, want 120 in one", learned.real, learned.times)
	}
}

type learner struct{ real, times int64 }

func (l *learner) Estimate(uint64) int64 { return 0 }
func (l *learner) Learn(_ uint64, _ float64, _ uint64, _ algorithms.Micros, real int64) {
	l.real, l.times = real, l.times+1
}

// TestAHeaderSettlesWhatTheDescriptorsMatch sends the same descriptors twice, too, but with the id of the reservation in a
// header of the second call.
func TestAHeaderSettlesWhatTheDescriptorsMatch(t *testing.T) {
	p := newProxy(t)
	call := func(id string, costs []int64, to ...string) *limiter.Call {
		t.Helper()
		p.header = id
		defer func() { p.header = "" }()
		return p.send("d", costs, to...)
	}
	left := func(want int64, why string) {
		t.Helper()
		if got := p.left("tokens", "bob"); got != want {
			t.Fatalf("%s: %d left, want %d", why, got, want)
		}
	}
	id := p.start(0, "user=bob")
	other := p.start(0, "user=eve")
	left(900, "0 hits reserve the estimate")
	for why, c := range map[string]*limiter.Call{
		"an id that is not signed":     call("made-up", []int64{absent}, "user=dan"),
		"an id of another bucket":      call(other, []int64{absent}, "user=dan"),
		"hits that are not stated":     call(id, []int64{absent}, "user=bob"),
		"a negative cost":              call(id, []int64{-5}, "user=ann"),
		"the answer to a denied start": call(limiter.None, []int64{absent}, "user=dan"),
	} {
		if !c.Started() || c.IsDone() || len(c.Results) != 1 {
			t.Errorf("%s: it settled, want an ordinary request", why)
		}
	}
	left(800, "the request without hits reserved too")
	c := call(id, []int64{30, 0}, "user=bob", "settle_end="+id)
	if !c.IsDone() || c.Started() || c.Denied || len(c.Settlements) != 1 || c.Settlements[0].Real != 30 {
		t.Errorf("denied %v, settlements %+v; want one of 30", c.Denied, c.Settlements)
	}
	left(870, "the cost settled the reservation")
	if c := call(id, []int64{0}, "user=bob"); !c.Denied {
		t.Error("a check with a settled id was allowed without a reservation")
	}
	left(870, "a settled id changes nothing")
	call(p.start(0, "user=bob"), []int64{0}, "user=bob")
	left(870, "usage 0 gives all back")
	id = p.start(0, "free=x", "user=bob")
	if c := call(id, []int64{50, 0}, "user=bob", "settle_end="+id); len(c.Settlements) != 2 {
		t.Errorf("settlements %+v, want one by the header, and one of unknown_cost", c.Settlements)
	}
	left(820, "one of two limits has a known cost")
	if got := p.left("free", "x"); got != 993 {
		t.Errorf("%d left, want 993 after unknown_cost 7", got)
	}
}
