package limitsfile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit/limitsfile"
)

const plans = `
domain: shop
hash_tag: domain
limits:
  plan: {algorithm: token_bucket, rate: 3, period: 1h, max_reserved: 0, then: credits}
  team: {algorithm: token_bucket, rate: 2, period: 1h, max_reserved: 0, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 10, max_reserved: 0}
`

func planned(t *testing.T) *ratelimit.Limiter {
	t.Helper()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	c, err := limitsfile.Parse("", "limits.yaml", []byte(plans))
	if err != nil {
		t.Fatal(err)
	}
	c.Store, c.Clock, c.Secret = memory.New(memory.Config{Clock: clock}), clock, "secret"
	l, err := ratelimit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func has(t *testing.T, l *ratelimit.Limiter, name string, want int64) {
	t.Helper()
	if r, err := l.Peek(t.Context(), 0, name, "bob"); err != nil || r.Remaining != want || r.Payer != "" {
		t.Errorf("limit %s: %+v, %v, want %d left", name, r, err, want)
	}
}

func TestCreditsPayForAProgram(t *testing.T) {
	l := planned(t)
	for _, c := range []struct {
		n         int64
		payer     string
		remaining int64
		limit     int64
		err       error
	}{
		{n: 2, remaining: 1, limit: 3},
		{n: 2, payer: "credits", remaining: 8, limit: 10},
		{n: 1, remaining: 0, limit: 3},
		{n: 8, payer: "credits", remaining: 0, limit: 10},
		{n: 1, remaining: 0, limit: 3, err: ratelimit.ErrDenied},
		{n: 11, limit: 3, err: ratelimit.ErrNeverFits},
	} {
		if c.err == nil {
			if r, err := l.Peek(t.Context(), c.n, "plan", "bob"); err != nil || r.Payer != c.payer {
				t.Errorf("a dry run of %d: %+v, %v; want no error and payer %v", c.n, r, err, c.payer)
			}
		}
		r, err := l.AllowN(t.Context(), c.n, "plan", "bob")
		if !errors.Is(err, c.err) || r.Payer != c.payer || r.Remaining != c.remaining || r.Limit != c.limit || r.Allowed != (c.err == nil) {
			t.Errorf("%d units: %+v, %v, want %+v", c.n, r, err, c)
		}
		if c.err == ratelimit.ErrDenied && r.RetryAfter != 20*time.Minute { //nolint:errorlint // one of the table
			t.Errorf("the plan has a unit in 20 minutes: %+v; want retry after %v", r, 20*time.Minute)
		}
	}
	if r, err := l.Refund(t.Context(), 1, "plan", "bob"); err != nil || r.Remaining != 1 {
		t.Errorf("a refund is for the limit that it names: %+v, %v; want no error and 1 remaining", r, err)
	}
	has(t, l, "credits", 0)
}

func TestReservationsAreSettledWhereTheyWerePaid(t *testing.T) {
	l := planned(t)
	r, err := l.ReserveN(t.Context(), 5, "plan", "bob")
	if err != nil || r.Name() != "credits" || r.N() != 5 {
		t.Fatalf("got %+v, %v; want no error, r.Name() %q and r.N() 5", r, err, "credits")
	}
	if result, err := l.Settle(t.Context(), r, 2); err != nil || result.Remaining != 8 {
		t.Errorf("got %+v, %v; want no error and 8 remaining", result, err)
	}
	has(t, l, "plan", 3)

	// A wait that is canceled returns its units to the limit that paid.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.WaitN(ctx, 6, "plan", "bob"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v; want the error context.Canceled", err)
	}
	has(t, l, "credits", 8)
	has(t, l, "plan", 3)

	for range 2 {
		once := []ratelimit.Request{{Name: "plan", Key: []string{"bob"}, N: 4}}
		if err := l.AllowOnce(t.Context(), "id", once); err != nil || once[0].Result.Payer != "credits" || once[0].Result.Remaining != 4 {
			t.Errorf("a repeated call: %+v, %v; want no error, payer %q and 4 remaining", once, err, "credits")
		}
	}
}

func TestAPayerMustBeConfigured(t *testing.T) {
	c, err := limitsfile.Parse("", "limits.yaml", []byte(plans))
	if err != nil {
		t.Fatal(err)
	}
	delete(c.Limits, "credits")
	c.Store = memory.New(memory.Config{})
	if _, err := ratelimit.New(c); err == nil || !strings.Contains(err.Error(), `limit "plan": limit "credits", which pays for what it does not allow, is not in Config.Limits`) {
		t.Errorf("error %v; want an error that contains %q", err, `limit "plan": limit "credits", which pays for what it does not allow, is not in Config.Limits`)
	}
}

func TestALoadedLimitKeepsItsName(t *testing.T) {
	c, err := limitsfile.Parse("", "limits.yaml", []byte("domain: d\nlimits: {a: {algorithm: token_bucket, rate: 1, period: 1s}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	loaded := c.Limits["a"]
	c.Store = memory.New(memory.Config{})
	l, err := ratelimit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AllowAll(t.Context(), []ratelimit.Request{{Name: "b", N: 1, Limit: &loaded}}); err == nil || !strings.Contains(err.Error(), "a loaded limit cannot come with a request") {
		t.Errorf("with a request: got %v; want an error", err)
	}
	c.Limits = ratelimit.Limits{"b": loaded}
	if _, err := ratelimit.New(c); err == nil || !strings.Contains(err.Error(), `it was loaded as limit "a" of domain "d"`) {
		t.Errorf("under another name: got %v; want an error", err)
	}
}
