package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestOnlyUnitsOfTheStoreAreSettled(t *testing.T) {
	for name, c := range map[string]struct {
		numbers string
		cost    int64
		err     error
		want    bool
	}{
		"reserved":         {"on_backend_failure: allow", 2, nil, true},
		"nothing reserved": {"on_backend_failure: allow", 0, nil, true},
		"refunded":         {"on_backend_failure: allow", -2, nil, false},
		"no decision":      {"on_backend_failure: allow", 2, backend.ErrUnavailable, false},
		"a local bucket":   {"on_backend_failure: local, local_share: 100%", 2, backend.ErrUnavailable, false},
	} {
		b := newBench(t, "domain: d\ndescriptors: []\n")
		b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1h, "+c.numbers)
		b.store.err = c.err
		call, allowed := b.consume(t, c.cost, false)
		if r, ok := reservedBy(call); !allowed || ok != c.want || ok && r.Parts[0].Count != c.cost {
			t.Errorf("%s: allowed %t, reserved %t %+v; want allowed, and reserved %t", name, allowed, ok, r.Parts, c.want)
		}
	}
}

// Ids cannot be verified without keys, so all of them count as forged.
func TestWithoutKeysAllIDsAreForged(t *testing.T) {
	p := newProxy(t)
	id, r := p.start(absent, "user=bob"), &limiter.Reserved{}
	if !p.Open(id, r) || len(r.Parts) != 1 || p.Open(id[1:], r) || p.Open("", r) {
		t.Errorf("id %s: got %+v; want that it has one part, and that no other text can be opened", id, r)
	}
	p.Limiter = limiter.New(p.store, limiter.Config{Now: func() algorithms.Micros { return p.now }})
	p.swap(t, tokens)
	if c := p.done(id, 5); c.Denied || len(c.Settlements) != 1 || c.Settlements[0].Reason != limiter.Forged || p.Open(id, r) || p.ID(r) != "" {
		t.Errorf("got %+v; want an allowed request with one forged id", c.Verdict)
	}
}

// If two descriptors settle the same reservation, the one with a real cost takes precedence.
func TestARealCostOf0Settles(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	c := p.send("d", []int64{absent, 0}, "settle="+id, "settle="+id)
	if s := c.Settlements; len(s) != 1 || s[0].Real != 0 || s[0].Unknown || s[0].Descriptor != 1 {
		t.Errorf("got %+v, want the cost 0 of descriptor 1", s)
	}
	p.want("tokens", "bob", 1000)
}

// A cost is learned only if it is real, and if the limit learns both when it is reserved and when it is settled.
func TestWhatEstimatesDoNotLearn(t *testing.T) {
	p, costs := newProxy(t), &learned{}
	p.Limiter = limiter.New(p.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now }, Estimates: costs,
	})
	const learns = "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: {learn: p90, first: 100}, unknown_cost: 7}}\n" +
		"descriptors:\n  - {key: user, limit: tokens}\n"
	forgets := strings.Replace(learns, "{learn: p90, first: 100}", "100", 1)
	p.swap(t, learns)
	unknown, late := p.start(absent, "user=bob"), p.start(absent, "user=bob")
	p.done(unknown, absent)
	p.swap(t, forgets)
	p.done(late, 30)
	none := p.start(absent, "user=bob")
	p.swap(t, learns)
	p.done(none, 40)
	p.want("tokens", "bob", 1000-7-30-40)
	if len(costs.costs) != 0 {
		t.Errorf("learned %v, want nothing", costs.costs)
	}
}

type guess int64

func (g guess) Estimate(uint64) int64                                 { return int64(g) }
func (guess) Learn(uint64, float64, uint64, algorithms.Micros, int64) {}

func TestTheEstimateOfALimit(t *testing.T) {
	for _, c := range []struct {
		estimate  string
		estimates limiter.Estimates
		units     int64
		learned   bool
	}{
		{"100", nil, 100, false},
		{"100", guess(300), 100, false},
		{"{learn: p90, first: 100}", nil, 100, false},
		{"{learn: p90, first: 100}", guess(0), 100, false},
		{"{learn: p90, first: 100}", guess(300), 300, true},
	} {
		s := newBench(t, "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: "+c.estimate+"}}\n").Current()
		l := limiter.New(memory.New(memory.Config{}), limiter.Config{Estimates: c.estimates})
		if units, learned := l.EstimateNow(s.Domains["d"].Named["tokens"]); units != c.units || learned != c.learned {
			t.Errorf("%s with %v: %d units, learned %t; want %d and %t", c.estimate, c.estimates, units, learned, c.units, c.learned)
		}
	}
}

func TestTooManyReservationsChargeNothing(t *testing.T) {
	p := newProxy(t)
	texts := []string{"team=red"}
	for i := range limiter.MaxReserved {
		texts = append(texts, fmt.Sprint("user=", i))
	}
	c := p.send("d", slices.Repeat([]int64{absent}, len(texts)), texts...)
	if !c.Denied || !c.Never {
		t.Errorf("got %+v; want denied for good", c.Verdict)
	}
	for i := range c.Results {
		want := limiter.Denied
		if c.Results[i].Policy.Name == "calls" {
			want = limiter.Replaced
		}
		if got := c.Results[i].Outcome; got != want {
			t.Errorf("limit %s: outcome %d, want %d", c.Results[i].Policy.Name, got, want)
		}
	}
	p.want("calls", "red", 5)
	p.want("team", "red", 150)
}

// In shadow mode of the whole process, a request that a limit would deny is allowed, but charges nothing.
func TestARequestThatWouldBeDeniedReservesNothing(t *testing.T) {
	p := newProxy(t)
	p.Limiter = limiter.New(p.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now }, Modes: limiter.Modes{Shadow: true},
	})
	p.swap(t, tokens)
	for range 3 {
		p.start(absent, "user=bob", "team=red")
	}
	c := p.send("d", []int64{absent, absent}, "user=bob", "team=red")
	if id := string(c.AppendID(nil)); c.Denied || !c.WouldDeny || id != limiter.None {
		t.Errorf("got %+v with the id %s; want an allowed request without an id", c.Verdict, id)
	}
	p.want("tokens", "bob", 700)
}

// The store recognizes a repeated settlement by the id of the reservation and the real cost. A part without a slot, from
// the id of an earlier version, has the slot of its key.
func TestTheChargeOfASettlement(t *testing.T) {
	b := newBench(t, "domain: d\nhash_tag: domain\nlimits:\n  jobs: {algorithm: token_bucket, rate: 10, period: 1d}\n")
	jobs := b.Current().Domains["d"].Named["jobs"]
	rec := &recorded{Store: b.store.Store}
	b.store.Store = rec
	part := limiter.PartOf(jobs, limiter.ByName{Name: "jobs", Values: []string{"bob"}}, 5, b.now)
	part.Slot = 0
	r := &limiter.Reserved{ID: [16]byte{1, 2, 3, 15: 4}, Domain: descriptors.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Real: 7}); err != nil || len(rec.charges) != 1 {
		t.Fatalf("error %v, %d charges; want one charge", err, len(rec.charges))
	}
	c := &rec.charges[0]
	if want := [32]byte{1, 2, 3, 15: 4, 23: 7}; c.IdempotencyKey.Digest != want {
		t.Errorf("digest %x, want the id and the cost", c.IdempotencyKey.Digest)
	}
	if want := jobs.SlotOfKey([]string{"bob"}); want == 0 || c.Slot != want || c.Terms.Cost != 2 {
		t.Errorf("slot %x, cost %d; want slot %x and cost 2", c.Slot, c.Terms.Cost, want)
	}
}

func TestABlockAllowsSettlements(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors: []\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
	call, _ := b.consume(t, 5, false)
	r, _ := reservedBy(call)
	b.adjust("jobs", map[string]adjust.Change{"*": {Block: true}})
	c := &limiter.Call{}
	if err := b.Settle(t.Context(), c, limiter.Settle{Reserved: r, Real: 7}); err != nil || c.Denied || c.Results[0].Decision.Blocked != 0 || c.Snapshot == nil {
		t.Errorf("error %v, %+v; want allowed", err, c.Verdict)
	}
	inspected := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: "jobs", Count: 2}}}}
	if err := b.Check(t.Context(), inspected); err != nil || inspected.Results[0].Decision.Allowed || inspected.Results[0].Decision.Remaining != 0 || inspected.Results[0].Decision.Blocked != minute {
		t.Errorf("error %v, %+v; want a blocked bucket with nothing remaining", err, inspected.Results)
	}
	b.now += minute
	if n := b.remaining(t); n != 3 {
		t.Errorf("%d are left after the settlement, want 3", n)
	}
}

func TestOnlyBucketsWithUnitsToComeCanReserve(t *testing.T) {
	b := newBench(t, "domain: d\nlimits:\n  log: {algorithm: sliding_log, rate: 1, period: 1h}\n  sure: {algorithm: token_bucket, rate: 10, period: 1h, guaranteed: {rate: 1, period: 1m}}\n")
	for name, want := range map[string]string{"log": `limit "log" is a sliding_log,`, "sure": `limit "sure" is a token_bucket with a guaranteed minimum,`} {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: name, Count: 1, Reserve: true}}}}
		if err := b.Check(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got the error %v, want %q", name, err, want)
		}
	}
}

func TestReservationsThatCannotBeSettled(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors: []\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
	call, _ := b.consume(t, 5, false)
	r, _ := reservedBy(call)
	settle := func(r limiter.Reserved, inline func(_, _, _ string) (*descriptors.Policy, error)) error {
		return b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: &r, Inline: inline})
	}
	foreign, own := *r, *r
	foreign.Domain++
	own.Parts = slices.Clone(r.Parts)
	own.Parts[0].Config = "its configuration"
	failure := errors.New("no such configuration")
	var problem *limiter.RequestError
	if err := settle(foreign, nil); !errors.As(err, &problem) || !problem.Missing {
		t.Errorf("another domain: got the error %v, want a missing domain", err)
	}
	if err := settle(own, func(_, _, _ string) (*descriptors.Policy, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("a limit that came with the request: got the error %v, want %v", err, failure)
	}
	b.swap(t, "domain: d\nlimits:\n  other: {algorithm: token_bucket, rate: 10, period: 1d}\n")
	if err := settle(*r, nil); !errors.As(err, &problem) || !problem.Missing {
		t.Errorf("a limit that was removed: got the error %v, want a missing limit", err)
	}
}

// Clients choose descriptors. Those without entries match nothing, and an id settles nothing as the value of another
// entry than settle.
func TestDescriptorsBesideASettleDone(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for _, entries := range [][]descriptors.Entry{nil, {{Key: "user", Value: id}}, {{Key: "settle", Value: id}}} {
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.Explicit, d.Declared = entries, 5, true, true
	}
	if err := p.Check(t.Context(), c); err != nil || c.Denied || len(c.Settlements) != 1 || c.Settlements[0].Descriptor != 2 || c.Settlements[0].Real != 5 {
		t.Errorf("error %v, %+v; want one settlement", err, c.Verdict)
	}
	p.want("tokens", "bob", 995)
}

func TestAReservationOfAProxyDoesNotExpire(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	p.now += 2 * limiter.Within
	if s := p.done(id, 150).Settlements; len(s) != 1 || s[0].Policy == nil || !s[0].Late {
		t.Errorf("got %+v; want a late settlement", s)
	}
}

// An id has parts of limits with settle only. If there are too many, those in shadow mode are left out. A request that
// consumes nothing gets no id.
func TestWhatAnIDContains(t *testing.T) {
	p := newProxy(t)
	if s := p.done(p.start(absent, "user=bob", "team=red"), 10).Settlements; len(s) != 2 {
		t.Errorf("got %+v; want the settlements of tokens and team", s)
	}
	texts := []string{"shadow=1"}
	for i := range limiter.MaxReserved {
		texts = append(texts, fmt.Sprint("user=", i))
	}
	if s := p.done(p.start(absent, texts...), 10).Settlements; len(s) != limiter.MaxReserved {
		t.Errorf("%d limits and a shadow limit: %d settlements, want %d", limiter.MaxReserved, len(s), limiter.MaxReserved)
	}
	c := &limiter.Call{Request: limiter.Request{Domain: "d", DryRun: true}}
	d := c.AddDescriptor()
	d.Entries, d.Cost = []descriptors.Entry{{Key: "user", Value: "bob"}}, 1
	if err := p.Check(t.Context(), c); err != nil || string(c.AppendID(nil)) != limiter.None {
		t.Errorf("a dry run: error %v, %+v; want no reservation", err, c.Verdict)
	}
}

// No cost is learned from a settlement that is in flight elsewhere, repeats another one with another cost, or has
// failed.
func TestSettlementsWithoutADecisionAreNotLearned(t *testing.T) {
	const learns = "domain: d\nlimits:\n  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: {learn: p90, first: 100}}}\n" +
		"descriptors:\n  - {key: user, limit: tokens}\n"
	for err, denied := range map[error]bool{backend.ErrPending: false, backend.ErrReused: false, backend.ErrUnavailable: true} {
		p, costs := newProxy(t), &learned{}
		with := func(e limiter.Estimates) {
			p.Limiter = limiter.New(p.store, limiter.Config{
				IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now }, Estimates: e,
			})
			p.swap(t, learns)
		}
		with(costs)
		id := p.start(absent, "user=bob")
		p.store.err = err
		if c := p.done(id, 30); c.Denied != denied || c.Settlements[0].Repeated == denied || len(costs.costs) != 0 {
			t.Errorf("%v: %+v, learned %v; want denied %t, repeated %t, and nothing learned", err, c.Verdict, costs.costs, denied, !denied)
		}
		p.store.err = nil
		with(nil) // another sidecar, which learns nothing
		if c := p.done(id, 30); c.Denied || len(costs.costs) != 0 {
			t.Errorf("%v: %+v, learned %v; want allowed and nothing learned", err, c.Verdict, costs.costs)
		}
		if c := p.send("d", []int64{absent}, "user=ann"); c.Denied || c.Results[0].Cost != 100 {
			t.Errorf("%v: %+v; want the configured estimate", err, c.Results)
		}
	}
}

// Without Config.Now, nothing can be settled.
func TestASettleDoneWithoutAClock(t *testing.T) {
	p := newProxy(t)
	p.Limiter = limiter.New(p.store, limiter.Config{})
	p.swap(t, tokens)
	if c := p.done("some id", 5); c.Denied || len(c.Settlements) != 0 {
		t.Errorf("got %+v; want an allowed request that settles nothing", c.Verdict)
	}
}
