package limiter_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestTheFirstOfTwoEqualLimitsIsReported(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  one: {algorithm: fixed_window, rate: 2, period: 1d}
  two: {algorithm: fixed_window, rate: 2, period: 1d}
descriptors:
  - {key: a, limit: [one, two]}
`)
	for _, denied := range []bool{false, false, true} {
		c := b.send(t, 1, "a=1")
		if first, second := c.Results[0].Decision, c.Results[1].Decision; first.Remaining != second.Remaining || first.RetryAfter != second.RetryAfter {
			t.Fatalf("the two limits differ: %+v and %+v", first, second)
		}
		if s := c.Statuses[0]; s.Denied != denied || s.Result != 0 {
			t.Errorf("denied %v, result %d is reported; want denied %v and result 0", s.Denied, s.Result, denied)
		}
	}
}

func TestARequestWaitsForTheLastOfItsTurns(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: slow, rate_limit: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 20, max_delay: 10s}}
  - {key: fast, rate_limit: {algorithm: leaky_bucket, rate: 10, period: 1s, capacity: 20, max_delay: 10s}}
`)
	for turn := range algorithms.Micros(3) {
		c := &limiter.Call{}
		c.Request.Domain, c.Request.MaxDelay = "d", 10*sec
		for _, key := range []string{"slow", "fast"} {
			d := c.AddDescriptor()
			d.Entries, d.Cost = []descriptors.Entry{{Key: key, Value: "1"}}, 1
		}
		if err := b.Check(t.Context(), c); err != nil || c.Denied || c.Verdict.Delay != turn*sec {
			t.Errorf("turn %d: error %v, denied %v, delayed by %d us; want %d us", turn, err, c.Denied, c.Verdict.Delay, turn*sec)
		}
	}
}

// A Store may decide the charges of one request in several steps. The cancelation of the request applies to all.
func TestEachChargeKnowsTheCancelation(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: fixed_window, rate: 2, period: 1d}}
  - {key: b, rate_limit: {algorithm: fixed_window, rate: 2, period: 1d}}
  - {key: c, shadow_mode: true, rate_limit: {algorithm: fixed_window, rate: 2, period: 1d}}
`)
	store, canceled := &recorded{Store: b.store}, new(atomic.Bool)
	l := limiter.New(store, limiter.Config{})
	l.Swap(b.Current())
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Canceled: canceled}}
	for _, key := range []string{"a", "b", "c"} {
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: key, Value: "1"}}, 1
	}
	if err := l.Check(t.Context(), c); err != nil || len(store.charges) != 3 {
		t.Fatalf("error %v, %d charges; want no error and 3 charges", err, len(store.charges))
	}
	for i := range store.charges {
		if store.charges[i].Canceled != canceled {
			t.Errorf("charge %d does not have the Canceled of the request", i)
		}
	}
}

// A settlement consists of a group for each of its buckets. It counts as repeated (Replayed) if one of them was settled
// before.
func TestAnAnswerIsRepeatedIfOneOfItsGroupsIs(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  one: {algorithm: token_bucket, rate: 100, period: 1d}
  two: {algorithm: token_bucket, rate: 100, period: 1d}
`)
	parts := func(names ...string) *limiter.Reserved {
		r := &limiter.Reserved{ID: [16]byte{1}, Domain: descriptors.PrefixNumber("d")}
		for _, name := range []string{"one", "two"} {
			part := limiter.PartOf(b.Current().Domains["d"].Named[name], limiter.ByName{Name: name}, 10, b.now)
			part.Number = len(r.Parts)
			r.Parts = append(r.Parts, part)
		}
		r.Parts = slices.DeleteFunc(r.Parts, func(p limiter.ReservedPart) bool { return !slices.Contains(names, p.Name) })
		return r
	}
	settle := func(names ...string) *limiter.Call {
		c := &limiter.Call{}
		if err := b.Settle(t.Context(), c, limiter.Settle{Reserved: parts(names...), Real: 12}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := settle("one"); c.Replayed {
		t.Error("the first settlement counts as repeated")
	}
	if c := settle("one", "two"); !c.Replayed {
		t.Error("a settlement of which one part was settled before does not count as repeated")
	}
}

func TestAReservationExpiresExactly(t *testing.T) {
	for wait, want := range map[algorithms.Micros]error{limiter.Within - 1: nil, limiter.Within: limiter.ErrExpired} {
		b := newBench(t, "domain: d\ndescriptors: []\n")
		b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
		call, _ := b.consume(t, 5, false)
		r, _ := reservedBy(call)
		b.now += wait
		if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r}); !errors.Is(err, want) {
			t.Errorf("after %d us: got the error %v, want %v", wait, err, want)
		}
	}
}

// The settlement of a limit that came with its request uses the numbers that came with it, also if the configuration
// now has a limit of that name.
func TestALimitThatCameWithItsRequestIsSettledByItself(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors: []\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
	configured := b.Current().Domains["d"].Named["jobs"]
	own := *configured
	part := limiter.PartOf(&own, limiter.ByName{Name: "jobs", Config: "its configuration"}, 5, b.now)
	r, c := &limiter.Reserved{ID: [16]byte{1}, Domain: descriptors.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}, &limiter.Call{}
	inline := func(_, _, _ string) (*descriptors.Policy, error) { return &own, nil }
	if err := b.Settle(t.Context(), c, limiter.Settle{Reserved: r, Real: 5, Inline: inline}); err != nil || c.Results[0].Policy != &own {
		t.Errorf("error %v; want the limit that came with the request", err)
	}
}

// The store remembers a settlement until its reservation is older than twice the ttl of the limit and ClockSlack together.
func TestASettlementIsRememberedForTwiceItsTTL(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	p.done(id, 37)
	p.now += 2*60*sec + limiter.ClockSlack - 1
	if c := p.done(id, 900); !c.Settlements[0].Repeated {
		t.Errorf("again after two minutes: %+v; want repeated", c.Settlements)
	}
	p.want("tokens", "bob", 963)
}

func TestTheFirstRealCostOfAnIDSettles(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	c := p.send("d", []int64{0, absent, 5, 9}, "settle_end="+id, "settle="+id, "settle="+id, "settle="+id)
	if s := c.Settlements; len(s) != 1 || s[0].Real != 5 || s[0].Descriptor != 2 {
		t.Errorf("got %+v, want the cost 5 of descriptor 2", s)
	}
	p.want("tokens", "bob", 995)
}

type learned struct{ costs []int64 }

func (l *learned) Estimate(uint64) int64 { return 0 }

func (l *learned) Learn(_ uint64, _ float64, _ uint64, _ algorithms.Micros, real int64) {
	l.costs = append(l.costs, real)
}

// A request may reserve from one bucket several times.
func TestEstimatesLearnTheCostOfOneRequest(t *testing.T) {
	p, costs := newProxy(t), &learned{}
	p.Limiter = limiter.New(p.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }, nil), Now: func() algorithms.Micros { return p.now }, Estimates: costs,
	})
	p.swap(t, `
domain: d
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: {learn: p90, first: 100}, unknown_cost: 7}}
descriptors:
  - {key: user, limit: tokens}
`)
	id := p.start(absent, "user=bob", "user=bob")
	p.want("tokens", "bob", 800)
	p.done(id, 30)
	p.done(id, 30)
	if p.want("tokens", "bob", 940); !slices.Equal(costs.costs, []int64{30}) {
		t.Errorf("learned %v, want 30 once", costs.costs)
	}
	id = p.start(absent, "user=joe", "user=joe")
	p.done(id, absent)
	p.want("tokens", "joe", 986)
}

func TestAFailedSettlementIsDeniedAtItsDescriptor(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	p.store.err = backend.ErrUnavailable
	c := p.send("d", []int64{1, 30}, "settle="+limiter.None, "settle="+id)
	if s := c.Statuses; !c.Denied || s[0].Denied || !s[1].Denied {
		t.Errorf("got %+v, want the second status denied", c.Verdict)
	}
}

func TestAnAdjustmentAppliesToItsDomain(t *testing.T) {
	const limits = "limits:\n  jobs: {algorithm: fixed_window, rate: 10, period: 1d}\ndescriptors:\n  - {key: a, limit: jobs}\n"
	b := newBench(t, "domain: other\n"+limits+"---\ndomain: d\n"+limits)
	b.adjust("jobs", map[string]adjust.Change{"1": {Rate: number(3)}})
	if n := b.allowed(t, 20, "a=1"); n != 3 {
		t.Errorf("%d allowed in the adjusted domain, want 3", n)
	}
	c := &limiter.Call{}
	c.Request.Domain = "other"
	d := c.AddDescriptor()
	d.Entries, d.Cost = []descriptors.Entry{{Key: "a", Value: "1"}}, 10
	if err := b.Check(t.Context(), c); err != nil || c.Denied {
		t.Errorf("the other domain: error %v, denied %v; want allowed", err, c.Denied)
	}
}

func (b *bench) once(t *testing.T, domain, id string, limits ...limiter.NamedCharge) (*limiter.Call, error) {
	t.Helper()
	c := &limiter.Call{Request: limiter.Request{Domain: domain, Limits: limits, IdempotencyKey: limiter.IdempotencyKey{ID: id, Lifetime: sec}}}
	err := b.Check(t.Context(), c)
	return c, err
}

func TestAnIDIsOfOneDomainAndOneRequest(t *testing.T) {
	const limits = `
limits:
  one: {algorithm: fixed_window, rate: 10, period: 1d}
  two: {algorithm: fixed_window, rate: 10, period: 1d}
  watched: {algorithm: fixed_window, rate: 10, period: 1d, shadow_mode: true}
`
	b := newBench(t, "domain: d"+limits+"---\ndomain: other"+limits)
	remaining := func(domain, limit string, key ...string) int64 {
		c := &limiter.Call{Request: limiter.Request{Domain: domain, DryRun: true, Limits: []limiter.NamedCharge{{Name: limit, Key: key}}}}
		if err := b.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return c.Results[0].Decision.Remaining
	}
	for _, domain := range []string{"d", "other"} {
		if c, err := b.once(t, domain, "id", limiter.NamedCharge{Name: "one", Count: 2}, limiter.NamedCharge{Name: "watched", Count: 3}); err != nil || c.Denied || c.Replayed {
			t.Errorf("%s: error %v, denied %v, repeated %v; want allowed", domain, err, c.Denied, c.Replayed)
		}
		if one, watched := remaining(domain, "one"), remaining(domain, "watched"); one != 8 || watched != 7 {
			t.Errorf("%s: %d and %d are left; want 8 and 7", domain, one, watched)
		}
	}
	for name, pair := range map[string][2][]limiter.NamedCharge{
		"a reservation":     {{{Name: "one", Count: 1}}, {{Name: "one", Count: 1, Reserve: true}}},
		"another number":    {{{Name: "one", Count: 1}}, {{Name: "one", Count: 2}}},
		"another limit":     {{{Name: "one", Count: 1}}, {{Name: "two", Count: 1}}},
		"keys of two forms": {{{Name: "one", Key: []string{"two", "1", "false"}, Count: 1}, {Name: "two", Count: 1}}, {{Name: "one", Count: 1}, {Name: "two", Key: []string{"two", "1", "false"}, Count: 1}}},
	} {
		if _, err := b.once(t, "d", name, pair[0]...); err != nil {
			t.Fatal(err)
		}
		if _, err := b.once(t, "d", name, pair[1]...); !errors.Is(err, backend.ErrReused) {
			t.Errorf("%s: got the error %v, want backend.ErrReused", name, err)
		}
	}
}

func TestAReusedCallAnswersLikeANewOne(t *testing.T) {
	p, c := newProxy(t), &limiter.Call{}
	check := func(hits int64, texts ...string) {
		t.Helper()
		c.Reset()
		c.Request.Domain = "d"
		for _, text := range texts {
			entries, err := descriptors.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			d := c.AddDescriptor()
			d.Entries, d.Cost, d.Explicit, d.Declared = entries, hits, true, true
		}
		if err := p.Check(t.Context(), c); err != nil || c.Denied {
			t.Fatalf("%v: error %v, denied %v; want allowed", texts, err, c.Denied)
		}
	}
	for range 2 * limiter.MaxReserved {
		check(100, "user=bob", "careful=bob")
		if !c.Started() || c.IsDone() {
			t.Fatal("a request is not answered as a settle-start")
		}
		id := string(c.AppendID(nil))
		if check(1, "settle="+id); c.Started() || !c.IsDone() || len(c.Settlements) != 2 {
			t.Fatalf("a settle-done settles %d buckets, want 2", len(c.Settlements))
		}
		p.swap(t, tokens)
	}
	p.want("tokens", "bob", 1000-2*limiter.MaxReserved)
}

func TestABlockEndsWithItsRequest(t *testing.T) {
	b := newBench(t, adjustable, limiter.Modes{Shadow: true})
	b.adjust("calls", map[string]adjust.Change{"bad": {Block: true}})
	c := &limiter.Call{}
	for _, user := range []string{"bad", "good"} {
		c.Reset()
		c.Request.Domain = "d"
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: "user", Value: user}}, 1000
		if err := b.Check(t.Context(), c); err != nil || c.Denied != (user == "bad") {
			t.Errorf("%s: error %v, denied %v; want only the blocked user denied", user, err, c.Denied)
		}
	}
}

// A Call keeps its buffers, and a payer's key is in one of them. Each request has the payer of its own key.
func TestAReusedCallHasThePayerOfItsKey(t *testing.T) {
	b, c := newBench(t, plans), &limiter.Call{}
	left := map[string]int64{}
	for _, user := range []string{"a user with a long name", "bob", "a user with a long name", "eve", "bob"} {
		c.Reset()
		c.Request.Domain = "d"
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: "user", Value: user}}, 11 // more than per_minute can hold
		if left[user] == 0 {
			left[user] = 20
		}
		err := b.Check(t.Context(), c)
		if denied := left[user] < 11; err != nil || c.Denied != denied {
			t.Errorf("%s: error %v, denied %v; want denied %v", user, err, c.Denied, denied)
		}
		if !c.Denied {
			left[user] -= 11
		}
		if got := b.named(t, "credits", 0, user).Results[0].Decision.Remaining; got != left[user] {
			t.Errorf("%s has %d credits left, want %d", user, got, left[user])
		}
	}
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

// Programs that use package ratelimit see a blocked bucket as empty, like clients of the sidecar.
func TestADirectShowsABlockedBucketAsEmpty(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  jobs: {algorithm: token_bucket, rate: 5, period: 1m, penalty: {after: 1, for: 1m, max: 1h}}
`)
	var d limiter.Direct
	for _, step := range []struct{ cost, remaining int64 }{{1, 4}, {5, 0}, {1, 0}} { // 5 units are denied, and start the block
		d.Reset()
		d.Add(b.Current().Domains["d"].Named["jobs"], nil, algorithms.Charge{Cost: step.cost})
		d.Take(t.Context(), b.store)
		if got, _ := d.Decision(0); got.Remaining != step.remaining || got.Allowed != (step.remaining > 0) {
			t.Errorf("cost %d: got %+v, want %d remaining", step.cost, *got, step.remaining)
		}
	}
}

// The window of a limit in headers is the time in which its capacity is filled.
func TestLimitsAreShownAsWindows(t *testing.T) {
	five, twenty := int64(5), int64(20)
	for _, test := range []struct {
		spec           algorithms.Spec
		units, seconds int64
	}{
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: 60 * sec}, 10, 60},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: 60 * sec, Capacity: &twenty}, 20, 120},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: 60 * sec, Capacity: &five}, 5, 60}, // each window starts with 5
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * sec, Capacity: &five}, 5, 30},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * sec, Capacity: &twenty}, 20, 120},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 3, Period: sec, Capacity: &five}, 5, 0}, // not a whole number of seconds
		{algorithms.Spec{Kind: algorithms.SlidingWindow, Rate: 10, Period: 60 * sec}, 10, 60},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * sec, Minimum: &algorithms.Rate{Units: 1, Period: sec}}, 11, 0}, // two rates
		{algorithms.Spec{Kind: algorithms.TokenBucket, Period: 60 * sec, Capacity: &five}, 5, 60},                                            // a rate of 0
	} {
		l, err := algorithms.Compile(test.spec)
		if err != nil {
			t.Fatal(err)
		}
		if units, seconds := limiter.Shown(&l); units != test.units || seconds != test.seconds {
			t.Errorf("%+v: shown as %d in %d s, want %d in %d s", test.spec, units, seconds, test.units, test.seconds)
		}
	}
}

// With share_threshold, overrides for different values share one bucket of the bound (max_override).
func TestABoundOfOverridesIsSharedLikeItsLimit(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: path, value: 'a*', share_threshold: true, max_override: {unit: day, requests_per_unit: 3}, rate_limit: {unit: day, requests_per_unit: 1}}
`)
	send := func(value string) *limiter.Call {
		c := &limiter.Call{}
		c.Request.Domain = "d"
		*c.AddDescriptor() = limiter.Descriptor{
			Entries: []descriptors.Entry{{Key: "path", Value: value}}, Cost: 1, HasOverride: true, Override: limiter.Override{Rate: 100, Period: algorithms.Day},
		}
		if err := b.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for i, value := range []string{"a1", "a2", "a1", "a2", "a3"} {
		if c := send(value); c.Denied != (i >= 3) {
			t.Errorf("request %d, %s: denied %v; want 3 requests allowed", i+1, value, c.Denied)
		}
	}
}

func TestABoundAtADescriptorTakesPrecedence(t *testing.T) {
	b := newBench(t, `
domain: d
max_override: {unit: day, requests_per_unit: 1}
descriptors:
  - {key: path, max_override: {unit: day, requests_per_unit: 3}, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 1}}
`)
	for key, want := range map[string]int{"path": 3, "other": 1} {
		allowed := 0
		for range 5 {
			c := &limiter.Call{}
			c.Request.Domain = "d"
			*c.AddDescriptor() = limiter.Descriptor{
				Entries: []descriptors.Entry{{Key: key, Value: "a"}}, Cost: 1, HasOverride: true, Override: limiter.Override{Rate: 100, Period: algorithms.Day},
			}
			if err := b.Check(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if !c.Denied {
				allowed++
			}
		}
		if allowed != want {
			t.Errorf("%s: %d allowed, want %d", key, allowed, want)
		}
	}
}
