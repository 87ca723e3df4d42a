package limiter_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func TestBeforeAConfigurationNothingIsAdjustableOrReset(t *testing.T) {
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{})
	if in, _, err := l.Adjustable(&adjust.Target{Limit: "calls"}); !errors.Is(err, limiter.ErrNoConfig) || in != "" {
		t.Errorf("got %q, %v; want the error limiter.ErrNoConfig", in, err)
	}
	if keys, all := l.Buckets(&adjust.Adjustment{Target: adjust.Target{AllKeys: true}}); keys != nil || all {
		t.Errorf("got %v, %t; want no buckets", keys, all)
	}
	if err := l.Reset(t.Context(), callOf("a")); !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("got the error %v, want limiter.ErrNoConfig", err)
	}
}

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
	const named = "limits:\n  both: {algorithm: token_bucket, rate: 10, period: 1m}\n"
	b := newBench(t, "domain: d\n"+named+limits+"---\ndomain: other\n"+named+limits)
	for _, c := range []struct{ domain, limit, want string }{
		{"d", "own", ""}, {"", "own", "several domains"}, {"none", "own", `domain "none" is not configured`}, {"d", "none", `no limit named "none"`}, {"", "none", `no limit is named "none"`},
	} {
		_, _, err := b.Adjustable(&adjust.Target{Domain: c.domain, Limit: c.limit, AllKeys: true})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("adjusting %s of %q: got the error %v, want %q", c.limit, c.domain, err, c.want)
		}
		if words, err := b.Words(&adjust.Adjustment{Target: adjust.Target{Domain: c.domain, Limit: c.limit, AllKeys: true}, Change: adjust.Change{Block: true}}); (err == nil) != (c.want == "") || (words == "") != (c.want != "") {
			t.Errorf("the words for %s of %q: got %q and the error %v, want %q", c.limit, c.domain, words, err, c.want)
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
	entry := &adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "own", Entry: "b", Value: "1"}, Change: adjust.Change{Block: true}}
	if words, err := b.Words(entry); err == nil {
		t.Errorf("an unknown entry: got the words %q, want an error", words)
	}
	entry.Target.Entry = "a"
	if _, err := b.Words(entry); err != nil {
		t.Errorf("a known entry: got the error %v", err)
	}
	entry.Target = adjust.Target{Domain: "d", Limit: "own", Key: []string{"1", "2"}}
	if _, err := b.Words(entry); err != nil {
		t.Errorf("a key that no request has: got the error %v, want the words of the change", err)
	}
	call := &limiter.Call{Request: limiter.Request{Limits: []limiter.NamedCharge{{Name: "both"}}}}
	if err := b.Check(t.Context(), call); err == nil || !strings.Contains(err.Error(), "several domains") {
		t.Errorf("a limit of two domains: got the error %v", err)
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
	b.store.err = backend.ErrUnavailable
	calls := limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "calls", Key: []string{"bob"}}}}
	if err := b.Reset(t.Context(), &limiter.Call{Request: calls}); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), `limit "calls"`) {
		t.Errorf("the store fails: got the error %v, want backend.ErrUnavailable with the name of the limit", err)
	}
	if err := b.Reset(t.Context(), callOf("window")); !errors.Is(err, backend.ErrUnavailable) { // it cannot reserve, so it needs no mark
		t.Errorf("a window: got the error %v, want backend.ErrUnavailable", err)
	}
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Local: &faulty{Store: memory.New(memory.Config{}), err: backend.ErrUnavailable}})
	l.Swap(b.Current())
	if err := l.Reset(t.Context(), callOf("user")); err == nil || !strings.Contains(err.Error(), "local bucket") {
		t.Errorf("a local bucket: got the error %v, want one with \"local bucket\"", err)
	}
}

func (b *bench) inspect(tb testing.TB, limit string, key ...string) string {
	tb.Helper()
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: limit, Key: key}}}}
	if err := b.Check(tb.Context(), c); err != nil {
		return err.Error()
	}
	return ""
}

// An error about a key lists the uses of the limit, each form of a key once, and up to 8 of them.
func TestAnErrorListsTheKeysOfALimit(t *testing.T) {
	for n, others := range map[int]bool{8: false, 9: true} {
		var yaml strings.Builder
		yaml.WriteString("domain: d\nlimits:\n  calls: {algorithm: token_bucket, rate: 10, period: 1m}\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&yaml, "  - {key: k%d, limit: calls}\n", i)
		}
		yaml.WriteString("  - {key: x, value: y, descriptors: [{key: k0, limit: calls}]}\n") // a bucket of this use is identified in the same form as one of the use k0
		b := newBench(t, yaml.String())
		if b.inspect(t, "calls", "a", "b") == "" {
			t.Error("no use has keys of two values")
		}
		problem := b.inspect(t, "calls")
		if got := strings.Count(problem, "(k"); got != 8 || strings.HasSuffix(problem, " or others") != others {
			t.Errorf("%d keys: %d are listed in %q; want 8, others %v", n, got, problem, others)
		}
	}
}

// The whole descriptor identifies the buckets of a limit with a wildcard, so an operator must state it.
func TestAnOperatorStatesTheDescriptorOfAWildcard(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors:\n  - {key: 'path_*', rate_limit: {name: starred, algorithm: token_bucket, rate: 10, period: 1m}}\n")
	if problem := b.inspect(t, "starred", "a1"); !strings.Contains(problem, "--descriptor") {
		t.Errorf("got %q; want the error that the descriptor is needed", problem)
	}
}
