package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/offline/scenario"
)

type testCmd struct {
	Files   []string `arg:"" name:"file" help:"File with scenarios."`
	Only    string   `name:"run" placeholder:"REGEXP" help:"Run only scenarios whose names match."`
	Verbose bool     `short:"v" help:"Also print the scenarios that pass."`
	Format  string   `enum:"text,json,junit" default:"text" help:"Format of the output: text, json, or junit for CI systems."`
	configSettings
}

func (testCmd) Help() string {
	return `A scenario is a list of steps. A step is a request at a time, with the expected answer.
Time is virtual, and each scenario starts with new buckets. docs/scenarios.md describes
the format.

Example:

  rlsidecar test chat.yaml
  rlsidecar test --format junit chat.yaml > report.xml

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
	t := &testRun{app: a, cmd: c, only: only, tested: tested{Files: []*testedFile{}, Verbose: c.Verbose}}
	for _, name := range c.Files {
		if err := t.file(name); err != nil {
			return err
		}
	}
	switch c.Format {
	case "json":
		err = writeJSON(a.stdout, t.tested)
	case "junit":
		err = t.writeJUnit(a.stdout)
	default:
		err = writeText(a.stdout, t.tested, testedText)
	}
	switch {
	case err != nil:
		return err
	case t.Failed > 0, t.Faulty > 0:
		return exitError{code: exitNo}
	case t.Passed == 0:
		return exitError{exitNo, errors.New("no scenario was run; check the files and --run")}
	default:
		return nil
	}
}

// tested has the results of all files.
type tested struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	// Faulty is the number of files that contain mistakes.
	Faulty  int           `json:"faulty_files"`
	Files   []*testedFile `json:"files"`
	Verbose bool          `json:"-"`
}

type testedFile struct {
	Name      string           `json:"file"`
	Mistakes  []string         `json:"mistakes,omitempty"`
	Scenarios []testedScenario `json:"scenarios,omitempty"`
}

type testedScenario struct {
	Name string `json:"name"`
	Line int    `json:"line"`
	// Failures has a line for each wrong answer. It is empty if the scenario has passed.
	Failures []string `json:"failures,omitempty"`
}

type testRun struct {
	app  *app
	cmd  *testCmd
	only *regexp.Regexp
	tested
}

// file runs the scenarios of one file. An error ends the command.
func (t *testRun) file(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	out := &testedFile{Name: name}
	t.Files = append(t.Files, out)
	f, problems := scenario.Parse(name, data)
	if f == nil {
		t.faulty(out, problems)
		return nil
	}
	snapshot, err := t.load(out, f.Configs)
	if err != nil || snapshot == nil {
		return err
	}
	for i := range f.Scenarios {
		if s := &f.Scenarios[i]; t.only.MatchString(s.Name) {
			t.scenario(out, s, snapshot)
		}
	}
	return nil
}

// load loads the configuration of a file with scenarios. paths are relative to that file. If the configuration has
// mistakes, load counts them, and returns nil.
func (t *testRun) load(out *testedFile, paths []string) (*limiter.Snapshot, error) {
	var full []string
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(out.Name), path)
		}
		full = append(full, path)
	}
	if err := readable(full); err != nil {
		return nil, err
	}
	snapshot, problems := config.Load(full, t.cmd.options())
	if snapshot == nil {
		t.faulty(out, problems)
	}
	return snapshot, nil
}

func (t *testRun) faulty(out *testedFile, problems config.Problems) {
	t.Faulty++
	for _, p := range problems {
		out.Mistakes = append(out.Mistakes, p.String())
	}
}

func (t *testRun) scenario(out *testedFile, s *scenario.Scenario, snapshot *limiter.Snapshot) {
	result := testedScenario{Name: s.Name, Line: s.Place.Line}
	for _, f := range s.Run(t.app.ctx, snapshot) {
		result.Failures = append(result.Failures, fmt.Sprintf("%s:%d:%d: %s", out.Name, f.Place.Line, f.Place.Column, f.Message))
	}
	if len(result.Failures) == 0 {
		t.Passed++
	} else {
		t.Failed++
	}
	out.Scenarios = append(out.Scenarios, result)
}

const testedText = `{{range $file := .Files}}
{{range .Mistakes}}
{{.}}
{{end}}
{{range .Scenarios}}
{{if .Failures}}
--- FAIL: {{.Name}} ({{$file.Name}}:{{.Line}})
{{range .Failures}}
    {{.}}
{{end}}
{{else if $.Verbose}}
--- PASS: {{.Name}}
{{end}}
{{end}}
{{end}}
{{if or .Failed .Faulty}}FAIL{{else}}ok{{end}}: {{count .Passed "scenario"}} passed, {{.Failed}} failed
`

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string     `xml:"name,attr"`
	Class   string     `xml:"classname,attr"`
	Failure *junitText `xml:"failure"`
	Error   *junitText `xml:"error"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// writeJUnit writes a suite for each file, in the form that CI systems read.
func (t *tested) writeJUnit(w io.Writer) error {
	var all struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	text := func(lines []string) *junitText { return &junitText{lines[0], strings.Join(lines, "\n")} }
	for _, f := range t.Files {
		suite := junitSuite{Name: f.Name, Tests: len(f.Scenarios)}
		if len(f.Mistakes) > 0 {
			suite.Tests, suite.Errors = 1, 1
			suite.Cases = []junitCase{{Name: "mistakes", Class: f.Name, Error: text(f.Mistakes)}}
		}
		for _, s := range f.Scenarios {
			one := junitCase{Name: s.Name, Class: f.Name}
			if len(s.Failures) > 0 {
				one.Failure = text(s.Failures)
				suite.Failures++
			}
			suite.Cases = append(suite.Cases, one)
		}
		all.Suites = append(all.Suites, suite)
	}
	out, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, out)
	return err
}
