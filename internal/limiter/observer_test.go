package limiter_test

import (
	"context"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// The Observer gets each answer that a client gets, even an answer by on_backend_failure after the deadline. It gets
// no repeated answers, and no answers to an operator.
func TestWhatIsObserved(t *testing.T) {
	store, o := &faulty{Store: memory.New(memory.Config{})}, &counts{}
	l := newLimiterOn(t, store, o)
	check := func(ctx context.Context, c *limiter.Call) int {
		was := o.calls
		if err := l.Check(ctx, c); err != nil {
			t.Fatal(err)
		}
		return o.calls - was
	}
	inspection := callOf("a")
	inspection.Inspect = true
	if n := check(t.Context(), inspection); n != 0 {
		t.Errorf("an operator's call was observed %d times, want 0", n)
	}
	l.Swap(withLimit(t))
	for i, want := range []int{1, 0} {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", IdempotencyKey: limiter.IdempotencyKey{ID: "1", Lifetime: minute}, Limits: []limiter.NamedCharge{{Name: "calls", Count: 1}}}}
		if n := check(t.Context(), c); n != want {
			t.Errorf("call %d with the same idempotency key was observed %d times, want %d", i, n, want)
		}
	}
	store.err = backend.ErrUnavailable
	ended, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if n := check(ended, callOf("user")); n != 1 {
		t.Errorf("an answer by policy after the deadline was observed %d times, want 1", n)
	}
	if n := check(canceled, callOf("user")); n != 0 {
		t.Errorf("an answer by policy to no client was observed %d times, want 0", n)
	}
}

func withLimit(t *testing.T) *limiter.Snapshot {
	t.Helper()
	return newBench(t, "domain: d\nlimits:\n  calls: {algorithm: token_bucket, rate: 10, period: 1m, on_backend_failure: allow}\ndescriptors:\n  - {key: user, limit: calls}\n").Current()
}

// swapped records which configuration is in use when the Observer receives another one.
type swapped struct {
	counts

	l   *limiter.Limiter
	was []*limiter.Snapshot
}

func (s *swapped) Swapped(*limiter.Snapshot) { s.was = append(s.was, s.l.Current()) }

func TestTheObserverReceivesAConfigurationBeforeItsUse(t *testing.T) {
	o, first := &swapped{}, withLimit(t)
	o.l = limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: o})
	o.l.Swap(first)
	o.l.Swap(withLimit(t))
	if len(o.was) != 2 || o.was[0] != nil || o.was[1] != first {
		t.Errorf("got %v, want none and the first", o.was)
	}
}
