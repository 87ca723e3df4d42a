package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

type result struct {
	fault
	by    string // the first test that failed; empty if none did
	after time.Duration
	err   error // why the fault could not be planted
}

func (r *result) noticed() bool { return r.err == nil && r.by != "" }

func (r result) String() string {
	switch {
	case r.err != nil:
		return "NOT PLANTED: " + r.err.Error()
	case r.by == "":
		return fmt.Sprintf("NOT NOTICED by %s %s in %.0f s", strings.Join(r.Tests, " "), r.Run, r.after.Seconds())
	default:
		return fmt.Sprintf("noticed by %s after %.0f s", r.by, r.after.Seconds())
	}
}

// copyTree copies the files of the tree that git tracks, or would add, to a temporary folder. Faults are
// planted only there, so that the user's own files never change.
func copyTree(ctx context.Context, root string) (string, error) {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("git ls-files: %w", err)
	}
	folder, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(filepath.Join(folder, "tmp"), 0o700); err != nil {
		return "", err
	}
	to := filepath.Join(folder, "tree")
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(to, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", errors.Join(err, os.RemoveAll(folder))
		}
	}
	return to, nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}

// checkUnchanged runs the tests of faults on the unchanged tree. A test that fails there would seem to notice
// every fault.
func checkUnchanged(ctx context.Context, out io.Writer, tree string, faults []fault, timeout time.Duration) error {
	runs := map[string][]string{} // the patterns of tests, by package
	for _, f := range faults {
		for _, pkg := range f.Tests {
			runs[pkg] = append(runs[pkg], f.Run)
		}
	}
	for pkg, patterns := range runs {
		pattern := "" // all tests
		if !slices.Contains(patterns, "") {
			slices.Sort(patterns)
			pattern = strings.Join(slices.Compact(patterns), "|")
		}
		by, after, err := test(ctx, tree, []string{pkg}, pattern, 3*timeout)
		if err != nil {
			return fmt.Errorf("without a fault: %s: %w", pkg, err)
		}
		if by != "" {
			return fmt.Errorf("%s of %s fails without a fault", by, pkg)
		}
		fmt.Fprintf(out, "without a fault: %s passes in %.0f s\n", pkg, after.Seconds())
	}
	return ctx.Err()
}

func plant(ctx context.Context, tree string, f fault, timeout time.Duration) (r result) {
	r.fault = f
	path := filepath.Join(tree, f.File)
	was, err := os.ReadFile(path)
	if err != nil {
		r.err = err
		return r
	}
	faulty, err := f.apply(was)
	if err != nil {
		r.err = err
		return r
	}
	if r.err = os.WriteFile(path, faulty, 0o644); r.err != nil {
		return r
	}
	defer func() {
		r.err = errors.Join(r.err, os.WriteFile(path, was, 0o644))
		for _, pkg := range f.Tests { // rapid stores failing inputs, which would fail the next run
			r.err = errors.Join(r.err, os.RemoveAll(filepath.Join(tree, pkg, "testdata/rapid")))
		}
	}()
	if f.Timeout > 0 {
		timeout = f.Timeout
	}
	r.by, r.after, r.err = test(ctx, tree, f.Tests, f.Run, timeout)
	return r
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	FailedBuild                   string
}

// test runs tests until the first one fails. It returns the name of that test, or "" if all pass. An error
// means that the tests could not be built or run.
func test(ctx context.Context, tree string, packages []string, pattern string, timeout time.Duration) (by string, after time.Duration, err error) {
	started := time.Now()
	args := []string{"test", "-json", "-vet=off", "-count=1", "-failfast", "-trimpath", "-timeout", timeout.String()}
	if pattern != "" {
		args = append(args, "-run", pattern)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "TMPDIR="+filepath.Join(tree, "..", "tmp")) // removed with the copy of the tree
	end := ownGroup(cmd)
	cmd.Cancel = end
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return "", 0, err
	}
	if err := cmd.Start(); err != nil {
		return "", 0, err
	}
	by, passed, text := firstFailure(lines)
	after = time.Since(started)
	if by != "" {
		_ = end() // one failed test is enough
	}
	_, _ = io.Copy(io.Discard, lines)
	err = cmd.Wait()
	switch {
	case by != "":
		return by, after, nil
	case err != nil:
		return "", after, fmt.Errorf("%w\n%s%s", err, text, stderr.Bytes())
	case passed == 0:
		return "", after, fmt.Errorf("no test matches %q", pattern)
	}
	return "", after, nil
}

// hanging matches the name of the test that ran when go test reached its timeout.
var hanging = regexp.MustCompile(`^\t+((?:Test|Fuzz)\w*)\S* \(`)

// firstFailure reads the events of go test until a test fails or hangs. It returns the name of that test, the
// number of tests that passed before it, and the output that belongs to no test, cut at about 4 KiB.
func firstFailure(lines io.Reader) (by string, passed int, text string) {
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 16<<20)
	var outside strings.Builder
	timedOut, panicked := false, "" // panicked: the test that was running when a goroutine panicked
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) != nil {
			continue
		}
		timedOut = timedOut || strings.HasPrefix(e.Output, "panic: test timed out")
		switch name := hanging.FindStringSubmatch(e.Output); {
		case timedOut && name != nil:
			return name[1], passed, outside.String()
		case e.Action == "fail" && e.Test != "":
			by, _, _ = strings.Cut(e.Test, "/")
			return by, passed, outside.String()
		case e.Action == "fail" && panicked != "":
			by, _, _ = strings.Cut(panicked, "/")
			return by, passed, outside.String()
		case e.Action == "output" && e.Test != "" && strings.HasPrefix(e.Output, "panic: "):
			panicked = e.Test
		case e.Action == "pass" && e.Test != "":
			passed++
		case (e.Action == "output" || e.Action == "build-output") && e.Test == "" && outside.Len() < 4096:
			outside.WriteString(e.Output)
		}
	}
	return "", passed, outside.String()
}
