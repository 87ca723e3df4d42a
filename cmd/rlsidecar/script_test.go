package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// run runs the program with args.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return start(ctx, false, args, stdin, stdout, stderr)
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
		Cmds:          map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
	})
}

// exits CODE COMMAND… runs a command that must exit with CODE.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG]…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
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
