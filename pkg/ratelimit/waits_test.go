package ratelimit_test

import (
	"context"
	"errors"
	"sync/atomic"
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

type before struct {
	backend.Store
	call func(b *backend.Batch)
}

func (s before) Submit(b *backend.Batch) {
	if !b.Charges[0].Terms.DryRun {
		s.call(b)
	}
	s.Store.Submit(b)
}

// The bucket holds 5 units and is full. 2 units flow in during the wait, and another caller consumes one. Without the
// reservation, the 2 units would not have fitted, so the refund must leave 5 - 1 = 4 units.
func TestACanceledWaitRefundsLessTheInflow(t *testing.T) {
	limit := ratelimit.TokenBucket(10, time.Minute)
	limit.Capacity, limit.MaxReserved = new(int64(5)), new(int64(20))
	reserved := make(chan struct{}, 10)
	l, clock := limiterWith(t, ratelimit.Limits{"l": limit}, 0, func(s backend.Store) backend.Store { return after{s, reserved} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.WaitN(ctx, 6, "l") }()
	<-reserved
	clock.Set(storetest.Start + 12*algorithms.Second)
	if _, err := l.Allow(t.Context(), "l"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v; want the error context.Canceled", err)
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

// A canceled context has the effect of a deadline that has passed: the wrapper Deadline then submits nothing. So the
// refund after a canceled wait must not use that context.
func TestACanceledWaitIsUndoneByAStoreWithDeadlines(t *testing.T) {
	reserved := make(chan struct{}, 10)
	l, _ := limiterWith(t, ratelimit.Limits{"l": ratelimit.TokenBucket(1, time.Hour)}, 0, func(s backend.Store) backend.Store {
		return after{stores.Deadline(s, time.Minute, 0, nil), reserved}
	})
	if err := l.Wait(t.Context(), "l"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	<-reserved
	go func() { ended <- l.Wait(ctx, "l") }()
	<-reserved
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, ratelimit.ErrUnavailable) {
		t.Errorf("%v; want only that the wait was canceled", err)
	}
	if r, err := l.Peek(t.Context(), 0, "l"); err != nil && !errors.Is(err, ratelimit.ErrDenied) || r.ResetAfter != time.Hour {
		t.Errorf("%+v %v; want the bucket as before the wait, full in an hour", r, err)
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

func TestWaitDoesNotPoll(t *testing.T) {
	var calls atomic.Int64
	l := made(t, ratelimit.Config{
		Store:  before{memory.New(memory.Config{}), func(*backend.Batch) { calls.Add(1) }},
		Limits: ratelimit.Limits{"l": ratelimit.SlidingLog(1, 50*time.Millisecond)},
	})
	for range 3 {
		if err := l.Wait(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
	}
	if n := calls.Load(); n > 10 {
		t.Errorf("%d calls of the store for two waits; want at most 10", n)
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

type recording struct {
	backend.Store

	charges []backend.Charge
	batches int
}

func (r *recording) Submit(b *backend.Batch) {
	r.charges, r.batches = append(r.charges[:0], b.Charges...), r.batches+1
	r.Store.Submit(b)
}

func TestACallIsOneBatch(t *testing.T) {
	store := &recording{Store: memory.New(memory.Config{})}
	l := made(t, ratelimit.Config{Store: store, Limits: testLimits(), MaxWait: time.Hour})
	for _, reserve := range []bool{false, true} {
		store.batches = 0
		if err := l.AllowAll(t.Context(), []ratelimit.Request{{Name: "send", N: 1, Reserve: reserve}}); err != nil || store.batches != 1 {
			t.Errorf("reserve %v: %d batches, %v; want 1", reserve, store.batches, err)
		}
	}
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
