package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
)

// After an outage, the admin page must not report that Redis is slow and that its timeout should be raised.
func TestFailuresAroundAnOpenBreakerAreNotSlowness(t *testing.T) {
	var failures redisFailures
	fail := func(n int) {
		for range n {
			failures.failed(errors.New("late"))
		}
	}
	next := func(step string, want uint64) {
		t.Helper()
		if got := failures.recent(); got != want {
			t.Errorf("%s: %d failures, want %d", step, got, want)
		}
	}
	next("nothing happened", 0)
	fail(2)
	next("two late answers", 2)
	next("none since", 0)
	fail(5)
	failures.changed("a", true)
	fail(3)
	next("the breaker is open", 0)
	fail(4)
	next("the breaker is still open", 0)
	fail(1)
	failures.changed("a", false)
	next("the breaker closed meanwhile", 0)
	fail(1)
	next("one late answer after that", 1)
	failures.changed("a", true)
	fail(7)
	failures.changed("a", false)
	next("the breaker opened and closed meanwhile", 0)
}

// The line of state turns green within five seconds. A page requests it every second, and a busy machine needs time too.
const soon = 3 * time.Second

func TestFailuresAreForgottenSoon(t *testing.T) {
	outage := func(s *server) {
		s.breakerChanged("a", true)
		time.Sleep(10 * time.Second)
		s.breakerChanged("a", false)
	}
	late := func(s *server) { s.redisFailures.failed(context.DeadlineExceeded) }
	for what, happens := range map[string]func(s *server){
		"a late answer": late, "an outage": outage, "a late answer after an outage": func(s *server) { outage(s); time.Sleep(failureTick); late(s) },
	} {
		// No phase is 0: two goroutines that wake at the same instant run in either order.
		for phase := failureTick / 8; phase < failureTick; phase += failureTick / 4 {
			synctest.Test(t, func(t *testing.T) {
				s := &server{conditions: conditions.New(time.Now), limiter: &limiter.Limiter{}}
				go s.watchFailures(t.Context())
				time.Sleep(phase)
				happens(s)
				if time.Sleep(failureTick + time.Millisecond); len(s.conditions.List()) == 0 {
					t.Errorf("%s: no condition, want one", what)
				}
				if time.Sleep(soon - failureTick); len(s.conditions.List()) != 0 {
					t.Errorf("%s: after %v the conditions are %v, want none", what, soon, s.conditions.List())
				}
			})
		}
	}
}

func TestAFloodIsForgottenSoon(t *testing.T) {
	var traffic recentTraffic
	ended := time.Unix(1_800_000_000, 0)
	for denied, at := uint64(0), -5*time.Second; at < soon; at += trafficTick {
		if at <= 0 {
			denied += 90
		}
		traffic.add(ended.Add(at), metrics.Requests{Allowed: 1000, Denied: denied}, func(func(history.Key, history.Totals)) {})
		if flood := !traffic.halfSince.IsZero(); flood != (at > -5*time.Second && at < soon-trafficTick) {
			t.Errorf("%v after the end of the flood: reported %t", at, flood)
		}
	}
}

// The name follows the limit that denies most now, also when another one has denied more before, such as in an outage.
func TestTheLimitThatDeniesMostIsNamedAtOnce(t *testing.T) {
	var traffic recentTraffic
	var failed, flood uint64
	for second, want := range []string{"", "", "failed", "failed", "flood", "flood", ""} {
		switch {
		case second < 4:
			failed, flood = failed+1000, flood+10
		case second < 6:
			flood += 20
		default: // the domain was removed, and added again
			failed, flood = 0, 0
		}
		traffic.add(time.Unix(int64(second), 0), metrics.Requests{Denied: failed + flood}, func(visit func(history.Key, history.Totals)) {
			visit(history.Key{Domain: "d", Limit: "failed"}, history.Totals{Denied: failed})
			visit(history.Key{Domain: "d", Limit: "flood"}, history.Totals{Denied: flood})
		})
		if traffic.mostly != want {
			t.Errorf("second %d: mostly by %q, want %q", second, traffic.mostly, want)
		}
	}
}
