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

// The store cannot decide, so the local bucket does. Its queue is not that of the limit, so no answer is delayed.
func TestAnAnswerOfTheLocalBucketIsNotDelayed(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: leaky_bucket, rate: 10, period: 1s, capacity: 20, max_delay: 10s, on_backend_failure: local, local_share: 100%}}
`)
	b.store.err = backend.ErrUnavailable
	for range 3 {
		c := callOf("a")
		c.Request.MaxDelay = 20 * sec
		if err := b.Check(t.Context(), c); err != nil || c.Denied || !c.Failed || c.Verdict.Delay != 0 {
			t.Errorf("error %v, %+v; want allowed without a delay", err, c.Verdict)
		}
	}
}

// The limit vip replaces base and free, but free is unlimited, so only base is replaced. The override of the descriptor
// unknown does not compile. So it has no limit to replace, and is denied.
func TestOnlyALimitWithNumbersIsReplaced(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: base, rate_limit: {unit: hour, requests_per_unit: 5, name: base}}
  - {key: free, rate_limit: {unlimited: true, name: free}}
  - {key: vip, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: base}, {name: free}]}}
`)
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for _, key := range []string{"base", "free", "vip", "unknown"} {
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.HasOverride = []descriptors.Entry{{Key: key, Value: "1"}}, 1, key == "unknown"
	}
	if err := b.Check(t.Context(), c); err != nil || len(c.Results) != 4 {
		t.Fatalf("error %v, %d results; want 4", err, len(c.Results))
	}
	for i, want := range []limiter.Outcome{limiter.Replaced, limiter.Unlimited, limiter.Allowed, limiter.Denied} {
		if got := c.Results[i].Outcome; got != want {
			t.Errorf("result %d: outcome %d, want %d", i, got, want)
		}
	}
}

// A request whose cost a named limit can never allow is a mistake, and charges nothing. But if that limit is in shadow
// mode, the other limits are charged.
func TestAShadowLimitDoesNotMakeARequestADryRun(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  small: {algorithm: token_bucket, rate: 1, period: 1h, shadow_mode: true}
  large: {algorithm: token_bucket, rate: 10, period: 1h}
`)
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "small", Count: 5}, limiter.NamedCharge{Name: "large", Count: 3}); c.Denied {
		t.Errorf("got %+v; want allowed", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"small": 1, "large": 7})
}

func TestADirectTakesAnyNumberOfLimits(t *testing.T) {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: sec})
	if err != nil {
		t.Fatal(err)
	}
	p, store := &descriptors.Policy{Limit: &limit, Prefix: "p"}, memory.New(memory.Config{})
	var d limiter.Direct
	for n := range 70 {
		for i := range n {
			d.Add(p, []string{fmt.Sprint(n, i)}, algorithms.Charge{Cost: 1})
		}
		d.Take(t.Context(), store)
		for i := range n {
			if decision, charge := d.Decision(i); !decision.Allowed || charge.Terms.Cost != 1 {
				t.Fatalf("limit %d of %d: %+v at the cost %d; want allowed at the cost 1", i, n, decision, charge.Terms.Cost)
			}
		}
		d.Reset()
	}
}

// An operator blocks the payer credits, so per_minute has no alternative. It is charged together with burst, which denies,
// so neither is consumed.
func TestAPlanWhosePayerIsBlockedIsChargedWithTheOthers(t *testing.T) {
	b := newBench(t, plans)
	b.adjust("credits", map[string]adjust.Change{"bob": {Block: true}})
	b.together(t, "bob", limiter.NamedCharge{Name: "burst", Count: 1000})
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "per_minute", Count: 6}, limiter.NamedCharge{Name: "burst", Count: 1}); !c.Denied {
		t.Errorf("got %+v; want denied", c.Verdict)
	}
	b.now += sec
	b.remains(t, "bob", map[string]int64{"per_minute": 10, "burst": 1000})
}

// The domain's on_backend_failure and local_share apply to limits that come with requests.
func TestAnOverrideHasALocalBucket(t *testing.T) {
	b := newBench(t, `
domain: d
on_backend_failure: local
local_share: 50%
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
`)
	b.store.err = backend.ErrUnavailable
	for i := range 4 {
		c := callOf("a")
		c.Descriptors[0].HasOverride, c.Descriptors[0].Override = true, limiter.Override{Rate: 6, Period: minute}
		if err := b.Check(t.Context(), c); err != nil || c.Denied != (i >= 3) || c.Results[0].Decision.Err != nil {
			t.Errorf("request %d: error %v, %+v; want the local bucket of 3 units to decide", i, err, c.Results[0])
		}
	}
}

// There is nothing to settle if the store has not decided, or if units were refunded.
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

func TestBeforeAConfigurationNothingIsAdjustableOrReset(t *testing.T) {
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{})
	if in, policies, err := l.Adjustable("", "calls"); !errors.Is(err, limiter.ErrNoConfig) || in != "" || policies != nil {
		t.Errorf("got %q, %v, %v; want the error limiter.ErrNoConfig", in, policies, err)
	}
	if keys, all := l.Buckets(&adjust.Adjustment{Target: adjust.Target{AllKeys: true}}); keys != nil || all {
		t.Errorf("got %v, %t; want no buckets", keys, all)
	}
	if err := l.Reset(t.Context(), callOf("a")); !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("got the error %v, want limiter.ErrNoConfig", err)
	}
	l.Swap(&limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": {Name: "d", Tree: &descriptors.Tree{}, Broken: true}}})
	if err := l.Reset(t.Context(), callOf("a")); !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("a domain without a valid configuration: got the error %v, want limiter.ErrNoConfig", err)
	}
}

func TestAResetReportsThatTheStoreFailed(t *testing.T) {
	b := newBench(t, adjustable)
	b.store.err = backend.ErrUnavailable
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}}}}}
	if err := b.Reset(t.Context(), c); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), `limit "calls"`) {
		t.Errorf("got the error %v, want backend.ErrUnavailable with the name of the limit", err)
	}
}

// Without a domain, Adjustable looks for the limit in all domains. It returns the policies of the limit: its own, and one
// for each of the two descriptors that use it.
func TestALimitIsAdjustableWithoutItsDomain(t *testing.T) {
	b := newBench(t, adjustable)
	in, policies, err := b.Adjustable("", "calls")
	if err != nil || in != "d" || len(policies) < 2 {
		t.Errorf("got %q, %d policies, %v; want the uses of the limit in domain d", in, len(policies), err)
	}
}

func TestANameInSeveralDomainsNeedsTheDomain(t *testing.T) {
	const limits = "limits:\n  calls: {algorithm: token_bucket, rate: 10, period: 1m}\n"
	s := newBench(t, "domain: d\n"+limits+"---\ndomain: other\n"+limits).Current()
	var problem *limiter.RequestError
	if d, p, err := s.Limit("", "calls"); !errors.As(err, &problem) || problem.Missing || d != nil || p != nil {
		t.Errorf("got %v, %v, %v; want an error about several domains", d, p, err)
	}
	if d, p, err := s.Limit("other", "calls"); err != nil || d.Name != "other" || p.Domain != "other" {
		t.Errorf("got %v, %v, %v; want the limit of the domain", d, p, err)
	}
}

func TestEachStatusOfARequestThatLacksAnEntryIsDenied(t *testing.T) {
	b := newBench(t, requiring)
	c := b.send(t, 1, "generic_key=always", "other=1")
	if !c.Denied || len(c.Statuses) != 2 || !c.Statuses[0].Denied || !c.Statuses[1].Denied {
		t.Errorf("got %+v; want two denied statuses", c.Statuses)
	}
}

// Costs are numbers of units by kind. The weights of each limit make one cost of them.
func TestCostsAreWeighted(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 100, period: 1d, weights: {in: 1, out: 5}}
  plain: {algorithm: token_bucket, rate: 100, period: 1d}
`)
	b.Limiter = limiter.New(b.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"a secret"} }, nil), Now: func() algorithms.Micros { return b.now },
	})
	b.Swap(newBench(t, `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 100, period: 1d, weights: {in: 1, out: 5}}
  plain: {algorithm: token_bucket, rate: 100, period: 1d}
`).Current())
	c := b.together(t, "bob", limiter.NamedCharge{Name: "tokens", Costs: map[string]int64{"in": 10, "out": 4}, Reserve: true})
	b.remains(t, "bob", map[string]int64{"tokens": 70})
	part, _ := c.Part(0, "")
	r := &limiter.Reserved{ID: [16]byte{1}, Domain: descriptors.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}
	var problem *limiter.RequestError
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Costs: map[string]int64{"on": 1}}); !errors.As(err, &problem) {
		t.Errorf("a settlement with an unknown kind: got the error %v, want a *RequestError", err)
	}
	b.remains(t, "bob", map[string]int64{"tokens": 70})
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Costs: map[string]int64{"in": 5, "out": 1}}); err != nil {
		t.Error(err)
	}
	b.remains(t, "bob", map[string]int64{"tokens": 90})
	for name, limit := range map[string]limiter.NamedCharge{
		"an unknown kind": {Name: "tokens", Costs: map[string]int64{"on": 1}}, "no weights": {Name: "plain", Costs: map[string]int64{"in": 1}},
	} {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{limit}}}
		if err := b.Check(t.Context(), c); !errors.As(err, &problem) {
			t.Errorf("%s: got the error %v, want a *RequestError", name, err)
		}
	}
}

// A real cost of 0 settles a reservation. If two descriptors settle the same one, the descriptor with a real cost takes
// precedence over the one without.
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

// guess is an Estimates that returns one number.
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

// A request matches more limits with settle than one id can contain. No limit is charged, not even those without settle.
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

// In shadow mode, a request before the first configuration is allowed. WouldDeny is true only if Config.NoConfig would
// deny the request without shadow mode.
func TestShadowModeReportsNoDenialThatWouldNotBe(t *testing.T) {
	for answer, want := range map[descriptors.OnFailure]bool{descriptors.Allow: false, descriptors.Deny: true} {
		l := limiter.New(memory.New(memory.Config{}), limiter.Config{NoConfig: &answer, Modes: limiter.Modes{Shadow: true}})
		if c := callOf("a"); l.Check(t.Context(), c) != nil || c.Denied || c.WouldDeny != want {
			t.Errorf("%s: %+v; want allowed, and would deny %t", answer, c.Verdict, want)
		}
	}
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

// The whole descriptor identifies the buckets of a limit with a wildcard, so an operator must state it.
func TestAnOperatorStatesTheDescriptorOfAWildcard(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors:\n  - {key: 'path_*', rate_limit: {name: starred, algorithm: token_bucket, rate: 10, period: 1m}}\n")
	if problem := b.inspect(t, "starred", "a1"); !strings.Contains(problem, "--descriptor") {
		t.Errorf("got %q; want the error that the descriptor is needed", problem)
	}
}
