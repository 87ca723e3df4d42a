package redis

import (
	"os"
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
	server := redistest.Start(t)
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: 5 * time.Second})
	all := s.Examine(t.Context(), 0)
	if keys := server.Do("KEYS", "*"); keys != "[]" {
		t.Errorf("the examination left the keys %q; want none", keys)
	}
	for _, check := range []string{"connection", "version", "eviction", "script", "permissions"} {
		if got := findingsOf(all, check); !strings.HasPrefix(got, "ok: ") {
			t.Errorf("%s: got %q; want a text that starts with %q", check, got, "ok: ")
		}
	}
	if got := findingsOf(s.Examine(t.Context(), 10*time.Millisecond), "expiry"); !strings.HasPrefix(got, "advice: hz is 10") || !strings.Contains(got, "up to 25ms") {
		t.Errorf("removal of expired keys with Redis's defaults and a timeout of 10 ms: %q; want an advice about hz 10 and 25ms", got)
	}
	server.Do("CONFIG", "SET", "hz", "100")
	if got := findingsOf(s.Examine(t.Context(), 10*time.Millisecond), "expiry"); got != "ok: hz is 100: expired keys are removed for at most 2.5ms at a time" {
		t.Errorf("removal of expired keys with hz 100: %q; want it to be ok, with 2.5ms", got)
	}
	server.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	if got := findingsOf(s.Examine(t.Context(), 0), "eviction"); !strings.HasPrefix(got, "warning: ") {
		t.Errorf("eviction without a bound: %q; want a text that starts with %q", got, "warning: ")
	}
	server.Do("CONFIG", "SET", "maxmemory", "100mb")
	if got := findingsOf(s.Examine(t.Context(), 0), "eviction"); !strings.HasPrefix(got, "problem: ") || !strings.Contains(got, "noeviction") {
		t.Errorf("eviction: %q; want a text that starts with %q and contains %q", got, "problem: ", "noeviction")
	}
	server.Do("ACL", "SETUSER", "default", "-eval", "-evalsha")
	if got := findingsOf(s.Examine(t.Context(), 0), "script"); !strings.HasPrefix(got, "problem: NOPERM") || !strings.Contains(got, "+evalsha") {
		t.Errorf("a command is not permitted: %q; want a text that starts with %q and contains %q", got, "problem: NOPERM", "+evalsha")
	}
	server.Do("ACL", "SETUSER", "default", "+@all", "-psetex")
	if got := findingsOf(s.Examine(t.Context(), 0), "script"); !strings.HasPrefix(got, "problem: ERR ") || !strings.Contains(got, "+psetex") {
		t.Errorf("a command of the script is not permitted: %q; want a text that starts with %q and contains %q", got, "problem: ERR ", "+psetex")
	}
	server.Do("ACL", "SETUSER", "default", "+@all", "-lindex", "-del")
	if got := findingsOf(s.Examine(t.Context(), 0), "permissions"); !strings.HasPrefix(got, "problem: the user may not run lindex, del, which some limits need; the user needs +evalsha") {
		t.Errorf("a command of other limits is not permitted: %q; want a text that starts with %q", got, "problem: the user may not run lindex, del, which some limits need; the user needs +evalsha")
	}
	server.Do("ACL", "SETUSER", "default", "+@all")
	s.Examine(t.Context(), 0)
	if keys := server.Do("KEYS", "*"); keys != "[]" {
		t.Errorf("keys left behind: %s; want keys %q", keys, "[]")
	}
	server.Pause()
	if got := findingsOf(s.Examine(t.Context(), 0), "connection"); !strings.HasPrefix(got, "problem: ") || !strings.Contains(got, "is not paused") {
		t.Errorf("paused: %q; want a text that starts with %q and contains %q", got, "problem: ", "is not paused")
	}
	server.Resume()
	server.Kill()
	if got := findingsOf(s.Examine(t.Context(), 0), "connection"); !strings.HasPrefix(got, "problem: ") || !strings.Contains(got, "check the address") {
		t.Errorf("the server was killed: %q; want a text that starts with %q and contains %q", got, "problem: ", "check the address")
	}
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
		if words := strings.Fields(strings.ReplaceAll(line, ">PASSWORD", ">secret")); strings.HasPrefix(line, "ACL SETUSER rlsidecar ") {
			rules++
			for _, server := range c.Masters {
				args := make([]any, len(words))
				for i := range words {
					args[i] = words[i]
				}
				server.Do(args...)
			}
		}
	}
	if rules != 3 {
		t.Fatalf("found %d rules, want those for one server, for a cluster and for adjustments", rules)
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
