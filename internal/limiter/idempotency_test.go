package limiter_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

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
	inline := func(rate int64) *limiter.Policy {
		l := limittest.Compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: sec})
		return &limiter.Policy{Domain: "d", Name: "own", Limit: l, Keys: descriptors.Keys{Prefix: descriptors.Prefix("d", "inline", "own", l.Kind)}}
	}
	remaining := func(domain, limit string, key ...string) int64 {
		return b.check(t, limiter.Request{Domain: domain, DryRun: true, Limits: []limiter.NamedCharge{{Name: limit, Key: key}}}).Results[0].Decision.Remaining
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
		"another key":       {{{Name: "one", Key: []string{"a"}, Count: 1}}, {{Name: "one", Key: []string{"b"}, Count: 1}}},
		"another config":    {{{Name: "own", Count: 1, Inline: inline(5)}}, {{Name: "own", Count: 1, Inline: inline(6)}}},
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

type stuck struct{}

func (stuck) Submit(*backend.Batch) {}

// A limit in shadow mode has a group of its own, which is charged after the first one.
func TestTheCallsForOneRequestTakeTheTimeOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, margin = 10 * time.Millisecond, 2 * time.Millisecond
		l := limiter.New(stores.Deadline(nil, stuck{}, timeout, margin, nil), limiter.Config{Deadline: func() time.Time { return time.Now().Add(timeout + margin) }})
		l.Swap(compiled(t, `
domain: d
limits:
  one: {algorithm: fixed_window, rate: 10, period: 1d}
  watched: {algorithm: fixed_window, rate: 10, period: 1d, shadow_mode: true}
`))
		for _, within := range []time.Duration{time.Minute, 5 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			began := time.Now()
			c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "one", Count: 1}, {Name: "watched", Count: 1}}}}
			c.IdempotencyKey = limiter.IdempotencyKey{ID: "id", Lifetime: sec}
			err := l.Check(ctx, c)
			if took, want := time.Since(began), min(timeout, within-margin); err != nil || !c.Denied || took != want {
				t.Errorf("denied %v after %v, error %v; want a denial after %v", c.Denied, took, err, want)
			}
		}
	})
}

func TestPartsOfAnIdempotencyIDAreSeparate(t *testing.T) {
	if limiter.IdempotencyID("a", "bc") == limiter.IdempotencyID("ab", "c") || limiter.IdempotencyID("a", "b") == limiter.IdempotencyID("a", "b", "") {
		t.Error("different parts have the same ID")
	}
	if limiter.IdempotencyID("a", "\x00b") == limiter.IdempotencyID("a\x00", "b") {
		t.Error("parts that a zero byte could separate have the same ID")
	}
	if limiter.IdempotencyID("a", "b") != limiter.IdempotencyID("a", "b") {
		t.Error("equal parts have different IDs")
	}
}

// If the credits of a plan have changed, a request with the same ID is not a repetition. So it is an error, like any
// reuse of the ID. If one of two limits no longer has the common payer, the stored answers are in another order than the
// charges, so none of them may be used.
func TestAnIDIsOfTheSamePayersInOneOrder(t *testing.T) {
	const yaml = `
domain: d
hash_tag: domain
limits:
  hours: {algorithm: token_bucket, rate: 10, period: 1h, then: credits}
  days: {algorithm: token_bucket, rate: 20, period: 1d, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
  more: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 20}
`
	for _, days := range []string{"period: 1d, then: more", "period: 1d"} {
		b := newBench(t, yaml)
		both := []limiter.NamedCharge{{Name: "hours", Count: 1}, {Name: "days", Count: 1}}
		if _, err := b.once(t, "d", "id", both...); err != nil {
			t.Fatal(err)
		}
		b.swap(t, strings.Replace(yaml, "period: 1d, then: credits", days, 1))
		if c, err := b.once(t, "d", "id", both...); !errors.Is(err, backend.ErrReused) {
			t.Errorf("%s: got %+v and the error %v, want backend.ErrReused", days, c.Results, err)
		}
	}
}

// The first request charges the limit "one" and denies, because the store fails for the quota. Then an operator blocks a
// key, so that the request would have other charges.
func TestARepetitionDoesNotPassAQuotaThatItNeverConsumed(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  one: {algorithm: fixed_window, rate: 10, period: 1d}
  quota: {algorithm: fixed_window, rate: 10, period: 1d, quota_mode: true}
`)
	limits := []limiter.NamedCharge{{Name: "one", Key: []string{"bob"}, Count: 1}, {Name: "quota", Count: 3}}
	b.store.err, b.store.limit = backend.ErrUnavailable, "quota"
	if c, err := b.once(t, "d", "id", limits...); err != nil || !c.Denied {
		t.Errorf("error %v, denied %v; want denied", err, c.Denied)
	}
	b.store.err = nil
	b.adjust("one", map[string]adjust.Change{"bob": {Block: true}})
	if c, err := b.once(t, "d", "id", limits...); err != nil || !c.Denied {
		t.Errorf("repeated: error %v, denied %v; want denied", err, c.Denied)
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
