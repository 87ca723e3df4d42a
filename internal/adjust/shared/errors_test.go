package shared_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/adjust/shared"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func TestAnObserverGetsEachSet(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t).Addr
	a, b := keeper(t, url, ""), keeper(t, url, "")
	var seen []uint64
	poll(t, a)
	a.Watch(func(s *adjust.Set) { seen = append(seen, s.Head.Version) })
	change(t, a, block("1", "ann"))
	poll(t, b)
	change(t, b, block("2", "bob"))
	poll(t, a)
	poll(t, a) // nothing has changed
	if len(seen) != 3 || seen[0] != 0 || seen[1] != 1 || seen[2] != 2 {
		t.Errorf("got the versions %v; want 0, 1 and 2, each once", seen)
	}
}

func TestErrorsOfThePlaceAreReturned(t *testing.T) {
	t.Parallel()
	k := keeper(t, "redis://127.0.0.1:1", "") // no server has this port
	if _, err := k.Audit(t.Context(), 0, 3); err == nil {
		t.Error("the audit: got no error; want one")
	}
	if n, err := k.Verify(t.Context()); err == nil {
		t.Errorf("verified %d entries without an error; want one", n)
	}
	if e, err := k.Change(t.Context(), block("1", "ann")); err == nil || e != nil || k.Set().Len() != 0 {
		t.Errorf("a change: got %+v, %v and %d adjustments; want an error and none", e, err, k.Set().Len())
	}
	if err := k.Poll(t.Context()); err == nil || k.Status().Err == nil {
		t.Errorf("a poll: got %v, status %v; want errors", err, k.Status().Err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "adjustments.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := redis.OpenLedger(redis.Config{URL: "redis://127.0.0.1:1"}, "adjustments")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := shared.New(shared.Config{Ledger: l, Chain: adjust.NewChain(secret), Dir: dir}); err == nil || !strings.Contains(err.Error(), "does not contain adjustments") {
		t.Errorf("a damaged folder: got %v; want an error about the file", err)
	}
}
