package limiter_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func (b *bench) inspect(tb testing.TB, limit string, key ...string) string {
	tb.Helper()
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: limit, Key: key}}}}
	if err := b.Check(tb.Context(), c); err != nil {
		return err.Error()
	}
	return ""
}

func TestAnOperatorFindsLimitsOfDescriptors(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {name: own, algorithm: token_bucket, rate: 10, period: 1m}}
  - {key: u, rate_limit: {name: free, unlimited: true}}
`)
	if problem := b.inspect(t, "own", "1"); problem != "" {
		t.Errorf("%s; want no error", problem)
	}
	for _, key := range [][]string{nil, {"1", "2"}} {
		if problem := b.inspect(t, "own", key...); !strings.Contains(problem, "identified by 1 value") {
			t.Errorf("key %q: got %q, want the error that a bucket has one value", key, problem)
		}
	}
	if problem := b.inspect(t, "free", "1"); !strings.Contains(problem, `no limit named "free"`) {
		t.Errorf("an unlimited descriptor: got %q, want the error that there is no limit", problem)
	}
}

// An error about a key lists the uses of the limit, each form of a key once, and up to 8 of them.
func TestAnErrorListsTheKeysOfALimit(t *testing.T) {
	for n, others := range map[int]bool{8: false, 9: true} {
		var yaml strings.Builder
		yaml.WriteString("domain: d\nlimits:\n  calls: {algorithm: token_bucket, rate: 10, period: 1m}\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&yaml, "  - {key: k%d, limit: calls}\n", i)
		}
		yaml.WriteString("  - {key: x, value: y, descriptors: [{key: k0, limit: calls}]}\n") // its key has the form of that of k0
		problem := newBench(t, yaml.String()).inspect(t, "calls")
		if got := strings.Count(problem, "(k"); got != 8 || strings.HasSuffix(problem, " or others") != others {
			t.Errorf("%d keys: %d are listed in %q; want 8, others %v", n, got, problem, others)
		}
	}
}

func TestTheDomainOfALimitThatComesWithARequest(t *testing.T) {
	one, two := &limiter.Domain{Name: "one"}, &limiter.Domain{Name: "two"}
	several := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"one": one, "two": two}}
	if d, err := several.InlineDomain("", "x"); err == nil {
		t.Errorf("of two domains, %s was chosen; want an error", d.Name)
	}
	if d, err := several.InlineDomain("two", "x"); d != two || err != nil {
		t.Errorf("got %v, %v; want the named domain", d, err)
	}
	if d, err := (&limiter.Snapshot{Domains: map[string]*limiter.Domain{"one": one}}).InlineDomain("", "x"); d != one || err != nil {
		t.Errorf("got %v, %v; want the only domain", d, err)
	}
}

func TestAResetAppliesToAllBuckets(t *testing.T) {
	b := newBench(t, batched)
	b.send(t, 2, "a=1", "l=1")
	b.store.err = backend.ErrUnavailable
	b.send(t, 2, "l=1")
	b.store.err = nil
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for _, key := range []string{"u", "a", "l"} {
		d := c.AddDescriptor()
		d.Entries = []descriptors.Entry{{Key: key, Value: "1"}}
	}
	if err := b.Reset(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if a, l := b.left(t, "a=1"), b.left(t, "l=1"); a != 5 || l != 4 {
		t.Errorf("%d and %d left, want 5 and 4", a, l)
	}
	b.store.err = backend.ErrUnavailable
	if c := b.send(t, 2, "l=1"); c.Denied {
		t.Errorf("the local bucket: got %+v, want allowed", c.Verdict)
	}
}

func TestAResetReportsTheAdjustmentOfTheKey(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("calls", map[string]adjust.Change{"bob": {Rate: number(3)}})
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}}}}}
	if err := b.Reset(t.Context(), c); err != nil || c.Results[0].Policy.Adjusted == nil {
		t.Errorf("error %v, adjustment %v; want the adjustment of the key", err, c.Results[0].Policy.Adjusted)
	}
}

// The digest of a request covers the values of its keys, and the limits that come with it.
func TestAnIDWithAnotherRequestIsRefused(t *testing.T) {
	inline := func(rate int64) *descriptors.Policy {
		l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: sec})
		if err != nil {
			t.Fatal(err)
		}
		return &descriptors.Policy{Domain: "d", Name: "own", Limit: &l, Prefix: descriptors.Prefix("d", "inline", "own", l.Kind)}
	}
	for name, pair := range map[string][2]limiter.NamedCharge{
		"key":    {{Name: "one", Key: []string{"a"}, Count: 1}, {Name: "one", Key: []string{"b"}, Count: 1}},
		"inline": {{Name: "own", Count: 1, Inline: inline(5)}, {Name: "own", Count: 1, Inline: inline(6)}},
	} {
		b := newBench(t, "domain: d\nlimits:\n  one: {algorithm: fixed_window, rate: 10, period: 1d}\n")
		if _, err := b.once(t, "d", "id", pair[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := b.once(t, "d", "id", pair[1]); !errors.Is(err, backend.ErrReused) {
			t.Errorf("%s: got %v, want %v", name, err, backend.ErrReused)
		}
	}
}

// A store that does not know the outcome of an ID has not failed, so on_backend_failure does not apply.
func TestAPendingIDIsAnError(t *testing.T) {
	b := newBench(t, "domain: d\nlimits:\n  one: {algorithm: fixed_window, rate: 10, period: 1d, on_backend_failure: allow}\n")
	for _, want := range []error{backend.ErrPending, backend.ErrReused} {
		b.store.err = want
		if c, err := b.once(t, "d", "id", limiter.NamedCharge{Name: "one", Count: 1}); !errors.Is(err, want) {
			t.Errorf("got %+v, %v; want the error %v", c.Verdict, err, want)
		}
	}
}

// swapped records which configuration is in use when the Observer receives another one.
type swapped struct {
	counts

	l   *limiter.Limiter
	was []*limiter.Snapshot
}

func (s *swapped) Swapped(*limiter.Snapshot) { s.was = append(s.was, s.l.Current()) }

func TestTheObserverReceivesAConfigurationBeforeItsUse(t *testing.T) {
	o, first := &swapped{}, withLimit(t)
	o.l = limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: o})
	o.l.Swap(first)
	o.l.Swap(withLimit(t))
	if len(o.was) != 2 || o.was[0] != nil || o.was[1] != first {
		t.Errorf("got %v, want none and the first", o.was)
	}
}
