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

func TestAnAdjustmentOfAllKeysAppliesAlone(t *testing.T) {
	b := newBench(t, adjustable)
	if got := b.adjust("calls", map[string]adjust.Change{"*": {Capacity: number(3)}}); got.InForce != 1 || got.Ignored != 0 {
		t.Errorf("got %+v; want one adjustment in force", got)
	}
	if n := b.allowed(t, 10, "user=bob"); n != 3 {
		t.Errorf("%d allowed, want 3", n)
	}
	if keys, all := b.Buckets(&adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", AllKeys: true}}); keys != nil || !all {
		t.Errorf("got %v, %t; want all buckets", keys, all)
	}
}

// A block denies new requests. Reservations of earlier requests are settled nevertheless.
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

// An operator inspects what a cost would do. Nothing is consumed.
func TestAnInspectionConsumesNothing(t *testing.T) {
	b := newBench(t, adjustable)
	for _, c := range []*limiter.Call{
		{Request: limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}, Count: 5}}}}, callOf("user"),
	} {
		c.Inspect = true
		if err := b.Check(t.Context(), c); err != nil || len(c.Results) != 1 || !c.Results[0].Decision.Allowed {
			t.Errorf("error %v, %+v; want the decision on the cost", err, c.Verdict)
		}
	}
	if bob, one := b.left(t, "user=bob"), b.left(t, "user=1"); bob != 20 || one != 20 {
		t.Errorf("%d and %d are left, want 20 of each", bob, one)
	}
	b = newBench(t, requiring)
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true}}
	c.AddDescriptor().Entries = []descriptors.Entry{{Key: "user", Value: "bob"}}
	if err := b.Check(t.Context(), c); err != nil || c.Denied || len(c.Results) != 1 {
		t.Errorf("without a required entry: error %v, %+v; want the state of the bucket", err, c.Verdict)
	}
}

func TestErrorsOfAdjustableAndInspectedLimits(t *testing.T) {
	const limits = "descriptors:\n  - {key: a, rate_limit: {name: own, algorithm: token_bucket, rate: 10, period: 1m}}\n"
	b := newBench(t, "domain: d\n"+limits+"---\ndomain: other\n"+limits)
	for _, c := range []struct{ domain, limit, want string }{
		{"d", "own", ""}, {"", "own", "several domains"}, {"none", "own", `domain "none" is not configured`}, {"d", "none", `no limit named "none"`}, {"", "none", `no limit is named "none"`},
	} {
		_, _, err := b.Adjustable(c.domain, c.limit)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("adjusting %s of %q: got the error %v, want %q", c.limit, c.domain, err, c.want)
		}
		call := &limiter.Call{Request: limiter.Request{Domain: c.domain, Inspect: true, Limits: []limiter.NamedCharge{{Name: c.limit, Key: []string{"1"}}}}}
		err = b.Check(t.Context(), call)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("inspecting %s of %q: got the error %v, want %q", c.limit, c.domain, err, c.want)
		}
		call = &limiter.Call{Request: limiter.Request{Domain: c.domain, Limits: []limiter.NamedCharge{{Name: c.limit, Key: []string{"1"}}}}}
		var problem *limiter.RequestError
		if err := b.Check(t.Context(), call); !errors.As(err, &problem) || !problem.Missing {
			t.Errorf("%s of %q without inspection: got the error %v, want a missing limit", c.limit, c.domain, err)
		}
	}
}

// An operator must state as many values as the descriptors that use the limit have open entries, even if other limits
// need more or fewer.
func TestAnOperatorNeedsTheKeyOfTheLimit(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  calls: {algorithm: token_bucket, rate: 10, period: 1m}
  bytes: {algorithm: token_bucket, rate: 10, period: 1m}
descriptors:
  - {key: user, limit: calls, descriptors: [{key: file, limit: bytes}]}
`)
	for limit, want := range map[string][]bool{"calls": {false, true, false}, "bytes": {false, false, true}} {
		for n, ok := range want {
			if problem := b.inspect(t, limit, []string{"1", "2"}[:n]...); (problem == "") != ok {
				t.Errorf("%s with %d values: %q; want no error: %t", limit, n, problem, ok)
			}
		}
	}
}

func TestErrorsOfInlineLimits(t *testing.T) {
	d := &limiter.Domain{Name: "d", Named: map[string]*descriptors.Policy{"configured": {}}}
	one := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": d}}
	for _, c := range []struct{ domain, name, want string }{
		{"d", "x", ""}, {"", "x", ""}, {"none", "x", "is not configured"}, {"d", "configured", "is in the configuration"}, {"", "configured", "is in the configuration"},
	} {
		got, err := one.InlineDomain(c.domain, c.name)
		if c.want == "" && (err != nil || got != d) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s of %q: got %v, %v; want the error %q", c.name, c.domain, got, err, c.want)
		}
	}
	b := newBench(t, adjustable)
	c := &limiter.Call{Request: limiter.Request{Limits: []limiter.NamedCharge{{Name: "x", Inline: &descriptors.Policy{Domain: "removed"}}}}}
	var problem *limiter.RequestError
	if err := b.Check(t.Context(), c); !errors.As(err, &problem) || !problem.Missing {
		t.Errorf("a limit of a domain that was removed: got the error %v, want a missing domain", err)
	}
}

func TestErrorsOfResets(t *testing.T) {
	b := newBench(t, adjustable)
	var problem *limiter.RequestError
	for name, r := range map[string]limiter.Request{
		"an unknown limit":  {Domain: "d", Limits: []limiter.NamedCharge{{Name: "none"}}},
		"an unknown domain": {Domain: "none", Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{{Key: "user", Value: "1"}}}}},
	} {
		if err := b.Reset(t.Context(), &limiter.Call{Request: r}); !errors.As(err, &problem) || !problem.Missing {
			t.Errorf("%s: got the error %v, want a *RequestError", name, err)
		}
	}
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Local: &faulty{Store: memory.New(memory.Config{}), err: backend.ErrUnavailable}})
	l.Swap(b.Current())
	if err := l.Reset(t.Context(), callOf("user")); err == nil || !strings.Contains(err.Error(), "local bucket") {
		t.Errorf("a local bucket: got the error %v, want one with \"local bucket\"", err)
	}
}

// A refund is charged together with the other limits of the request, even if its limit is a plan. Here burst denies, so
// nothing is refunded.
func TestARefundOfAPlanIsPartOfTheGroup(t *testing.T) {
	b := newBench(t, plans)
	b.named(t, "per_minute", 8, "bob")
	b.named(t, "burst", 1000, "bob")
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "per_minute", Count: -3}, limiter.NamedCharge{Name: "burst", Count: 1}); !c.Denied {
		t.Errorf("got %+v; want denied", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"per_minute": 2})
}

// If a request names the same plan twice, the plan is charged the sum of both costs.
func TestAPlanThatOccursTwiceIsChargedTheSum(t *testing.T) {
	b := newBench(t, plans)
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "per_minute", Count: 3}, limiter.NamedCharge{Name: "per_minute", Count: 4}); c.Denied {
		t.Errorf("got %+v; want allowed", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"per_minute": 3, "credits": 20})
}

// If the credits of a plan have changed, a request with the same ID is not a repetition. So it is an error, like any
// reuse of the ID.
func TestAnIDIsOfOnePayer(t *testing.T) {
	const yaml = `
domain: d
hash_tag: domain
limits:
  calls: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
  more: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
`
	b := newBench(t, yaml)
	if _, err := b.once(t, "d", "id", limiter.NamedCharge{Name: "calls", Count: 1}); err != nil {
		t.Fatal(err)
	}
	b.swap(t, strings.Replace(yaml, "then: credits", "then: more", 1))
	if _, err := b.once(t, "d", "id", limiter.NamedCharge{Name: "calls", Count: 1}); !errors.Is(err, backend.ErrReused) {
		t.Errorf("got the error %v, want backend.ErrReused", err)
	}
}

// If a leaky bucket has no max_delay, answers are not delayed, whatever delay the request accepts.
func TestOnlyALimitWithMaxDelayDelays(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors:\n  - {key: a, rate_limit: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 20}}\n")
	for range 3 {
		c := callOf("a")
		c.Request.MaxDelay = 20 * sec
		if err := b.Check(t.Context(), c); err != nil || c.Denied || c.Verdict.Delay != 0 {
			t.Errorf("error %v, %+v; want allowed without a delay", err, c.Verdict)
		}
	}
}

// The store decides one limit and fails for another. If the limit that it has decided denies, the request is denied: after
// an error, a proxy might allow it.
func TestADenialTakesPrecedenceOverAnError(t *testing.T) {
	const yaml = `
domain: d
consume: each
on_backend_failure: error
descriptors:
  - {key: a, rate_limit: {name: a, algorithm: token_bucket, rate: 1, period: 1h}}
  - {key: b, rate_limit: {name: b, algorithm: token_bucket, rate: 1, period: 1h}}
`
	for _, consumed := range []bool{false, true} {
		b := newBench(t, yaml)
		if consumed {
			b.send(t, 1, "a=1")
		}
		b.store.err, b.store.limit = backend.ErrUnavailable, b.Current().Policies[1].Owner
		if c := b.send(t, 1, "a=1", "b=1"); !c.Denied || (c.Err == nil) != consumed {
			t.Errorf("a denies: %t; got denied %t, error %v; want denied, and no error only if a denies", consumed, c.Denied, c.Err)
		}
	}
}

// A request for more units than a named limit can ever allow is denied for good, even while the store fails.
func TestACostThatNeverFitsNeedsNoStore(t *testing.T) {
	b := newBench(t, adjustable)
	b.store.err = backend.ErrUnavailable
	if c := b.named(t, "calls", 21, "bob"); !c.Denied || !c.Never || c.Failed || c.Results[0].Decision.Err != nil {
		t.Errorf("got %+v; want denied for good, without a failure", c.Verdict)
	}
}

// The store decides one limit and fails for another. The local bucket decides only the other.
func TestTheLocalBucketDecidesWhatTheStoreDoesNot(t *testing.T) {
	b := newBench(t, `
domain: d
consume: each
on_backend_failure: local
local_share: 100%
descriptors:
  - {key: a, rate_limit: {name: a, algorithm: token_bucket, rate: 10, period: 1h}}
  - {key: b, rate_limit: {name: b, algorithm: token_bucket, rate: 10, period: 1h}}
`)
	b.send(t, 4, "a=1")
	b.store.err, b.store.limit = backend.ErrUnavailable, b.Current().Policies[1].Owner
	c := b.send(t, 1, "a=1", "b=1")
	if a := &c.Results[0]; a.Outcome != limiter.Allowed || a.Decision.Remaining != 5 {
		t.Errorf("the limit that the store decided: %+v; want allowed, with 5 remaining", a)
	}
	if other := &c.Results[1]; other.Outcome != limiter.FailedAllowed || other.Decision.Remaining != 9 {
		t.Errorf("the other limit: %+v; want allowed by the local bucket, with 9 remaining", other)
	}
}

// An override is charged together with max_override. Without on_backend_failure local, no local bucket allows it while
// the store fails.
func TestAnOverrideWithoutALocalBucketIsDenied(t *testing.T) {
	b := newBench(t, "domain: d\nmax_override: {unit: day, requests_per_unit: 50}\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}\n  - {key: above, descriptors: [{key: below, rate_limit: {unit: hour, requests_per_unit: 1}}]}\n")
	send := func(key string, o limiter.Override) *limiter.Call {
		c := callOf(key)
		c.Descriptors[0].HasOverride, c.Descriptors[0].Override = true, o
		if err := b.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	usual := limiter.Override{Rate: 6, Period: minute}
	if c := send("unknown", usual); c.Denied || len(c.Results) != 2 {
		t.Errorf("an unknown descriptor: %+v; want allowed by the override and its bound", c.Verdict)
	}
	if c := send("above", limiter.Override{Rate: 6}); !c.Denied || !c.Never {
		t.Errorf("an override that cannot be read, of a descriptor without a limit: %+v; want denied", c.Verdict)
	}
	b.store.err = backend.ErrUnavailable
	if c := send("a", usual); !c.Denied || !c.Failed || c.Results[0].Decision.Err == nil {
		t.Errorf("while the store fails: got %+v; want denied with its error", c.Verdict)
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

// A proxy's reservation does not expire. It is settled late.
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

// A request that Config.NoConfig answers is observed like others.
func TestARequestWithoutAConfigurationIsObserved(t *testing.T) {
	seen := &counting{}
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{NoConfig: new(descriptors.Deny), Observer: seen})
	if err := l.Check(t.Context(), callOf("a")); err != nil || seen.calls != 1 {
		t.Errorf("error %v, %d calls were observed, want 1", err, seen.calls)
	}
}

// counting is an Observer that counts calls.
type counting struct{ calls int }

func (*counting) Swapped(*limiter.Snapshot) {}
func (o *counting) Observe(*limiter.Call)   { o.calls++ }

// Of many limits, only the named one is replaced. An override that cannot be read, and limits without a name, are not.
func TestOfManyLimitsTheNamedOneIsReplaced(t *testing.T) {
	var yaml strings.Builder
	yaml.WriteString("domain: d\ndescriptors:\n  - {key: vip, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: n3}]}}\n  - {key: free, rate_limit: {unlimited: true, name: free}}\n")
	keys := []string{"vip", "free", "unknown"}
	for i := range 20 {
		fmt.Fprintf(&yaml, "  - {key: k%d, rate_limit: {unit: hour, requests_per_unit: 5, name: n%d}}\n", i, i)
		keys = append(keys, fmt.Sprint("k", i))
	}
	b, c := newBench(t, yaml.String()), &limiter.Call{}
	c.Request.Domain = "d"
	for _, key := range keys {
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.HasOverride = []descriptors.Entry{{Key: key, Value: "1"}}, 1, key == "unknown"
	}
	if err := b.Check(t.Context(), c); err != nil || len(c.Results) != len(keys) {
		t.Fatalf("error %v, %d results; want %d", err, len(c.Results), len(keys))
	}
	for i, key := range keys {
		want := map[string]limiter.Outcome{"free": limiter.Unlimited, "unknown": limiter.Denied, "k3": limiter.Replaced}[key]
		if got := c.Results[i].Outcome; got != want {
			t.Errorf("%s: outcome %d, want %d", key, got, want)
		}
	}
}
