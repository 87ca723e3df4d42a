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

func planAndCredits(plan, credits *algorithms.Limit, cost int64) []backend.Charge {
	group := []backend.Charge{of(plan, "plan", cost), of(credits, "credits", cost)}
	group[0].Then = true
	return group
}

func TestAnUndoRefundsTheBucketThatPaid(t *testing.T) {
	for _, c := range []struct {
		cost                  int64
		planLeft, creditsLeft int64
	}{{cost: 4, planLeft: 10, creditsLeft: 20}, {cost: 11, planLeft: 10, creditsLeft: 20}} {
		synctest.Test(t, func(t *testing.T) {
			undos := stores.NewUndos(nil, time.Minute)
			store, other := memory.New(memory.Config{Clock: storetest.Times(wall)}), memory.New(memory.Config{Clock: storetest.Times(wall)})
			recorded := &recorder{next: store}
			day := algorithms.Day
			group := planAndCredits(fixed(t, 10, day), fixed(t, 20, day), c.cost)
			one := fixed(t, 1, day)
			d := chargeInParts(t, undos, part(recorded, group...), part(other, of(one, "other", 2)))
			if d[2].Allowed || d[0].Err != nil {
				t.Fatalf("got %+v; want denied and no error", d)
			}
			undos.Close()
			if n := recorded.count(); n != 2 {
				t.Errorf("cost %d: %d calls, want the charge and its undo", c.cost, n)
			}
			for i, want := range []int64{c.planLeft, c.creditsLeft} {
				group[i].Then, group[i].Terms.Cost = false, 0
				if left := take(t.Context(), store, group[i])[0].Remaining; left != want {
					t.Errorf("cost %d: %s has %d left, want %d", c.cost, group[i].Key, left, want)
				}
			}
			d = chargeInParts(t, undos, part(recorded, planAndCredits(fixed(t, 10, day), fixed(t, 20, day), c.cost)...), part(other, of(one, "other", 1)))
			if !d[2].Allowed || d[0].Allowed == d[1].Allowed {
				t.Errorf("cost %d: both parts allow: got %+v; want exactly one alternative and the other limit allowed", c.cost, d)
			}
		})
	}
}

func TestALeaseIsNotUsedWhereAlternativesAreDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: memory.New(memory.Config{Clock: storetest.Times(wall)})}
		s := stores.Cache(next, stores.CacheConfig{Timeout: time.Second})
		defer s.Close()
		plan, credits := tokens(t, 1, algorithms.Day, 100), tokens(t, 1, algorithms.Day, 50)
		leased := of(tokens(t, 1, algorithms.Day, 1000), "leased", 1)
		leased.Lease = &algorithms.Lease{Most: 50, For: algorithms.Second}
		for range 300 {
			take(t.Context(), s, leased)
		}
		paid := 0
		for range 200 {
			group := append(planAndCredits(plan, credits, 1), leased)
			if backend.Allowed(group, take(t.Context(), s, group...)) {
				paid++
			}
		}
		if paid != 150 {
			t.Errorf("%d requests were paid for, want exactly 150", paid)
		}
	})
}
