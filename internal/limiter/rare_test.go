package limiter_test

import (
	"net/netip"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/target"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestAdjustedReturnsTheResultOfAdjust(t *testing.T) {
	b := newBench(t, adjustable)
	want := b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
	if got := b.Adjusted(); got != want || got.InForce != 1 {
		t.Errorf("got %+v, want %+v with one in force", got, want)
	}
}

// The clock of the last call of Adjust decides which adjustments have expired.
func TestEachAdjustBringsItsClock(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
	a := &adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", Key: []string{"bob"}}, Change: adjust.Change{Block: true}, Expires: b.now + minute}
	a.ID = a.Target.ID()
	if got := b.Adjust(adjust.NewSet(adjust.Head{}, []*adjust.Adjustment{a}), func() algorithms.Micros { return b.now + minute }); got.InForce != 0 {
		t.Errorf("got %+v, want none in force", got)
	}
	if b.send(t, 1, "user=bob").Denied {
		t.Error("denied by an adjustment that has expired")
	}
}

// A limit may have a single bucket, whose key has no values. An adjustment of this key takes precedence over an
// adjustment of all keys.
func TestAnAdjustmentOfTheOnlyKeyTakesPrecedence(t *testing.T) {
	for _, limit := range []string{"a", "b", "c", "e", "f", "g"} { // the name decides which of the two adjustments is compiled first
		b := newBench(t, "domain: d\nlimits:\n  "+limit+": {algorithm: token_bucket, rate: 10, period: 1m}\ndescriptors:\n  - {key: x, value: y, limit: "+limit+"}\n")
		var all []*adjust.Adjustment
		for _, target := range []adjust.Target{{Domain: "d", Limit: limit, AllKeys: true}, {Domain: "d", Limit: limit}} {
			a := &adjust.Adjustment{ID: target.ID(), Target: target, Change: adjust.Change{Block: target.AllKeys}, Expires: b.now + minute}
			if !target.AllKeys {
				a.Change.Rate = number(3)
			}
			all = append(all, a)
		}
		b.Adjust(adjust.NewSet(adjust.Head{}, all), func() algorithms.Micros { return b.now })
		if n := b.allowed(t, 5, "x=y"); n != 3 {
			t.Errorf("limit %s: %d requests are allowed, want 3", limit, n)
		}
	}
}

func TestALimitThatABlockLeavesUnchargedCountsAsReplaced(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
	c := b.send(t, 1, "other=1", "user=bob")
	if first, second := c.Results[0].Outcome, c.Results[1].Outcome; first != limiter.Replaced || second != limiter.Denied || c.Statuses[0].Result != -1 {
		t.Errorf("outcomes %v and %v, and result %d is reported for the first; want %v, %v and none", first, second, c.Statuses[0].Result, limiter.Replaced, limiter.Denied)
	}
}

// The block may end between the decision and the computation of its remaining time.
func TestABlockHasARetryTime(t *testing.T) {
	b := newBench(t, adjustable)
	a := &adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", Key: []string{"bob"}}, Change: adjust.Change{Block: true}, Expires: b.now + minute}
	a.ID = a.Target.ID()
	now := b.now
	b.Adjust(adjust.NewSet(adjust.Head{}, []*adjust.Adjustment{a}), func() algorithms.Micros { return now })
	b.Adjust(adjust.NewSet(adjust.Head{}, []*adjust.Adjustment{a}), func() algorithms.Micros {
		was := now
		now += minute - 1
		return was
	})
	now = b.now
	if c := b.send(t, 1, "user=bob"); !c.Denied || c.RetryAfter != 1 {
		t.Errorf("1 us before the end: %+v, want a retry after 1 us", c.Verdict)
	}
	now = b.now + 1
	if c := b.send(t, 1, "user=bob"); !c.Denied || c.RetryAfter != 1 {
		t.Errorf("at the end: %+v, want a retry after 1 us", c.Verdict)
	}
}

// A penalty may block the bucket for longer than the operator's block.
func TestTheLongerOfTwoBlocksIsReported(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  calls: {algorithm: token_bucket, rate: 1, period: 1h, penalty: {after: 1, for: 30m, max: 30m}}
descriptors:
  - {key: user, limit: calls}
`)
	b.allowed(t, 3, "user=bob")
	b.adjust("calls", map[string]adjust.Change{"bob": {Block: true}})
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}, Count: 1}}}}
	if err := b.Check(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if d := c.Results[0].Decision; d.Blocked != 30*minute || d.RetryAfter < 30*minute {
		t.Errorf("blocked for %d us, retry after %d us; want %d and no less", d.Blocked, d.RetryAfter, 30*minute)
	}
}

func TestAnAdjustmentHasEachBucketOnce(t *testing.T) {
	b := newBench(t, adjustable)
	a := &adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "calls", Key: []string{"bob"}}}
	if keys, all := b.Buckets(a); len(keys) != 1 || all { // two descriptors use the limit
		t.Errorf("got %d keys, all %v; want one key", len(keys), all)
	}
}

// If the only limit is unlimited for a key, an override of it decides alone.
func TestAnOverrideOfAnUnlimitedKeyHasOneResult(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("window", map[string]adjust.Change{"free": {Unlimited: true}, "less": {Rate: number(2)}})
	for user, want := range map[string]int{"free": 1, "less": 2} {
		c := &limiter.Call{}
		c.Request.Domain = "d"
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: "window", Value: user}}, 1
		d.HasOverride, d.Override = true, limiter.Override{Rate: 7, Period: minute}
		if err := b.Check(t.Context(), c); err != nil || len(c.Results) != want {
			t.Errorf("%s: error %v, %d results; want %d", user, err, len(c.Results), want)
		}
	}
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
	b.send(t, 20, "user=bob") // the payer is charged
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

func TestTrustedAddresses(t *testing.T) {
	a := &limiter.Auth{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fe80::/10")}}
	for text, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "fe80::1%eth0": true, "11.1.2.3": false, "::ffff:11.1.2.3": false} {
		if got := a.Trusts(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: trusted %v, want %v", text, got, want)
		}
	}
}

func TestPathsOfRoutes(t *testing.T) {
	exact, prefix := limiter.Route{Path: "/api/"}, limiter.Route{Path: "/api/", PathPrefix: true}
	folded := limiter.Route{Path: "/api/", PathPrefix: true, Ignore: target.IgnoreTrailingSlash}
	for _, test := range []struct {
		route *limiter.Route
		path  string
		want  bool
	}{
		{&limiter.Route{}, "/x", true},
		{&exact, "/api/", true},
		{&exact, "/api", false},
		{&exact, "/api/x", false},
		{&prefix, "/api/x", true},
		{&prefix, "/api", false},
		{&folded, "/api", true},
		{&folded, "/apix", false},
	} {
		if got := test.route.MatchesPath(test.path); got != test.want {
			t.Errorf("%+v: %s matches %v, want %v", test.route, test.path, got, test.want)
		}
	}
}

func TestSourcesOfValues(t *testing.T) {
	for want, e := range map[string]limiter.AuthEntry{
		"client_ip": {From: limiter.FromClientIP}, "header:x": {From: limiter.FromHeader, Name: "x"}, "jwt:sub": {From: limiter.FromJWT, Name: "sub"},
	} {
		if got := e.Source(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
