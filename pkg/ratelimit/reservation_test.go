package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func TestATurnOfALeakyBucketCanBeReserved(t *testing.T) {
	for name, call := range map[string]func(*ratelimit.Limiter, []ratelimit.Request) error{
		"AllowAll":  func(l *ratelimit.Limiter, r []ratelimit.Request) error { return l.AllowAll(t.Context(), r) },
		"AllowOnce": func(l *ratelimit.Limiter, r []ratelimit.Request) error { return l.AllowOnce(t.Context(), "id", r) },
	} {
		l, _ := newLimiterAndClock(t)
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

func TestTheFormerSecretSignsNothing(t *testing.T) {
	store := memory.New(memory.Config{})
	limiterOf := func(secret, former string) *ratelimit.Limiter {
		l := made(t, ratelimit.Config{Store: store, Limits: testLimits(), Secret: secret, FormerSecret: former})
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

func TestTheDelayOfAReservationBecomesShorter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterFor(t, memory.New(memory.Config{}), nil)
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
