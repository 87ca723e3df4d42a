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
	for _, step := range []struct {
		happens string // f is a failure; the breaker opens at o, and closes at c
		want    uint64
	}{{"", 0}, {"ff", 2}, {"", 0}, {"ffoff", 0}, {"f", 0}, {"fc", 0}, {"f", 1}, {"offc", 0}} {
		for _, what := range step.happens {
			if what == 'f' {
				failures.failed(errors.New("late"))
			} else {
				failures.changed("a", what == 'o')
			}
		}
		if got := failures.recent(); got != step.want {
			t.Errorf("%q: %d failures, want %d", step.happens, got, step.want)
		}
	}
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
