package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/offline/scenario"
)

type testCmd struct {
	Files   []string `arg:"" name:"file" help:"File with scenarios."`
	Only    string   `name:"run" placeholder:"REGEXP" help:"Run only scenarios whose names match."`
	Verbose bool     `short:"v" help:"Also print the scenarios that pass."`
	configSettings
}

func (testCmd) Help() string {
	return `A scenario is a list of steps. A step is a request at a time, with the expected answer.
Time is virtual, and each scenario starts with new buckets. docs/scenarios.md describes
the format.

Example:

  rlsidecar test chat.yaml

where chat.yaml is

  config: limits.yaml
  scenarios:
    - name: a user may send twenty messages at once, then ten a minute
      steps:
        - {at: 0s, domain: edge, descriptors: ["user_id=bob"], times: 20, expect: ok}
        - {at: 0s, domain: edge, descriptors: ["user_id=bob"], expect: {ok: false, retry_after: 6s}}
        - {at: 6s, domain: edge, descriptors: ["user_id=bob"], expect: ok}`
}

func (c *testCmd) Run(a *app) error {
	only, err := regexp.Compile(c.Only)
	if err != nil {
		return exitError{exitUsage, fmt.Errorf("--run: %w", err)}
	}
	t := &testRun{app: a, cmd: c, only: only}
	for _, name := range c.Files {
		if err := t.file(name); err != nil {
			return err
		}
	}
	verdict := "ok"
	if t.failed > 0 || t.faulty > 0 {
		verdict = "FAIL"
	}
	fmt.Fprintf(a.stdout, "%s: %s passed, %d failed\n", verdict, count(t.passed, "scenario"), t.failed)
	switch {
	case t.faulty > 0, t.failed > 0:
		return exitError{code: exitNo}
	case t.passed == 0:
		return exitError{exitNo, errors.New("no scenario was run; check the files and --run")}
	default:
		return nil
	}
}

type testRun struct {
	app    *app
	cmd    *testCmd
	only   *regexp.Regexp
	passed int
	failed int
	faulty int // the number of files that contain mistakes
}

// file runs the scenarios of one file. It prints mistakes in the file. An error ends the command.
func (t *testRun) file(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f, problems := scenario.Parse(name, data)
	if f == nil {
		t.print(problems)
		t.faulty++
		return nil
	}
	snapshot, err := t.load(name, f.Configs)
	if err != nil || snapshot == nil {
		return err
	}
	for i := range f.Scenarios {
		if s := &f.Scenarios[i]; t.only.MatchString(s.Name) {
			t.scenario(name, s, snapshot)
		}
	}
	return nil
}

// load loads the configuration that the scenario file called name states. paths are relative to that file. If the
// configuration has mistakes, load prints and counts them, and returns nil.
func (t *testRun) load(name string, paths []string) (*limiter.Snapshot, error) {
	var full []string
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(name), path)
		}
		full = append(full, path)
	}
	if err := readable(full); err != nil {
		return nil, err
	}
	snapshot, problems := config.Load(full, t.cmd.options())
	if snapshot == nil {
		t.print(problems)
		t.faulty++
	}
	return snapshot, nil
}

func (t *testRun) print(problems config.Problems) {
	for _, p := range problems {
		fmt.Fprintln(t.app.stdout, p)
	}
}

func (t *testRun) scenario(file string, s *scenario.Scenario, snapshot *limiter.Snapshot) {
	failures := s.Run(t.app.ctx, snapshot)
	if len(failures) == 0 {
		t.passed++
		if t.cmd.Verbose {
			fmt.Fprintf(t.app.stdout, "--- PASS: %s\n", s.Name)
		}
		return
	}
	t.failed++
	fmt.Fprintf(t.app.stdout, "--- FAIL: %s (%s:%d)\n", s.Name, file, s.Place.Line)
	for _, f := range failures {
		fmt.Fprintf(t.app.stdout, "    %s:%d:%d: %s\n", file, f.Place.Line, f.Place.Column, f.Message)
	}
}
