package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

type kept struct {
	backend.Store

	charges []backend.Charge
	batches int
}

func (k *kept) Submit(b *backend.Batch) {
	k.charges, k.batches = append(k.charges[:0], b.Charges...), k.batches+1
	k.Store.Submit(b)
}

// A cost that can never fit is a mistake of the caller, even while the Store is unreachable.
func TestACostThatNeverFitsHasTheNumbersOfItsLimit(t *testing.T) {
	l := over(t, away{}, nil)
	if r, err := l.AllowN(t.Context(), 11, "send", "bob"); !errors.Is(err, ratelimit.ErrNeverFits) || r.Limit != 10 || r.Window != time.Minute {
		t.Errorf("got %+v, %v; want %v and a limit of 10 in a minute", r, err, ratelimit.ErrNeverFits)
	}
}

// With MaxWait, only a call with reservations begins with a dry run.
func TestACallWithoutReservationsIsOneBatch(t *testing.T) {
	store := &kept{Store: memory.New(memory.Config{})}
	l, err := ratelimit.New(ratelimit.Config{Store: store, Limits: testLimits(), MaxWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for reserve, want := range map[bool]int{false: 1, true: 2} {
		store.batches = 0
		if err := l.AllowAll(t.Context(), []ratelimit.Request{{Name: "send", N: 1, Reserve: reserve}}); err != nil || store.batches != want {
			t.Errorf("reserve %v: %d batches, %v; want %d", reserve, store.batches, err, want)
		}
	}
}

func TestATurnOfALeakyBucketCanBeReserved(t *testing.T) {
	for name, call := range map[string]func(*ratelimit.Limiter, []ratelimit.Request) error{
		"AllowAll":  func(l *ratelimit.Limiter, r []ratelimit.Request) error { return l.AllowAll(t.Context(), r) },
		"AllowOnce": func(l *ratelimit.Limiter, r []ratelimit.Request) error { return l.AllowOnce(t.Context(), "id", r) },
	} {
		l, _ := onClock(t)
		if _, err := l.Allow(t.Context(), "queue"); err != nil {
			t.Fatal(err)
		}
		r := []ratelimit.Request{{Name: "queue", N: 1, Reserve: true}}
		if err := call(l, r); err != nil || r[0].Result.Wait != time.Second {
			t.Errorf("%s: %+v, %v; want a wait of 1 s", name, r[0].Result, err)
		}
		if _, err := l.Settle(t.Context(), r[0].Reservation, 0); !errors.Is(err, ratelimit.ErrCannotReserve) {
			t.Errorf("%s: settled with the error %v, want %v", name, err, ratelimit.ErrCannotReserve)
		}
	}
}

// All limits that come with requests share the room of one owner.
func TestTheOwnerOfALimitThatComesWithARequest(t *testing.T) {
	store, own := &kept{Store: memory.New(memory.Config{})}, ratelimit.TokenBucket(5, time.Second)
	if err := over(t, store, nil).AllowAll(t.Context(), []ratelimit.Request{{Name: "tenant", N: 1, Limit: &own}}); err != nil {
		t.Fatal(err)
	}
	if got := store.charges[0].Owner; got != "test/#inline" {
		t.Errorf("got the owner %s, want test/#inline", got)
	}
}

func TestTheFormerSecretSignsNothing(t *testing.T) {
	store := memory.New(memory.Config{})
	limiterOf := func(secret, former string) *ratelimit.Limiter {
		l, err := ratelimit.New(ratelimit.Config{Store: store, Limits: testLimits(), Secret: secret, FormerSecret: former})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	former, both, next := limiterOf("old", ""), limiterOf("new", "old"), limiterOf("new", "")
	settle := func(l *ratelimit.Limiter, by *ratelimit.Limiter) error {
		var r ratelimit.Reservation
		if err := r.UnmarshalText([]byte(text(t, reserve(t, by, 1, "send", "bob")))); err != nil {
			t.Fatal(err)
		}
		_, err := l.Settle(t.Context(), r, 1)
		return err
	}
	if err := settle(both, former); err != nil {
		t.Errorf("a reservation with the former secret: %v", err)
	}
	if err := settle(next, both); err != nil {
		t.Errorf("a reservation with the new secret: %v", err)
	}
}

// The time until a denied cost is available may be longer than a time.Duration can be.
func TestTheLongestTimeIsNotNegative(t *testing.T) {
	slow := ratelimit.TokenBucket(1, 200*365*24*time.Hour)
	slow.Capacity = new(int64(3))
	l, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{"slow": slow}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if r, err := l.Allow(t.Context(), "slow"); err != nil || r.ResetAfter <= 0 {
			t.Errorf("%+v, %v; want allowed, with a time until the bucket is full", r, err)
		}
	}
	if r, _ := l.Peek(t.Context(), 3, "slow"); r.RetryAfter <= 0 {
		t.Errorf("%+v; want a positive time", r)
	}
}

func TestTheDelayOfAReservationBecomesShorter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := over(t, memory.New(memory.Config{}), nil)
		reserve(t, l, 10, "send", "bob")
		r := reserve(t, l, 1, "send", "bob")
		time.Sleep(2 * time.Second)
		if got := r.Delay(); got != 4*time.Second {
			t.Errorf("2 s after a reservation with a wait of 6 s: got %v, want 4 s", got)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		time.Sleep(time.Minute)
		if err := r.Wait(canceled); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
		if err := r.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAWaitThatWouldBeTooLongIsDeniedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := over(t, memory.New(memory.Config{}), nil)
		for name, wait := range map[string]time.Duration{"send": 6 * time.Second, "log": time.Second} {
			for range map[string]int{"send": 10, "log": 2}[name] {
				if _, err := l.Allow(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			for _, left := range []time.Duration{-time.Second, wait * 3 / 4} {
				ctx, cancel := context.WithTimeout(t.Context(), left)
				start := time.Now()
				var denied *ratelimit.DeniedError
				if err := l.Wait(ctx, name); !errors.As(err, &denied) || !time.Now().Equal(start) {
					t.Errorf("%s with %v left: got %v after %v; want a denial at once", name, left, err, time.Since(start))
				}
				cancel()
			}
		}
	})
}
