package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestOperatorsAdjustARunningSidecar(t *testing.T) {
	t.Setenv("USER", "ann")
	dir := t.TempDir()
	adminAt := "unix://" + filepath.Join(dir, "admin")
	file := write(t, operated)
	startServe(t, "--config", file, "--admin-listen", adminAt)
	run := func(args ...string) (int, string) {
		var out output
		code := run(t.Context(), append(append([]string{"adjust"}, args...), "--admin-listen", adminAt), nil, &out, &out)
		return code, out.String()
	}
	command := func(code int, want string, args ...string) string {
		t.Helper()
		got, text := run(args...)
		if got != code || !strings.Contains(text, want) {
			t.Errorf("adjust %v: exit code %d, output:\n%s\nwant exit code %d and:\n%s", args, got, text, code, want)
		}
		return text
	}
	command(exitDone, "0 adjustments, version 0, kept in this process, until it ends", "list")
	command(exitDone, "would set limit send of domain edge, key bob: every request is denied until", "set", "--limit", "send", "--key", "bob", "--block", "--for", "1h", "--reason", "attack", "--preview")
	text := command(exitDone, "set limit send of domain edge, key bob: token bucket: 20 per 365d, up to 20 at once, until", "set",
		"--limit", "send", "--key", "bob", "--factor", "10", "--for", "2h", "--reason", "launch")
	id := regexp.MustCompile(`adjust delete (\w+)`).FindStringSubmatch(text)
	if id == nil {
		t.Fatalf("got %v; want a text with the id of the adjustment", text)
	}
	command(exitDone, "key acme,red: token bucket: 7 per 365d, up to 9 at once", "set", "--limit", "team", "--key", "acme", "--key", "red", "--rate", "7",
		"--capacity", "9", "--until", time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "--reason", "launch")
	command(exitDone, `key a,b\x1b: every request is allowed and charged nothing until`, "set", "--limit", "send", "--key", "a,b\x1b", "--unlimited", "--for", "1d", "--reason", "test")
	command(exitDone, `key "": every request is denied`, "set", "--limit", "send", "--key", "", "--block", "--for", "1h", "--reason", "test")
	command(exitDone, "all keys: token bucket: 1 per 365d", "set", "--limit", "send", "--all-keys", "--factor", "0.5", "--for", "1h", "--reason", "test")
	list := command(exitDone, "5 adjustments, version 5", "list")
	for _, want := range []string{"factor 10", "unlimited", "block", "rate 7, capacity 9", "all keys", "ann", `a,b\x1b`} {
		if !strings.Contains(list, want) {
			t.Errorf("the list lacks %q:\n%s", want, list)
		}
	}
	explainAdjusted(t, file, adminAt)
	command(exitDone, "deleted "+id[1], "delete", id[1], "--reason", "over")
	command(exitNo, "there is no such adjustment", "delete", id[1], "--reason", "over")
	command(exitDone, "6        20", "audit", "-n", "1")
	t.Setenv("USER", "") // as in many containers
	command(exitDone, "set limit send", "set", "--limit", "send", "--key", "x", "--block", "--for", "1h", "--reason", "test")
	command(exitDone, "  admin   ", "audit", "-n", "1")
	t.Setenv("RLSIDECAR_AUTHOR", "zoe")
	command(exitDone, "set limit send", "set", "--limit", "send", "--key", "y", "--block", "--for", "1h", "--reason", "test")
	command(exitDone, "  zoe     ", "audit", "-n", "1")

	command(exitUsage, "every adjustment expires", "set", "--limit", "send", "--key", "bob", "--block", "--reason", "test")
	command(exitUsage, "identified by 1 value (user)", "set", "--limit", "send", "--block", "--for", "1h", "--reason", "test")
	command(exitUsage, `no limit is named "sned"; did you mean "send"?`, "set", "--limit", "sned", "--key", "bob", "--block", "--for", "1h", "--reason", "test")
	command(exitUsage, "--factor", "set", "--limit", "send", "--key", "bob", "--factor", "ten", "--for", "1h", "--reason", "test")
	command(exitUsage, "30 days", "set", "--limit", "send", "--key", "bob", "--factor", "10", "--for", "31d", "--reason", "test")
	command(exitFailed, "has changed the adjustments meanwhile", "set", "--limit", "send", "--key", "bob", "--factor", "10", "--for", "1d", "--reason", "test", "--expect-version", "2")
}

func explainAdjusted(t *testing.T, file, adminAt string) {
	t.Helper()
	for entries, wants := range map[string][]string{
		"user=bob": {
			"\n    token bucket: 20 per 365d, up to 20 at once\n", ": limit send of domain edge, key bob: token bucket: 20 per 365d",
			"By ann: launch\n", "not applied, because a narrower adjustment takes precedence: limit send of domain edge, all keys",
		},
		"user=zoe": {"\n    token bucket: 1 per 365d, up to 1 at once\n", ": limit send of domain edge, all keys: token bucket: 1 per 365d"},
		"user=":    {`, key "": every request is denied until`},
	} {
		var out output
		args := []string{"explain", "--config", file, "--domain", "edge", entries, "--adjusted", "--admin-listen", adminAt}
		if code := run(t.Context(), args, nil, &out, &out); code != exitDone {
			t.Errorf("%v: exit code %d, want %d", args, code, exitDone)
		}
		for _, want := range wants {
			contains(t, strings.Join(args, " "), out.String(), want)
		}
	}
}
