package shared_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/adjust/shared"
	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// blockUntil returns a block of key that begins an hour before end.
func blockUntil(key string, end time.Time) *adjust.Adjustment {
	a := block(key, "op").After
	a.Created, a.Expires = algorithms.Micros(end.Add(-time.Hour).UnixMicro()), algorithms.Micros(end.UnixMicro())
	return a
}

func TestEntriesWithoutASoundAdjustmentAreNotFollowed(t *testing.T) {
	t.Parallel()
	nameless := blockUntil("eve", time.Now().Add(time.Hour))
	nameless.Author = ""
	for name, e := range map[string]*adjust.Entry{
		"another target": {Target: block("bob", "").Target, After: blockUntil("eve", time.Now().Add(time.Hour))},
		"no author":      {Target: nameless.ID, After: nameless},
	} {
		server, _, a := ledgerOfAnn(t)
		if err := adjust.NewChain(secret).Next(a.Set().Head, e); err != nil {
			t.Fatal(err)
		}
		server.Do("XADD", "rl:{adjustments}log", "2-0", "body", string(e.Body), "mac", e.MAC)
		server.Do("HSET", "rl:{adjustments}head", "version", "2", "mac", e.MAC)
		poll(t, a)
		if blocked(a) != "ann " || a.Set().Head.Version != 2 {
			t.Errorf("%s: %s are blocked at version %d; want ann at version 2", name, blocked(a), a.Set().Head.Version)
		}
	}
}

// The ledger first has an adjustment that Check rejects, and then one adjustment more than the maximum. A Keeper must
// leave out that adjustment, and count one error for each reading.
func TestInvalidAndSurplusValuesAreLeftOut(t *testing.T) {
	t.Parallel()
	server, url, _ := ledgerOfAnn(t)
	nameless := blockUntil("eve", time.Now().Add(time.Hour))
	nameless.Author = ""
	server.Do("HSET", "rl:{adjustments}values", nameless.ID, mustJSON(t, nameless))
	b := keeper(t, url, "")
	poll(t, b)
	if blocked(b) != "ann " || b.Status().Errors != 1 {
		t.Errorf("%s are blocked, %d errors; want ann and 1 error", blocked(b), b.Status().Errors)
	}
	server.Do("HDEL", "rl:{adjustments}values", nameless.ID)
	pairs := []any{"HSET", "rl:{adjustments}values"}
	for i := range adjust.MaxAdjustments { // one too many, with ann
		a := blockUntil(fmt.Sprint("k", i), time.Now().Add(time.Hour))
		pairs = append(pairs, a.ID, mustJSON(t, a))
	}
	if err := server.Client().Do(t.Context(), pairs...).Err(); err != nil {
		t.Fatal(err)
	}
	c := keeper(t, url, "")
	poll(t, c)
	if n := c.Set().Len(); n != adjust.MaxAdjustments || c.Status().Errors != 1 {
		t.Errorf("%d adjustments are known, %d errors; want %d and 1 error", n, c.Status().Errors, adjust.MaxAdjustments)
	}
}

// A failed poll is an error in the status, which keeps the time of the last answer. A poll that its caller cancels is
// not an error.
func TestAFailedPollIsCounted(t *testing.T) {
	clock := &testClock{time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)}
	var failure error
	world := &outside.World{
		Clock: clock, Go: func(f func()) { f() }, Random: func([]byte) {}, Below: func(int) int { return 0 },
		Call: func(_ context.Context, _ string, commands []outside.Command) {
			for i := range commands {
				commands[i].Reply, commands[i].Err = []any{"0", "", "0", "", "", "2000000000", "0"}, failure
			}
		},
	}
	ledger, err := redis.OpenLedger(redis.Config{URL: "redis://r0", Outside: world}, "adjustments")
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	k, err := shared.New(shared.Config{Ledger: ledger, Chain: adjust.NewChain(secret), Outside: world})
	if err != nil {
		t.Fatal(err)
	}
	check := func(errors uint64, seen time.Time, want string) {
		t.Helper()
		if s := k.Status(); s.Errors != errors || !s.Seen.Equal(seen) || fmt.Sprint(s.Err) != want {
			t.Errorf("%d errors, the last answer at %v, error %v; want %d, %v, %s", s.Errors, s.Seen, s.Err, errors, seen, want)
		}
	}
	answered := clock.now
	if err := k.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(0, answered, "<nil>")
	clock.now, failure = clock.now.Add(time.Minute), errors.New("broken")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if k.Poll(canceled) == nil {
		t.Error("a canceled poll succeeded; want an error")
	}
	check(0, answered, "<nil>")
	if k.Poll(t.Context()) == nil {
		t.Error("a poll without Redis succeeded; want an error")
	}
	check(1, answered, "adjustments cannot be read: broken")
	failure = nil
	if err := k.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(1, clock.now, "<nil>")
}

// keeperOf returns a Keeper whose folder has a set at version 5.
func keeperOf(t *testing.T, url string, all ...*adjust.Adjustment) *shared.Keeper {
	t.Helper()
	dir := t.TempDir()
	if err := adjust.WriteSet(dir, adjust.NewSet(adjust.Head{Version: 5, MAC: "m"}, all)); err != nil {
		t.Fatal(err)
	}
	return keeper(t, url, dir)
}

func TestExpiredAdjustmentsAreNotRestored(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	k := keeperOf(t, "redis://"+server.Addr, blockUntil("bob", time.Now().Add(-time.Hour)), blockUntil("ann", time.Now().Add(time.Hour)))
	poll(t, k)
	ids, err := server.Client().HKeys(t.Context(), "rl:{adjustments}values").Result()
	if err != nil || len(ids) != 1 || ids[0] != block("ann", "").Target {
		t.Errorf("got the IDs %s, %v; want the ID of ann", ids, err)
	}
}

// A change sets an adjustment that has expired but is still in the ledger. The ledger must keep the new one, and remove
// the other expired one.
func TestAnExpiredAdjustmentCanBeSetAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	past := time.Now().Add(-time.Hour)
	bob, eve := blockUntil("bob", past), blockUntil("eve", past)
	k := keeperOf(t, "redis://"+server.Addr, bob, eve)
	for _, a := range []*adjust.Adjustment{bob, eve} {
		server.Do("HSET", "rl:{adjustments}values", a.ID, mustJSON(t, a))
	}
	server.Do("HSET", "rl:{adjustments}head", "version", "5", "mac", "m")
	change(t, k, block("bob", "op"))
	values, err := server.Client().HGetAll(t.Context(), "rl:{adjustments}values").Result()
	if err != nil {
		t.Fatal(err)
	}
	var kept adjust.Adjustment
	if err := json.Unmarshal([]byte(values[bob.ID]), &kept); err != nil || len(values) != 1 || kept.Expires <= bob.Expires {
		t.Errorf("the ledger has %s, %v; want only the new block of bob", fmt.Sprint(values), err)
	}
}
