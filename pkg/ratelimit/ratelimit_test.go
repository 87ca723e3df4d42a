package ratelimit_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func testLimits() ratelimit.Limits {
	burst := ratelimit.TokenBucket(10, time.Minute)
	burst.Capacity, burst.MaxReserved = new(int64(5)), new(int64(20))
	blocked := ratelimit.TokenBucket(10, time.Minute)
	blocked.Penalty = &ratelimit.Penalty{After: 1, For: time.Minute, Max: time.Minute}
	return ratelimit.Limits{
		"send":    ratelimit.TokenBucket(10, time.Minute),
		"burst":   burst,
		"blocked": blocked,
		"log":     ratelimit.SlidingLog(2, time.Second),
		"queue":   ratelimit.LeakyBucket(1, time.Second, 1),
		"window":  ratelimit.FixedWindow(4, time.Minute),
	}
}

func made(tb testing.TB, c ratelimit.Config) *ratelimit.Limiter {
	tb.Helper()
	l, err := ratelimit.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func newLimiterAndClock(tb testing.TB) (*ratelimit.Limiter, *storetest.Clock) {
	tb.Helper()
	clock := storetest.NewClock()
	return limiterFor(tb, memory.New(memory.Config{Clock: clock.Time}), clock), clock
}

func limiterFor(tb testing.TB, store backend.Store, clock *storetest.Clock) *ratelimit.Limiter {
	tb.Helper()
	c := ratelimit.Config{Store: store, Domain: "test", Limits: testLimits()}
	if clock != nil {
		c.Clock = func() time.Time { return time.UnixMicro(int64(clock.Now())) }
	}
	return made(tb, c)
}

func TestResultsHaveTheValuesForHeaders(t *testing.T) {
	l, clock := newLimiterAndClock(t)
	ctx := t.Context()
	first, err := l.Allow(ctx, "send", "bob")
	want := ratelimit.Result{Allowed: true, Limit: 10, Window: time.Minute, Remaining: 9, ResetAfter: 6 * time.Second}
	if err != nil || first != want {
		t.Errorf("allowed: %+v %v, want %+v", first, err, want)
	}
	if _, err := l.AllowN(ctx, 9, "send", "bob"); err != nil {
		t.Fatal(err)
	}
	denied, err := l.Allow(ctx, "send", "bob")
	want = ratelimit.Result{Limit: 10, Window: time.Minute, RetryAfter: 6 * time.Second, ResetAfter: time.Minute}
	if !errors.Is(err, ratelimit.ErrDenied) || denied != want {
		t.Errorf("denied: %+v %v, want %+v", denied, err, want)
	}
	clock.Set(storetest.Start + 6*algorithms.Second - 1)
	if r, err := l.Peek(ctx, 1, "send", "bob"); !errors.Is(err, ratelimit.ErrDenied) || r.RetryAfter != time.Microsecond {
		t.Errorf("a microsecond early: %+v %v; want the error ratelimit.ErrDenied and retry after %v", r, err, time.Microsecond)
	}
	clock.Set(storetest.Start + 6*algorithms.Second)
	for range 2 {
		if r, err := l.Peek(ctx, 1, "send", "bob"); err != nil || r.Remaining != 0 {
			t.Errorf("peek consumes nothing: %+v %v; want no error and, as after the charge, 0 remaining", r, err)
		}
	}
	if _, err := l.Allow(ctx, "send", "bob"); err != nil {
		t.Error(err)
	}
	if r, err := l.Allow(ctx, "send", "alice"); err != nil || r.Remaining != 9 {
		t.Errorf("another key has another bucket: %+v %v; want no error and 9 remaining", r, err)
	}
}

func TestInvalidCountsAreErrors(t *testing.T) {
	l, _ := newLimiterAndClock(t)
	ctx := t.Context()
	for name, call := range map[string]func(n int64) error{
		"AllowN":   func(n int64) error { _, err := l.AllowN(ctx, n, "send"); return err },
		"Refund":   func(n int64) error { _, err := l.Refund(ctx, n, "send"); return err },
		"ReserveN": func(n int64) error { _, err := l.ReserveN(ctx, n, "send"); return err },
		"WaitN":    func(n int64) error { return l.WaitN(ctx, n, "send") },
		"AllowAll": func(n int64) error { return l.AllowAll(ctx, []ratelimit.Request{{Name: "send", N: n}}) },
		"AllowOnce": func(n int64) error {
			return l.AllowOnce(ctx, "id", []ratelimit.Request{{Name: "send", N: n}})
		},
	} {
		for _, n := range []int64{0, -1} {
			if err := call(n); !errors.Is(err, ratelimit.ErrUnits) {
				t.Errorf("%s of %d units: %v; want the error ratelimit.ErrUnits", name, n, err)
			}
		}
	}
	if _, err := l.Peek(ctx, -1, "send"); !errors.Is(err, ratelimit.ErrUnits) {
		t.Errorf("Peek of -1: %v; want the error ratelimit.ErrUnits", err)
	}
	// An empty id would make all calls with the same requests one call, which is charged once.
	if err := l.AllowOnce(ctx, "", []ratelimit.Request{{Name: "send", N: 1}}); err == nil || !strings.Contains(err.Error(), "AllowOnce needs an id") {
		t.Errorf("no id: %v; want an error that contains %q", err, "AllowOnce needs an id")
	}
	if r, err := l.Peek(ctx, 0, "send"); err != nil || r.Remaining != 10 {
		t.Errorf("none of these consumed anything: %+v %v; want no error and 10 remaining", r, err)
	}
	if _, err := l.AllowN(ctx, 4, "send"); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Refund(ctx, 3, "send"); err != nil || r.Remaining != 9 {
		t.Errorf("refunded: %+v %v; want no error and 9 remaining", r, err)
	}
	if r, err := l.Refund(ctx, 30, "send"); err != nil || r.Remaining != 10 {
		t.Errorf("never more than the capacity: %+v %v; want no error and 10 remaining", r, err)
	}
}

func TestAllowAllConsumesAllOrNone(t *testing.T) {
	l, _ := newLimiterAndClock(t)
	ctx := t.Context()
	requests := []ratelimit.Request{{Name: "send", N: 4}, {Name: "burst", N: 5}}
	if err := l.AllowAll(ctx, requests); err != nil || requests[0].Result.Remaining != 6 || requests[1].Result.ResetAfter != 30*time.Second {
		t.Fatalf("got %+v %v; want no error, 6 remaining and reset after %v", requests, err, 30*time.Second)
	}
	requests = []ratelimit.Request{{Name: "send", N: 1}, {Name: "burst", N: 2}, {Name: "send", N: 8}}
	if err := l.AllowAll(ctx, requests); !errors.Is(err, ratelimit.ErrDenied) {
		t.Fatalf("got %v; want the error ratelimit.ErrDenied", err)
	}
	if denied, ok := errors.AsType[*ratelimit.DeniedError](l.AllowAll(ctx, requests)); !ok || denied.Result.RetryAfter != 18*time.Second {
		t.Errorf("the error has the longest time to wait: %+v; want a ratelimit.DeniedError and retry after %v", denied, 18*time.Second)
	}
	if r := requests[2].Result; r.Allowed || r.RetryAfter != 18*time.Second {
		t.Errorf("units of one bucket are added up: %+v; want denied and retry after %v", r, 18*time.Second)
	}
	if r := requests[1].Result; r.Allowed || r.RetryAfter != 12*time.Second {
		t.Errorf("each limit has its own result: %+v; want denied and retry after %v", r, 12*time.Second)
	}
	if r, err := l.AllowN(ctx, 6, "send"); err != nil || r.Remaining != 0 {
		t.Errorf("the denial consumed nothing: %+v %v; want no error and 0 remaining", r, err)
	}
	if err := l.AllowAll(ctx, nil); err != nil {
		t.Errorf("AllowAll without requests: %v; want no error", err)
	}
	requests = []ratelimit.Request{{Name: "burst", N: 1, Reserve: true}, {Name: "send", N: 9}}
	if err := l.AllowAll(ctx, requests); !errors.Is(err, ratelimit.ErrDenied) || requests[0].Reservation.Name() != "" {
		t.Errorf("a denied call has the reservation %+v, %v; want the error ratelimit.ErrDenied and no requests[0].Reservation", requests[0].Reservation, err)
	}
	requests = []ratelimit.Request{{Name: "send", N: 9}, {Name: "burst", N: 6}}
	if err := l.AllowAll(ctx, requests); !errors.Is(err, ratelimit.ErrNeverFits) || !strings.Contains(err.Error(), `limit "burst"`) {
		t.Errorf("one limit denies, and the other can never allow: %v; want the error ratelimit.ErrNeverFits and an error that contains %q", err, `limit "burst"`)
	}
}

func TestReservationsReportTheirTime(t *testing.T) {
	l, _ := newLimiterAndClock(t)
	for _, c := range []struct {
		name  string
		n     int64
		after time.Duration
	}{{"burst", 5, 0}, {"burst", 10, time.Minute}, {"burst", 1, 66 * time.Second}, {"queue", 1, 0}, {"queue", 1, time.Second}} {
		r, err := l.ReserveN(t.Context(), c.n, c.name)
		if err != nil {
			t.Fatalf("%d of %s: %v", c.n, c.name, err)
		}
		if due := r.Due().Sub(time.UnixMicro(int64(storetest.Start))); due != c.after || r.N() != c.n || r.Name() != c.name {
			t.Errorf("%d of %s: reserved %d of %s, due after %v; want the requested units, due after %v", c.n, c.name, r.N(), r.Name(), due, c.after)
		}
		if d := r.Delay(); d > c.after || c.after > 0 && d < c.after-time.Minute/2 {
			t.Errorf("%d of %s: a delay of %v, want nearly %v", c.n, c.name, d, c.after)
		}
	}
	if _, err := l.Reserve(t.Context(), "log"); !errors.Is(err, ratelimit.ErrCannotReserve) {
		t.Errorf("a log: %v; want the error ratelimit.ErrCannotReserve", err)
	}
}

func TestAllowOnceConsumesOnce(t *testing.T) {
	l, clock := newLimiterAndClock(t)
	ctx := t.Context()
	call := func() []ratelimit.Request {
		return []ratelimit.Request{{Name: "burst", Key: []string{"bob"}, N: 9, Reserve: true}, {Name: "send", Key: []string{"bob"}, N: 1}}
	}
	first := call()
	if err := l.AllowOnce(ctx, "call 1", first); err != nil || first[0].Result.Wait != 24*time.Second || first[1].Result.Remaining != 9 {
		t.Fatalf("got %+v %v; want no error, wait %v and 9 remaining", first, err, 24*time.Second)
	}
	clock.Set(storetest.Start + 5*algorithms.Second)
	again := call()
	if err := l.AllowOnce(ctx, "call 1", again); err != nil || again[0].Result != first[0].Result || again[1].Result != first[1].Result {
		t.Errorf("again: %+v %v, want %+v", again, err, first)
	}
	if a, b := text(t, first[0].Reservation), text(t, again[0].Reservation); a != b {
		t.Errorf("the repeated call has the reservation %s; want that of the first call, %s", b, a)
	}
	if err := l.AllowOnce(ctx, "call 1", call()[1:]); !errors.Is(err, ratelimit.ErrReused) {
		t.Errorf("another call: %v; want the error ratelimit.ErrReused", err)
	}
	if other := call()[1:]; l.AllowOnce(ctx, "call 2", other) != nil || other[0].Result.Remaining != 8 {
		t.Errorf("another id: %+v; want allowed and 8 remaining", other)
	}
	late := []ratelimit.Request{{Name: "send", Key: []string{"bob"}, N: 9}}
	err := l.AllowOnce(ctx, "call 3", late)
	if denied, ok := errors.AsType[*ratelimit.DeniedError](err); !ok || !errors.Is(err, ratelimit.ErrDenied) || denied.Result.RetryAfter != time.Second {
		t.Fatalf("got %v; want a ratelimit.DeniedError, the error ratelimit.ErrDenied and retry after %v", err, time.Second)
	}
	clock.Set(storetest.Start + 11*algorithms.Second)
	if err := l.AllowOnce(ctx, "call 3", late); err != nil {
		t.Errorf("a denial is decided again: %v; want no error", err)
	}
}

func TestRememberFor(t *testing.T) {
	l, clock := newLimiterAndClock(t)
	left := func(options ...ratelimit.OnceOption) int64 {
		t.Helper()
		requests := []ratelimit.Request{{Name: "send", Key: []string{"bob"}, N: 1}}
		if err := l.AllowOnce(t.Context(), "order 17", requests, options...); err != nil {
			t.Fatal(err)
		}
		return requests[0].Result.Remaining
	}
	left(ratelimit.RememberFor(168 * time.Hour))
	if _, err := l.AllowN(t.Context(), 5, "send", "bob"); err != nil {
		t.Fatal(err)
	}
	clock.Set(storetest.Start + 167*3600*algorithms.Second)
	if n := left(); n != 9 {
		t.Errorf("repeated within the time: got %d remaining, want those of the first call, 9", n)
	}
	clock.Set(storetest.Start + 168*3600*algorithms.Second)
	_, _ = l.AllowN(t.Context(), 5, "send", "bob")
	if n := left(); n != 4 {
		t.Errorf("repeated after the time: got %d remaining, want 4, because it consumes again", n)
	}
	for _, d := range []time.Duration{time.Second - 1, ratelimit.MaxRemembered + 1} {
		if err := l.AllowOnce(t.Context(), "x", []ratelimit.Request{{Name: "send", N: 1}}, ratelimit.RememberFor(d)); err == nil || !strings.Contains(err.Error(), "RememberFor needs a time from 1s to 720h0m0s") {
			t.Errorf("%v: got the error %v; want one that states the bounds", d, err)
		}
	}
}

func text(t *testing.T, r ratelimit.Reservation) string {
	t.Helper()
	b, err := r.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func reserve(t *testing.T, l *ratelimit.Limiter, n int64, name string, key ...string) ratelimit.Reservation {
	t.Helper()
	r, err := l.ReserveN(t.Context(), n, name, key...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAReservationIsSettledOnce(t *testing.T) {
	l, _ := newLimiterAndClock(t)
	ctx := t.Context()
	less, more := reserve(t, l, 15, "burst"), reserve(t, l, 5, "burst") // 15 + 5 units of 5: the bucket has a debt of 15
	for range 2 {
		if a, err := l.Settle(ctx, less, 2); err != nil || a.ResetAfter != 42*time.Second { // 2 + 5 units of 5: the debt is 2
			t.Errorf("got %+v %v; want no error and reset after %v", a, err, 42*time.Second)
		}
	}
	if _, err := l.Settle(ctx, less, 3); !errors.Is(err, ratelimit.ErrReused) {
		t.Errorf("with another cost: %v; want the error ratelimit.ErrReused", err)
	}
	if r, err := l.Settle(ctx, more, 29); !errors.Is(err, ratelimit.ErrDenied) || r.RetryAfter != 36*time.Second { // the settlement charges 24 units more than the 5 that were reserved
		t.Errorf("got %+v %v; want the error ratelimit.ErrDenied and retry after %v", r, err, 36*time.Second)
	}
	if r, err := l.Settle(ctx, more, 8); err != nil || r.ResetAfter != time.Minute {
		t.Errorf("got %+v %v; want no error and reset after %v", r, err, time.Minute)
	}
	if _, err := l.Settle(ctx, reserve(t, l, 1, "burst"), 27); !errors.Is(err, ratelimit.ErrNeverFits) {
		t.Errorf("26 more of 25: %v; want the error ratelimit.ErrNeverFits", err)
	}
	if _, err := l.Settle(ctx, more, -1); err == nil {
		t.Error("a cost of -1 was accepted")
	}
}

func TestForeignReservationsAreRefused(t *testing.T) {
	clock := storetest.NewClock()
	store := memory.New(memory.Config{Clock: clock.Time})
	made := func(domain, secret string) *ratelimit.Limiter {
		l := made(t, ratelimit.Config{
			Store: store, Domain: domain, Secret: secret, Limits: testLimits(),
			Clock: func() time.Time { return time.UnixMicro(int64(clock.Now())) },
		})
		return l
	}
	own := made("a", "secret")
	r := reserve(t, own, 4, "send")
	var parsed, changed ratelimit.Reservation
	if err := parsed.UnmarshalText([]byte(text(t, r))); err != nil {
		t.Fatal(err)
	}
	forged := []byte(text(t, r))
	forged[30] ^= 1
	_ = changed.UnmarshalText(forged)
	for name, settle := range map[string]func() error{
		"another domain":            func() error { _, err := made("b", "secret").Settle(t.Context(), r, 0); return err },
		"another secret":            func() error { _, err := made("a", "other").Settle(t.Context(), r, 0); return err },
		"another secret, from text": func() error { _, err := made("a", "other").Settle(t.Context(), parsed, 0); return err },
		"a changed text":            func() error { _, err := own.Settle(t.Context(), changed, 0); return err },
		"a zero reservation":        func() error { _, err := own.Settle(t.Context(), ratelimit.Reservation{}, 0); return err },
	} {
		if err := settle(); !errors.Is(err, ratelimit.ErrReservation) {
			t.Errorf("%s: got %v; want the error ratelimit.ErrReservation", name, err)
		}
	}
	if err := changed.UnmarshalText([]byte("x")); !errors.Is(err, ratelimit.ErrReservation) {
		t.Errorf("not a reservation: %v; want the error ratelimit.ErrReservation", err)
	}
	if _, err := (ratelimit.Reservation{}).MarshalText(); !errors.Is(err, ratelimit.ErrReservation) {
		t.Errorf("a zero reservation has no text: %v; want the error ratelimit.ErrReservation", err)
	}
	for length, fits := range map[int]bool{16 << 10: true, 48 << 10: false} {
		r, err := own.Reserve(t.Context(), "send", strings.Repeat("k", length))
		if err != nil {
			t.Fatal(err)
		}
		text, err := r.MarshalText()
		if fits && err != nil || !fits && (!errors.Is(err, ratelimit.ErrReservation) || !strings.Contains(err.Error(), "48 KiB")) {
			t.Errorf("a key of %d bytes: a text of %d bytes, %v; want an error that names the bound: %t", length, len(text), err, !fits)
		}
	}
	if got, err := made("a", "secret").Settle(t.Context(), parsed, 1); err != nil || got.Remaining != 9 {
		t.Errorf("another Limiter with the same secret: %+v %v; want no error and 9 remaining", got, err)
	}
}

// The Store keeps the result of a settlement for as long as the reservation can be settled, so that a
// repeated settlement never refunds twice.
func TestAnExpiredReservationIsNotSettled(t *testing.T) {
	l, clock := newLimiterAndClock(t)
	r := reserve(t, l, 4, "window")
	if r.Expires() != r.Due().Add(time.Hour) {
		t.Errorf("expires %v, due %v; want %v", r.Expires(), r.Due(), r.Due().Add(time.Hour))
	}
	if _, err := l.Settle(t.Context(), r, 1); err != nil {
		t.Fatal(err)
	}
	for _, after := range []algorithms.Micros{601 * algorithms.Second, 3599 * algorithms.Second} {
		clock.Set(storetest.Start + after)
		before, _ := l.Peek(t.Context(), 0, "window")
		if _, err := l.Settle(t.Context(), r, 1); err != nil {
			t.Errorf("repeated after %v us: %v", after, err)
		}
		if now, _ := l.Peek(t.Context(), 0, "window"); now.Remaining != before.Remaining {
			t.Errorf("repeated after %v us: refunded again: %+v, before %+v; want %v remaining", after, now, before, before.Remaining)
		}
	}
	clock.Set(storetest.Start + 3600*algorithms.Second)
	if _, err := l.Settle(t.Context(), r, 1); !errors.Is(err, ratelimit.ErrExpired) {
		t.Errorf("after an hour: %v; want the error ratelimit.ErrExpired", err)
	}
}

type unreachable struct{}

func (unreachable) Submit(b *backend.Batch) { b.Fail(backend.ErrUnavailable) }

func TestMistakesAndFailuresAreErrors(t *testing.T) {
	l := limiterFor(t, unreachable{}, nil)
	ctx := t.Context()
	two := []ratelimit.Request{{Name: "send", N: 1}, {Name: "burst", N: 1}}
	_, allow := l.Allow(ctx, "send")
	for name, err := range map[string]error{
		"Allow": allow, "Reset": l.Reset(ctx, "send"), "AllowAll": l.AllowAll(ctx, two), "AllowOnce": l.AllowOnce(ctx, "1", two), "Wait": l.Wait(ctx, "log"),
	} {
		if !errors.Is(err, ratelimit.ErrUnavailable) {
			t.Errorf("with an unreachable Store: %s: %v; want the error ratelimit.ErrUnavailable", name, err)
		}
	}
	_, allow = l.Allow(ctx, "nope")
	_, peek := l.Peek(ctx, 1, "nope")
	_, reserve := l.Reserve(ctx, "nope")
	for i, err := range []error{allow, peek, reserve, l.Reset(ctx, "nope"), l.Wait(ctx, "nope"), l.AllowAll(ctx, []ratelimit.Request{{Name: "nope", N: 1}})} {
		if !errors.Is(err, ratelimit.ErrUnknown) {
			t.Errorf("%d: an unknown limit: %v; want the error ratelimit.ErrUnknown", i, err)
		}
	}
}

func TestNewListsAllMistakes(t *testing.T) {
	if _, err := ratelimit.New(ratelimit.Config{}); err == nil || !strings.Contains(err.Error(), "Config.Store is missing") {
		t.Errorf("no Store: %v; want an error that contains %q", err, "Config.Store is missing")
	}
	_, err := ratelimit.New(ratelimit.Config{Store: unreachable{}, MaxWait: -time.Second, Limits: ratelimit.Limits{
		"b negative": ratelimit.TokenBucket(-1, time.Second),
		"a fine":     ratelimit.TokenBucket(1, time.Second),
		"a period":   ratelimit.TokenBucket(1, 1500*time.Nanosecond),
		"c log":      ratelimit.SlidingLog(100_000, time.Second),
		"d many": {
			Algorithm: algorithms.FixedWindow, Rate: -1, Period: time.Hour, Start: time.Unix(0, 1).UTC(),
			Penalty: &ratelimit.Penalty{After: 1, For: time.Minute + 1, Max: time.Hour + 1},
		},
		"e guaranteed": {Algorithm: algorithms.Guaranteed, Rate: 1, Period: time.Hour, Guaranteed: &ratelimit.Rate{Units: 1, Period: time.Hour}},
		"f calendar":   {Algorithm: algorithms.TokenBucket, Rate: 1, Period: time.Hour, Calendar: calendar.Day.In(nil)},
		"g start":      {Algorithm: algorithms.FixedWindow, Rate: 1, Calendar: calendar.Day.In(nil), Start: time.Unix(1, 0)},
		"":             ratelimit.TokenBucket(1, time.Second),
	}})
	want := `ratelimit: Config.MaxWait must not be negative, but is -1s
ratelimit: limit "": its name must not be empty
ratelimit: limit "a period": period must be a whole number of microseconds, but is 1.5µs
ratelimit: limit "b negative": rate must be at least 1, but is -1
ratelimit: limit "c log": rate must be at most 10000 for sliding_log, which remembers every admitted unit, but is 100000; use sliding_window
ratelimit: limit "d many": start must be a whole number of microseconds, but is 1970-01-01 00:00:00.000000001 +0000 UTC
penalty: for must be a whole number of microseconds, but is 1m0.000000001s
penalty: max must be a whole number of microseconds, but is 1h0m0.000000001s
rate must be at least 1, but is -1
ratelimit: limit "e guaranteed": algorithm must not be guaranteed: use token_bucket, and set the guaranteed rate
ratelimit: limit "f calendar": period cannot be combined with calendar, which determines when windows start; remove period (1h0m0s)
calendar belongs to algorithm fixed_window, not to token_bucket
ratelimit: limit "g start": start cannot be combined with calendar: the calendar determines when windows start`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestALimitThatComesWithTheRequest(t *testing.T) {
	clock := storetest.NewClock()
	store := memory.New(memory.Config{Clock: clock.Time})
	l := limiterFor(t, store, clock)
	call := func(rate int64) (int64, error) {
		own := ratelimit.TokenBucket(rate, time.Hour)
		requests := []ratelimit.Request{{Name: "tenant", Key: []string{"acme"}, N: 3, Limit: &own}, {Name: "send", N: 1}}
		err := l.AllowAll(t.Context(), requests)
		return requests[0].Result.Remaining, err
	}
	if left, err := call(5); left != 2 || err != nil {
		t.Errorf("3 of 5: %d left, %v; want 2 left and no error", left, err)
	}
	if left, err := call(5); left != 2 || !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("2 are left: %d, %v; want 2 left and the error ratelimit.ErrDenied", left, err)
	}
	if left, err := call(50); left != 44 || err != nil {
		t.Errorf("3 of 50 are consumed already: %d left, %v; want 44 left and no error", left, err)
	}
	if r, err := l.Peek(t.Context(), 0, "send"); r.Remaining != 8 || err != nil {
		t.Errorf("the denied call consumed nothing of send: %d left, %v; want 8 remaining and no error", r.Remaining, err)
	}
	config := `{"algorithm":"token_bucket","rate":50,"period":"1h"}`
	h := httpAPI(t, store, "test")
	if answer := h(`{"name":"tenant","key":"acme","config":` + config + `}`); !strings.Contains(answer, `"remaining":43,"limit":50`) {
		t.Errorf("the HTTP API: %s; want a text that contains %q", answer, `"remaining":43,"limit":50`)
	}

	own := ratelimit.TokenBucket(5, time.Hour)
	bad := ratelimit.TokenBucket(-5, time.Hour)
	for want, r := range map[string]ratelimit.Request{
		`limit "send" is in Config.Limits`:        {Name: "send", N: 1, Limit: &own},
		`limit "tenant": rate must be at least 1`: {Name: "tenant", N: 1, Limit: &bad},
		`needs a Name`: {N: 1, Limit: &own},
		`limit "tenant": a limit of this algorithm cannot be reser`: {Name: "tenant", N: 1, Limit: &own, Reserve: true},
	} {
		if err := l.AllowAll(t.Context(), []ratelimit.Request{r}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %s", err, want)
		}
	}
	for range 2 {
		once := []ratelimit.Request{{Name: "tenant", Key: []string{"blue"}, N: 2, Limit: &own}}
		if err := l.AllowOnce(t.Context(), "id", once); err != nil || once[0].Result.Remaining != 3 {
			t.Errorf("charged once: %d left, %v; want no error and 3 remaining", once[0].Result.Remaining, err)
		}
	}
}

func httpAPI(t *testing.T, store backend.Store, domain string) func(body string) string {
	t.Helper()
	sidecar := limiter.New(store, limiter.Config{})
	sidecar.Swap(configtest.Compile(t, "domain: "+domain+"\nlimits: {a: {algorithm: token_bucket, rate: 1, period: 1s}}"))
	h := httpapi.New(httpapi.Config{API: &httpapi.API{Limiter: sidecar, Inline: config.Inline}})
	return func(body string) string {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "http://localhost/v1/limit", strings.NewReader(body))
		h.ServeHTTP(w, r)
		return w.Body.String()
	}
}

func TestManyGoroutinesGetExactlyTheLimit(t *testing.T) {
	l, _ := newLimiterAndClock(t)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				if l.AllowAll(t.Context(), []ratelimit.Request{{Name: "send", N: 1}, {Name: "burst", N: 1}}) == nil {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != 5 {
		t.Errorf("admitted %d, want exactly 5", n)
	}
}
