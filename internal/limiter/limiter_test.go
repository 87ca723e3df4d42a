package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// bench is a Limiter whose store may fail, and the time.
type bench struct {
	*limiter.Limiter
	config limiter.Config
	store  *faulty
	now    algorithms.Micros
}

// faulty fails if err is set. If limit is set too, only groups with a bucket of that limit fail.
type faulty struct {
	backend.Store
	err   error
	limit string
}

func (f *faulty) Submit(b *backend.Batch) {
	defer b.Done(b)
	charges, decisions := b.Charges, b.Decisions
	for len(charges) > 0 {
		n := backend.GroupLen(charges)
		is := func(c backend.Charge) bool { return strings.HasSuffix(c.Owner, f.limit) }
		if f.err == nil || !slices.ContainsFunc(charges[:n], is) {
			backend.Take(context.Background(), f.Store, charges[:n], decisions[:n])
		} else {
			for i := range decisions[:n] {
				decisions[i].Err = f.err
			}
		}
		charges, decisions = charges[n:], decisions[n:]
	}
}

func newBench(tb testing.TB, yaml string, modes ...limiter.Modes) *bench {
	tb.Helper()
	b := &bench{now: 1_767_225_600 * algorithms.Second}
	clock := func() algorithms.Micros { return b.now }
	b.store = &faulty{Store: memory.New(memory.Config{Clock: storetest.Times(clock)})}
	b.config = limiter.Config{
		IDs: keysOf("a secret"), Now: clock, Process: 7, Local: memory.New(memory.Config{Clock: storetest.Times(clock)}),
	}
	b.restart(tb, yaml, func(c *limiter.Config) {
		for _, m := range modes {
			c.Modes = m
		}
	})
	return b
}

func keysOf(secrets ...string) limiter.IDs {
	return reservation.NewKeys(func() []string { return secrets })
}

// restart replaces the Limiter by one with the same store and another configuration.
func (b *bench) restart(tb testing.TB, yaml string, edit func(*limiter.Config)) {
	tb.Helper()
	edit(&b.config)
	b.Limiter = limiter.New(b.store, b.config)
	b.swap(tb, yaml)
}

func (b *bench) swap(tb testing.TB, yaml string) {
	tb.Helper()
	b.Swap(compiled(tb, yaml))
}

var compiled = configtest.Compile

// check returns the answer to r.
func (b *bench) check(tb testing.TB, r limiter.Request) *limiter.Call {
	tb.Helper()
	c := &limiter.Call{Request: r}
	if err := b.Check(tb.Context(), c); err != nil {
		tb.Fatal(err)
	}
	return c
}

func (b *bench) send(tb testing.TB, cost int64, texts ...string) *limiter.Call {
	tb.Helper()
	return b.check(tb, request(tb, cost, texts...))
}

// request returns a request of domain d with descriptors such as "user=bob".
func request(tb testing.TB, cost int64, texts ...string) limiter.Request {
	tb.Helper()
	r := limiter.Request{Domain: "d"}
	for _, text := range texts {
		entries, err := descriptors.Parse(text)
		if err != nil {
			tb.Fatal(err)
		}
		r.Descriptors = append(r.Descriptors, limiter.Descriptor{Entries: entries, Cost: cost})
	}
	return r
}

// override sends a descriptor with a limit of its own.
func (b *bench) override(tb testing.TB, text string, o limiter.Override) *limiter.Call {
	tb.Helper()
	r := request(tb, 1, text)
	r.Descriptors[0].Override, r.Descriptors[0].HasOverride = o, true
	return b.check(tb, r)
}

func (b *bench) left(tb testing.TB, text string) int64 {
	tb.Helper()
	return b.send(tb, 0, text).Results[0].Decision.Remaining
}

func TestShadowAndQuotaLimitsAreNotPartOfTheGroup(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: real, rate_limit: {algorithm: token_bucket, rate: 3, period: 1m}}
  - {key: dry, shadow_mode: true, rate_limit: {algorithm: token_bucket, rate: 1, period: 1m}}
  - {key: q1, quota_mode: true, rate_limit: {algorithm: token_bucket, rate: 1, period: 1m}}
  - {key: q2, quota_mode: true, rate_limit: {algorithm: token_bucket, rate: 2, period: 1m}}
`)
	for i := range 3 {
		c := b.send(t, 1, "real=1", "dry=1")
		want := limiter.Allowed
		if i > 0 {
			want = limiter.Shadowed
		}
		if c.Denied || c.Statuses[1].Denied || c.Results[1].Outcome != want {
			t.Errorf("request %d: %+v; want it allowed, and the second result with the outcome %v", i+1, c.Verdict, want)
		}
	}
	if c := b.send(t, 1, "real=1", "dry=2"); !c.Denied || c.Results[1].Outcome != limiter.Allowed {
		t.Errorf("the shadow limit is charged although the request is denied: %+v; want denied, and the outcome %v of the second result", c.Results, limiter.Allowed)
	}
	b.send(t, 1, "q1=1", "q2=1")
	if c := b.send(t, 1, "q1=1", "q2=1"); c.Denied || !c.Statuses[0].Denied || c.Statuses[1].Denied {
		t.Errorf("one quota of two is used up: %+v; want the request allowed, and only the first status denied", c.Verdict)
	}
	if c := b.send(t, 1, "q1=1", "q2=1"); !c.Denied || c.RetryAfter != 30*sec {
		t.Errorf("both quotas are used up: %+v; want denied until the second one allows, in 30 s", c.Verdict)
	}
	if c := b.send(t, 2, "q1=1", "q2=1"); !c.Denied || c.Never || c.RetryAfter != 60*sec {
		t.Errorf("one of two quotas can never allow the cost: %+v; want denied until the other one does, in 60 s", c.Verdict)
	}
	if c := b.send(t, 3, "q1=1", "q2=1"); !c.Never || c.RetryAfter != 0 {
		t.Errorf("no quota can ever allow the cost: %+v; want a denial that never ends", c.Verdict)
	}
}

func TestOnBackendFailureAnswersIfTheStoreFails(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: deny, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: allow, rate_limit: {unit: hour, requests_per_unit: 9, on_backend_failure: allow}}
  - {key: local, rate_limit: {unit: hour, requests_per_unit: 9, on_backend_failure: local, local_share: 25%}}
  - {key: least, rate_limit: {unit: hour, requests_per_unit: 9, on_backend_failure: local, local_share: 1%}}
  - {key: error, rate_limit: {unit: hour, requests_per_unit: 9, on_backend_failure: error}}
  - {key: dry, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
`)
	b.store.err = fmt.Errorf("%w: test", backend.ErrUnavailable)
	for text, denied := range map[string]bool{"deny=1": true, "allow=1": false, "dry=1": false, "local=1": false} {
		if c := b.send(t, 1, text); c.Denied != denied || !c.Failed || c.Err != nil {
			t.Errorf("%s: got %+v; want denied %v, failed and no error", text, c.Verdict, denied)
		}
	}
	b.send(t, 1, "local=1")
	if c := b.send(t, 1, "local=1"); !c.Denied || c.Results[0].Outcome != limiter.FailedDenied {
		t.Errorf("a quarter of 9 is 2: %+v; want denied and outcome %v", c.Results, limiter.FailedDenied)
	}
	if first, second := b.send(t, 1, "least=1").Denied, b.send(t, 1, "least=1").Denied; first || !second {
		t.Errorf("one percent of 9 is 1: the first request is denied %v, the second %v; want only the second denied", first, second)
	}
	if c := b.send(t, 1, "error=1"); !errors.Is(c.Err, backend.ErrUnavailable) {
		t.Errorf("error: %+v; want the error backend.ErrUnavailable", c.Verdict)
	}
	if c := b.send(t, 1, "error=1", "deny=1"); !c.Denied || c.Err != nil {
		t.Errorf("an error would allow a request that another limit denies: %+v; want denied and no error", c.Verdict)
	}
	if c := b.send(t, 1, "allow=1", "deny=1"); !c.Denied {
		t.Errorf("one that denies is enough: %+v; want denied", c.Verdict)
	}
}

func TestAFailingStoreDoesNotOverrideADenialByQuotas(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: error, rate_limit: {algorithm: token_bucket, rate: 9, period: 1h, on_backend_failure: error}}
  - {key: few, quota_mode: true, rate_limit: {algorithm: token_bucket, rate: 1, period: 1h}}
  - {key: many, quota_mode: true, rate_limit: {algorithm: token_bucket, rate: 9, period: 1h}}
  - {key: unsure, quota_mode: true, rate_limit: {algorithm: token_bucket, rate: 9, period: 1h, on_backend_failure: error}}
`)
	b.send(t, 1, "few=1")
	b.store.err, b.store.limit = fmt.Errorf("%w: test", backend.ErrUnavailable), "error"
	if c := b.send(t, 1, "error=1", "few=1"); !c.Denied || c.Err != nil {
		t.Errorf("the only quota denies: %+v; want denied and no error", c.Verdict)
	}
	if c := b.send(t, 1, "error=1", "few=1", "many=1"); !c.Denied || c.Err == nil {
		t.Errorf("of two quotas one denies: %+v; want denied and an error", c.Verdict)
	}
	b.store.limit = "unsure"
	if c := b.send(t, 1, "unsure=1", "few=1"); !c.Denied || c.Err == nil {
		t.Errorf("it is not known whether all quotas deny: %+v; want denied and an error", c.Verdict)
	}
	if c := b.send(t, 1, "unsure=1", "many=1"); c.Denied || c.Err != nil {
		t.Errorf("one quota allows, so the failure of the other does not matter: %+v; want allowed and no error", c.Verdict)
	}
}

func TestLocalBucketsConsumeOncePerIdempotencyKey(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  one: {algorithm: token_bucket, rate: 9, period: 1h, on_backend_failure: local, local_share: 100%}
  two: {algorithm: token_bucket, rate: 2, period: 1h, on_backend_failure: local, local_share: 100%}
`)
	b.store.err = fmt.Errorf("%w: test", backend.ErrUnavailable)
	send := func(id string) *limiter.Call {
		return b.check(t, limiter.Request{
			Limits:         []limiter.NamedCharge{{Name: "one", Count: 1}, {Name: "two", Count: 1}, {Name: "two", Count: 1}},
			IdempotencyKey: limiter.IdempotencyKey{ID: id, Lifetime: algorithms.Second},
		})
	}
	for range 2 {
		c := send("first")
		if one, two := c.Results[0].Decision.Remaining, c.Results[1].Decision.Remaining; c.Denied || one != 8 || two != 0 {
			t.Errorf("denied %t, left %d and %d; want 8 and 0", c.Denied, one, two)
		}
		if c.Results[1].Outcome != limiter.FailedAllowed || c.Results[2].Outcome != limiter.FailedAllowed {
			t.Errorf("both are decided locally: %+v; want the outcomes %v and %v of the second and the third result", c.Results, limiter.FailedAllowed, limiter.FailedAllowed)
		}
	}
	if c := send("second"); !c.Denied {
		t.Errorf("nothing is left of two: %+v; want denied", c.Results)
	}
}

func TestLocalBucketsGetNoRefundsOfReservationsInTheStore(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  jobs: {algorithm: token_bucket, rate: 2, period: 1h, on_backend_failure: local, local_share: 100%}
`)
	send := func(count int64) *limiter.Call {
		return b.check(t, limiter.Request{Limits: []limiter.NamedCharge{{Name: "jobs", Count: count, Reserve: true}}})
	}
	r, _ := reservedBy(send(2))
	b.store.err = fmt.Errorf("%w: test", backend.ErrUnavailable)
	before := send(2).Results[0].Decision.Wait
	settled := &limiter.Call{}
	if err := b.Settle(t.Context(), settled, limiter.Settle{Reserved: r}); err != nil || !settled.Denied {
		t.Errorf("the settlement must be denied, so that it can be repeated: %v, %+v", err, settled.Verdict)
	}
	if after := send(2).Results[0].Decision.Wait; before != 0 || after != 3600*algorithms.Second {
		t.Errorf("a wait of %d us, then of %d; want 0, then an hour", before, after)
	}
}

// backend.ErrTooLarge is caused by the request, so on_backend_failure does not apply.
func TestARequestThatIsTooLargeIsDeniedWhateverThePolicy(t *testing.T) {
	b := newBench(t, `
domain: d
on_backend_failure: allow
descriptors:
  - {key: a, rate_limit: {algorithm: token_bucket, rate: 5, period: 1m}}
`)
	b.store.err = backend.ErrTooLarge
	if c := b.send(t, 1, "a=1"); !c.Denied || !c.Never || c.Failed {
		t.Errorf("got %+v; want denied, never and not failed", c.Verdict)
	}
	b.store.err = backend.ErrUnavailable
	if c := b.send(t, 1, "a=1"); c.Denied || !c.Failed {
		t.Errorf("got %+v; want allowed and failed", c.Verdict)
	}
}

func TestABlockedBucketHasNothingLeft(t *testing.T) {
	b := newBench(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: token_bucket, rate: 5, period: 1m, penalty: {after: 1, for: 1m, max: 1h}}}
`)
	b.send(t, 1, "a=1")
	b.send(t, 5, "a=1") // denied, 4 units are left
	r := b.send(t, 1, "a=1").Results[0]
	if r.Outcome != limiter.Denied || r.Decision.Blocked == 0 || r.Decision.Remaining != 0 {
		t.Errorf("got %+v; want outcome %v, blocked above 0 and 0 remaining", r.Decision, limiter.Denied)
	}
}
