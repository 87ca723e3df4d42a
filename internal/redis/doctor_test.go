package redis

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func findingsOf(all []Finding, check string) string {
	var lines []string
	for _, f := range all {
		if f.Check == check {
			lines = append(lines, string(f.Severity)+": "+f.Text)
		}
	}
	return strings.Join(lines, "\n")
}

func TestExamineStandalone(t *testing.T) {
	t.Parallel()
	server, s := started(t)
	all := s.Examine(t.Context(), 0)
	if keys := server.Do("KEYS", "*"); keys != "[]" {
		t.Errorf("the examination left the keys %q; want none", keys)
	}
	for _, check := range []string{"connection", "version", "eviction", "script", "permissions"} {
		if got := findingsOf(all, check); !strings.HasPrefix(got, "ok: ") {
			t.Errorf("%s: got %q; want a text that starts with %q", check, got, "ok: ")
		}
	}
	find := func(check, begin, part string) {
		t.Helper()
		if got := findingsOf(s.Examine(t.Context(), 10*time.Millisecond), check); !strings.HasPrefix(got, begin) || !strings.Contains(got, part) {
			t.Errorf("%s: %q; want a text that starts with %q and contains %q", check, got, begin, part)
		}
	}
	find("expiry", "advice: hz is 10", "up to 25ms")
	for _, step := range []struct{ command, check, begin, part string }{
		{"CONFIG SET hz 100", "expiry", "ok: hz is 100: expired keys are removed for at most 2.5ms at a time", ""},
		{"CONFIG SET maxmemory-policy allkeys-lru", "eviction", "warning: ", ""},
		{"CONFIG SET maxmemory 100mb", "eviction", "problem: ", "noeviction"},
		{"ACL SETUSER default -eval -evalsha", "script", "problem: NOPERM", "+evalsha"},
		{"ACL SETUSER default +@all -psetex", "script", "problem: ERR ", "+psetex"},
		{"ACL SETUSER default +@all -lindex -zadd -del", "permissions", "problem: the user may not run lindex, zadd, del, which some limits need; the user needs +evalsha", ""},
	} {
		server.Do(wordsOf(step.command)...)
		find(step.check, step.begin, step.part)
	}
	server.Do("ACL", "SETUSER", "default", "+@all")
	s.Examine(t.Context(), 0)
	if keys := server.Do("KEYS", "*"); keys != "[]" {
		t.Errorf("keys left behind: %s; want keys %q", keys, "[]")
	}
	server.Pause()
	find("connection", "problem: ", "is not paused")
	server.Resume()
	server.Kill()
	find("connection", "problem: ", "check the address")
}

func TestExamineClusterWithThePermissionsOfTheDocumentation(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	c := redistest.StartCluster(t, 3).Steady()
	examineCluster(t, c)
	rules := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "ACL SETUSER rlsidecar ") {
			rules++
			for _, server := range c.Masters {
				server.Do(wordsOf(strings.ReplaceAll(line, ">PASSWORD", ">secret"))...)
			}
		}
	}
	if rules != 5 {
		t.Fatalf("found %d rules, want three for one server, one for a cluster and one for adjustments", rules)
	}
	s := open(t, Config{URL: strings.Replace(c.URL(), "://", "://rlsidecar:secret@", 1), Timeout: 5 * time.Second})
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Examine(t.Context(), 0) {
		if f.Severity != Fine {
			t.Errorf("got %+v; want severity %v", f, Fine)
		}
	}
	a := backend.Charge{Key: []byte("a"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}}
	b := backend.Charge{Key: []byte("b"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}}
	for i := range 2 { // the group has an ID, and buckets in several slots
		if d := takeAll(s, underID(1, a, b)); d[0].Err != nil || d[0].Replayed != (i == 1) {
			t.Errorf("request %d: %+v; want no error and replayed %v", i+1, d[0], i == 1)
		}
	}
	slot := backend.Charge{Key: []byte("c"), Limit: compiledSlots(t, 3, algorithms.Second)}
	for _, op := range []algorithms.SlotOp{algorithms.TakeSlot, algorithms.RenewSlot, algorithms.ReturnSlot} {
		slot.Terms = algorithms.Charge{Cost: 1, Slot: &algorithms.Slot{Op: op, TTL: algorithms.Second}}
		if d := takeAll(s, []backend.Charge{slot})[0]; d.Err != nil || d.Lost > 0 {
			t.Errorf("slot operation %d: got %+v; want no error", op, d)
		}
	}
	for _, found := range regexp.MustCompile(`call\('([A-Z]+)'`).FindAllStringSubmatch(source, -1) {
		name := "+" + strings.ToLower(found[1])
		if !slices.Contains(strings.Fields(string(text)), name) || !slices.Contains(strings.Fields(permissions), name) {
			t.Errorf("the script calls %s; want it among the permissions of the documentation and of the messages", found[1])
		}
	}
	for _, charge := range []backend.Charge{a, sharded(t, windowSpec(100), 10, "s")} {
		if err := backend.ResetBucket(t.Context(), s, charge); err != nil {
			t.Error(err)
		}
	}
}

func examineCluster(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	s := open(t, Config{URL: c.URL(), Timeout: 5 * time.Second})
	all := s.Examine(t.Context(), 0)
	if got := findingsOf(all, "cluster"); !strings.HasPrefix(got, "ok: ") {
		t.Errorf("cluster: %q; want a text that starts with %q", got, "ok: ")
	}
	if got := findingsOf(all, "coverage"); !strings.HasPrefix(got, "warning: ") {
		t.Errorf("coverage, by default: %q; want a text that starts with %q", got, "warning: ")
	}
	for _, check := range []string{"script", "permissions"} {
		if got := findingsOf(all, check); strings.Count(got, "ok: ") != 3 {
			t.Errorf("%s on three masters: %q; want three that are ok", check, got)
		}
	}
	c.Masters[1].Do("ACL", "SETUSER", "default", "-set", "-asking")
	if got := findingsOf(s.Examine(t.Context(), 0), "permissions"); strings.Count(got, "ok: ") != 2 || !strings.Contains(got, "may not run set, asking, which") {
		t.Errorf("one master does not permit all: %q; want two that are ok, and a text that contains %q", got, "may not run set, asking, which")
	}
}
