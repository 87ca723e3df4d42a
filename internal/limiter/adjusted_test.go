package limiter_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const minute = 60 * algorithms.Second

func number(n int64) *int64 { return &n }

// adjust makes changes the only adjustments, in force for a minute. changes maps the keys of the limit to their
// numbers; "*" means all keys.
func (b *bench) adjust(limit string, changes map[string]adjust.Change) limiter.Adjusted {
	var all []*adjust.Adjustment
	for key, change := range changes {
		a := &adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: limit, Key: []string{key}}, Change: change, Expires: b.now + minute}
		if key == "*" {
			a.Target.Key, a.Target.AllKeys = nil, true
		}
		a.ID = a.Target.ID()
		all = append(all, a)
	}
	return b.Adjust(adjust.NewSet(adjust.Head{}, all), func() algorithms.Micros { return b.now })
}

func (b *bench) allowed(tb testing.TB, n int, text string) (count int) {
	tb.Helper()
	for range n {
		if !b.send(tb, 1, text).Denied {
			count++
		}
	}
	return count
}

const adjustable = `
domain: d
limits:
  calls: {algorithm: token_bucket, rate: 10, period: 1m, capacity: 20}
descriptors:
  - {key: user, limit: calls}
  - {key: shadow, limit: calls, shadow_mode: true}
  - {key: other, rate_limit: {name: other, algorithm: token_bucket, rate: 5, period: 1h}}
  - {key: free, rate_limit: {name: free, unlimited: true}}
  - {key: window, rate_limit: {name: window, unit: hour, requests_per_unit: 5}}
`

// ends are the times from now until each adjustment expires. An adjustment that expires now has no effect and is not
// the next one to expire.
func TestTheEarliestAdjustmentEndsNext(t *testing.T) {
	for _, ends := range [][]algorithms.Micros{{0, 2, 3}, {0, 3, 2}, {3, 0, 2}, {2, 3, 0}} {
		b := newBench(t, adjustable)
		var all []*adjust.Adjustment
		for i, end := range ends {
			a := &adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", Key: []string{string(rune('a' + i))}}, Change: adjust.Change{Block: true}, Expires: b.now + end}
			a.ID = a.Target.ID()
			all = append(all, a)
		}
		got := b.Adjust(adjust.NewSet(adjust.Head{}, all), func() algorithms.Micros { return b.now })
		if got.Next != b.now+2 || got.InForce != 2 || got.Ignored != 0 || got != b.Adjusted() || got != b.Adjusted() {
			t.Errorf("%v: got %+v; want next %v, in force 2 and ignored 0", ends, got, b.now+2)
		}
	}
}

const withTenants = `
domain: d
limits:
  calls: {algorithm: token_bucket, rate: 2, period: 1h}
descriptors:
  - {key: tenant, descriptors: [{key: user, limit: calls}]}
  - {key: user, limit: calls}
  - {key: "any*", rate_limit: {name: any, algorithm: token_bucket, rate: 2, period: 1h}}
  - {key: agent, limit: calls}
`

// A block of tenant=evil denies all its keys, however long they are. The own adjustment of a key takes precedence, and one
// of all keys does not. Refunds are still made, and other tenants do not notice.
func TestAnAdjustmentOfAllKeysWithOneValue(t *testing.T) {
	b := newBench(t, withTenants)
	long := strings.Repeat("x", 2000)
	set := func(targets map[*adjust.Target]adjust.Change) limiter.Adjusted {
		var all []*adjust.Adjustment
		for target, change := range targets {
			target.Domain = "d"
			all = append(all, &adjust.Adjustment{ID: target.ID(), Target: *target, Change: change, Expires: b.now + minute})
		}
		return b.Adjust(adjust.NewSet(adjust.Head{}, all), func() algorithms.Micros { return b.now })
	}
	got := set(map[*adjust.Target]adjust.Change{
		{Limit: "calls", Entry: "tenant", Value: "evil"}:     {Block: true},
		{Limit: "calls", Entry: "tenant", Value: "foe"}:      {Block: true},
		{Limit: "calls", Entry: "user", Value: "vip"}:        {Factor: 3000},
		{Limit: "calls", Key: []string{"evil", "spared"}}:    {Factor: 2000},
		{Limit: "calls", AllKeys: true}:                      {Factor: 1500},
		{Limit: "any", Entry: "any-path", Value: "/login"}:   {Block: true},
		{Limit: "calls", Entry: "country", Value: "nowhere"}: {Block: true},
		{Limit: "calls", Entry: "user", Value: "evil"}:       {Block: true},
	})
	if got.InForce != 7 || got.Ignored != 1 {
		t.Errorf("%+v; want 7 in force, and that of an unknown entry ignored", got)
	}
	for text, want := range map[string]int{
		"tenant=evil,user=a": 0, "tenant=evil,user=" + long: 0, "tenant=evil,user=vip": 0, "tenant=good,user=evil": 0,
		"tenant=evil,user=spared": 4, "tenant=good,user=vip": 6, "tenant=good,user=" + long: 3, "tenant=,user=": 3,
		"any-path=/login": 0, "any-path=/": 2,
		"user=evil": 0, "user=foe": 3, "user=vip": 6, // at another place in the key
		"agent=evil": 3, // the value of another entry
	} {
		if n := b.allowed(t, 10, text); n != want {
			t.Errorf("%.40s: %d of 10 allowed; want %d", text, n, want)
		}
	}
	if c := b.named(t, "calls", 1, "evil", "b"); !c.Denied {
		t.Error("a request that names the limit is allowed; want the block")
	}
	if c := b.named(t, "calls", 1, "evil"); !c.Denied {
		t.Error("a request that names the user alone is allowed; want the block")
	}
	if c := b.named(t, "calls", 1, "good"); c.Denied {
		t.Error("a key with other values than the configured ones is denied")
	}
	b.now += minute
	if n := b.allowed(t, 10, "tenant=evil,user=a"); n != 2 {
		t.Errorf("after the end: %d of 10 allowed; want 2", n)
	}
	if _, all := b.Buckets(&adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", Entry: "tenant"}}); !all {
		t.Error("it affects single buckets; want all, because their keys are not known")
	}
	if keys, all := b.Buckets(&adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", Key: []string{"good"}}}); len(keys) != 1 || all {
		t.Errorf("a key has the buckets %q, want one, whatever descriptors use the limit", keys)
	}
	_, _, err := b.Adjustable(&adjust.Target{Domain: "d", Limit: "calls", Entry: "tenat", Value: "evil"})
	if err == nil || !strings.Contains(err.Error(), `no entry "tenat"; they have agent, tenant, user`) {
		t.Errorf("got %v; want an error that names the entries", err)
	}
}

func TestTheKeysOwnAdjustmentTakesPrecedenceOverThatOfAllKeys(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("calls", map[string]adjust.Change{"*": {Capacity: number(3)}, "bob": {Factor: 2000}, "": {Block: true}})
	if keys, all := b.Buckets(&adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", AllKeys: true}}); keys != nil || !all {
		t.Errorf("got %v, %t; want all buckets", keys, all)
	}
	for text, want := range map[string]int{"user=bob": 40, "user=ann": 3, "user=": 0} {
		if n := b.allowed(t, 50, text); n != want {
			t.Errorf("%s got %d, want %d", text, n, want)
		}
	}
}

func TestABlockDeniesInSpiteOfShadowQuotaAndReplaces(t *testing.T) {
	const yaml = adjustable + `
  - {key: quota, limit: calls, quota_mode: true}
  - {key: vip, rate_limit: {name: vip, algorithm: token_bucket, rate: 5, period: 1h, replaces: [{name: calls}]}}
`
	for _, modes := range []limiter.Modes{{}, {Shadow: true}, {Quota: true}} {
		b := newBench(t, yaml, modes)
		b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
		for _, texts := range [][]string{{"user=bob"}, {"shadow=bob"}, {"quota=bob"}, {"user=bob", "vip=1"}, {"quota=bob", "other=1"}, {"user=bob", "free=1"}} {
			c := b.send(t, 1, texts...)
			if !c.Denied || c.RetryAfter != minute || c.Never || !c.Statuses[0].Denied || c.Results[0].Decision.Blocked != minute {
				t.Errorf("%+v %v: got %+v; want a denial, with a retry after %d us and a block of %d us", modes, texts, c.Verdict, minute, minute)
			}
		}
		b.now += minute - 1
		if c := b.send(t, 1, "user=bob"); !c.Denied || c.RetryAfter != 1 {
			t.Errorf("1 us before its end: %+v; want denied and retry after 1", c.Verdict)
		}
		b.now++
		if b.send(t, 1, "user=bob").Denied {
			t.Errorf("at its end: denied")
		}
	}
}

func TestABlockIsShownToAnOperatorWithTheBucket(t *testing.T) {
	b := newBench(t, adjustable)
	b.allowed(t, 5, "user=bob")
	b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
	c := b.check(t, limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}}}})
	if d := c.Results[0].Decision; d.Blocked != minute || d.ResetAfter != 30*algorithms.Second || d.Err != nil || c.Results[0].Policy.Adjusted == nil {
		t.Errorf("got %+v; want blocked %v, reset after %v, no error and adjusted not nil", d, minute, 30*algorithms.Second)
	}
	c = &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}}}}}
	if err := b.Reset(t.Context(), c); err != nil || c.Results[0].Policy.Adjusted == nil {
		t.Fatalf("a reset: %v, adjustment %v; want the adjustment of the key", err, c.Results[0].Policy.Adjusted)
	}
	b.adjust("calls", nil)
	if n := b.left(t, "user=bob"); n != 20 {
		t.Errorf("%d left after a reset, want 20", n)
	}
}

// An adjusted limit is unlimited in the same way as a limit with "unlimited: true" in the configuration.
func TestAnUnlimitedAdjustmentChargesNothing(t *testing.T) {
	b := newBench(t, adjustable)
	b.allowed(t, 15, "user=bob")
	b.adjust("calls", map[string]adjust.Change{"bob": {Unlimited: true}})
	if n := b.allowed(t, 100, "user=bob"); n != 100 {
		t.Errorf("got %d of 100; want 100", n)
	}
	if r := &b.send(t, 1, "user=bob").Results[0]; r.Outcome != limiter.Unlimited || r.Key != nil || r.Decision != (backend.Decision{}) {
		t.Errorf("got %+v; want the outcome %v and no bucket", r, limiter.Unlimited)
	}
	if r := &b.send(t, 0, "user=bob").Results[0]; r.Outcome != limiter.Unlimited {
		t.Errorf("a dry run: got %+v; want the outcome %v", r, limiter.Unlimited)
	}
	if c := b.send(t, 1000, "user=bob", "other=1"); !c.Denied || c.Statuses[0].Denied || !c.Never {
		t.Errorf("only other denies 1000: %+v; want denied, never, and the first status not denied", c.Verdict)
	}
	if c := b.send(t, 1, "shadow=bob"); c.Denied || c.Results[0].Outcome != limiter.Unlimited {
		t.Errorf("a shadow limit: %+v; want the outcome %v", c.Verdict, limiter.Unlimited)
	}
	b.store.err = backend.ErrUnavailable
	if c := b.send(t, 1, "user=bob"); c.Denied || c.Failed {
		t.Errorf("while the store fails: %+v; want allowed and not failed, because the store is not needed", c.Verdict)
	}
	b.store.err = nil
	b.send(t, -2, "user=bob") // a refund applies to the bucket
	b.adjust("other", nil)
	if n := b.allowed(t, 100, "user=bob"); n != 7 {
		t.Errorf("afterwards, with 15 of 20 consumed and 2 refunded: got %d, want 7", n)
	}
}

// What an operator sees for a key that is blocked or unlimited is the answer to the next request.
func TestAnOperatorSeesTheAnswerToTheNextRequest(t *testing.T) {
	const limits = `
domain: d
hash_tag: domain
limits:
  plan:    {algorithm: token_bucket, rate: 2, period: 1h, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h}
  calls:   {algorithm: token_bucket, rate: 1, period: 1h}
  other:   {algorithm: token_bucket, rate: 1, period: 1h}
  strict:  {algorithm: token_bucket, rate: 1, period: 1h, penalty: {after: 1, for: 2h, max: 1d}}
descriptors:
  - {key: user, limit: plan}
  - {key: strict, limit: strict}
  - {key: quota, limit: [calls, other], quota_mode: true}
`
	for _, limit := range []string{"plan", "credits", "calls", "other", "strict"} {
		for _, change := range []adjust.Change{{Block: true}, {Unlimited: true}} {
			for before := range 15 { // requests before the adjustment, in one of the modes
				mode := []limiter.Modes{{}, {Shadow: true}, {Quota: true}}[before%3]
				b := newBench(t, limits, mode)
				for range before / 3 {
					b.send(t, 1, "user=bob", "quota=bob")
					b.send(t, 1, "strict=bob")
				}
				b.adjust(limit, map[string]adjust.Change{"bob": change})
				for _, texts := range [][]string{{"user=bob"}, {"quota=bob"}, {"user=bob", "quota=bob"}, {"strict=bob"}} {
					next := request(t, 1, texts...)
					next.Inspect = true
					seen := b.check(t, next)
					if next := b.send(t, 1, texts...); seen.Denied != next.Denied {
						t.Errorf("%s of %s, %+v, after %d requests: %v is shown as denied %t; the next one is denied %t",
							change.String(), limit, mode, before/3, texts, seen.Denied, next.Denied)
					}
					for _, r := range seen.Results {
						if d := &r.Decision; r.Outcome == limiter.Unlimited && (d.RetryAfter > 0 || d.Blocked > 0) {
							t.Errorf("%s of %s after %d requests: %v is unlimited, retry after %d, blocked for %d", change.String(), limit, before/3, texts, d.RetryAfter, d.Blocked)
						}
					}
				}
			}
		}
	}
}

func TestTheStricterOfAnOverrideAndAnAdjustmentHolds(t *testing.T) {
	b := newBench(t, adjustable)
	allowed := func(user string) (n int) {
		for range 50 {
			if !b.override(t, "window="+user, limiter.Override{Rate: 7, Period: minute}).Denied {
				n++
			}
		}
		return n
	}
	b.adjust("window", map[string]adjust.Change{"blocked": {Block: true}, "less": {Rate: number(2)}, "more": {Rate: number(30)}, "free": {Unlimited: true}})
	for user, want := range map[string]int{"blocked": 0, "less": 2, "more": 7, "free": 7, "none": 7} {
		if n := allowed(user); n != want {
			t.Errorf("%s got %d, want %d", user, n, want)
		}
	}
	for _, modes := range []limiter.Modes{{}, {Quota: true}} {
		b.restart(t, adjustable, func(c *limiter.Config) { c.Modes = modes })
		b.adjust("window", map[string]adjust.Change{"blocked": {Block: true}})
		if c := b.override(t, "unknown=1", limiter.Override{Rate: 1}); !c.Denied || c.Results[0].Policy != nil {
			t.Errorf("%+v: got %+v, want a denial of an override without a period", modes, c.Verdict)
		}
	}
}

func TestAdjustmentsThatDoNotApplyAreCountedAndChangeNothing(t *testing.T) {
	b := newBench(t, adjustable)
	if got := b.adjust("gone", map[string]adjust.Change{"bob": {Block: true}}); got.Ignored != 1 || got.InForce != 0 {
		t.Errorf("got %+v; want one ignored adjustment, and none in force", got)
	}
	if got := b.adjust("calls", map[string]adjust.Change{"bob": {Capacity: number(1 << 52)}}); got.Ignored != 1 {
		t.Errorf("got %+v; want ignored 1", got)
	}
	if n := b.allowed(t, 50, "user=bob"); n != 20 {
		t.Errorf("got %d, want 20", n)
	}
}

func TestPoliciesThatAreNotAdjustedKeepTheirPointers(t *testing.T) {
	b := newBench(t, adjustable)
	before := b.send(t, 1, "user=ann").Results[0].Policy
	b.adjust("calls", map[string]adjust.Change{"bob": {Factor: 2000}})
	if got := b.send(t, 1, "user=ann").Results[0].Policy; got != before {
		t.Error("ann's limit is another copy")
	}
	first := b.send(t, 1, "user=bob").Results[0].Policy
	if got := b.send(t, 1, "user=bob").Results[0].Policy; got == before || got != first {
		t.Error("bob's limit is not a single copy of its own")
	}
	if got := b.send(t, 1, "shadow=bob").Results[0].Policy; !got.Shadow || got.Limit != first.Limit {
		t.Errorf("the same limit at a descriptor in shadow mode: shadow %t, Limit %p; want shadow mode and the Limit %p", got.Shadow, got.Limit, first.Limit)
	}
}

func TestHostileKeysAreAdjustedByTheirBytes(t *testing.T) {
	b := newBench(t, adjustable)
	long := string(slices.Repeat([]byte{0xff, 'x'}, 2000))
	b.adjust("calls", map[string]adjust.Change{"\xff\x00\xfe": {Block: true}, long: {Block: true}})
	send := func(value string) bool {
		c := &limiter.Call{}
		c.Request.Domain = "d"
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: "user", Value: value}}, 1
		if err := b.Check(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		return c.Denied
	}
	for value, want := range map[string]bool{"\xff\x00\xfe": true, long: true, "\xff": false, "\xff\x00\x00\xfe": false, long + "x": false, "\ufffd\x00\xfe": false} {
		if got := send(value); got != want {
			t.Errorf("%.20q: denied %v; want %v", value, got, want)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	few := map[string]adjust.Change{"bob": {Factor: 2000}}
	many := map[string]adjust.Change{}
	for i := range adjust.MaxAdjustments {
		many[time.Duration(i).String()] = adjust.Change{Factor: 2000}
	}
	for _, of := range []struct {
		name    string
		limit   string
		changes map[string]adjust.Change
		key     string
	}{
		{"without adjustments", "calls", nil, "user=ann"},
		{"of another limit", "other", few, "user=ann"},
		{"of another key", "calls", few, "user=ann"},
		{"of the key", "calls", few, "user=bob"},
		{"of 10000 other keys", "calls", many, "user=ann"},
		{"of 10000 keys", "calls", many, "user=77ns"},
	} {
		b.Run(of.name, func(b *testing.B) {
			x := newBench(b, adjustable)
			x.adjust(of.limit, of.changes)
			entries, _ := descriptors.Parse(of.key)
			c := &limiter.Call{}
			b.ReportAllocs()
			for b.Loop() {
				c.Reset()
				c.Request.Domain = "d"
				d := c.AddDescriptor()
				d.Entries, d.Cost = append(d.Entries, entries...), 0
				if err := x.Check(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// manyLimits returns a Limiter with n limits, and their names. The names repeat after 50,000 limits, in another
// domain.
func manyLimits(n int) (l *limiter.Limiter, names []string) {
	s := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"a": {Name: "a"}, "b": {Name: "b"}}}
	for i := range n {
		name := fmt.Sprintf("limit%d", i%50_000)
		s.Policies = append(s.Policies, &limiter.Policy{Limit: &algorithms.Limit{}, Domain: []string{"a", "b"}[i/50_000%2], Name: name, Index: i, Owner: strconv.Itoa(i)})
		names = append(names, name)
	}
	l = limiter.New(memory.New(memory.Config{}), limiter.Config{})
	l.Swap(s)
	return l, names
}

func TestAdjustableFindsEachUseOfALimit(t *testing.T) {
	l, names := manyLimits(100_000)
	for _, domain := range []string{"a", "b"} {
		for _, name := range names[:50_000] {
			in, _, err := l.Adjustable(&adjust.Target{Domain: domain, Limit: name, AllKeys: true})
			if err != nil || in != domain {
				t.Fatalf("limit %s of domain %s: domain %q, %v; want the limit", name, domain, in, err)
			}
		}
	}
	if _, _, err := l.Adjustable(&adjust.Target{Limit: names[7], AllKeys: true}); err == nil || !strings.Contains(err.Error(), "several domains have a limit named") {
		t.Errorf("without the domain: %v; want an error about several domains", err)
	}
	if _, _, err := l.Adjustable(&adjust.Target{Domain: "a", Limit: "limit", AllKeys: true}); err == nil {
		t.Error("a prefix of a name was found; want an error")
	}
}

func TestAnAdjustmentAppliesToItsDomain(t *testing.T) {
	const limits = "limits:\n  jobs: {algorithm: fixed_window, rate: 10, period: 1d}\ndescriptors:\n  - {key: a, limit: jobs}\n"
	b := newBench(t, "domain: other\n"+limits+"---\ndomain: d\n"+limits)
	b.adjust("jobs", map[string]adjust.Change{"1": {Rate: number(3)}})
	if n := b.allowed(t, 20, "a=1"); n != 3 {
		t.Errorf("%d allowed in the adjusted domain, want 3", n)
	}
	other := request(t, 10, "a=1")
	other.Domain = "other"
	if b.check(t, other).Denied {
		t.Error("the other domain: denied; want allowed")
	}
}

func TestALimitThatABlockLeavesUnchargedCountsAsReplaced(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
	c := b.send(t, 1, "other=1", "user=bob")
	if first, second := c.Results[0].Outcome, c.Results[1].Outcome; first != limiter.Replaced || second != limiter.Denied || c.Statuses[0].Result != -1 {
		t.Errorf("outcomes %v and %v, and result %d is reported for the first; want %v, %v and none", first, second, c.Statuses[0].Result, limiter.Replaced, limiter.Denied)
	}
	b.store.err = backend.ErrUnavailable
	if c := b.send(t, 1, "user=bob"); !c.Denied || c.Failed {
		t.Errorf("a block needs no store: %+v; want denied and not failed", c.Verdict)
	}
}

// An adjustment expires, so a cost that only the adjusted limit cannot hold gets a retry time.
func TestACostAboveALoweredLimitWaitsForTheExpiry(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("calls", map[string]adjust.Change{"bob": {Capacity: number(5)}, "eve": {Capacity: number(0)}})
	b.now += 58 * algorithms.Second
	for _, test := range []struct {
		key  string
		cost int64
		want algorithms.Micros // 0: never
	}{{"bob", 6, 2 * algorithms.Second}, {"bob", 20, 2 * algorithms.Second}, {"bob", 21, 0}, {"eve", 1, 2 * algorithms.Second}, {"ann", 21, 0}} {
		for how, c := range map[string]*limiter.Call{
			"a descriptor": b.send(t, test.cost, "user="+test.key), "a named limit": b.named(t, "calls", test.cost, test.key),
		} {
			if !c.Denied || c.RetryAfter != test.want || c.Never != (test.want == 0) {
				t.Errorf("%d for %s by %s: denied %t, retry after %d, never %t; want denied, and retry after %d (0: never)",
					test.cost, test.key, how, c.Denied, c.RetryAfter, c.Never, test.want)
			}
		}
	}
	b.now += 2*algorithms.Second - 1
	if c := b.send(t, 20, "user=bob"); !c.Denied || c.RetryAfter != 1 {
		t.Errorf("1 us before the end: denied %t, retry after %d; want denied, and 1", c.Denied, c.RetryAfter)
	}
	b.now++
	if c := b.send(t, 20, "user=bob"); c.Denied {
		t.Error("denied after the adjustment has expired")
	}
}

// Credits that are lowered for a while cannot hold the cost now. They can pay again when the adjustment has expired.
func TestACostAboveLoweredCreditsWaitsForTheExpiry(t *testing.T) {
	b := newBench(t, `
domain: d
hash_tag: domain
limits:
  plan:  {algorithm: token_bucket, rate: 1, period: 1h, then: calls}
  calls: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 100, initial: 50}
`)
	b.adjust("calls", map[string]adjust.Change{"bob": {Capacity: number(40)}})
	if c := b.named(t, "plan", 45, "bob"); !c.Denied || c.Never || c.RetryAfter != minute {
		t.Errorf("denied %t, never %t, retry after %d; want denied until the end of the adjustment", c.Denied, c.Never, c.RetryAfter)
	}
	if c := b.named(t, "plan", 101, "bob"); !c.Never {
		t.Errorf("got %+v; want never", c.Results)
	}
}

// An operator who inspects the bucket of an unlimited key gets its state.
func TestAnOperatorSeesTheBucketOfAnUnlimitedKey(t *testing.T) {
	b := newBench(t, adjustable)
	b.allowed(t, 20, "user=bob")
	b.adjust("calls", map[string]adjust.Change{"bob": {Unlimited: true}})
	c := b.check(t, limiter.Inspection("d", "calls", []string{"bob"}, nil, 1).Request)
	if r := &c.Results[0]; c.Denied || r.Outcome != limiter.Unlimited || r.Key == nil || r.Decision.At != b.now || r.Decision.ResetAfter != 2*minute {
		t.Errorf("got %+v; want the outcome %v and the state of the empty bucket", c.Verdict, limiter.Unlimited)
	}
}

func TestALimitConfiguredUnlimitedCanBeBlocked(t *testing.T) {
	b := newBench(t, adjustable)
	if got := b.adjust("free", map[string]adjust.Change{"bob": {Block: true}, "ann": {Factor: 2000}}); got.InForce != 1 || got.Ignored != 1 {
		t.Errorf("got %+v; want in force 1 and ignored 1", got)
	}
	if !b.send(t, 1, "free=bob").Denied {
		t.Error("bob is allowed")
	}
	if c := b.send(t, 1, "free=ann"); c.Denied || c.Results[0].Outcome != limiter.Unlimited {
		t.Errorf("ann: %+v; want allowed and outcome %v", c.Verdict, limiter.Unlimited)
	}
}
