package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/server"
)

const operated = `domain: edge
limits:
  send: {algorithm: token_bucket, rate: 2, period: 365d}
  team: {algorithm: token_bucket, rate: 2, period: 365d}
  apps: {algorithm: token_bucket, rate: 2, period: 365d}
descriptors:
  - {key: user, limit: send}
  - {key: org, descriptors: [{key: plan, value: gold, limit: team}, {key: team, limit: team}]}
  - key: path
    value: /login
    descriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 1}}]
`

func TestOperatorsQueryARunningSidecar(t *testing.T) {
	dir := t.TempDir()
	httpAt, adminAt := "unix://"+filepath.Join(dir, "http"), "unix://"+filepath.Join(dir, "admin")
	x := startServe(t, "--config", write(t, operated), "--admin-token-file", write(t, "s3cret\n"), "--http-listen", httpAt, "--admin-listen", adminAt)
	decide := func(entries string) int {
		r, err := server.Client(httpAt).Post("http://localhost/json", "", strings.NewReader(`{"domain":"edge","descriptors":[{"entries":[`+entries+`]}]}`))
		if err != nil {
			return 0
		}
		defer r.Body.Close()
		return r.StatusCode
	}
	const user, login = `{"key":"user","value":"a,\u001bb"}`, `{"key":"path","value":"/login"},{"key":"ip","value":"::1"}`
	token := write(t, "s3cret\n")
	command := func(code int, want string, args ...string) {
		t.Helper()
		var out output
		got := run(t.Context(), append(args, "--admin-listen", adminAt, "--admin-token-file", token), nil, &out, &out)
		var lines []string
		for line := range strings.Lines(out.String()) {
			if !strings.HasPrefix(line, "since ") {
				lines = append(lines, strings.TrimRight(line, " \n"))
			}
		}
		if text := strings.Join(lines, "\n"); got != code || !strings.Contains(text, want) {
			t.Errorf("%v: exit code %d, output:\n%s\nwant exit code %d and:\n%s", args, got, text, code, want)
		}
	}
	command(exitDone, "no request was denied since 2", "top")
	for entries, codes := range map[string][]int{user: {200, 200, 429, 429}, login: {200, 429}} {
		for i, want := range codes {
			if code := decide(entries); code != want {
				t.Fatalf("%s, request %d: status %d, want %d", entries, i, code, want)
			}
		}
	}
	command(exitDone, `user=a\,\x1bb
1       `, "top")
	command(exitDone, "  limit  edge    path_/login.ip  path=/login,ip=::1", "top")
	command(exitDone, `"value_scale"`, "get", "--format", "json", "send", "bob")
	command(exitDone, `"why": "limit"`, "top", "-n", "1", "--format", "json")
	command(exitUsage, "n must be from 1 to 1000", "top", "-n", "1001")

	command(exitDone, "DOMAIN  LIMIT  KEY      REMAINING  OF  NEXT IN   FULL IN\nedge    send   a,\\x1bb  0          2   183 days  365 days", "get", "send", "a,\x1bb")
	command(exitDone, `reset the bucket of a,\x1bb of limit send in domain edge`, "reset", "send", "a,\x1bb")
	contains(t, "the log", x.log.String(), `a bucket was reset	{"domain": "edge", "limit": "send", "key": "a,\\x1bb"}`)
	command(exitDone, "edge    send   a,\\x1bb  2          2   now      0s", "get", "--domain", "edge", "send", "a,\x1bb")
	if code := decide(user); code != 200 {
		t.Errorf("after the reset: status %d, want 200", code)
	}
	command(exitDone, "edge    path_/login.ip  ::1  0          1   ", "get", "--domain", "edge", "--descriptor", "path=/login,ip=::1")
	command(exitDone, "reset the bucket of ::1 of limit path_/login.ip", "reset", "--domain", "edge", "--descriptor", "path=/login,ip=::1")
	if code := decide(login); code != 200 {
		t.Errorf("after the reset: status %d, want 200", code)
	}

	command(exitNo, "no limit has a bucket for this descriptor", "get", "--domain", "edge", "--descriptor", "path=/x")
	command(exitNo, "no limit has a bucket for this descriptor", "reset", "--domain", "edge", "--descriptor", "path=/x")
	command(exitNo, `no limit is named "sned"; did you mean "send"?`, "get", "sned")

	for _, verb := range []string{"get", "reset"} { // the number of values of a key must fit a descriptor; no descriptor uses apps, so any number fits
		const send, team = "a bucket of this limit is identified by 1 value (user)", "a bucket of this limit is identified by 1 value (org) or by 2 values (org, team)"
		command(exitUsage, `limit "send": the key has no value; `+send, verb, "send")
		command(exitUsage, `limit "send": the key has 2 values; `+send, verb, "send", "bob", "eve")
		command(exitUsage, `limit "team": the key has no value; `+team, verb, "team")
		command(exitUsage, `limit "team": the key has 3 values; `+team, verb, "--domain", "edge", "team", "acme", "red", "x")
		for _, key := range [][]string{{"team", "acme"}, {"team", "acme", "red"}, {"apps"}, {"apps", "x"}} {
			command(exitDone, key[0], append([]string{verb}, key...)...)
		}
	}
	command(exitUsage, "name a limit and its key", "get")
	command(exitUsage, "name a limit and its key", "reset", "send", "--descriptor", "a=b")
	command(exitUsage, "needs a domain", "get", "--descriptor", "a=b")

	wrong := func(want string, args ...string) {
		t.Helper()
		var out output
		if code := run(t.Context(), args, nil, &out, &out); code != exitFailed || !strings.Contains(out.String(), want) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s", args, code, exitFailed, want, out.String())
		}
	}
	file := write(t, "s3cret\n")
	var listed output
	if code := run(t.Context(), []string{"top", "--admin-listen", adminAt, "--admin-token-file", file}, nil, &listed, &listed); code != exitDone || !strings.HasPrefix(listed.String(), "since ") {
		t.Errorf("a token from a file: exit code %d, want %d\n%s", code, exitDone, listed.String())
	}
	t.Setenv("RLSIDECAR_ADMIN_TOKEN", "s3cret")
	command(exitUsage, "two tokens are given", "top")
	t.Setenv("RLSIDECAR_ADMIN_TOKEN", "")
	wrong("is empty", "top", "--admin-listen", adminAt, "--admin-token-file", write(t, ""))
	wrong("give --admin-token-file", "top", "--admin-listen", adminAt)
	wrong("is this rlsidecar's admin listener?", "top", "--admin-listen", httpAt)
	wrong("is a sidecar running there?", "top", "--admin-listen", "unix://"+filepath.Join(dir, "none"))
	var out output
	if code := run(t.Context(), []string{"top", "--admin-listen", ""}, nil, &out, &out); code != exitUsage {
		t.Errorf("exit code %d, want %d\n%s", code, exitUsage, out.String())
	}
}
