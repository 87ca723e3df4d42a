package stores_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func TestDenialsAndLeasesAreAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := memory.New(memory.Config{Clock: storetest.Times(wall)})
		calls := &recorder{next: below}
		lease := stores.Cache(calls, stores.CacheConfig{})
		s := stores.Deadline(nil, lease, 5*ms, ms, nil)
		submit := func(what string, want bool, charges ...backend.Charge) []backend.Decision {
			t.Helper()
			times, done := calls.count(), make(chan struct{})
			b := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, len(charges)), Done: func(*backend.Batch) { close(done) }}
			s.Submit(b)
			got := false
			select {
			case <-done:
				got = calls.count() == times
			default:
			}
			if got != want {
				t.Errorf("%s: at once %v, want %v; next got %d batches", what, got, want, calls.count()-times)
			}
			<-done
			return b.Decisions
		}
		few, many := tokens(t, 1, 60*algorithms.Second, 2), fixed(t, 1_000_000, algorithms.Day)
		a, b := of(few, "a", 2), of(few, "b", 1)
		b.Group = 1
		submit("a new bucket", false, a)
		want := submit("a first denial", false, a)[0]
		if got := submit("a denied one", true, a)[0]; got != want || got.Allowed {
			t.Errorf("a denied key: got %+v; want the earlier denial %+v", got, want)
		}
		if d := submit("a denied one and a new one", false, a, b); d[0] != want || !d[1].Allowed {
			t.Errorf("got %+v; want the first decision %v, and the second one allowed", d, want)
		}
		if d := submit("a denied one of a limit that may be leased", true, leased(few, "a", 2, 1))[0]; d != want {
			t.Errorf("got %+v, want %+v", d, want)
		}
		time.Sleep(time.Second)
		submit("an old denial, which one caller revalidates", false, a)
		submit("a renewed denial", true, a)
		refund, again := of(few, "a", -2), of(few, "a", 2)
		again.Group = 1
		if d := submit("a refund and a charge of the denied bucket", false, refund, again); !d[1].Allowed {
			t.Errorf("got %+v; want the refunded units", d[1])
		}
		hot := leased(many, "hot", 1, 10_000)
		n := warm(t, lease, hot)
		for range 3 {
			n++
			if d := submit("a hot key", true, hot)[0]; !d.Allowed || d.Remaining != 1_000_000-n {
				t.Errorf("the %dth: %+v; want allowed and %v remaining", n, d, 1_000_000-n)
			}
		}
		if got, granted := left(t, below, hot), lease.Stats().Leased; got+granted != 1_000_000-n {
			t.Errorf("%d left and %d leased after %d requests; want a sum of %d", got, granted, n, 1_000_000-n)
		}
		submit("more than is leased", false, leased(many, "hot", 500_000, 10_000))
	})
}
