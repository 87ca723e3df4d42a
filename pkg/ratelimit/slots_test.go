package ratelimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit/httplimit"
)

func inFlight(t *testing.T, now *time.Time) *ratelimit.Limiter {
	t.Helper()
	l := made(t, ratelimit.Config{
		Store:  memory.New(memory.Config{Clock: func() time.Time { return *now }}),
		Limits: ratelimit.Limits{"uploads": ratelimit.Concurrency(2, time.Minute), "calls": ratelimit.TokenBucket(5, time.Minute)},
	})
	return l
}

func TestASlotIsReleasedOnce(t *testing.T) {
	now := time.Now()
	l := inFlight(t, &now)
	ctx := t.Context()
	one, err := l.Acquire(ctx, "uploads", "bob")
	two, err2 := l.Acquire(ctx, "uploads", "bob")
	if err != nil || err2 != nil || two.Result().Remaining != 0 {
		t.Fatalf("got %v, %v", err, err2)
	}
	if _, err := l.Acquire(ctx, "uploads", "bob"); !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("the third: got %v, want ErrDenied", err)
	}
	one.Release()
	one.Release()
	three, err := l.Acquire(ctx, "uploads", "bob")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(ctx, "uploads", "bob"); !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("after two releases of one slot: got %v, want ErrDenied", err)
	}
	now = now.Add(40 * time.Second)
	if err := three.Renew(ctx); err != nil {
		t.Error(err)
	}
	now = now.Add(40 * time.Second)
	if err := two.Renew(ctx); !errors.Is(err, ratelimit.ErrSlotLost) {
		t.Errorf("a slot that has expired: got %v, want ErrSlotLost", err)
	}
	if err := one.Renew(ctx); !errors.Is(err, ratelimit.ErrSlotLost) {
		t.Errorf("a slot that was released: got %v, want ErrSlotLost", err)
	}
	if r, err := l.Peek(ctx, 0, "uploads", "bob"); err != nil || r.Remaining != 1 {
		t.Errorf("got %+v, %v; want one of two left", r, err)
	}
}

func TestLimitsOfUnitsInFlightNeedAcquire(t *testing.T) {
	now := time.Now()
	l := inFlight(t, &now)
	ctx := t.Context()
	_, allow := l.Allow(ctx, "uploads", "bob")
	_, refund := l.Refund(ctx, 1, "uploads", "bob")
	_, reserve := l.Reserve(ctx, "uploads", "bob")
	wait := l.Wait(ctx, "uploads", "bob")
	for _, err := range []error{allow, refund, reserve, wait, l.AllowAll(ctx, []ratelimit.Request{{Name: "calls", N: 1}, {Name: "uploads", N: 1}})} {
		if !errors.Is(err, ratelimit.ErrMustAcquire) {
			t.Errorf("got %v, want ErrMustAcquire", err)
		}
	}
	if _, err := l.Acquire(ctx, "calls"); err == nil {
		t.Error("Acquire of a rate: no error")
	}
	if _, err := l.AcquireN(ctx, 3, "uploads", "bob"); !errors.Is(err, ratelimit.ErrNeverFits) {
		t.Errorf("got %v, want ErrNeverFits", err)
	}
}

func TestAcquireAllocatesTwice(t *testing.T) {
	now := time.Now()
	l := inFlight(t, &now)
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		slot, err := l.Acquire(ctx, "uploads", "bob")
		if err != nil {
			t.Fatal(err)
		}
		slot.Release()
	}); n > 2 {
		t.Errorf("take and return allocate %v times, want at most 2", n)
	}
}

func TestMiddlewareReleasesTheSlot(t *testing.T) {
	now := time.Now()
	l := inFlight(t, &now)
	limit, err := httplimit.New(l, httplimit.Config{Limit: "uploads"})
	if err != nil {
		t.Fatal(err)
	}
	left := func() int64 {
		r, err := l.Peek(t.Context(), 0, "uploads")
		if err != nil {
			t.Fatal(err)
		}
		return r.Remaining
	}
	inside := int64(-1)
	serve := func(w http.ResponseWriter, panics bool) {
		defer func() { _ = recover() }()
		limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if inside = left(); panics {
				panic("the handler fails")
			}
		})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	}
	for _, panics := range []bool{false, true} {
		w := httptest.NewRecorder()
		serve(w, panics)
		if inside != 1 || left() != 2 || w.Header().Get("RateLimit") != `"uploads";r=1` {
			t.Errorf("panic %v: %d left inside and %d after it, header %s; want 1, 2 and no time", panics, inside, left(), w.Header().Get("RateLimit"))
		}
	}
	for range 2 {
		if _, err := l.Acquire(t.Context(), "uploads"); err != nil {
			t.Fatal(err)
		}
	}
	w := httptest.NewRecorder()
	serve(w, false)
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "" {
		t.Errorf("got %d with Retry-After %q, want 429 without", w.Code, w.Header().Get("Retry-After"))
	}
}
