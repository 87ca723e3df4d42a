package ratelimit_test

import (
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func testLimits() ratelimit.Limits {
	burst := ratelimit.Per(algorithms.TokenBucket, 10, time.Minute)
	burst.Capacity, burst.MaxReserved = new(int64(5)), new(int64(20))
	blocked := ratelimit.Per(algorithms.TokenBucket, 10, time.Minute)
	blocked.Penalty = &algorithms.Penalty{After: 1, For: 60 * algorithms.Second, Max: 60 * algorithms.Second}
	return ratelimit.Limits{
		"send":    ratelimit.Per(algorithms.TokenBucket, 10, time.Minute),
		"burst":   burst,
		"blocked": blocked,
		"log":     ratelimit.Per(algorithms.SlidingLog, 2, time.Second),
		"queue":   {Kind: algorithms.LeakyBucket, Rate: 1, Period: algorithms.Second, Capacity: new(int64(1))},
	}
}

// onClock is a Limiter on a clock of the test's.
func onClock(tb testing.TB) (*ratelimit.Limiter, *storetest.Clock) {
	tb.Helper()
	clock := &storetest.Clock{}
	clock.Set(storetest.Start)
	return over(tb, memory.New(memory.Config{Clock: clock.Now})), clock
}

func over(tb testing.TB, store backend.Store) *ratelimit.Limiter {
	tb.Helper()
	l, err := ratelimit.New(ratelimit.Config{Store: store, Domain: "test", Limits: testLimits()})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// denied is err, which must be a *Denied.
func denied(t *testing.T, err error) *ratelimit.Denied {
	t.Helper()
	d, ok := errors.AsType[*ratelimit.Denied](err)
	if !ok {
		t.Fatalf("got %v, want a *Denied", err)
	}
	return d
}

func TestDeniedSaysExactlyWhenToComeBack(t *testing.T) {
	l, clock := onClock(t)
	ctx := t.Context()
	for range 10 {
		if err := l.Limit(ctx, "send", "bob"); err != nil {
			t.Fatal(err)
		}
	}
	d := denied(t, l.Limit(ctx, "send", "bob"))
	if d.Name != "send" || !slices.Equal(d.Key, []string{"bob"}) || d.RetryAfter != 6*time.Second || d.Never {
		t.Errorf("%+v", d)
	}
	if d.Error() != `limit "send": denied for another 6s` {
		t.Error(d)
	}
	clock.Set(storetest.Start + 6*algorithms.Second - 1)
	if d := denied(t, l.Check(ctx, "send", "bob")); d.RetryAfter != time.Microsecond {
		t.Errorf("a microsecond early: %+v", d)
	}
	clock.Set(storetest.Start + 6*algorithms.Second)
	for range 2 { // looking takes nothing
		if err := l.Check(ctx, "send", "bob"); err != nil {
			t.Error(err)
		}
	}
	if err := l.Limit(ctx, "send", "bob"); err != nil {
		t.Error(err)
	}
	if err := l.Limit(ctx, "send", "alice"); err != nil {
		t.Errorf("another bucket: %v", err)
	}
}

func TestAllTakesAllOrNone(t *testing.T) {
	l, _ := onClock(t)
	ctx := t.Context()
	answers, err := l.All(ctx, ratelimit.Ask{Name: "send", Count: 4}, ratelimit.Ask{Name: "burst", Count: 5})
	if err != nil || answers[0].Remaining != 6 || answers[1].Remaining != 0 || answers[1].ResetAfter != 30*time.Second {
		t.Fatalf("%+v %v", answers, err)
	}
	if d := denied(t, l.Limit(ctx, "burst")); d.RetryAfter != 6*time.Second {
		t.Errorf("%+v", d)
	}
	_, err = l.All(ctx, ratelimit.Ask{Name: "send"}, ratelimit.Ask{Name: "burst", Count: 2}, ratelimit.Ask{Name: "send", Count: 8})
	if d := denied(t, err); d.Name != "send" || d.RetryAfter != 18*time.Second || d.Count != 9 {
		t.Errorf("the one to wait longest for: %+v", d)
	}
	answers, err = l.All(ctx, ratelimit.Ask{Name: "send", Count: 6})
	if err != nil || answers[0].Remaining != 0 {
		t.Errorf("nothing was taken by the denial: %+v %v", answers, err)
	}
	if answers, err = l.All(ctx, ratelimit.Ask{Name: "send", Count: -3}); err != nil || answers[0].Remaining != 3 {
		t.Errorf("given back: %+v %v", answers, err)
	}
}

func TestWhatCanNeverFitIsSaid(t *testing.T) {
	l, _ := onClock(t)
	_, err := l.All(t.Context(), ratelimit.Ask{Name: "send", Count: 12})
	if d := denied(t, err); !d.Never || d.Error() != `limit "send": asks for 12, the most it can ever get is 10` {
		t.Error(d)
	}
	_, err = l.Reserve(t.Context(), 26, "burst")
	if d := denied(t, err); !d.Never || d.Most != 25 {
		t.Errorf("%+v", d)
	}
}

func TestReserveSaysWhen(t *testing.T) {
	l, _ := onClock(t)
	for _, c := range []struct {
		name  string
		count int64
		wait  time.Duration
	}{{"burst", 5, 0}, {"burst", 10, time.Minute}, {"burst", 1, 66 * time.Second}, {"queue", 1, 0}, {"queue", 1, time.Second}} {
		if wait, err := l.Reserve(t.Context(), c.count, c.name); err != nil || wait != c.wait {
			t.Errorf("%d of %s: %v %v, want %v", c.count, c.name, wait, err, c.wait)
		}
	}
	if _, err := l.Reserve(t.Context(), 1, "log"); !errors.Is(err, ratelimit.ErrCannotReserve) {
		t.Errorf("a log: %v", err)
	}
}

func TestOnceTakesOnce(t *testing.T) {
	l, clock := onClock(t)
	ctx := t.Context()
	asks := []ratelimit.Ask{{Name: "burst", Key: []string{"bob"}, Count: 9, Reserve: true}, {Name: "send", Key: []string{"bob"}}}
	first, err := l.Once(ctx, "call 1", asks...)
	if err != nil || first[0].Wait != 24*time.Second || first[1].Remaining != 9 {
		t.Fatalf("%+v %v", first, err)
	}
	clock.Set(storetest.Start + 5*algorithms.Second)
	again, err := l.Once(ctx, "call 1", asks...)
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("again: %+v %v, want %+v", again, err, first)
	}
	if _, err := l.Once(ctx, "call 1", asks[1]); !errors.Is(err, backend.ErrReused) {
		t.Errorf("another call: %v", err)
	}
	if answers, err := l.Once(ctx, "call 2", asks[1]); err != nil || answers[0].Remaining != 8 {
		t.Errorf("another id: %+v %v", answers, err)
	}
	_ = denied(t, errOf(l.Once(ctx, "call 3", ratelimit.Ask{Name: "send", Key: []string{"bob"}, Count: 9})))
	clock.Set(storetest.Start + 11*algorithms.Second)
	if _, err := l.Once(ctx, "call 3", ratelimit.Ask{Name: "send", Key: []string{"bob"}, Count: 9}); err != nil {
		t.Errorf("a denial is decided anew: %v", err)
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestAReservationIsSettledOnce(t *testing.T) {
	l, _ := onClock(t)
	ctx := t.Context()
	reserve := func(count int64) ratelimit.Reservation {
		answers, err := l.All(ctx, ratelimit.Ask{Name: "burst", Count: count, Reserve: true})
		if err != nil {
			t.Fatal(err)
		}
		return answers[0].Reservation
	}
	less, more := reserve(15), reserve(5) // 5 - 20
	for range 2 {
		if a, err := l.Settle(ctx, less, 2); err != nil || a.ResetAfter != 42*time.Second { // 5 - 7
			t.Errorf("%+v %v", a, err)
		}
	}
	if _, err := l.Settle(ctx, less, 3); !errors.Is(err, backend.ErrReused) {
		t.Errorf("with another count: %v", err)
	}
	if d := denied(t, errOf(l.Settle(ctx, more, 29))); d.RetryAfter != 36*time.Second { // 24 more, of 5 + 20 in all
		t.Errorf("%+v", d)
	}
	if a, err := l.Settle(ctx, more, 8); err != nil || a.ResetAfter != time.Minute {
		t.Errorf("%+v %v", a, err)
	}
	if d := denied(t, errOf(l.Settle(ctx, reserve(1), 27))); !d.Never {
		t.Errorf("26 more of 25: %+v", d)
	}
	if _, err := l.Settle(ctx, more, -1); err == nil {
		t.Error("it came to -1")
	}
	if _, err := l.Settle(ctx, ratelimit.Reservation{Name: "nope"}, 1); !errors.Is(err, ratelimit.ErrUnknown) {
		t.Errorf("an unknown limit: %v", err)
	}
}

// A settlement whose difference is 0 consumes nothing, so that a block does not deny it. One with a
// difference is denied like any other charge.
func TestASettlementWithoutDifferenceIsAcceptedDuringABlock(t *testing.T) {
	l, _ := onClock(t)
	ctx := t.Context()
	answers, err := l.All(ctx, ratelimit.Ask{Name: "blocked", Count: 4, Reserve: true})
	if err != nil {
		t.Fatal(err)
	}
	exact := answers[0].Reservation
	if answers, err = l.All(ctx, ratelimit.Ask{Name: "blocked", Count: 1, Reserve: true}); err != nil {
		t.Fatal(err)
	}
	more := answers[0].Reservation
	_ = denied(t, errOf(l.All(ctx, ratelimit.Ask{Name: "blocked", Count: 9}))) // blocks
	if d := denied(t, l.Limit(ctx, "blocked")); d.RetryAfter != time.Minute {
		t.Fatalf("5 are left, and the bucket is blocked: %+v", d)
	}
	for range 2 {
		if a, err := l.Settle(ctx, exact, 4); err != nil || a.Remaining != 5 {
			t.Errorf("no difference: %+v %v", a, err)
		}
	}
	if _, err := l.Settle(ctx, exact, 5); !errors.Is(err, backend.ErrReused) {
		t.Errorf("with another count: %v", err)
	}
	if d := denied(t, errOf(l.Settle(ctx, more, 2))); d.RetryAfter != time.Minute {
		t.Errorf("one more: %+v", d)
	}
}

func TestResetForgets(t *testing.T) {
	l, _ := onClock(t)
	ctx := t.Context()
	for range 2 {
		for range 2 {
			if err := l.Limit(ctx, "log", "bob"); err != nil {
				t.Fatal(err)
			}
		}
		_ = denied(t, l.Limit(ctx, "log", "bob"))
		if err := l.Reset(ctx, "log", "bob"); err != nil {
			t.Fatal(err)
		}
	}
}

// away is a Store that cannot answer.
type away struct{}

func (away) Submit(b *backend.Batch) { b.Fail(backend.ErrUnavailable) }

func TestMistakesAndFailuresAreErrors(t *testing.T) {
	l := over(t, away{})
	ctx := t.Context()
	if err := l.Limit(ctx, "send"); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("the store is away: %v", err)
	}
	if err := l.Reset(ctx, "send"); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("reset while the store is away: %v", err)
	}
	if err := errors.Join(l.Limit(ctx, "nope"), l.Check(ctx, "nope"), l.Reset(ctx, "nope")); !errors.Is(err, ratelimit.ErrUnknown) {
		t.Errorf("an unknown limit: %v", err)
	}
	if answers, err := l.All(ctx); answers != nil || err != nil {
		t.Errorf("nothing asked: %v %v", answers, err)
	}
	if _, err := ratelimit.New(ratelimit.Config{}); err == nil {
		t.Error("no Store is taken")
	}
	_, err := ratelimit.New(ratelimit.Config{Store: away{}, Limits: ratelimit.Limits{"bad": {Kind: algorithms.TokenBucket, Rate: -1}}})
	if _, ok := errors.AsType[algorithms.SpecErrors](err); !ok {
		t.Errorf("impossible numbers: %v", err)
	}
}

// TestBucketsAreThoseOfTheSidecar: the key is that which the configuration makes of a named limit.
func TestBucketsAreThoseOfTheSidecar(t *testing.T) {
	store := memory.New(memory.Config{})
	l := over(t, store)
	for range 2 {
		if err := l.Limit(t.Context(), "log", "bob"); err != nil {
			t.Fatal(err)
		}
	}
	limit, err := algorithms.Compile(testLimits()["log"])
	if err != nil {
		t.Fatal(err)
	}
	p := descriptors.Policy{Limit: &limit, Prefix: descriptors.Prefix("test", "limit", "log", limit.Kind), Open: []int{1}}
	key, hash := p.AppendKey(nil, []descriptors.Entry{{Key: "path", Value: "/"}, {Key: "user", Value: "bob"}})
	var d [1]backend.Decision
	backend.Take(t.Context(), store, []backend.Charge{{Key: key, Limit: &limit, Ask: algorithms.Ask{Cost: 1, Hash: hash}}}, d[:])
	if d[0].Allowed {
		t.Error("it is another bucket")
	}
}

func TestManyGoroutinesGetExactlyTheLimit(t *testing.T) {
	l, _ := onClock(t)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				if _, err := l.All(t.Context(), ratelimit.Ask{Name: "send"}, ratelimit.Ask{Name: "burst"}); err == nil {
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
