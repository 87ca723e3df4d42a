package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

func with(edit func(*ratelimit.Limit)) ratelimit.Limit {
	l := ratelimit.TokenBucket(6, time.Minute)
	l.Capacity = new(int64(2))
	edit(&l)
	return l
}

func TestACostThatNeverFitsReportsTheBucket(t *testing.T) {
	l, _ := newLimiterAndClock(t)
	if _, err := l.AllowN(t.Context(), 4, "send"); err != nil {
		t.Fatal(err)
	}
	if r, err := l.AllowN(t.Context(), 11, "send"); !errors.Is(err, ratelimit.ErrNeverFits) || r.Remaining != 6 || r.ResetAfter != 24*time.Second {
		t.Errorf("%+v %v; want ErrNeverFits, 6 remaining and a reset after 24 s", r, err)
	}
}

func checkRemaining(l *ratelimit.Limiter, name string, units int64, resetAfter time.Duration) error {
	if r, _ := l.Peek(context.Background(), 0, name); r.Remaining != units || r.ResetAfter != resetAfter {
		return fmt.Errorf("limit %s: %d units, reset after %v; want %d and %v", name, r.Remaining, r.ResetAfter, units, resetAfter)
	}
	return nil
}

// A limit with Overdraw is charged even if the cost is available only after a longer wait.
func TestMaxWaitDoesNotApplyToRequestsThatDoNotReserve(t *testing.T) {
	l, _ := limiterWith(t, ratelimit.Limits{"l": with(func(l *ratelimit.Limit) { l.Overdraw = true })}, time.Second, unchanged)
	if err := l.AllowAll(t.Context(), []ratelimit.Request{{Name: "l", N: 5}}); !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("got %v; want ErrDenied", err)
	}
	if err := checkRemaining(l, "l", 0, 50*time.Second); err != nil {
		t.Error(err)
	}
}

type failing struct {
	backend.Store
	fails func(c *backend.Charge) bool
}

func (s failing) Submit(b *backend.Batch) {
	if s.fails(&b.Charges[0]) {
		b.Fail(backend.ErrUnavailable)
		return
	}
	s.Store.Submit(b)
}

func TestAnUndoThatFailsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := limiterWith(t, ratelimit.Limits{"l": ratelimit.TokenBucket(10, time.Minute)}, 30*time.Second, func(s backend.Store) backend.Store {
			return failing{s, func(c *backend.Charge) bool { return c.Terms.Cost < 0 }}
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		if err := l.WaitN(ctx, 12, "l", "eve"); !errors.Is(err, context.Canceled) || !errors.Is(err, ratelimit.ErrUnavailable) {
			t.Errorf("a canceled wait: got %v; want Canceled and ErrUnavailable", err)
		}
	})
}

// WaitN returns nil only if it has consumed the units.
func TestWaitingForALimitThatCannotBeReserved(t *testing.T) {
	for maxWait, want := range map[time.Duration]error{0: nil, 500 * time.Millisecond: ratelimit.ErrDenied, time.Second: nil, 2 * time.Second: nil} {
		synctest.Test(t, func(t *testing.T) {
			l := made(t, ratelimit.Config{Store: memory.New(memory.Config{}), Limits: testLimits(), MaxWait: maxWait})
			for range 2 {
				if err := l.WaitN(t.Context(), 2, "log"); !errors.Is(err, want) && err != nil {
					t.Errorf("longest wait %v: got %v; want %v", maxWait, err, want)
				}
			}
			if _, err := l.Allow(t.Context(), "log"); !errors.Is(err, ratelimit.ErrDenied) {
				t.Errorf("longest wait %v: %v; want both units consumed", maxWait, err)
			}
			start := time.Now()
			if err := l.Wait(t.Context(), "log"); !errors.Is(err, want) || (time.Since(start) == time.Second) != (want == nil) {
				t.Errorf("longest wait %v: got %v after %v; want %v", maxWait, err, time.Since(start), want)
			}
			if want != nil {
				return
			}
			if err := l.WaitN(t.Context(), 2, "log"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { time.Sleep(100 * time.Millisecond); cancel() }()
			if err := l.Wait(ctx, "log"); !errors.Is(err, context.Canceled) {
				t.Errorf("a canceled wait: got %v; want Canceled", err)
			}
		})
	}
}

func TestReservationsOfASidecarAreSettled(t *testing.T) {
	clock := storetest.NewClock()
	store := memory.New(memory.Config{Clock: clock.Time})
	secrets := func() []string { return []string{"secret"} }
	snapshot := configtest.Compile(t, `
domain: d
limits:
  small: {algorithm: token_bucket, rate: 6, period: 1m, max_reserved: 0}
  large: {algorithm: token_bucket, rate: 60, period: 1m, max_reserved: 0}
`)
	sidecar := limiter.New(store, limiter.Config{IDs: reservation.NewKeys(secrets), Now: clock.Now})
	sidecar.Swap(snapshot)
	h := httpapi.New(httpapi.Config{API: &httpapi.API{Limiter: sidecar, Inline: config.Inline}})
	reserved := func(body string) (r ratelimit.Reservation) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/v1/limit", strings.NewReader(body)))
		var answer struct{ Reservation string }
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		if err := r.UnmarshalText([]byte(answer.Reservation)); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
		return r
	}
	both := func(first, second string) string {
		return `{"limits":[{"name":"` + first + `","reserve":true},{"name":"` + second + `","reserve":true}]}`
	}
	limits := func() ratelimit.Limits {
		small, large := ratelimit.TokenBucket(6, time.Minute), ratelimit.TokenBucket(60, time.Minute)
		small.MaxReserved, large.MaxReserved = new(int64(0)), new(int64(0))
		return ratelimit.Limits{"small": small, "large": large}
	}
	program := func(store backend.Store, edit func(ratelimit.Limits)) *ratelimit.Limiter {
		t.Helper()
		c := ratelimit.Config{Store: store, Domain: "d", Secret: "secret", Limits: limits(), Clock: clock.Time}
		edit(c.Limits)
		return made(t, c)
	}
	same := func(ratelimit.Limits) {}
	for _, test := range []struct {
		name    string
		l       *ratelimit.Limiter
		body    string // of the request to the sidecar
		cost    int64
		want    error
		problem string
		limit   int64 // of the Result
	}{
		{"without an error, the first", program(store, same), both("large", "small"), 2, nil, "", 60},
		{"a denial takes precedence, first", program(store, same), both("small", "large"), 6, ratelimit.ErrDenied, "", 6},
		{"a denial takes precedence, last", program(store, same), both("large", "small"), 6, ratelimit.ErrDenied, "", 6},
		{"a cost that never fits", program(store, same), both("large", "small"), 50, ratelimit.ErrNeverFits, "", 6},
		{"an unknown limit", program(store, func(l ratelimit.Limits) { delete(l, "small") }), both("large", "small"), 0, ratelimit.ErrUnknown, `"small"`, 0},
		{"another algorithm", program(store, func(l ratelimit.Limits) { l["small"] = ratelimit.FixedWindow(6, time.Minute) }), both("small", "large"), 0, ratelimit.ErrExpired, "the limit has another algorithm now", 0},
		{"a limit that came with the request", program(store, same), `{"domain":"d","name":"own","reserve":true,"config":{"algorithm":"token_bucket","rate":2,"period":"1m"}}`, 0, ratelimit.ErrReservation, "", 0},
		{"a Store that fails", program(unreachable{}, same), both("small", "large"), 0, ratelimit.ErrUnavailable, "settle limit", 0},
	} {
		clock.Set(clock.Now() + 600*algorithms.Second) // all buckets are full again
		r := reserved(test.body)
		if test.want == ratelimit.ErrDenied { //nolint:errorlint // one of the table
			if _, err := test.l.AllowN(t.Context(), 4, "small"); err != nil {
				t.Fatal(err)
			}
		}
		got, err := test.l.Settle(t.Context(), r, test.cost)
		if !errors.Is(err, test.want) || got.Limit != test.limit || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: %+v %v; want the limit %d and %v with %q", test.name, got, err, test.limit, test.want, test.problem)
		}
	}
}

func TestACostThatNeverFitsHasTheNumbersOfItsLimit(t *testing.T) {
	l := limiterFor(t, unreachable{}, nil)
	if r, err := l.AllowN(t.Context(), 11, "send", "bob"); !errors.Is(err, ratelimit.ErrNeverFits) || r.Limit != 10 || r.Window != time.Minute {
		t.Errorf("got %+v, %v; want %v and a limit of 10 in a minute", r, err, ratelimit.ErrNeverFits)
	}
}
