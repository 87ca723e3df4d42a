package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// limiterWith returns a Limiter with a clock that stands still. wrap wraps the memory store.
func limiterWith(t *testing.T, limits ratelimit.Limits, maxWait time.Duration, wrap func(backend.Store) backend.Store) (*ratelimit.Limiter, *storetest.Clock) {
	t.Helper()
	clock := storetest.NewClock()
	return made(t, ratelimit.Config{Store: wrap(memory.New(memory.Config{Clock: clock.Time})), Limits: limits, MaxWait: maxWait, Clock: clock.Time}), clock
}

func unchanged(s backend.Store) backend.Store { return s }

// The bucket holds 5 units and is full. 2 units flow in during the wait, and another caller consumes one. Without the
// reservation, the 2 units would not have fitted, so the refund must leave 5 - 1 = 4 units. A canceled context has the
// effect of a deadline that has passed: the wrapper Deadline then submits nothing. So the refund must not use that context.
func TestACanceledWaitRefundsLessTheInflow(t *testing.T) {
	limit := ratelimit.TokenBucket(10, time.Minute)
	limit.Capacity, limit.MaxReserved = new(int64(5)), new(int64(20))
	reserved := make(chan struct{}, 10)
	l, clock := limiterWith(t, ratelimit.Limits{"l": limit}, 0, func(s backend.Store) backend.Store {
		return after{stores.Deadline(nil, s, time.Minute, 0, nil), reserved}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.WaitN(ctx, 6, "l") }()
	<-reserved
	clock.Set(storetest.Start + 12*algorithms.Second)
	if _, err := l.Allow(t.Context(), "l"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, ratelimit.ErrUnavailable) {
		t.Fatalf("got %v; want only that the wait was canceled", err)
	}
	if r, err := l.Peek(t.Context(), 0, "l"); err != nil || r.Remaining != 4 {
		t.Errorf("%+v %v; want 4 left", r, err)
	}
}

type after struct {
	backend.Store
	done chan<- struct{}
}

func (s after) Submit(b *backend.Batch) {
	s.Store.Submit(b)
	if !b.Charges[0].Terms.DryRun {
		s.done <- struct{}{}
	}
}

func TestADeadlineBeforeMaxWaitDeniesAtOnce(t *testing.T) {
	l, _ := limiterWith(t, ratelimit.Limits{"l": ratelimit.TokenBucket(1, time.Hour)}, 2*time.Hour, unchanged)
	if err := l.Wait(t.Context(), "l"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.Wait(ctx, "l"); !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("%v, want a denial: the turn is after the deadline", err)
	}
}

func TestAPenaltyCountsADenialWithMaxWait(t *testing.T) {
	limit := ratelimit.TokenBucket(1, time.Second)
	limit.MaxReserved, limit.Penalty = new(int64(0)), &ratelimit.Penalty{After: 1, For: time.Minute, Max: time.Minute}
	l, _ := limiterWith(t, ratelimit.Limits{"l": limit}, time.Hour, unchanged)
	for _, want := range []time.Duration{0, time.Minute} {
		_, err := l.Reserve(t.Context(), "l")
		if denied, ok := errors.AsType[*ratelimit.DeniedError](err); ok != (want > 0) || ok && denied.Result.RetryAfter != want {
			t.Errorf("%v, want to wait %v", err, want)
		}
	}
}

type counting struct {
	backend.Store
	batches *int
}

func (s counting) Submit(b *backend.Batch) {
	*s.batches++
	s.Store.Submit(b)
}

// A Wait calls the store again when units are available, and does not poll.
func TestACallIsOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batches := 0
		l := made(t, ratelimit.Config{Store: counting{memory.New(memory.Config{}), &batches}, Limits: testLimits(), MaxWait: time.Hour})
		for _, reserve := range []bool{false, true} {
			batches = 0
			if err := l.AllowAll(t.Context(), []ratelimit.Request{{Name: "send", N: 1, Reserve: reserve}}); err != nil || batches != 1 {
				t.Errorf("reserve %v: %d batches, %v; want 1", reserve, batches, err)
			}
		}
		batches = 0
		for range 3 { // the third one waits
			if err := l.Wait(t.Context(), "log"); err != nil {
				t.Fatal(err)
			}
		}
		if batches != 4 {
			t.Errorf("%d batches for three waits, want 4", batches)
		}
	})
}

// Others consume all units whenever they are available. The third wait would end after MaxWait.
func TestMaxWaitBoundsAllTriesOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		l := made(t, ratelimit.Config{
			Store: first{memory.New(memory.Config{}), &tries}, Limits: testLimits(), MaxWait: 2500 * time.Millisecond,
		})
		start := time.Now()
		err := l.Wait(t.Context(), "log")
		if waited := time.Since(start); !errors.Is(err, ratelimit.ErrDenied) || waited != 2*time.Second || tries != 3 {
			t.Errorf("%v after %v and %d tries, want a denial after 2s and 3 tries", err, waited, tries)
		}
	})
}

// first lets others consume the two units of the limit before each of the first five tries.
type first struct {
	backend.Store
	tries *int
}

func (s first) Submit(b *backend.Batch) {
	if *s.tries++; *s.tries <= 5 {
		others := b.Charges[0]
		others.Terms.Cost = 2
		backend.Take(context.Background(), s.Store, []backend.Charge{others}, make([]backend.Decision, 1))
	}
	s.Store.Submit(b)
}

func TestAWaitThatWouldBeTooLongIsDeniedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterFor(t, memory.New(memory.Config{}), nil)
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
