package limiter

import (
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const minute = 60 * algorithms.Second

func number(n int64) *int64 { return &n }

func policy(tb testing.TB, s algorithms.Spec) *Policy {
	tb.Helper()
	l := limittest.Compile(tb, s)
	return &Policy{
		Domain: "edge", Name: "send_message", Limit: l, Keys: descriptors.Keys{Open: []int{0}}, Extras: &Extras{OpenKeys: []string{"user_id"}},
	}
}

// A block denies everything, so it ends shadow mode and quota mode.
func TestABlockEndsShadowAndQuotaMode(t *testing.T) {
	p := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute})
	p.Shadow, p.Quota, p.Reference = true, true, true
	for _, c := range []adjust.Change{{Block: true}, {Unlimited: true}, {Factor: 2000}} {
		got, err := apply(&adjust.Adjustment{ID: "id", Change: c, Created: 3, Expires: 7}, p)
		if err != nil {
			t.Fatal(err)
		}
		want := PolicyAdjustment{ID: "id", Expires: 7, Unlimited: c.Unlimited, Block: c.Block}
		if c.Factor != 0 {
			want.Configured = p.Limit
		}
		if *got.Adjusted != want || got.Shadow == c.Block || got.Quota == c.Block || !got.Reference {
			t.Errorf("%s: got %+v, shadow mode %v, quota mode %v; want %+v, and both modes unless it is a block",
				c.String(), got.Adjusted, got.Shadow, got.Quota, want)
		}
	}
	if p.Adjusted != nil || !p.Shadow || !p.Quota {
		t.Error("the configured policy has changed")
	}
}

// A block applies to every limit. A limit without a window, or with a block, is not in the reference form, in which
// answers report a window.
func TestAdjustmentsThatALimitCannotHave(t *testing.T) {
	unlimited := &Policy{Limit: &algorithms.Limit{}, Unlimited: true, Reference: true}
	zero := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 0, Period: minute})
	zero.Reference = true
	ten := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute})
	sliding := policy(t, algorithms.Spec{Kind: algorithms.SlidingWindow, Rate: 10, Period: minute})
	log := policy(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 10, Period: minute})
	day := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Calendar: calendar.Day.In(time.UTC)})
	for _, test := range []struct {
		p    *Policy
		a    adjust.Adjustment
		rate int64  // of the adjusted limit
		want string // a part of the error; "" means none
	}{
		{unlimited, adjust.Adjustment{Change: adjust.Change{Block: true}}, 0, ""},
		{unlimited, adjust.Adjustment{Change: adjust.Change{Factor: 2000}}, 0, "no numbers to change"},
		{unlimited, adjust.Adjustment{Change: adjust.Change{Unlimited: true}}, 0, "unlimited"},
		{zero, adjust.Adjustment{Change: adjust.Change{Block: true}}, 0, ""},
		{zero, adjust.Adjustment{Change: adjust.Change{Factor: 2000}}, 0, "no numbers to change"},
		{ten, adjust.Adjustment{Change: adjust.Change{Block: true}}, 10, ""},
		{ten, adjust.Adjustment{Change: adjust.Change{Factor: 100}}, 1, ""},
		{ten, adjust.Adjustment{Change: adjust.Change{Factor: 99}}, 0, "is less than 1"},
		{sliding, adjust.Adjustment{Change: adjust.Change{Capacity: number(3)}}, 0, "has no capacity"},
		{log, adjust.Adjustment{Change: adjust.Change{Capacity: number(3)}}, 0, "has no capacity"},
		{day, adjust.Adjustment{Change: adjust.Change{Period: adjust.Span(minute)}}, 0, "is a calendar day, which cannot be adjusted"},
		{day, adjust.Adjustment{Change: adjust.Change{Rate: number(20)}}, 20, ""},
		{
			sliding, adjust.Adjustment{Change: adjust.Change{Factor: 2000}, Algorithm: algorithms.TokenBucket}, 0,
			"the limit is a sliding_window now; the adjustment was made for a token_bucket",
		},
		{sliding, adjust.Adjustment{Change: adjust.Change{Block: true}, Algorithm: algorithms.TokenBucket}, 10, ""},
	} {
		got, err := apply(&test.a, test.p)
		switch {
		case test.want != "":
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v; want an error with %q", test.a.Change.String(), err, test.want)
			}
		case err != nil || got.Limit.Rate != test.rate || got.Reference || (got.Limit.Calendar == nil) != (test.p != day):
			t.Errorf("%s: got %+v, %v; want a rate of %d, and no window to report", test.a.Change.String(), got, err, test.rate)
		}
	}
}

// A request that reserved more than the adjusted capacity would always be denied.
func TestReservationsFitTheAdjustedCapacity(t *testing.T) {
	p := policy(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: minute})
	p.Extras.Settle = &SettleTerms{Estimate: 50, Least: 20, Most: 200}
	configured := *p.Extras.Settle
	for _, c := range []struct {
		change adjust.Change
		want   SettleTerms
		words  string
	}{
		{adjust.Change{Factor: 10}, SettleTerms{Estimate: 10, Least: 10, Most: 10}, "10 per 1m, up to 10 at once; a request reserves at most 10, until"},
		{adjust.Change{Factor: 30}, SettleTerms{Estimate: 30, Least: 20, Most: 30}, "30 per 1m, up to 30 at once; a request reserves at most 30, until"},
		{adjust.Change{Factor: 200}, configured, "200 per 1m, up to 200 at once, until"},
		{adjust.Change{Factor: 2000}, configured, "2000 per 1m, up to 2000 at once, until"},
		{adjust.Change{Capacity: number(0)}, SettleTerms{Estimate: 1, Least: 1, Most: 1}, "; a request reserves at most 1, until"},
	} {
		a := &adjust.Adjustment{Change: c.change, Expires: 1}
		got, err := apply(a, p)
		if err != nil {
			t.Fatal(err)
		}
		if *got.Extras.Settle != c.want || *p.Extras.Settle != configured {
			t.Errorf("%s: %+v, and configured %+v; want %+v and %+v", c.change.String(), *got.Extras.Settle, *p.Extras.Settle, c.want, configured)
		}
		if words, err := AdjustmentWords(a, p); err != nil || !strings.Contains(words, c.words) {
			t.Errorf("%s: %q, %v; want %q in it", c.change.String(), words, err, c.words)
		}
	}
}

func TestAdjustedLimits(t *testing.T) {
	bucket := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute}
	with := func(change func(*algorithms.Spec)) algorithms.Spec {
		s := bucket
		change(&s)
		return s
	}
	for _, test := range []struct {
		name   string
		was    algorithms.Spec
		change adjust.Change
		want   algorithms.Spec
	}{
		{"a rate, and with it the capacity that was not configured", bucket, adjust.Change{Rate: number(50)}, with(func(s *algorithms.Spec) { s.Rate = 50 })},
		{"a rate, and the capacity stays", with(func(s *algorithms.Spec) { s.Capacity = number(20) }), adjust.Change{Rate: number(50)},
			with(func(s *algorithms.Spec) { s.Rate, s.Capacity = 50, number(20) })},
		{"a capacity below initial", with(func(s *algorithms.Spec) { s.Capacity, s.Initial = number(20), number(15) }), adjust.Change{Capacity: number(5)},
			with(func(s *algorithms.Spec) { s.Capacity, s.Initial = number(5), number(4) })},
		{"a factor", with(func(s *algorithms.Spec) { s.Capacity = number(15) }), adjust.Change{Factor: 1500},
			with(func(s *algorithms.Spec) { s.Rate, s.Capacity = 15, number(22) })},
		{"a factor of both rates", with(func(s *algorithms.Spec) { s.Minimum = &algorithms.Rate{Units: 2, Period: algorithms.Second} }), adjust.Change{Factor: 3000},
			with(func(s *algorithms.Spec) {
				s.Rate, s.Minimum = 30, &algorithms.Rate{Units: 6, Period: algorithms.Second}
			})},
		{"a queue", algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: minute, Capacity: number(4)}, adjust.Change{Factor: 2000},
			algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 10, Period: minute, Capacity: number(8)}},
		{"a rate, and the queue stays", algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: minute, Capacity: number(5)}, adjust.Change{Rate: number(8)},
			algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 8, Period: minute, Capacity: number(5)}},
		{"a factor of initial, below the capacity as before", with(func(s *algorithms.Spec) { s.Initial = number(8) }), adjust.Change{Factor: 500},
			with(func(s *algorithms.Spec) { s.Rate, s.Initial = 5, number(4) })},
		{"a period", bucket, adjust.Change{Period: adjust.Span(2 * minute)}, with(func(s *algorithms.Spec) { s.Period = 2 * minute })},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &adjust.Adjustment{Change: test.change}
			got, err := apply(a, policy(t, test.was))
			if err != nil {
				t.Fatal(err)
			}
			if want := policy(t, test.want).Limit; *got.Limit != *want {
				t.Errorf("got %+v, want %+v", got.Limit, want)
			}
		})
	}
}

// Policies share their Extras. An adjustment of one must not change the others.
func TestShardsLeaseAndLocalShareFollowTheNumbers(t *testing.T) {
	spec := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: minute}
	p := policy(t, spec)
	p.Extras.Shards, _ = algorithms.Split(spec, 4)
	p.Extras.Lease, p.Extras.LocalShare = &algorithms.Lease{Most: 10, For: 1000}, 0.2
	local, _ := algorithms.Compile(SpecShare(spec, 0.2))
	p.Extras.Local = &local
	got, err := apply(&adjust.Adjustment{Change: adjust.Change{Factor: 10_000}}, p)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, s := range got.Extras.Shards {
		sum += s.Capacity
	}
	if len(got.Extras.Shards) != 4 || sum != 1000 || got.Extras.Lease.Most != 100 || got.Extras.Local.Rate != 200 || p.Extras.Lease.Most != 10 || p.Extras.Local.Rate != 20 {
		t.Errorf("shards hold %d, lease %+v, local %+v; want 4 shards of 1000 together, a lease of 100, a local rate of 200, and the configured ones unchanged", sum, got.Extras.Lease, got.Extras.Local)
	}
	if _, err := apply(&adjust.Adjustment{Change: adjust.Change{Rate: number(3)}}, p); err == nil || !strings.Contains(err.Error(), "4 shards") {
		t.Errorf("3 units on 4 shards: %v; want an error that contains \"4 shards\"", err)
	}
}

// If the whole descriptor identifies a bucket, a key has keys and values in turn, so their number is even.
func TestAKeyHasTheValuesOfABucket(t *testing.T) {
	named, none := &Policy{Extras: &Extras{Named: true}}, &Policy{}
	whole := &Policy{Keys: descriptors.Keys{Whole: true, Open: []int{0}}}
	open := &Policy{Keys: descriptors.Keys{Open: []int{0, 1}}, Extras: &Extras{OpenKeys: []string{"user", "path"}}}
	for _, test := range []struct {
		policies []*Policy
		values   int
		want     string // the end of the error; "" means none
	}{
		{[]*Policy{named}, 3, ""},
		{[]*Policy{named, open}, 2, ""},
		{[]*Policy{named, whole}, 2, ""},
		{[]*Policy{open, whole, none}, 0, ""},
		{[]*Policy{named, open}, 0, "the key has no value; a bucket of this limit is identified by 2 values (user, path)"},
		{[]*Policy{named, open, open, none}, 3, "the key has 3 values; a bucket of this limit is identified by 2 values (user, path) or by no value"},
		{[]*Policy{named, whole}, 0, "the key has no value; a bucket of this limit is identified by key,value,key,value… of the whole descriptor"},
		{[]*Policy{whole}, 1, "the key has 1 value; a bucket of this limit is identified by key,value,key,value… of the whole descriptor"},
	} {
		err := checkKey(test.policies, "l", make([]string, test.values))
		if (err == nil) != (test.want == "") || err != nil && err.Error() != `limit "l": `+test.want {
			t.Errorf("%d policies and %d values: got %v; want %q", len(test.policies), test.values, err, test.want)
		}
	}
}
