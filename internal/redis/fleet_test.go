package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func members(tb testing.TB, s *Store) (all []string) {
	tb.Helper()
	list, err := s.Fleet(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	for _, m := range list {
		if m.Age < 0 || m.Age > time.Minute {
			tb.Errorf("the report of %s is %v old; want 0 to %v", m.ID, m.Age, time.Minute)
		}
		all = append(all, m.ID+"="+m.Report)
	}
	slices.Sort(all)
	return all
}

func TestProcessesReportToEachOther(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"server", "cluster"} {
		t.Run(form, func(t *testing.T) {
			c := on(t, form)
			a, b := open(t, c), open(t, c)
			if got := members(t, a); len(got) > 0 {
				t.Errorf("before any report there is %q; want 0", got)
			}
			for _, report := range []func() error{
				func() error { return a.Report(t.Context(), "a", "first") },
				func() error { return b.Report(t.Context(), "b", "other \xff\x00") },
				func() error { return a.Report(t.Context(), "a", "second") },
			} {
				if err := report(); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := members(t, b), []string{"a=second", "b=other \xff\x00"}; !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			if err := a.Report(t.Context(), "a", strings.Repeat("x", maxReport)); err == nil {
				t.Errorf("a report of %d bytes is accepted; want an error", maxReport)
			}
		})
	}
}

// A report deletes old and unreadable ones. If no process reports any more, the expiry of the hash deletes all.
func TestReportsAreForgotten(t *testing.T) {
	t.Parallel()
	server, s := started(t)
	old := time.Now().Add(-reportExpiry - time.Minute).UnixMilli()
	server.Do("HSET", "rl:{}fleet", "old", fmt.Sprint(old, " x"), "wrong", "x", "words", "x up", "no time", " up", "bare", fmt.Sprint(time.Now().UnixMilli()), "long", fmt.Sprint(old, " ", strings.Repeat("x", 2*maxReport)))
	if err := s.Report(t.Context(), "a", "x"); err != nil {
		t.Fatal(err)
	}
	if got := members(t, s); !slices.Equal(got, []string{"a=x"}) {
		t.Errorf("got %q; want %v", got, []string{"a=x"})
	}
	if got := server.Do("HKEYS", "rl:{}fleet"); got != "[a]" {
		t.Errorf("%s is left; want %q", got, "[a]")
	}
	if got := server.Do("TTL", "rl:{}fleet"); got != "3600" && got != "3599" {
		t.Errorf("the hash lives for %s s; want %q", got, "3599")
	}
	server.Do("HSET", "rl:{}fleet", "ahead", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli(), " ")) // its age is 0
	if got := members(t, s); !slices.Equal(got, []string{"a=x", "ahead="}) {
		t.Errorf("got %q; want a report of the future, too", got)
	}
	many := []any{"HSET", "rl:{}fleet"}
	for i := range 3 * maxMembers {
		many = append(many, fmt.Sprint("m", i), fmt.Sprint(time.Now().UnixMilli(), " x"))
	}
	server.Do(many...)
	if got := members(t, s); len(got) > maxMembers {
		t.Errorf("%d reports are read; want at most %v", len(got), maxMembers)
	}
}

func TestFleetWithoutPermission(t *testing.T) {
	t.Parallel()
	server, s := started(t)
	server.Do("ACL", "SETUSER", "default", "-hset", "-hscan")
	if err := s.Report(t.Context(), "a", "x"); !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "HSET") {
		t.Errorf("report: %v; want the error ErrNotPermitted and an error that contains %q", err, "HSET")
	}
	if _, err := s.Fleet(t.Context()); !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "HSCAN") {
		t.Errorf("read: %v; want the error ErrNotPermitted and an error that contains %q", err, "HSCAN")
	}
	server.Kill()
	if err := s.Report(t.Context(), "a", "x"); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("without a server: %v; want the error backend.ErrUnavailable", err)
	}
}
