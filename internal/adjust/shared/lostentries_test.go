package shared_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/adjust/shared"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// loseEntries sets the ledger back to head, as a failover to a replica without the later entries does.
func loseEntries(server *redistest.Server, head adjust.Head, entries ...*adjust.Entry) {
	server.Do("HSET", "rl:{adjustments}head", "version", fmt.Sprint(head.Version), "mac", head.MAC)
	for _, e := range entries {
		server.Do("HDEL", "rl:{adjustments}values", e.Target)
		server.Do("XDEL", "rl:{adjustments}log", fmt.Sprint(e.Version, "-0"))
	}
	server.Do("XSETID", "rl:{adjustments}log", fmt.Sprint(head.Version, "-0"))
}

func blocked(k *shared.Keeper) (keys string) {
	for _, a := range k.Set().All() {
		keys += a.Target.Key[0] + " "
	}
	return keys
}

func lost(k *shared.Keeper) (keys string) {
	for _, a := range k.Status().Lost {
		keys += a.Target.Key[0] + " "
	}
	return keys
}

// TestChangesThatRedisLostAreMadeAgain has two sidecars, which know different numbers of the lost changes. The one
// that knows fewer polls first. All changes must be made again, each once, and the audit must be one chain.
func TestChangesThatRedisLostAreMadeAgain(t *testing.T) {
	t.Parallel()
	server, url, a := ledgerOfAnn(t)
	b := keeper(t, url, "")
	poll(t, b)
	head := a.Set().Head
	lostEntries := []*adjust.Entry{change(t, a, block("bob", "op"))}
	poll(t, b)
	lostEntries = append(lostEntries, change(t, a, block("eve", "op")))
	loseEntries(server, head, lostEntries...)
	poll(t, b) // b makes the change of bob's key again
	poll(t, a)
	poll(t, b)
	fresh := keeper(t, url, "")
	poll(t, fresh)
	for name, k := range map[string]*shared.Keeper{"a": a, "b": b, "fresh": fresh} {
		if got := blocked(k); got != "ann bob eve " || lost(k) != "" {
			t.Errorf("%s: %s are blocked, lost are %s; want ann, bob and eve blocked, and none lost", name, got, lost(k))
		}
	}
	if n, err := fresh.Verify(t.Context()); n != 3 || err != nil {
		t.Errorf("verified %d entries, %v; want 3 and no error", n, err)
	}
	if x, y := a.Status().Rewritten, b.Status().Rewritten; x != 1 || y != 1 {
		t.Errorf("keeper a wrote %d changes again, keeper b %d; want 1 each", x, y)
	}
}

// An operator makes a change before the next poll. The lost change must be made again first.
func TestAChangeAfterALossComesAfterTheLostOnes(t *testing.T) {
	t.Parallel()
	server, _, a := ledgerOfAnn(t)
	head := a.Set().Head
	loseEntries(server, head, change(t, a, block("bob", "op")))
	if e := change(t, a, block("eve", "op")); e.Version != 3 {
		t.Errorf("version %d, want 3", e.Version)
	}
	if n, err := a.Verify(t.Context()); n != 3 || err != nil || blocked(a) != "ann bob eve " {
		t.Errorf("verified %d, %v; %s are blocked; want 3 entries, no error, and ann, bob and eve blocked", n, err, blocked(a))
	}
}

// TestLostChangesThatCannotBeJoinedAreListed has a sidecar that does not know the lost changes and makes
// another one, which stays in force. The lost changes must be listed until an operator makes or deletes them
// again.
func TestLostChangesThatCannotBeJoinedAreListed(t *testing.T) {
	t.Parallel()
	server, url, a := ledgerOfAnn(t)
	head, set := a.Set().Head, a.Set().All()[0]
	one, two := change(t, a, block("bob", "op")), change(t, a, block("eve", "op"))
	over := change(t, a, adjust.Operation{ID: "x", Author: "op", Reason: "over", Target: set.ID})
	loseEntries(server, head, one, two, over)
	server.Do("HSET", "rl:{adjustments}values", set.ID, mustJSON(t, set))
	b := keeper(t, url, "") // b starts after the failover
	change(t, b, block("zoe", "op"))
	poll(t, a)
	if blocked(a) != "ann zoe " || lost(a) != "ann bob eve " || lost(b) != "" {
		t.Fatalf("%s are blocked; a lists %s, b %s; want ann and zoe blocked, and only a to list ann (whose block had been deleted), bob and eve", blocked(a), lost(a), lost(b))
	}
	change(t, a, block("bob", "op"))
	change(t, b, adjust.Operation{ID: "y", Author: "op", Reason: "over", Target: set.ID})
	poll(t, a)
	if blocked(a) != "bob zoe " || lost(a) != "eve " {
		t.Errorf("%s are blocked; a lists %s; want bob and zoe blocked, and a to list eve", blocked(a), lost(a))
	}
}

// TestASidecarFarBehindReportsNoLoss has two sidecars: one misses too many entries, and the newest entry that the
// other one knows was trimmed. They must fetch the values instead, and report no loss.
func TestASidecarFarBehindReportsNoLoss(t *testing.T) {
	t.Parallel()
	server, url, a := ledgerOfAnn(t)
	b := keeper(t, url, "")
	poll(t, b)
	c := keeper(t, url, "")
	poll(t, c)
	for range 260 {
		change(t, a, block("bob", "op"))
	}
	change(t, a, adjust.Operation{ID: "x", Author: "op", Reason: "over", Target: block("ann", "").Target})
	poll(t, b)
	server.Do("XTRIM", "rl:{adjustments}log", "MINID", "200-0") // removes the newest entry that c knows
	poll(t, c)
	for _, k := range []*shared.Keeper{b, c} {
		if blocked(k) != "bob " || lost(k) != "" || k.Set().Head != a.Set().Head {
			t.Errorf("%s are blocked, lost are %s; want bob blocked, none lost, and the newest version", blocked(k), lost(k))
		}
	}
}

// TestAllLostChangesAreMadeAgainAtOnce checks that each lost change is made once, however many sidecars
// notice the loss, and that none is made while Redis refuses to write.
func TestAllLostChangesAreMadeAgainAtOnce(t *testing.T) {
	t.Parallel()
	server, url, a := ledgerOfAnn(t)
	for round, others := range []int{0, 5, 5, 5} {
		keepers := []*shared.Keeper{a}
		for range others {
			k := keeper(t, url, "")
			poll(t, k)
			keepers = append(keepers, k)
		}
		head, before := a.Set().Head, a.Status().Rewritten
		var entries []*adjust.Entry
		for i := range 5 {
			entries = append(entries, change(t, a, block(fmt.Sprint("k", i), "op")))
		}
		for _, k := range keepers {
			poll(t, k)
		}
		loseEntries(server, head, entries...)
		server.Do("CONFIG", "SET", "min-replicas-to-write", "1")
		if err := a.Poll(t.Context()); err == nil || a.Status().Err == nil {
			t.Errorf("round %d: Redis writes nothing, and the poll succeeded", round)
		}
		server.Do("CONFIG", "SET", "min-replicas-to-write", "0")
		var all sync.WaitGroup
		for _, k := range keepers {
			all.Go(func() { _ = k.Poll(t.Context()) })
		}
		all.Wait()
		rewritten := -before
		for _, k := range keepers {
			rewritten += k.Status().Rewritten
		}
		if n, err := a.Verify(t.Context()); n != 1+5*(round+1) || err != nil || rewritten != 5 {
			t.Errorf("round %d: %d entries, %v; %d written again; want %d entries, no error, and 5 written again", round, n, err, rewritten, 1+5*(round+1))
		}
		for _, k := range keepers {
			poll(t, k)
			if blocked(k) != "ann k0 k1 k2 k3 k4 " || lost(k) != "" {
				t.Errorf("round %d: %s are blocked, lost are %s; want ann and k0 to k4 blocked, and none lost", round, blocked(k), lost(k))
			}
		}
	}
}

// TestALedgerThatWentOnWithoutTheLostChanges has a ledger with more entries than the sidecar knew. The
// sidecar must list the lost adjustments, except expired ones and those that an operator has set again.
func TestALedgerThatWentOnWithoutTheLostChanges(t *testing.T) {
	t.Parallel()
	server, url, a := ledgerOfAnn(t)
	head := a.Set().Head
	brief := block("brief", "op")
	brief.For = 300 * time.Millisecond
	expired := change(t, a, brief)
	redistest.Eventually(t, "the end of an adjustment", func() bool { return a.Now() > expired.After.Expires })
	entries := []*adjust.Entry{expired, change(t, a, block("bob", "op")), change(t, a, block("eve", "op"))}
	soon := block("soon", "op")
	soon.For = 2 * time.Second
	entries = append(entries, change(t, a, soon))
	loseEntries(server, head, entries...)
	b := keeper(t, url, "")
	for _, key := range []string{"zoe", "bob", "brief", "yan", "xen", "wim"} { // more entries than a knows
		change(t, b, block(key, "op"))
	}
	poll(t, a)
	if got := lost(a); got != "eve soon " && got != "eve " || blocked(a) != "ann bob brief wim xen yan zoe " {
		t.Errorf("%s are blocked, lost are %s; want ann, bob, brief, wim, xen, yan and zoe blocked, and eve lost, and soon until it expires", blocked(a), got)
	}
	a.Status().Lost[0] = nil // Lost is a copy, so this must not change the list
	redistest.Eventually(t, "the expired adjustment is no longer listed as lost", func() bool { return lost(a) == "eve " })
}

func TestTheListOfLostAdjustmentsIsBounded(t *testing.T) {
	t.Parallel()
	server, url, a := ledgerOfAnn(t)
	head := a.Set().Head
	var entries []*adjust.Entry
	for i := range 25 {
		entries = append(entries, change(t, a, block(fmt.Sprintf("k%02d", 24-i), "op")))
	}
	loseEntries(server, head, entries...)
	change(t, keeper(t, url, ""), block("zoe", "op"))
	poll(t, a)
	if got := strings.Fields(lost(a)); len(got) != 20 || got[0] != "k00" || got[19] != "k19" {
		t.Errorf("lost are %s; want k00 to k19", got)
	}
}

// ledgerOfAnn starts a server, and a keeper that blocks ann there.
func ledgerOfAnn(t *testing.T) (server *redistest.Server, url string, a *shared.Keeper) {
	t.Helper()
	server = redistest.Start(t)
	url = "redis://" + server.Addr
	a = keeper(t, url, "")
	change(t, a, block("ann", "op"))
	return server, url, a
}

func mustJSON(t *testing.T, a *adjust.Adjustment) string {
	t.Helper()
	text, err := a.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
