package limiter_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func TestAReusedCallAnswersLikeANewOne(t *testing.T) {
	p, c := newProxy(t), &limiter.Call{}
	check := func(hits int64, texts ...string) {
		t.Helper()
		c.Reset()
		c.Request.Domain = "d"
		for _, parsed := range request(t, hits, texts...).Descriptors {
			d := c.AddDescriptor()
			d.Entries, d.Cost, d.Explicit, d.Declared = parsed.Entries, hits, true, true
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

// A reused Call still has the key of the former payer in a buffer. Each request must be paid by the payer of its own
// key.
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

func TestACostThatADescriptorStates(t *testing.T) {
	for cost, explicit := range map[int64]bool{-1: false, 0: true, 1: true} {
		d := limiter.Descriptor{}
		if d.State(cost); d.Cost != cost || d.Explicit != explicit || !d.Declared {
			t.Errorf("%d: got %+v", cost, d)
		}
	}
}

// A listener makes a request from one configuration.
func TestARequestForAnotherConfiguration(t *testing.T) {
	b := newBench(t, adjustable)
	c := &limiter.Call{Request: request(t, 1, "user=bob")}
	c.MadeFor = b.Current()
	if err := b.Check(t.Context(), c); err != nil {
		t.Error(err)
	}
	c.Reset()
	c.Request = request(t, 1, "user=bob")
	c.MadeFor = &limiter.Snapshot{}
	if err := b.Check(t.Context(), c); !errors.Is(err, limiter.ErrReloaded) {
		t.Errorf("got the error %v, want ErrReloaded", err)
	}
}

func TestValuesOfABucket(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: minute, requests_per_unit: 3}}\n  - {key: u, rate_limit: {unlimited: true}}\n")
	r := request(t, 1, "a=1", "a=1", "unknown=1")
	r.Descriptors[1].HasOverride, r.Descriptors[1].Override = true, limiter.Override{Rate: 5, Period: minute}
	r.Descriptors[2].HasOverride = true // its numbers describe no window
	c := b.check(t, r)
	if len(c.Results) != 3 {
		t.Fatalf("%d results; want 3", len(c.Results))
	}
	for i, want := range [][]string{{"1"}, {"a", "1"}, nil} { // the values, the whole descriptor, no bucket
		if got := c.AppendValues(nil, &c.Results[i]); !slices.Equal(got, want) {
			t.Errorf("result %d: got %q, want %q", i, got, want)
		}
	}
}
