package limiter_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
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
	p, costs := newProxy(t), &learned{}
	p.restart(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {by: bucket, estimate: {learn: p90, first: 300}}}
descriptors:
  - {key: user, limit: tokens}
`, func(c *limiter.Config) { c.IDs, c.Estimates = keysOf(), costs })
	p.send("d", []int64{0}, "user=bob")
	p.send("d", []int64{120}, "user=bob")
	if !slices.Equal(costs.costs, []int64{120}) {
		t.Errorf("learned %v, want 120 once", costs.costs)
	}
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
	id = p.start(0, "free=bob", "user=bob")
	if c := call(id, []int64{50, 0}, "user=bob", "settle_end="+id); len(c.Settlements) != 2 {
		t.Errorf("settlements %+v, want one by the header, and one of unknown_cost", c.Settlements)
	}
	left(820, "one of two limits has a known cost")
	if got := p.left("free", "bob"); got != 993 {
		t.Errorf("%d left, want 993 after unknown_cost 7", got)
	}
}

// A request that only settles is charged even after its deadline. The id in a header shows that, if it is an answer of this
// domain: anyone can send another one with a check.
func TestOnlyAnAnswerInTheHeaderSettles(t *testing.T) {
	p := newProxy(t)
	id := p.start(0, "user=bob")
	elsewhere := string(p.send("other", []int64{absent}, "user=bob").AppendID(nil))
	foreign := newProxyOf(t, keysOf("another secret")).start(0, "user=bob")
	if p.OnlySettles(&limiter.Request{Domain: "unknown", ID: id}) {
		t.Error("an unknown domain settles")
	}
	for header, want := range map[string]bool{id: true, limiter.None: true, "": false, "made-up": false, foreign: false, elsewhere: false} {
		r := limiter.Request{Domain: "d", ID: header, Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{{Key: "user", Value: "bob"}}, Cost: 1}}}
		if p.OnlySettles(&r) != want {
			t.Errorf("header %q: settles %t, want %t", header, !want, want)
		}
	}
}

// A cost is charged once it is known, whatever becomes of the rest of its request.
func TestACostIsChargedWhateverDeniesTheRest(t *testing.T) {
	p := newProxy(t)
	p.swap(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {by: bucket, estimate: 300}}
  calls: {algorithm: fixed_window, rate: 9, period: 1d}
  other: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 1}}
descriptors:
  - {key: user, limit: tokens}
  - {key: team, limit: calls}
  - {key: other, limit: other}
`)
	left := func(user string, want int64, why string) {
		t.Helper()
		if got := p.left("tokens", user); got != want {
			t.Errorf("%s: %d left, want %d", why, got, want)
		}
	}
	for _, test := range []struct {
		d    limiter.Descriptor
		want bool // it only settles
	}{
		{limiter.Descriptor{Cost: 1, Explicit: true}, true}, {limiter.Descriptor{Cost: 0, Explicit: true}, false}, {limiter.Descriptor{Cost: 1}, false},
		{limiter.Descriptor{Cost: 1, Explicit: true, HasOverride: true}, false},
	} {
		for key, settles := range map[string]bool{"user": true, "team": false, "other": false, "unknown": false} {
			test.d.Entries = []descriptors.Entry{{Key: key, Value: "bob"}}
			if got := p.OnlySettles(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{test.d}}); got != (test.want && settles) {
				t.Errorf("%+v only settles: %t", test.d, got)
			}
		}
	}
	p.send("d", []int64{0}, "user=bob")
	p.adjust("calls", map[string]adjust.Change{"x": {Block: true}})
	if c := p.send("d", []int64{100, 1}, "user=bob", "team=x"); !c.Denied || c.Settlements[0].Reserved != 300 {
		t.Errorf("%+v; want a denial, because team x is blocked, and a settlement of an estimate", c.Verdict)
	}
	left("bob", 900, "another key is blocked")
	p.adjust("calls", nil)
	others := []string{"user=bob"}
	for i := range limiter.MaxReserved + 1 {
		others = append(others, fmt.Sprint("other=", i))
	}
	if c := p.send("d", append([]int64{50}, slices.Repeat([]int64{0}, len(others)-1)...), others...); !c.Denied {
		t.Error("too many reservations for an id are allowed")
	}
	left("bob", 850, "too many limits reserve")
	p.store.err, p.store.limit = errors.New("away"), "tokens"
	if c := p.send("d", []int64{1, 50}, "team=y", "user=bob"); !c.Settlements[0].Failed() {
		t.Errorf("the store fails for the second charge: %+v", c.Settlements)
	}
	p.store.err, p.store.limit = nil, ""
	p.header = "made-up"
	if c := p.send("d", []int64{50}, "user=bob"); c.Settlements[0].Reason != limiter.Forged {
		t.Errorf("got %+v, want a forged id", c.Settlements)
	}
	p.header = ""
	left("bob", 800, "an id that is not signed")
	p.send("d", []int64{absent, 0}, "user=eve", "user=eve")
	p.send("d", []int64{0, absent}, "user=ann", "user=ann")
	left("eve", 699, "a reservation and a usual charge of one bucket")
	for _, user := range []string{"eve", "ann"} {
		p.send("d", []int64{10}, "user="+user)
		left(user, 990, "in either order they are one reservation")
	}
	p.check(t, limiter.Request{Domain: "d", Unsettled: true, Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{{Key: "user", Value: "tom"}}, Cost: 1}}})
	left("tom", 700, "a request that nothing settles")
	p.now += 20 * minute
	left("tom", 700, "its estimate stays charged")
	for range 2 {
		p.send("d", []int64{math.MaxInt64, math.MaxInt64}, "user=dan", "user=dan")
		left("dan", 0, "costs without bounds")
	}
}

// byBucket is a model of a bucket of 1,000 units a day that settles by bucket with an estimate of 100, a ttl of 16s and a
// max_debt of 300. sums has the number of open reservations since each time.
type byBucket struct {
	used int64
	sums []struct {
		since algorithms.Micros
		count int64
	}
}

const eachReserves = 100

func (m *byBucket) expire(now algorithms.Micros) {
	for len(m.sums) > 0 && m.sums[0].since+17*algorithms.Second <= now {
		m.used -= m.sums[0].count * eachReserves
		m.sums = m.sums[1:]
	}
}

func (m *byBucket) reserve(now algorithms.Micros) {
	m.used += eachReserves
	if n := len(m.sums); n == 0 || now >= m.sums[n-1].since+algorithms.Second {
		m.sums = append(m.sums, struct {
			since algorithms.Micros
			count int64
		}{since: now})
	}
	m.sums[len(m.sums)-1].count++
}

func (m *byBucket) settle(cost int64) {
	if n := len(m.sums); n > 0 {
		cost -= eachReserves
		if m.sums[n-1].count--; m.sums[n-1].count == 0 {
			m.sums = m.sums[:n-1]
		}
	}
	m.used = min(m.used+cost, max(m.used, 1300))
}

// TestHistoriesOfSettlementsByBucket sends random requests with several limits, and compares each answer, and what is left
// of each bucket, with a simple model. So a denied check changes nothing, and a cost is charged whatever happens.
func TestHistoriesOfSettlementsByBucket(t *testing.T) {
	for seed := range uint64(50) {
		h := &history{proxy: newProxy(t), rng: rand.New(rand.NewPCG(seed, 1)), calls: 60, other: 3000}
		h.swap(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {by: bucket, estimate: 100, ttl: 16s, max_debt: 300}}
  calls: {algorithm: fixed_window, rate: 60, period: 1d}
  flights: {algorithm: concurrency, capacity: 4, ttl: 1h}
  other: {algorithm: fixed_window, rate: 3000, period: 1d, settle: {estimate: 70}}
descriptors:
  - {key: user, limit: tokens}
  - {key: team, limit: calls}
  - {key: flight, limit: flights}
  - {key: other, limit: other}
`)
		for step := range 150 {
			h.step()
			h.expire(h.now)
			h.want("tokens", "x", max(0, 1000-h.used))
			if !h.blocked {
				h.want("calls", "x", h.calls)
			}
			h.want("other", "x", h.other)
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

type history struct {
	*proxy
	byBucket
	rng          *rand.Rand
	calls, other int64 // what is left
	blocked      bool
	flights      []string // ids
}

func (h *history) step() {
	switch h.rng.IntN(40) {
	case 0:
		h.now += algorithms.Micros(h.rng.Int64N(int64(20 * algorithms.Second)))
	case 1, 2, 3, 4:
		h.now += algorithms.Micros(h.rng.Int64N(int64(algorithms.Second)))
	case 5:
		if h.blocked = !h.blocked; h.blocked {
			h.adjust("calls", map[string]adjust.Change{"x": {Block: true}})
		} else {
			h.adjust("calls", nil)
		}
	case 6:
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "tokens", Key: []string{"x"}}}}}
		if err := h.Reset(h.t.Context(), c); err != nil {
			h.t.Fatal(err)
		}
		h.byBucket = byBucket{}
	case 7, 8, 9:
		if n := len(h.flights); n > 0 {
			h.proxy.send("d", []int64{0}, "settle_end="+h.flights[n-1])
			h.flights = h.flights[:n-1]
		}
	default:
		h.request()
	}
}

// request sends any of: a check and costs of tokens, a call, a flight, and a reservation with an id.
func (h *history) request() {
	h.expire(h.now)
	var costs []int64
	var to []string
	add := func(cost int64, descriptor string) bool {
		if h.rng.IntN(2) == 0 {
			return false
		}
		costs, to = append(costs, cost), append(to, descriptor)
		return true
	}
	real := h.rng.Int64N(1 << h.rng.IntN(11))
	checks, settles := add(0, "user=x"), add(1+real, "user=x")
	calls, flies, other := add(absent, "team=x"), add(absent, "flight=x"), add(absent, "other=x")
	if len(to) == 0 {
		return
	}
	h.rng.Shuffle(len(to), func(i, j int) { to[i], to[j], costs[i], costs[j] = to[j], to[i], costs[j], costs[i] })
	denied := checks && h.used+eachReserves > 1000 || calls && (h.blocked || h.calls < 1) || flies && len(h.flights) == 4 || other && h.other < 70
	c := h.send("d", costs, to...)
	if c.Denied != denied {
		h.t.Errorf("%v %v: denied %v, want %v", to, costs, c.Denied, denied)
	}
	if !denied && checks {
		h.reserve(h.now)
	}
	if !denied && calls {
		h.calls--
	}
	if !denied && other {
		h.other -= 70
	}
	if !denied && flies {
		h.flights = append(h.flights, string(c.AppendID(nil)))
	}
	if settles {
		h.settle(1 + real)
	}
}
