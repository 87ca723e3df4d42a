// Command mutation tests the tests. It plants the faults of faults/*.yaml, one at a time, into a copy of the
// tree. For each it runs the tests that should notice the fault, and reports which test failed first and after
// how long. The command fails if a fault is not noticed, if a file does not contain the text that a fault
// replaces exactly once, or if a test fails without a fault.
//
//	go run ./test/mutation              all faults (an hour and more)
//	go run ./test/mutation -run lease   only faults whose area, description or file matches
//	go run ./test/mutation -new         only faults without a row in docs/trust.md
//	go run ./test/mutation -write       also write the rows of the planted faults to docs/trust.md, even if interrupted
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	pattern := flag.String("run", "", "plant only the faults whose area, description or file matches this `pattern`")
	fresh := flag.Bool("new", false, "plant only the faults without a row in docs/trust.md")
	write := flag.Bool("write", false, "write the results to the table in docs/trust.md")
	timeout := flag.Duration("timeout", 5*time.Minute, "how long the tests of one fault may take; a test that hangs for longer counts as one that notices the fault")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, ".", os.Stdout, options{*pattern, *fresh, *write, *timeout}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	pattern    string
	new, write bool
	timeout    time.Duration
}

func run(ctx context.Context, root string, out io.Writer, opts options) (err error) {
	page := filepath.Join(root, "docs/trust.md")
	all, err := load(filepath.Join(root, "test/mutation/faults"))
	if err != nil {
		return err
	}
	rows, err := rowsOf(page, all)
	if err != nil {
		return err
	}
	chosen, err := choose(all, opts.pattern)
	if err != nil {
		return err
	}
	if opts.new {
		chosen = slices.DeleteFunc(chosen, func(f fault) bool { return rows[rowOf(f)] != "" })
	}
	tree, err := copyTree(ctx, root)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(tree))
	if err := checkUnchanged(ctx, out, tree, chosen, opts.timeout); err != nil {
		return err
	}
	var results []result
	var wrong []string
	if opts.write {
		defer func() { err = errors.Join(err, writeTable(page, all, results, time.Now())) }()
	}
	for i, f := range chosen {
		r := plant(ctx, tree, f, opts.timeout)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(out, "%3d/%d %s\n        %s\n", i+1, len(chosen), f, r)
		if !r.noticed() {
			wrong = append(wrong, fmt.Sprintf("%s: %s", f, r))
		}
		results = append(results, r)
	}
	fmt.Fprintf(out, "%d faults planted, %d noticed\n", len(results), len(results)-len(wrong))
	if len(wrong) > 0 {
		return fmt.Errorf("these faults were not noticed or not planted:\n  %s", strings.Join(wrong, "\n  "))
	}
	return nil
}

func choose(all []fault, pattern string) ([]fault, error) {
	re, err := regexp.Compile("(?i)" + pattern)
	if err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(f fault) bool {
		return !re.MatchString(f.Area) && !re.MatchString(f.Fault) && !re.MatchString(f.File)
	})
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no fault matches %q", pattern)
	}
	return chosen, nil
}
