package storetest

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The random traces compare who pays with package algorithms, but give no ids to groups that name the payer.
func alternativesPay(t *testing.T, clock *Clock, store backend.Store) {
	t.Helper()
	plan, credits := token(10, minute, 10), window(20, algorithms.Day)
	plan.Key, credits.Key, plan.Then = []byte("plan"), []byte("credits"), true
	repeat := func(id byte, cost int64, own *algorithms.Own) {
		t.Helper()
		plan, credits := plan, credits
		plan.Terms.Cost, credits.Terms.Cost, credits.Own = cost, cost, own
		if own != nil {
			credits.Terms.Cost += own.Cost
		}
		first := take(store, withID(id, plan, credits)...)
		clock.Set(clock.Now() + minute) // by now the plan could pay
		again := take(store, withID(id, plan, credits)...)
		if first[0].Replayed || !again[0].Replayed || again[0].Decision != first[0].Decision || again[1].Decision != first[1].Decision {
			t.Errorf("id %d: got %+v, and when it was repeated %+v; want the same decisions", id, first, again)
		}
	}
	repeat(60, 6, nil)                         // the plan pays
	repeat(61, 12, nil)                        // the credits pay
	repeat(62, 10, &algorithms.Own{Cost: 1})   // the plan pays, and the credits their own cost
	repeat(63, 11, &algorithms.Own{Cost: -10}) // the credits pay after their refund
	expect(t, store, credits, 0, true, 6, 0)

	plan, credits = window(300, algorithms.Day), window(200, algorithms.Day)
	plan.Key, credits.Key, plan.Then = []byte("crowded plan"), []byte("crowded credits"), true
	if n := hammer(store, 16, 100, plan, credits); n != 500 {
		t.Errorf("admitted %d of 1600, want exactly 500", n)
	}
}
