package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func (b *bench) together(tb testing.TB, key string, counts ...limiter.NamedCharge) *limiter.Call {
	tb.Helper()
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for _, n := range counts {
		n.Key = []string{key}
		c.Limits = append(c.Limits, n)
	}
	if err := b.Check(tb.Context(), c); err != nil {
		tb.Fatal(err)
	}
	return c
}

func (b *bench) remains(tb testing.TB, key string, want map[string]int64) {
	tb.Helper()
	for name, n := range want {
		if got := b.named(tb, name, 0, key).Results[0].Decision.Remaining; got != n {
			tb.Errorf("%s of %s has %d left, want %d", name, key, got, n)
		}
	}
}

func TestTwoLimitsThatDenyArePaidOnce(t *testing.T) {
	b := newBench(t, plans)
	b.send(t, 6, "user=bob,both=x")
	c := b.send(t, 10, "user=bob,both=x") // the limit per minute has 4 units left, the limit per day 9
	paid := int64(0)
	for i := range c.Results[:2] {
		if r := &c.Results[i]; r.For == nil || r.Policy.Name != "credits" || r.Decision.Remaining != 10 {
			t.Errorf("result %d: %s, %+v; want for not nil, name %q and 10 remaining", i, r.Policy.Name, r.Decision, "credits")
		}
		paid += c.Results[i].Cost
	}
	if c.Denied || paid != 10 {
		t.Errorf("paid %d, want 10: %+v", paid, c.Verdict)
	}
	// The limit per minute can never allow 11 units. The credits have 11 units after one hour.
	if c := b.send(t, 11, "user=bob,both=x"); !c.Denied || c.RetryAfter != 3600*algorithms.Second {
		t.Errorf("retry after %d: %+v; want denied and retry after %v", c.RetryAfter, c.Verdict, 3600*algorithms.Second)
	}
	if c := b.send(t, 10, "user=bob,both=x"); c.Denied {
		t.Errorf("the credits have 10: %+v; want allowed", c.Verdict)
	}
	if c := b.send(t, 10, "user=bob,both=x"); !c.Denied || c.RetryAfter != 10*3600*algorithms.Second {
		t.Errorf("retry after %d, want the time until the credits have 10, which is between those of the minute and the day: %+v", c.RetryAfter, c.Verdict)
	}
}

func TestThePayerIsChargedTheLargestCost(t *testing.T) {
	for name, test := range map[string]struct {
		counts  []limiter.NamedCharge
		credits int64 // units left of 20
	}{
		"the first limit costs more": {[]limiter.NamedCharge{{Name: "per_minute", Count: 12}, {Name: "per_day", Count: 7}}, 8},
		"the last one costs more":    {[]limiter.NamedCharge{{Name: "per_minute", Count: 11}, {Name: "per_day", Count: 13}}, 7},
		"one limit twice":            {[]limiter.NamedCharge{{Name: "per_minute", Count: 6}, {Name: "per_minute", Count: 6}}, 8},
		"one limit twice, allowed":   {[]limiter.NamedCharge{{Name: "per_minute", Count: 6}, {Name: "per_minute", Count: 4}}, 20},
	} {
		b := newBench(t, plans)
		if c := b.together(t, "bob", test.counts...); c.Denied {
			t.Errorf("%s: got %+v; want allowed", name, c.Verdict)
		}
		b.remains(t, "bob", map[string]int64{"credits": test.credits})
	}
}

func TestPlansWithDifferentPayersArePaidByEach(t *testing.T) {
	b := newBench(t, `
domain: d
hash_tag: domain
limits:
  calls: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  bytes: {algorithm: token_bucket, rate: 10, period: 1m, then: volume}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
  volume: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
`)
	for _, step := range []struct {
		calls, bytes int64
		payers       [2]string
		left         map[string]int64
	}{
		{11, 12, [2]string{"credits", "volume"}, map[string]int64{"calls": 10, "bytes": 10, "credits": 9, "volume": 8}},
		{3, 8, [2]string{"calls", "bytes"}, map[string]int64{"calls": 7, "bytes": 2, "credits": 9, "volume": 8}},
		{3, 8, [2]string{"calls", "volume"}, map[string]int64{"calls": 4, "bytes": 2, "credits": 9, "volume": 0}},
	} {
		c := b.together(t, "bob", limiter.NamedCharge{Name: "calls", Count: step.calls}, limiter.NamedCharge{Name: "bytes", Count: step.bytes})
		if got := [2]string{c.Results[0].Policy.Name, c.Results[1].Policy.Name}; c.Denied || got != step.payers {
			t.Errorf("%+v: paid by %v, %+v; want allowed and %v", step, got, c.Verdict, step.payers)
		}
		b.remains(t, "bob", step.left)
	}
}

func TestThePayerHasTheKeyAndTheSlotOfItsPlan(t *testing.T) {
	b := newBench(t, plans)
	rec := &recorded{Store: b.store.Store}
	b.store.Store = rec
	b.send(t, 11, "user=bob", "user=eve")
	b.named(t, "per_minute", 11, "joe")
	slots := map[string][]backend.Charge{}
	for _, c := range rec.charges {
		name := map[bool]string{true: "plan", false: "credits"}[c.Then]
		slots[name] = append(slots[name], c)
	}
	if len(slots["plan"]) != 3 || len(slots["credits"]) != 3 {
		t.Fatalf("got %+v; want 3 elements and 3 elements", rec.charges)
	}
	for i, plan := range slots["plan"] {
		payer := slots["credits"][i]
		if plan.Slot == 0 || plan.Slot != payer.Slot || i > 0 && plan.Slot == slots["plan"][i-1].Slot {
			t.Errorf("%q is in slot %x, and its payer %q in slot %x; want the same slot for both, and another for each key", plan.Key, plan.Slot, payer.Key, payer.Slot)
		}
	}
	for _, key := range []string{"bob", "eve", "joe"} {
		b.remains(t, key, map[string]int64{"credits": 9, "per_minute": 10})
	}
}

// With "hash_tag: domain", the keys of a limit with "then" and of its payer have one slot of a Redis Cluster,
// whichever descriptor uses them.
func TestPlanAndPayerShareTheSlotOfTheDomain(t *testing.T) {
	b := newBench(t, settledPlans+"descriptors:\n  - {key: user, limit: plan}\n")
	rec := &recorded{Store: b.store.Store}
	b.store.Store = rec
	b.send(t, 200, "user=bob")
	b.named(t, "plan", 200, "eve")
	for _, c := range rec.charges {
		if c.Slot == 0 || c.Slot != rec.charges[0].Slot {
			t.Errorf("%q is in slot %x, %q in slot %x; want the same slot", rec.charges[0].Key, rec.charges[0].Slot, c.Key, c.Slot)
		}
	}
	if len(rec.charges) != 4 {
		t.Errorf("%d charges; want 4", len(rec.charges))
	}
}

type recorded struct {
	backend.Store

	charges []backend.Charge
}

func (r *recorded) Submit(b *backend.Batch) {
	r.charges = append(r.charges, b.Charges...)
	r.Store.Submit(b)
}

func TestAdjustmentsOfPlansAndPayers(t *testing.T) {
	for name, test := range map[string]struct {
		limit  string
		change adjust.Change
		costs  []int64
		payers []string // the limit that pays; "" means a denial
		left   map[string]int64
	}{
		"the plan is unlimited": {"per_minute", adjust.Change{Unlimited: true}, []int64{5, 15, 500}, []string{"per_minute", "per_minute", "per_minute"},
			map[string]int64{"credits": 20}},
		"the plan is larger": {"per_minute", adjust.Change{Capacity: number(50)}, []int64{40, 15}, []string{"per_minute", "credits"},
			map[string]int64{"per_minute": 10, "credits": 5}},
		"the plan is blocked": {"per_minute", adjust.Change{Block: true}, []int64{1, 11}, []string{"", ""},
			map[string]int64{"credits": 20}},
		"the payer is unlimited": {"credits", adjust.Change{Unlimited: true}, []int64{5, 500, 5}, []string{"per_minute", "per_minute", "per_minute"},
			nil},
		"the payer is larger": {"credits", adjust.Change{Capacity: number(100)}, []int64{90}, []string{"credits"},
			map[string]int64{"per_minute": 10, "credits": 10}},
		"the payer is smaller": {"credits", adjust.Change{Capacity: number(12)}, []int64{13, 12}, []string{"", "credits"},
			map[string]int64{"per_minute": 10, "credits": 0}},
		"the payer is blocked": {"credits", adjust.Change{Block: true}, []int64{6, 6, 4, 1}, []string{"per_minute", "", "per_minute", ""},
			map[string]int64{"per_minute": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			for request, send := range map[string]func(b *bench, cost int64) *limiter.Call{
				"matched": func(b *bench, cost int64) *limiter.Call { return b.send(t, cost, "user=bob") },
				"named":   func(b *bench, cost int64) *limiter.Call { return b.named(t, "per_minute", cost, "bob") },
			} {
				b := newBench(t, plans)
				if got := b.adjust(test.limit, map[string]adjust.Change{"bob": test.change}); got.InForce != 1 || got.Ignored != 0 {
					t.Fatalf("got %+v; want in force 1 and ignored 0", got)
				}
				for i, cost := range test.costs {
					c := send(b, cost)
					if payer := c.Results[0].Policy.Name; c.Denied != (test.payers[i] == "") || !c.Denied && payer != test.payers[i] {
						t.Errorf("%s, request %d for %d: denied %t, by %s; want paid by %q (\"\" is a denial)", request, i, cost, c.Denied, payer, test.payers[i])
					}
				}
				b.remains(t, "bob", test.left)
				b.remains(t, "ann", map[string]int64{"per_minute": 10, "credits": 20})
				if b.now += minute; test.change.Block { // nothing was charged during the block
					b.remains(t, "bob", map[string]int64{"credits": 20})
				}
			}
		})
	}
}

const settledPlans = `
domain: d
hash_tag: domain
limits:
  plan: {algorithm: fixed_window, rate: 100, period: 1d, max_reserved: 0, settle: {estimate: 30}, then: prepaid}
  prepaid: {algorithm: fixed_window, rate: 500, period: 1d, settle: {estimate: 30}}
`

func reserveAndSettle(t *testing.T, b *bench, count int64) (payer string, settle func(real int64) *limiter.Call) {
	t.Helper()
	c := b.together(t, "bob", limiter.NamedCharge{Name: "plan", Count: count, Reserve: true})
	part, ok := c.Part(0, "")
	if c.Denied || !ok {
		t.Fatalf("%d: got %+v; want allowed and reserved", count, c.Verdict)
	}
	r := &limiter.Reserved{Domain: limiter.PrefixNumber(c.Verdict.Domain.Name), Parts: []limiter.ReservedPart{part}}
	b.ID(r)
	return c.Results[0].Policy.Name, func(real int64) *limiter.Call {
		t.Helper()
		c := &limiter.Call{}
		if err := b.Settle(t.Context(), c, limiter.Settle{Reserved: r, Real: real}); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

func TestAProxySettlesWhereItWasPaid(t *testing.T) {
	p := newProxy(t)
	p.swap(t, settledPlans+"descriptors:\n  - {key: user, limit: plan}\n")
	first := p.start(absent, "user=bob")
	second := p.start(90, "user=bob") // the limit named plan has 70 units left
	p.want("plan", "bob", 70)
	p.want("prepaid", "bob", 410)
	p.done(second, 40)
	p.done(first, 10)
	p.want("plan", "bob", 90)
	p.want("prepaid", "bob", 460)
}

// A reservation must be settled in the bucket that paid: in that of the limit with "then", even if a debt results,
// or in that of its payer, even after a reload that removes "then".
func TestSettlementsChangeTheBucketThatPaid(t *testing.T) {
	b := newBench(t, settledPlans)
	b.Limiter = limiter.New(b.store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"a secret"} }, nil), Now: func() algorithms.Micros { return b.now },
	})
	b.swap(t, settledPlans)
	payer, settle := reserveAndSettle(t, b, 90)
	if settle(150); payer != "plan" {
		t.Errorf("paid by %s; want payer %q", payer, "plan")
	}
	b.remains(t, "bob", map[string]int64{"plan": 0, "prepaid": 500}) // the limit named plan has a debt of 50
	if c := b.named(t, "plan", 0, "bob"); c.Results[0].For != nil || c.Results[0].Policy.Name != "plan" {
		t.Errorf("a request for no units of a plan in debt: %+v; want for nil and name %q", c.Results[0], "plan")
	}
	payer, settle = reserveAndSettle(t, b, 200)
	b.remains(t, "bob", map[string]int64{"plan": 0, "prepaid": 300})
	b.swap(t, `
domain: d
hash_tag: domain
limits:
  plan: {algorithm: fixed_window, rate: 100, period: 1d, max_reserved: 0, settle: {estimate: 30}}
  prepaid: {algorithm: fixed_window, rate: 500, period: 1d, settle: {estimate: 30}}
`)
	for range 2 {
		settle(60)
	}
	b.remains(t, "bob", map[string]int64{"plan": 0, "prepaid": 440})
	if c := b.named(t, "plan", 1, "bob"); payer != "prepaid" || !c.Denied {
		t.Errorf("paid by %s; after the reload nothing pays: %+v; want prepaid, and then denied", payer, c.Verdict)
	}
	b.named(t, "plan", -60, "bob")
	b.remains(t, "bob", map[string]int64{"plan": 10, "prepaid": 440})
}

const paid = `
domain: d
hash_tag: domain
limits:
  calls: {algorithm: token_bucket, rate: 10, period: 1m, then: credits}
  bytes: {algorithm: token_bucket, rate: 5, period: 1m, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
descriptors:
  - {key: user, limit: calls}
  - {key: bytes, limit: bytes}
`

// In quota mode, every limit is charged alone, even if two have the same bucket and the same payer.
func TestEachPlanIsAGroupOfItsOwn(t *testing.T) {
	b := newBench(t, paid, limiter.Modes{Quota: true})
	c := b.send(t, 1, "user=bob", "user=bob")
	if first, second := c.Results[0].Decision.Remaining, c.Results[1].Decision.Remaining; first != 9 || second != 8 {
		t.Errorf("%d and %d are left after two charges of the bucket; want 9 and 8", first, second)
	}
	b.send(t, 20, "user=bob") // more than calls can hold, so the payer is charged
	c = b.send(t, 5, "user=bob", "user=bob", "bytes=bob")
	if n := b.left(t, "bytes=bob"); n != 0 || c.Results[1].Outcome != limiter.Denied {
		t.Errorf("outcome %v, %d left; want the second charge denied, and the third one made", c.Results[1].Outcome, n)
	}
}

// Of two limits with the same payer, one may allow what the other denies. Only the denial has a retry time.
func TestALimitThatAllowsHasNoRetryTime(t *testing.T) {
	b := newBench(t, paid)
	b.send(t, 20, "user=bob")
	c := b.send(t, 8, "user=bob", "bytes=bob")
	if d := c.Results[0].Decision; !c.Denied || !d.Allowed || d.RetryAfter != 0 || d.Never {
		t.Errorf("got %+v, want the first limit allowed and without a retry time", d)
	}
	if d := c.Results[1].Decision; d.Allowed || d.RetryAfter == 0 {
		t.Errorf("got %+v, want the second limit denied", d)
	}
}

func TestADryRunOfAPlanChargesNothing(t *testing.T) {
	b := newBench(t, paid)
	c := &limiter.Call{}
	c.Request.Domain, c.DryRun = "d", true
	for range 2 {
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: "user", Value: "bob"}}, 3
	}
	if err := b.Check(t.Context(), c); err != nil || c.Denied {
		t.Fatalf("error %v, %+v; want allowed", err, c.Verdict)
	}
	if n := b.left(t, "user=bob"); n != 10 {
		t.Errorf("%d left after a dry run of 6, want 10", n)
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

func TestAPlanThatOccursTwiceIsChargedTheSum(t *testing.T) {
	b := newBench(t, plans)
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "per_minute", Count: 3}, limiter.NamedCharge{Name: "per_minute", Count: 4}); c.Denied {
		t.Errorf("got %+v; want allowed", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"per_minute": 3, "credits": 20})
}
