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

func TestCreditsPayOnceForSeveralLimits(t *testing.T) {
	l := planned(t)
	requests := []ratelimit.Request{{Name: "plan", Key: []string{"bob"}, N: 2, Reserve: true}, {Name: "team", Key: []string{"bob"}, N: 4, Reserve: true}}
	if err := l.AllowAll(t.Context(), requests); err != nil || requests[0].Result.Payer != "credits" || requests[1].Result.Payer != "credits" {
		t.Fatalf("got %+v, %v; want no error, requests[0].Result.Payer %q and requests[1].Result.Payer %q", requests, err, "credits", "credits")
	}
	has(t, l, "credits", 6)
	has(t, l, "plan", 3)
	paid := 0
	for i := range requests {
		if r := &requests[i].Reservation; r.N() > 0 {
			paid++
			if result, err := l.Settle(t.Context(), *r, 1); err != nil || r.Name() != "credits" || r.N() != 4 || result.Remaining != 9 {
				t.Errorf("%d units of %s: %+v, %v; want no error, r.Name() %q, r.N() 4 and result.Remaining 9", r.N(), r.Name(), result, err, "credits")
			}
		}
	}
	if paid != 1 {
		t.Errorf("%d reservations, want one", paid)
	}
	has(t, l, "credits", 9)
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

// Both limits have the same payer, which is charged once.
func TestOneOfSeveralRequestsHasTheReservation(t *testing.T) {
	l := planned(t)
	requests := []ratelimit.Request{{Name: "plan", Key: []string{"bob"}, N: 2, Reserve: true}, {Name: "team", Key: []string{"bob"}, N: 4, Reserve: true}}
	if err := l.AllowAll(t.Context(), requests); err != nil {
		t.Fatal(err)
	}
	if first, second := requests[0].Reservation.Name(), requests[1].Reservation.Name(); first != "credits" || second != "" {
		t.Errorf("got reservations of %q and %q; want one of credits, and none", first, second)
	}
}

// The limit can hold 3 units, but its payer can pay for 5.
func TestACostThatThePayerCanPayIsNotErrNeverFits(t *testing.T) {
	c, err := limitsfile.Parse("", "limits.yaml", []byte(strings.Replace(plans, "rate: 3, period: 1h, max_reserved: 0", "rate: 3, period: 1h", 1)))
	if err != nil {
		t.Fatal(err)
	}
	c.Store, c.Secret, c.MaxWait = memory.New(memory.Config{}), "secret", time.Minute
	l, err := ratelimit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.ReserveN(t.Context(), 5, "plan", "bob"); errors.Is(err, ratelimit.ErrNeverFits) {
		t.Errorf("5 units of a limit of 3, for which credits can pay: got %v; want another error or none", err)
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
