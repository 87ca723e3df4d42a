package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func TestInvalidSettlesAreErrorsOfNew(t *testing.T) {
	debt, two := int64(1), int64(2)
	for want, limit := range map[string]ratelimit.Limit{
		"max_debt": {Algorithm: ratelimit.TokenBucket(1, time.Second).Algorithm, Rate: 1, Period: time.Second, MaxDebt: &debt},
		"settle":   {Algorithm: ratelimit.FixedWindow(1, time.Second).Algorithm, Rate: 1, Period: time.Second, Capacity: &two, Settles: true},
	} {
		if _, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{"a": limit}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	l, _ := limiterOn(t, ratelimit.Limits{})
	own := ratelimit.TokenBucket(10, time.Minute)
	own.Weights = map[string]string{"output": "4"}
	requests := []ratelimit.Request{{Name: "own", Costs: map[string]int64{"output": 2}, Limit: &own}}
	if err := l.AllowAll(t.Context(), requests); err != nil || requests[0].N != 8 || requests[0].Result.Remaining != 2 {
		t.Errorf("weights of a limit that comes with the request: %+v %v; want no error, N 8 and 2 remaining", requests[0], err)
	}
	requests[0].Costs = map[string]int64{"outputs": 2}
	if err := l.AllowAll(t.Context(), requests); err == nil || !strings.Contains(err.Error(), `"outputs" has no weight`) {
		t.Errorf("got %v; want an error that contains %q", err, `"outputs" has no weight`)
	}
	own.Weights = nil
	if err := l.AllowAll(t.Context(), requests); !errors.Is(err, ratelimit.ErrNoWeights) {
		t.Errorf("got %v; want the error ratelimit.ErrNoWeights", err)
	}
	own.Settles = true
	if err := l.AllowAll(t.Context(), requests); err == nil || !strings.Contains(err.Error(), "cannot come with a request") {
		t.Errorf("got %v; want an error that contains %q", err, "cannot come with a request")
	}
}

func limiterOn(t *testing.T, limits ratelimit.Limits) (*ratelimit.Limiter, *storetest.Clock) {
	t.Helper()
	clock := &storetest.Clock{}
	clock.Set(storetest.Start)
	l, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{Clock: clock.Time}), Limits: limits, Clock: clock.Time})
	if err != nil {
		t.Fatal(err)
	}
	return l, clock
}

// One program settles a reservation in the last second in which it may. Half a minute later, a program whose
// clock is 40 s slow must not settle the reservation a second time.
func TestASettlementIsRememberedUntilTheSlowestClockRefusesIt(t *testing.T) {
	var clock storetest.Clock
	clock.Set(storetest.Start)
	store := memory.New(memory.Config{Clock: clock.Time})
	program := func(slow time.Duration) *ratelimit.Limiter {
		l, err := ratelimit.New(ratelimit.Config{
			Store: store, Limits: ratelimit.Limits{"l": ratelimit.FixedWindow(10, 24*time.Hour)}, Secret: "the same secret for all",
			Clock: func() time.Time { return clock.Time().Add(-slow) },
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	one, other := program(0), program(40*time.Second)
	reserved := reserve(t, one, 2, "l")
	clock.Set(storetest.Start + 3599*algorithms.Second)
	if r, err := one.Settle(t.Context(), reserved, 5); err != nil || r.Remaining != 5 {
		t.Fatalf("got %+v %v; want no error and 5 remaining", r, err)
	}
	clock.Set(storetest.Start + 3629*algorithms.Second)
	if r, err := other.Settle(t.Context(), reserved, 5); err != nil || r.Remaining != 5 {
		t.Errorf("settled again with the same cost: %+v %v; want no error and 5 remaining", r, err)
	}
	if _, err := other.Settle(t.Context(), reserved, 1); !errors.Is(err, ratelimit.ErrReused) {
		t.Errorf("settled again with another cost: %v; want the error ratelimit.ErrReused", err)
	}
	if _, err := one.Settle(t.Context(), reserved, 5); !errors.Is(err, ratelimit.ErrExpired) {
		t.Errorf("after the last second: %v; want the error ratelimit.ErrExpired", err)
	}
	if r, err := one.Peek(t.Context(), 0, "l"); err != nil || r.Remaining != 5 {
		t.Errorf("%+v %v; want 5 left", r, err)
	}
}
