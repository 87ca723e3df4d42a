package backend_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// What is answered early is what Take would say, and next is not asked; what is not is left as it was.
func TestDenialsAndLoansAreAnsweredEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := memory.New(memory.Config{Clock: wall})
		asked := &recorder{next: below}
		denied := backend.Denied(asked, backend.DeniedConfig{})
		lease := backend.Lease(denied, backend.LeaseConfig{})
		s := backend.Deadline(lease, 5*ms, ms).(backend.Early)
		early := func(what string, want bool, charges ...backend.Charge) []backend.Decision {
			t.Helper()
			times := asked.count()
			d := make([]backend.Decision, len(charges))
			if got := s.TakeEarly(charges, d); got != want || asked.count() != times {
				t.Errorf("%s: early %v, want %v; next was asked %d times", what, got, want, asked.count()-times)
			}
			return d
		}
		few, many := tokens(t, 1, 60*algorithms.Second, 2), fixed(t, 1_000_000, algorithms.Day)
		a, b := of(few, "a", 2), of(few, "b", 1)
		b.Group = 1
		if s.Ready() {
			t.Error("ready before anything was asked")
		}
		early("a new bucket", false, a)
		take(t.Context(), s, a)
		early("an allowed one", false, a)
		want := take(t.Context(), s, a)[0]
		if !s.Ready() || want.Allowed {
			t.Errorf("ready %v after %+v", s.Ready(), want)
		}
		if d := early("a denied one", true, a); d[0] != want {
			t.Errorf("got %+v, want %+v", d[0], want)
		}
		early("a denied one and a new one", false, a, b)
		back := of(few, "a", -1)
		back.Group = 1
		early("a denied one, given back to", false, a, back)
		early("a give-back", false, back)

		spent := leased(few, "a", 2, 1)
		if d := early("a denied one of a limit that may be leased", true, spent); d[0] != want {
			t.Errorf("got %+v, want %+v", d[0], want)
		}

		// A denial that has become too old is asked about once more, by Take.
		time.Sleep(time.Second)
		early("an old denial", false, a)
		times := asked.count()
		if d := take(t.Context(), s, a)[0]; d.Allowed || asked.count() != times+1 {
			t.Errorf("%+v, asked %d times", d, asked.count()-times)
		}
		early("a denial heard of again", true, a)
		denied.Forget()
		early("a forgotten one", false, a)

		hot := leased(many, "hot", 1, 10_000)
		n := warm(t, lease, hot)
		if !s.Ready() {
			t.Error("not ready with a loan")
		}
		for range 3 {
			n++
			if d := early("a hot key", true, hot)[0]; !d.Allowed || d.Remaining != 1_000_000-n {
				t.Errorf("the %dth: %+v", n, d)
			}
		}
		if got, lent := left(t, below, hot), lease.Stats().Lent; got+lent != 1_000_000-n {
			t.Errorf("%d left and %d on loan after %d", got, lent, n)
		}
		early("more than is on loan", false, leased(many, "hot", 500_000, 10_000))
		time.Sleep(250 * ms)
		early("a loan whose time is over", false, hot)
		for lease.GiveBack(t.Context()) > 0 {
			time.Sleep(250 * ms)
		}
		if s.Ready() {
			t.Error("ready without loans")
		}
	})
}

func TestOtherStoresAnswerNothingEarly(t *testing.T) {
	for name, s := range map[string]backend.Taker{
		"deadline": backend.Deadline(echo, time.Second, ms),
		"denied":   backend.Denied(echo, backend.DeniedConfig{}),
		"lease":    backend.Lease(echo, backend.LeaseConfig{}),
	} {
		early := s.(backend.Early)
		if early.Ready() || early.TakeEarly(costs(true, 1), make([]backend.Decision, 1)) {
			t.Errorf("%s: answered", name)
		}
	}
}
