package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redistest"
)

// said are the findings of a check, as "severity: text".
func said(all []Finding, check string) string {
	var lines []string
	for _, f := range all {
		if f.Check == check {
			lines = append(lines, string(f.Severity)+": "+f.Text)
		}
	}
	return strings.Join(lines, "\n")
}

func TestExamineStandalone(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: time.Second})
	all := s.Examine(t.Context())
	for _, check := range []string{"connection", "version", "eviction", "script"} {
		if got := said(all, check); !strings.HasPrefix(got, "ok: ") {
			t.Errorf("%s: %q", check, got)
		}
	}
	server.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	if got := said(s.Examine(t.Context()), "eviction"); !strings.HasPrefix(got, "warning: ") {
		t.Errorf("eviction without a bound: %q", got)
	}
	server.Do("CONFIG", "SET", "maxmemory", "100mb")
	if got := said(s.Examine(t.Context()), "eviction"); !strings.HasPrefix(got, "problem: ") || !strings.Contains(got, "noeviction") {
		t.Errorf("eviction: %q", got)
	}
	server.Do("ACL", "SETUSER", "default", "-eval", "-evalsha")
	if got := said(s.Examine(t.Context()), "script"); !strings.HasPrefix(got, "problem: NOPERM") || !strings.Contains(got, "+evalsha") {
		t.Errorf("without permission: %q", got)
	}
	server.Kill()
	if got := said(s.Examine(t.Context()), "connection"); !strings.HasPrefix(got, "problem: ") || !strings.Contains(got, "check the address") {
		t.Errorf("killed: %q", got)
	}
}

func TestExamineCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	s := open(t, Config{URL: c.URL(), Timeout: time.Second})
	all := s.Examine(t.Context())
	if got := said(all, "cluster"); !strings.HasPrefix(got, "ok: ") {
		t.Errorf("cluster: %q", got)
	}
	if got := said(all, "coverage"); !strings.HasPrefix(got, "warning: ") {
		t.Errorf("coverage, by default: %q", got)
	}
	if got := said(all, "script"); strings.Count(got, "ok: ") != 3 {
		t.Errorf("script on three masters: %q", got)
	}
}
