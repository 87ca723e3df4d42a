package shared_test

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/adjust/shared"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// lose makes the ledger what it was at head, as a failover to a replica that has not got the entries after it does.
func lose(server *redistest.Server, head adjust.Head, entries ...*adjust.Entry) {
	server.Do("HSET", "rl:{adjustments}head", "version", fmt.Sprint(head.Version), "mac", head.MAC)
	for _, e := range entries {
		server.Do("HDEL", "rl:{adjustments}values", e.Target)
		server.Do("XDEL", "rl:{adjustments}log", fmt.Sprint(e.Version, "-0"))
	}
	server.Do("XSETID", "rl:{adjustments}log", fmt.Sprint(head.Version, "-0"))
}

// blocked lists who is blocked.
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

// TestChangesThatRedisLostAreMadeAgain: two sidecars know different numbers of the lost changes. Whoever polls first, all
// are there again, once each, and the audit is one chain.
func TestChangesThatRedisLostAreMadeAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url := "redis://" + server.Addr
	a, b := keeper(t, url, ""), keeper(t, url, "")
	change(t, a, block("ann", "op"))
	poll(t, b)
	head := a.Set().Head
	lostEntries := []*adjust.Entry{change(t, a, block("bob", "op"))}
	poll(t, b)
	lostEntries = append(lostEntries, change(t, a, block("eve", "op")))
	lose(server, head, lostEntries...)
	poll(t, b) // knows bob's
	poll(t, a)
	poll(t, b)
	fresh := keeper(t, url, "")
	poll(t, fresh)
	for name, k := range map[string]*shared.Keeper{"a": a, "b": b, "fresh": fresh} {
		if got := blocked(k); got != "ann bob eve " || lost(k) != "" {
			t.Errorf("%s: %s are blocked, lost are %s", name, got, lost(k))
		}
	}
	if n, err := fresh.Verify(t.Context()); n != 3 || err != nil {
		t.Errorf("verified %d, %v", n, err)
	}
	if x, y := a.Status().Rewritten, b.Status().Rewritten; x != 1 || y != 1 {
		t.Errorf("a made %d changes again, b %d; want 1 each", x, y)
	}
}

// TestAChangeAfterALossComesAfterTheLostOnes: an operator changes something before the next poll.
func TestAChangeAfterALossComesAfterTheLostOnes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := keeper(t, "redis://"+server.Addr, "")
	change(t, a, block("ann", "op"))
	head := a.Set().Head
	lose(server, head, change(t, a, block("bob", "op")))
	if e := change(t, a, block("eve", "op")); e.Version != 3 {
		t.Errorf("version %d, want 3", e.Version)
	}
	if n, err := a.Verify(t.Context()); n != 3 || err != nil || blocked(a) != "ann bob eve " {
		t.Errorf("verified %d, %v; %s are blocked", n, err, blocked(a))
	}
}

// TestLostChangesThatCannotBeJoinedAreListed: a sidecar that did not know the lost changes has made another one, which
// stands. What was lost is listed until an operator has decided about it.
func TestLostChangesThatCannotBeJoinedAreListed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url := "redis://" + server.Addr
	a := keeper(t, url, "")
	change(t, a, block("ann", "op"))
	head, set := a.Set().Head, a.Set().All()[0]
	one, two := change(t, a, block("bob", "op")), change(t, a, block("eve", "op"))
	over := change(t, a, adjust.Operation{ID: "x", Author: "op", Reason: "over", Target: set.ID})
	lose(server, head, one, two, over)
	server.Do("HSET", "rl:{adjustments}values", set.ID, mustJSON(t, set))
	b := keeper(t, url, "") // it starts after the failover
	change(t, b, block("zoe", "op"))
	poll(t, a)
	if blocked(a) != "ann zoe " || lost(a) != "ann bob eve " || lost(b) != "" {
		t.Fatalf("%s are blocked; a lists %s, b %s; ann's block had been deleted", blocked(a), lost(a), lost(b))
	}
	change(t, a, block("bob", "op"))
	change(t, b, adjust.Operation{ID: "y", Author: "op", Reason: "over", Target: set.ID})
	poll(t, a)
	if blocked(a) != "bob zoe " || lost(a) != "eve " {
		t.Errorf("%s are blocked; a lists %s", blocked(a), lost(a))
	}
}

// TestASidecarFarBehindReportsNoLoss: it fetches the values, because the entries are too many.
func TestASidecarFarBehindReportsNoLoss(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t).Addr
	a, b := keeper(t, url, ""), keeper(t, url, "")
	change(t, a, block("ann", "op"))
	poll(t, b)
	for range 260 {
		change(t, a, block("bob", "op"))
	}
	change(t, a, adjust.Operation{ID: "x", Author: "op", Reason: "over", Target: block("ann", "").Target})
	poll(t, b)
	if blocked(b) != "bob " || lost(b) != "" || b.Set().Head != a.Set().Head {
		t.Errorf("%s are blocked, lost are %s", blocked(b), lost(b))
	}
}

func mustJSON(t *testing.T, a *adjust.Adjustment) string {
	t.Helper()
	text, err := a.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
