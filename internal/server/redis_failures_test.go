package server

import (
	"errors"
	"testing"
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
