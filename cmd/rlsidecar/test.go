package main

import (
	"encoding/xml"
	"errors"
	"fmt"
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
		err = writeText(a.stdout, t.tested, junitText)
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
	// Failed is the number of scenarios that have failed. Broken is 1 if the file contains mistakes.
	Failed, Broken int `json:"-"`
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
	snapshot, problems := config.Load(full, t.cmd.options(t.app.reference))
	if snapshot == nil {
		t.faulty(out, problems)
	}
	return snapshot, nil
}

func (t *testRun) faulty(out *testedFile, problems config.Problems) {
	t.Faulty++
	out.Broken = 1
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
		out.Failed++
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

// junitText has a suite for each file, in the form that CI systems read.
const junitText = xml.Header + `<testsuites>
{{range $file := .Files}}
  <testsuite name="{{xml .Name}}" tests="{{or .Broken (len .Scenarios)}}" failures="{{.Failed}}" errors="{{.Broken}}">
{{with .Mistakes}}
    <testcase name="mistakes" classname="{{xml $file.Name}}">
      <error message="{{xml (index . 0)}}">{{xml (lines .)}}</error>
    </testcase>
{{end}}
{{range .Scenarios}}
    <testcase name="{{xml .Name}}" classname="{{xml $file.Name}}">{{with .Failures}}
      <failure message="{{xml (index . 0)}}">{{xml (lines .)}}</failure>
    {{end}}</testcase>
{{end}}
  </testsuite>
{{end}}
</testsuites>
`

func escapeXML(text string) (string, error) {
	var out strings.Builder
	err := xml.EscapeText(&out, []byte(text))
	return out.String(), err
}
