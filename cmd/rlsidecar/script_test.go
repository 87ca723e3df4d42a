package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// run runs the program with args.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return runAs(ctx, append([]string{"rlsidecar"}, args...), stdin, stdout, stderr)
}

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"rlsidecar": main,
		"ratelimit": main,
	})
}

// TestScripts runs testdata/script, which has the output of each command. UPDATE_SCRIPTS=1 writes the present output;
// commit it only if you know the reason for each change.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "eventually": eventually, "request": request, "end": end, "refused": refused,
		},
		Setup: func(e *testscript.Env) error { // TAKEN is the address of a listener, ESC and CSI characters that terminals interpret, and TOMORROW a time
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			e.Defer(func() { taken.Close() })
			e.Setenv("TAKEN", taken.Addr().String())
			e.Setenv("ESC", "\x1b")
			e.Setenv("CSI", "\u009b")
			e.Setenv("TOMORROW", time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339))
			return nil
		},
	})
}

// refused CODE TEXT [NAME=VALUE]… COMMAND… runs a command with these variables. It must exit with CODE and print TEXT to
// stderr.
func refused(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: refused CODE TEXT [NAME=VALUE]… COMMAND…")
	}
	code, text, command := args[0], args[1], args[2:]
	for name, value, is := strings.Cut(command[0], "="); is; name, value, is = strings.Cut(command[0], "=") {
		former := ts.Getenv(name)
		ts.Setenv(name, value)
		defer ts.Setenv(name, former)
		command = command[1:]
	}
	exits(ts, false, append([]string{code}, command...))
	if stderr := ts.ReadFile("stderr"); !strings.Contains(stderr, text) {
		ts.Fatalf("stderr lacks %q", text)
	}
}

// end ends the adjustment that the last command has made, with the command that it printed.
func end(ts *testscript.TestScript, neg bool, args []string) {
	id := regexp.MustCompile(`rlsidecar adjust delete (\w+)`).FindStringSubmatch(ts.ReadFile("stdout"))
	if neg || len(args) > 0 || id == nil {
		ts.Fatalf("usage: end, after adjust set")
	}
	exits(ts, false, []string{"0", "rlsidecar", "adjust", "delete", id[1], "--reason", "over"})
}

// exits CODE COMMAND… runs a command that must exit with CODE.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG]…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitCode(ts, args[1:]); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func exitCode(ts *testscript.TestScript, command []string) int {
	err := ts.Exec(command[0], command[1:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

// eventually CODE COMMAND… repeats a command until it exits with CODE.
func eventually(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	for end := time.Now().Add(time.Minute); exitCode(ts, args[1:]) != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("does not exit with %d within a minute: %v", want, args[1:])
		}
	}
}

func TestRecipes(t *testing.T) {
	files, err := filepath.Glob("../../examples/*/*.scenarios.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v, %v; want at least one file", files, err)
	}
	var out strings.Builder
	if code := run(t.Context(), append([]string{"test"}, files...), strings.NewReader(""), &out, &out); code != 0 {
		t.Errorf("exit code %d, want 0\n%s", code, &out)
	}
}

// request TIMES ENTRY=VALUE… sends requests to the HTTP listener at the socket "http", each with one descriptor.
func request(ts *testscript.TestScript, _ bool, args []string) {
	times, err := strconv.Atoi(args[0])
	ts.Check(err)
	entries, err := descriptors.Parse(strings.Join(args[1:], ","))
	ts.Check(err)
	client := server.Client("unix://" + ts.MkAbs("http"))
	for range times {
		answer, err := client.Post("http://localhost/json", "application/json", strings.NewReader(requestBody("edge", entries)))
		ts.Check(err)
		answer.Body.Close()
	}
}
